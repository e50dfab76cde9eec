"""A run against figures of healthy machines: normal, below, above, undecided, unknown."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, permutations

import numpy as np
import pytest

from collbench.judge.physics import Nvls, impossible, nvls
from collbench.judge.references import Answers, Figure, Reference, ReferenceVerdict, judge, load
from collbench.judge.stats import median_deviation, summarize, trial_noise
from collbench.model.errors import ExitStatus, FailureKind
from collbench.model.operations import Operation, Registration, Variant
from collbench.model.run import Layout, Measurement, Run
from tests.builders import GIB, gpus, in_words, measured, paths, run_of
from tests.judge.checked import h200
from tests.judge.runs import recorded

FIGURES = load()


def eight(rates: Sequence[float], size: int = GIB, name: str = "NVIDIA H200") -> Run:
    """Return an all-reduce over eight GPUs on which NVLS is possible."""
    run = run_of(gpus(8, name), [measured(Operation.ALLREDUCE, range(8), [r / 1.75 for r in rates], size=size)])
    run.machine = replace(run.machine, multicast=True)
    return run


def off(run: Run) -> Run:
    run.settings.environment["NCCL_NVLS_ENABLE"] = "0"
    return run


def uint8(run: Run) -> Run:
    """Return the run with sums of integers, which the NVSwitch cannot form."""
    run.settings = replace(run.settings, dtype="uint8")
    return run


def in_windows(run: Run) -> Run:
    """Return the run with buffers that NCCL knows as symmetric windows."""
    for measurement in run.measurements:
        measurement.point = replace(measurement.point, registration=Registration.WINDOW)
    return run


def standings(answers: Answers) -> list[tuple[str, ReferenceVerdict]]:
    return [("asked" if answer.figure.at_least else "measured", answer.standing) for answer in answers.answers]


# Published: 463.58 and 467.58 at 1G with NVLS; Oracle asks for 440 from 1G on. The band is 440.4 to 491.0.
@pytest.mark.parametrize(
    ("title", "rates", "measured_", "asked"),
    [
        ("as published", [465.0] * 5, ReferenceVerdict.NORMAL, ReferenceVerdict.NORMAL),
        ("a ring's rate", [365.0] * 5, ReferenceVerdict.BELOW, ReferenceVerdict.BELOW),
        ("more than anybody has seen", [560.0] * 5, ReferenceVerdict.ABOVE, ReferenceVerdict.NORMAL),
        (
            "just below, by noisy trials",
            [380.0, 430.0, 460.0, 420.0, 455.0],
            ReferenceVerdict.UNDECIDED,
            ReferenceVerdict.UNDECIDED,
        ),
        ("two trials", [300.0] * 2, ReferenceVerdict.UNDECIDED, ReferenceVerdict.UNDECIDED),
    ],
)
def test_eight_h200_at_1g(
    title: str, rates: Sequence[float], measured_: ReferenceVerdict, asked: ReferenceVerdict
) -> None:
    assert dict(standings(judge(eight(rates), FIGURES))) == {"measured": measured_, "asked": asked}


def test_nvls_off_is_said_and_nothing_is_below_for_it() -> None:
    answers = judge(off(eight([365.0] * 5)), FIGURES)
    assert {(answer.figure.nvls, answer.mismatch) for answer in answers.answers} == {("on", Nvls.OFF)}
    assert {answer.standing for answer in answers.answers} == {ReferenceVerdict.UNDECIDED}
    assert not answers.below


def test_a_figure_of_the_same_nvls_goes_before_another() -> None:
    """At 8G there are published figures for both: 473 to 480 with NVLS, 365.6 without."""
    answers = judge(off(eight([366.0] * 5, 2**33)), FIGURES)
    assert [(answer.figure.nvls, answer.standing) for answer in answers.answers] == [("off", ReferenceVerdict.NORMAL)]


@pytest.mark.parametrize(
    ("setting", "multicast", "state"),
    [("0", True, Nvls.OFF), (None, False, Nvls.OFF), (None, True, Nvls.POSSIBLE), (None, None, Nvls.UNKNOWN)],
)
def test_what_a_run_tells_of_nvls(setting: str | None, multicast: bool | None, state: Nvls) -> None:
    run = eight([400.0] * 3)
    run.machine = replace(run.machine, multicast=multicast)
    run.settings.environment.update({} if setting is None else {"NCCL_NVLS_ENABLE": setting})
    assert nvls(run) is state


@pytest.mark.parametrize(
    ("title", "run", "known"),
    [
        ("a kind that nobody published", eight([100.0] * 5, name="NVIDIA L40S"), False),
        ("cores", replace(eight([1.0] * 5, name="AMD EPYC"), backend="host"), False),
        ("another H200: NVL", eight([100.0] * 5, name="NVIDIA H200 NVL"), False),
        ("a size that nobody published", eight([100.0] * 5, size=2**19), True),
        ("integers", uint8(eight([350.0] * 5)), True),
        ("registered memory", in_windows(eight([465.0] * 5)), True),
    ],
)
def test_what_is_unknown_is_not_judged(title: str, run: Run, known: bool) -> None:
    answers = judge(run, FIGURES)
    assert (answers.answers, answers.known, answers.below) == ((), known, False)
    assert [(one.work.operation, one.ranks) for one in answers.unknown] == [(Operation.ALLREDUCE, 8)]


def test_gpus_of_two_kinds_have_no_figure() -> None:
    run = eight([465.0] * 5)
    run.devices = (*run.devices[:7], replace(run.devices[7], name="NVIDIA H100 80GB HBM3"))
    assert not judge(run, FIGURES).known


def test_host_memory_counts_on_its_best_node() -> None:
    figure = Figure("H200", "kind", "", Operation.H2D_CE, 1, (1, GIB), "so", "there", Variant.HOST, measured=(55.0,))
    far, near = measured(Operation.H2D_CE, (0,), 20.0), measured(Operation.H2D_CE, (0,), 55.0)
    for node, found in enumerate((far, near)):
        found.point = replace(found.point, variant=Variant.HOST, numa_node=node)
    (answer,) = judge(run_of(gpus(1), [far, near]), [figure]).answers
    assert answer.standing is ReferenceVerdict.NORMAL
    assert [place.gbs for place in answer.sets] == pytest.approx([55.0])


@pytest.mark.parametrize("name", ["2xh200/pairs.json", "4xh200-peers/pairs.json", "4xh200/allreduce.json"])
def test_recorded_h200_are_normal(name: str) -> None:
    answers = judge(recorded(f"2026-11-21-{name}"), FIGURES)
    assert {answer.standing for answer in answers.answers} == {ReferenceVerdict.NORMAL}
    assert len(answers.answers) == (1 if name.endswith("allreduce.json") else 3)


def test_a_run_that_beats_physics_is_normal_in_nothing_that_does() -> None:
    """One to all, the copy engine writes 1187 of 450 GB/s. No limit shows that one way and both ways are wrong, too."""
    answers = judge(recorded("2026-11-21-4xh200-peers/copies.json"), FIGURES)
    assert {answer.standing for answer in answers.answers} == {ReferenceVerdict.NOT_JUDGED}
    assert all(answer.impossible for answer in answers.answers)


def copied(rates: dict[Variant, float], size: int = 2**26) -> list[Measurement]:
    """Return the copy engine's writes: one way on each link at 395 GB/s and 512M, patterns at a message's rates."""
    plain = [measured(Operation.CE_WRITE, pair, [395.0] * 3, size=2**29) for pair in permutations(range(4), 2)]
    others = [measured(Operation.CE_WRITE, (0, 1, 2, 3), [rate] * 3, size=size) for rate in rates.values()]
    for found, variant in zip(others, rates, strict=True):
        found.point = replace(found.point, variant=variant)
    return [*plain, *others]


@pytest.mark.parametrize(
    ("title", "rates", "size", "standing"),
    [
        ("nothing beats a limit", {Variant.ONE_TO_ALL: 130.0}, 2**29, ReferenceVerdict.NORMAL),
        ("another pattern does", {Variant.ONE_TO_ALL: 395.6}, 2**29, ReferenceVerdict.NOT_JUDGED),
        ("another pattern does, at another size", {Variant.ONE_TO_ALL: 395.6}, 2**26, ReferenceVerdict.NORMAL),
    ],
)
def test_only_the_same_operation_and_size_is_not_judged(
    title: str, rates: dict[Variant, float], size: int, standing: ReferenceVerdict
) -> None:
    run = run_of(gpus(4), copied(rates, size), h200().paths)
    assert {answer.standing for answer in judge(run, FIGURES).answers} == {standing}
    assert bool(impossible(run)) is (395.6 in rates.values())


def test_h200_without_p2p_are_below_in_nccl_alone() -> None:
    answers = judge(recorded("2026-11-21-4xh200-judging/runs.tar.gz:no-p2p.json"), FIGURES)
    below = {answer.figure.operation for answer in answers.answers if answer.standing is ReferenceVerdict.BELOW}
    normal = {answer.figure.operation for answer in answers.answers if answer.standing is ReferenceVerdict.NORMAL}
    assert below == {Operation.ALLREDUCE}
    assert normal == {Operation.CE_WRITE, Operation.CE_READ}


def all_reduces(rates: dict[int, float]) -> Run:
    """Return an all-reduce over eight H200 at several sizes; NVLS is possible."""
    sizes = [measured(Operation.ALLREDUCE, range(8), [rate / 1.75] * 3, size=size) for size, rate in rates.items()]
    run = run_of(gpus(8, "NVIDIA H200"), sizes)
    run.machine = replace(run.machine, multicast=True)
    return run


def test_the_size_of_which_most_sources_speak_decides() -> None:
    """Three sources have figures for 1G, two for 8G and two for 64M; the bands are those of their values."""
    found = judge(all_reduces({2**26: 300.0, GIB: 465.0, 2**33: 478.0}), FIGURES)
    (answer,) = [answer for answer in found.answers if not answer.figure.at_least]
    assert (answer.size_bytes, len(answer.reference.sources), answer.standing) == (GIB, 3, ReferenceVerdict.NORMAL)
    (answer,) = judge(all_reduces({2**26: 300.0}), FIGURES).answers
    assert (answer.size_bytes, answer.standing) == (2**26, ReferenceVerdict.BELOW)
    assert answer.reference.band == pytest.approx((0.95 * 367.43, 1.05 * 368.11))


def test_one_source_of_pcie_calls_no_collective_below() -> None:
    run = run_of(gpus(8, "NVIDIA GeForce RTX 5090"), [measured(Operation.ALLREDUCE, range(8), [10.0] * 3)])
    run.paths = paths(8, but=dict.fromkeys(combinations(range(8), 2), "PHB"))
    (answer,) = judge(run, FIGURES).answers
    assert ({one.standing for one in answer.sets}, answer.standing) == (
        {ReferenceVerdict.BELOW},
        ReferenceVerdict.UNDECIDED,
    )


COPY = Figure("H200", "kind", "NV18", Operation.CE_WRITE, 2, (GIB, 2 * GIB), "so", "there", at_least=390.0)


def copies(rates: Sequence[float], size: int = GIB, links: int = 6) -> Run:
    """Return copies over some links of three GPUs, each with these rates in GB/s."""
    found = [measured(Operation.CE_WRITE, link, rates, size) for link in [*permutations(range(3), 2)][:links]]
    return run_of(gpus(3), found)


def test_normal_is_what_is_shown_not_to_be_below() -> None:
    """Another run of these copies may be 0.1% slower: at the lower end itself nothing is shown, above it something."""
    run = copies([400.0] * 3)
    gbs = summarize(run.measurements[0]).busbw
    upper = replace(COPY, at_least=None, measured=(gbs / 1.05,))
    assert Reference((upper,), GIB).band[1] == gbs
    for figure, standing in (
        (replace(COPY, at_least=gbs), ReferenceVerdict.UNDECIDED),
        (replace(COPY, at_least=gbs * 0.997), ReferenceVerdict.NORMAL),
        (upper, ReferenceVerdict.NORMAL),
    ):
        (answer,) = judge(run, [figure]).answers
        assert answer.standing is standing


@pytest.mark.parametrize("sigma", [0.01, 0.05])
def test_a_pair_below_its_band_is_hardly_ever_normal(sigma: float) -> None:
    """200 machines have one link 2% below the band; before this rule 41 of those with σ = 5% were normal."""
    rng = np.random.default_rng(5)
    normal = 0
    for _ in range(200):
        trials = 390 * 0.98 * np.exp(sigma * rng.standard_normal(7))
        (answer,) = judge(copies(trials.tolist(), links=1), [COPY]).answers
        normal += answer.standing is ReferenceVerdict.NORMAL
    assert normal <= 200 * 0.025 + 3


NOISY = [math.exp(0.01 * step) for step in (0, 4, 1, 3, 2)]


@pytest.mark.parametrize("links", [1, 2])
@pytest.mark.parametrize(("side", "standing"), [(-1, ReferenceVerdict.BELOW), (1, ReferenceVerdict.ABOVE)])
def test_only_a_whole_interval_outside_the_band_is_certain(links: int, side: int, standing: ReferenceVerdict) -> None:
    """All places together err in one of a hundred runs; noise is pooled over the links."""
    run = copies([400 * rate for rate in NOISY], links=links)
    gbs = summarize(run.measurements[0]).busbw
    error = trial_noise([[math.log(rate) for rate in NOISY]]) * median_deviation(5)
    from scipy.stats import t  # late: it takes a second

    between = 0.001  # of a large copy by engine, from run to run, with 10 degrees of freedom
    total = error**2 + between**2
    freedom = total**2 / (error**4 / (0.5 * 4 * links) + between**4 / 10)
    far = float(t.ppf(1 - 0.01 / links / 2, freedom)) * math.sqrt(total)
    for nearer, expected in ((1.001, standing), (0.999, ReferenceVerdict.UNDECIDED)):
        end = gbs * math.exp(-side * far * nearer)
        band = COPY if side < 0 else replace(COPY, at_least=None, measured=(end / 1.05,))
        figure = replace(band, at_least=end) if side < 0 else band
        (answer,) = judge(run, [figure]).answers
        assert {place.standing for place in answer.sets} == {expected}
        assert len(answer.sets) == links


@pytest.mark.parametrize(
    ("title", "run", "below", "judged", "status"),
    [
        ("normal", copies([400.5] * 3), False, True, ExitStatus.DONE),
        ("below", copies([300.0] * 3), True, True, ExitStatus.CONTRADICTION),
        ("undecided", copies([300.0] * 2), False, False, ExitStatus.FAILED),
        ("two trials within the band", copies([500.0] * 2), False, False, ExitStatus.FAILED),
        ("no figure speaks of it", copies([400.0] * 3, size=GIB // 2), False, False, ExitStatus.FAILED),
    ],
)
def test_how_a_judgement_ends(title: str, run: Run, below: bool, judged: bool, status: ExitStatus) -> None:
    found = judge(run, [COPY])
    assert (found.below, found.judged, found.status) == (below, judged, status)


@pytest.mark.parametrize(
    ("title", "members", "labels", "named"),
    [
        ("a link of its kind", (2, 1), {}, True),
        ("a link of another label", (2, 1), {(1, 2): "SYS"}, False),
        ("all three", (0, 1, 2), {}, False),
    ],
)
def test_a_place_of_its_kind_that_failed_is_named_and_nothing_normal(
    title: str, members: tuple[int, ...], labels: dict[tuple[int, int], str], named: bool
) -> None:
    bad = measured(Operation.ALLREDUCE, members, 300.0)
    bad = replace(bad, failure=in_words("no answer", FailureKind.ERROR), samples=[])
    run = copies([400.5] * 3)
    run = replace(run, measurements=[*run.measurements, bad], paths=paths(3, but=labels))
    found = judge(run, [COPY])
    (answer,) = found.answers
    assert answer.failed == ((tuple(sorted(members)),) if named else ())
    assert answer.standing is (ReferenceVerdict.FAILED if named else ReferenceVerdict.NORMAL)
    assert [one.labels for one in found.unjudged] == ([(("SYS", 2),)] if labels else [])
    assert (found.judged, found.status) == (not named, ExitStatus.FAILED)


@pytest.mark.parametrize(
    ("title", "sizes", "judged"),
    [
        ("the largest that it covers", (GIB, 2 * GIB, 4 * GIB), 2 * GIB),
        ("the smallest", (GIB // 2, GIB), GIB),
        ("none of them", (GIB // 2, 4 * GIB), None),
    ],
)
def test_a_figure_speaks_for_its_sizes(title: str, sizes: tuple[int, ...], judged: int | None) -> None:
    points = [measured(Operation.CE_WRITE, (0, 1), 400.5, size) for size in sizes]
    found = judge(run_of(gpus(2), points), [COPY])
    assert [answer.size_bytes for answer in found.answers] == ([judged] if judged else [])
    assert [one.others for one in found.unknown] == ([] if judged else [(COPY,)])


def test_figures_of_other_works_members_and_variants_are_no_help() -> None:
    others = [
        replace(COPY, operation=Operation.CE_READ),
        replace(COPY, ranks=3),
        replace(COPY, variant=Variant.BOTH_WAYS),
        replace(COPY, gpus="H100"),
    ]
    found = judge(copies([400.0] * 3, size=GIB // 2), [*others, COPY])
    assert [one.others for one in found.unknown] == [(COPY,)]


@pytest.mark.parametrize(
    ("title", "links", "labels", "judged", "total", "strange"),
    [
        ("all", 6, {}, 6, 6, ()),
        ("one of six links", 1, {}, 1, 6, ()),
        ("five", 5, {}, 5, 6, ()),
        ("a pair with four links less", 6, {(1, 2): "NV14"}, 4, 6, (("NV14", 2),)),
        ("two such", 6, {(1, 2): "NV14", (0, 2): "PHB"}, 2, 6, (("NV14", 2), ("PHB", 2))),
        ("a label without a figure that was not measured either", 5, {(1, 2): "SYS"}, 4, 5, (("SYS", 1),)),
    ],
)
def test_what_no_figure_judges_is_counted_and_no_run_is_normal_in_part(
    title: str, links: int, labels: dict[tuple[int, int], str], judged: int, total: int, strange: tuple[object, ...]
) -> None:
    found = judge(replace(copies([400.5] * 3, links=links), paths=paths(3, but=labels)), [COPY])
    counted = [(one.judged, one.total, one.labels) for one in found.unjudged]
    assert counted == ([] if judged == 6 else [(judged, total, strange)]), title
    assert found.status is (ExitStatus.DONE if judged == 6 else ExitStatus.FAILED)


def test_figures_of_two_labels_judge_a_machine_together() -> None:
    run = replace(copies([400.5] * 3), paths=paths(3, but={(1, 2): "NV14"}))
    found = judge(run, [COPY, replace(COPY, links="NV14")])
    assert (len(found.answers), found.unjudged, found.status) == (2, (), ExitStatus.DONE)


@pytest.mark.parametrize("gone", range(1, 28, 5))
@pytest.mark.parametrize("layout", [Layout.PAIRS, Layout.SPLIT])
def test_a_run_without_some_pairs_is_normal_only_if_pairs_were_chosen(gone: int, layout: Layout) -> None:
    pairs = random.Random(gone).sample([*combinations(range(8), 2)], 28 - gone)
    run = run_of(gpus(8), [measured(Operation.ALLREDUCE, pair, 326.5) for pair in pairs])
    run.settings = replace(run.settings, layout=layout)
    found = judge(run, FIGURES)
    assert [one.judged for one in found.unjudged] == ([28 - gone] if layout is Layout.PAIRS else [])
    assert found.status is (ExitStatus.FAILED if layout is Layout.PAIRS else ExitStatus.DONE)
