"""What is blamed for slow links, which findings explain others, and what was seen on the devices."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import replace
from itertools import permutations

import pytest

from collbench.judge.diagnose.blame import Blame, UnhealthyDevices, blames, together, unhealthy_devices
from collbench.judge.diagnose.readings import Facts
from collbench.judge.diagnose.verdict import Cause, Kind, Link, Verdict, both_ways, explained
from collbench.model.operations import Operation, Variant, Work
from collbench.model.run import Flag, Health, Run
from collbench.sim import fabrics
from collbench.sim.fabrics import Fault, FaultKind
from tests.builders import ALL, gpus, hot, measured, paths, run_of, shared, throttled
from tests.judge.checked import faults, flagged, h200
from tests.sim.made import simulate

Labels = dict[tuple[int, int], str]


def every(n: int) -> list[Link]:
    return [*permutations(range(n), 2)]


def blamed(slow: Collection[Link], judged: Collection[Link], n: int = 4, but: Labels | None = None) -> list[Blame]:
    return list(blames(Facts(run_of(gpus(n), [], paths(n, "NV18", but))), slow, judged))


@pytest.mark.parametrize(
    ("links", "members", "place"),
    [
        ([(1, 3), (3, 1)], (1, 3), "GPU1-GPU3"),
        ([(3, 1)], (3, 1), "GPU3 → GPU1"),
        ([(1, 3), (2, 3)], (1, 2, 3), "2 PHB pairs (one direction each)"),
    ],
)
def test_links_of_one_pair_together_have_its_name(links: list[Link], members: tuple[int, ...], place: str) -> None:
    blame = together(Facts(run_of(gpus(4), [], paths(4, "PHB"))), frozenset(links), everything=False)
    assert (blame.members, blame.place) == (members, place)


WAY, PATH = "only one direction of this path", "only this path"
ROW = [(2, other) for other in (0, 1, 3)]
COLUMN = [(other, 2) for other in (0, 1, 3)]


@pytest.mark.parametrize(
    ("title", "slow", "members", "where", "alone"),
    [
        ("nothing", [], [], [], []),
        ("one way", [(3, 1)], [(3, 1)], ["GPU3 → GPU1"], [WAY]),
        ("a pair", [(3, 1), (1, 3)], [(1, 3)], ["GPU1-GPU3"], [PATH]),
        ("all of a GPU", [*ROW, *COLUMN], [(2,)], ["all links of GPU2"], [""]),
        ("all that it sends", ROW, [(2,)], ["all links from GPU2"], [""]),
        ("all that it receives", COLUMN, [(2,)], ["all links to GPU2"], [""]),
        ("nearly all that it sends", ROW[:2], [(2, 0), (2, 1)], ["GPU2 → GPU0", "GPU2 → GPU1"], [WAY] * 2),
        (
            "all that it sends, and a link more",
            [*ROW, (0, 1)],
            [(2,), (0, 1)],
            ["all links from GPU2", "GPU0 → GPU1"],
            ["", WAY],
        ),
        ("everything", every(4), [(0, 1, 2, 3)], ["all 6 NV18 pairs"], [""]),
        (
            "everything one way",
            [(a, b) for a, b in every(4) if a < b],
            [(0,), (3,), (1, 2)],
            ["all links from GPU0", "all links to GPU3", "GPU1 → GPU2"],
            ["", "", WAY],
        ),
    ],
)
def test_whom_slow_links_blame(
    title: str, slow: list[Link], members: list[tuple[int, ...]], where: list[str], alone: list[str]
) -> None:
    groups = blamed(slow, every(4))
    assert [group.members for group in groups] == members
    assert ([group.place for group in groups], [group.only for group in groups]) == (where, alone)
    assert {link for group in groups for link in group.links} == set(slow)
    assert sum(len(group.links) for group in groups) == len(slow)  # no link twice
    assert [group.gpu for group in groups] == [one.members[0] if len(one.members) == 1 else None for one in groups]


def test_the_gpu_with_most_slow_links_is_blamed_first() -> None:
    """All that GPU 4 sends is slow, and all of GPU 2's links."""
    slow = {(4, other) for other in range(4)} | {link for link in every(5) if 2 in link}
    groups = blamed(slow, every(5), 5)
    assert [(group.members, group.place, len(group.links)) for group in groups] == [
        ((2,), "all links of GPU2", 8),
        ((4,), "all links from GPU4", 3),
    ]


def test_a_single_link_that_could_be_slow_blames_no_gpu() -> None:
    assert [one.place for one in blamed([(0, 1)], [(0, 1), (1, 0)], 2)] == ["GPU0 → GPU1"]
    assert [one.place for one in blamed([(0, 1)], [(0, 1)], 2)] == ["GPU0 → GPU1"]
    assert [one.place for one in blamed([(0, 1), (1, 0)], [(0, 1), (1, 0)], 2)] == ["GPU0-GPU1"]
    assert [one.place for one in blamed([(0, 1)], [(0, 1), (2, 3), (3, 2)])] == ["GPU0 → GPU1"]


def test_gpus_whose_slow_links_are_all_anothers_are_not_blamed() -> None:
    slow = both_ways((a, b) for a in (0, 1) for b in (2, 3, 4))
    assert [one.place for one in blamed(slow, slow | {(5, 6)}, 7)] == ["all links of GPU0", "all links of GPU1"]


@pytest.mark.parametrize("count", [4, 5])
def test_many_single_links_share_a_cause(count: int) -> None:
    slow = [(a, a + 6) for a in range(count)]
    groups = blamed(slow, every(12), 12)
    if count == 4:
        assert [group.members for group in groups] == slow
    else:
        (only,) = groups
        assert only.members == (0, 1, 2, 3, 4, 6, 7, 8, 9, 10)
        assert (only.place, only.gpu, only.only) == ("5 NV18 pairs (one direction each)", None, "")
        (both,) = blamed(both_ways(slow), every(12), 12)
        assert both.place == "5 NV18 pairs"


def test_nvlinks_and_pcie_of_a_gpu_are_different_wires() -> None:
    but = {(2, 3): "PIX", (0, 3): "PHB", (1, 3): "PHB"}
    groups = blamed([*ROW, *COLUMN], every(4), but=but)
    assert [(group.members, group.place) for group in groups] == [((2,), "all NVLinks of GPU2"), ((2, 3), "GPU2-GPU3")]
    (over_pcie,) = blamed([link for link in every(4) if 3 in link], every(4), but=but)
    assert over_pcie.place == "all 3 PHB and PIX pairs"


def finding(kind: Kind, links: Collection[Link], *, seen: bool = False) -> Verdict:
    return Verdict(kind, (0,), "", "", Cause("", str(kind) if seen else "", seen=seen), links=frozenset(links))


PAIR = [(0, 1), (1, 0)]


@pytest.mark.parametrize(
    ("title", "findings", "standing"),
    [
        (
            "a degraded link explains an outlier on it",
            [finding(Kind.INTRA_LABEL_OUTLIER, PAIR), finding(Kind.NV_DEGRADED, PAIR)],
            [(Kind.NV_DEGRADED, (Kind.INTRA_LABEL_OUTLIER,))],
        ),
        (
            "one way explains both",
            [finding(Kind.NV_DEGRADED, [(0, 1)]), finding(Kind.ASYMMETRY, [(1, 0)])],
            [(Kind.NV_DEGRADED, (Kind.ASYMMETRY,))],
        ),
        (
            "not one that is wider",
            [finding(Kind.NV_DEGRADED, PAIR), finding(Kind.ASYMMETRY, [(1, 0), (0, 2)])],
            [(Kind.NV_DEGRADED, ()), (Kind.ASYMMETRY, ())],
        ),
        (
            "nor one without links",
            [finding(Kind.HANG, PAIR), finding(Kind.FAILED, [])],
            [(Kind.HANG, ()), (Kind.FAILED, ())],
        ),
        (
            "what is explained explains nothing",
            [finding(Kind.INTRA_LABEL_OUTLIER, PAIR), finding(Kind.HANG, PAIR), finding(Kind.NV_DEGRADED, PAIR)],
            [(Kind.HANG, (Kind.NV_DEGRADED, Kind.INTRA_LABEL_OUTLIER))],
        ),
        (
            "two of a kind are named once, and not the strong one's own",
            [finding(Kind.INTRA_LABEL_OUTLIER, PAIR)] * 3,
            [(Kind.INTRA_LABEL_OUTLIER, ())],
        ),
        (
            "a collective's own cause was seen, whoever else was there",
            [finding(Kind.CONTENTION, PAIR), finding(Kind.COLLECTIVE_CONTRADICTION, PAIR, seen=True)],
            [(Kind.CONTENTION, ()), (Kind.COLLECTIVE_CONTRADICTION, ())],
        ),
        (
            "it was not",
            [finding(Kind.CONTENTION, PAIR), finding(Kind.COLLECTIVE_CONTRADICTION, PAIR)],
            [(Kind.CONTENTION, (Kind.COLLECTIVE_CONTRADICTION,))],
        ),
        (
            "a link's cause is its own",
            [finding(Kind.CONTENTION, PAIR), finding(Kind.NV_DEGRADED, PAIR, seen=True)],
            [(Kind.CONTENTION, (Kind.NV_DEGRADED,))],
        ),
        (
            "a hang explains a variable's doing",
            [finding(Kind.HANG, PAIR), finding(Kind.NV_NOT_USED, PAIR, seen=True)],
            [(Kind.HANG, (Kind.NV_NOT_USED,))],
        ),
        (
            "other labels explain nothing",
            [finding(Kind.LABELS_DIFFER, PAIR), finding(Kind.INTRA_LABEL_OUTLIER, PAIR)],
            [(Kind.INTRA_LABEL_OUTLIER, ()), (Kind.LABELS_DIFFER, ())],
        ),
    ],
)
def test_one_cause_is_one_verdict(
    title: str, findings: list[Verdict], standing: list[tuple[Kind, tuple[Kind, ...]]]
) -> None:
    assert [(one.kind, one.explains) for one in explained(findings)] == standing


def watched(
    flags: tuple[Flag, ...] = (), before: tuple[Health, ...] = (), after: tuple[Health, ...] = ()
) -> UnhealthyDevices:
    """Return what was seen in a run of two data points of two trials, the first with these flags."""
    run: Run = run_of(gpus(3), [measured(Operation.CE_WRITE, link, 400.0, trials=2) for link in ((0, 1), (1, 2))])
    samples = run.measurements[0].samples
    samples[0] = replace(samples[0], flags=flags)
    return unhealthy_devices(Facts(replace(run, health_before=before, health_after=after)))


def throttling(gpu: int, reasons: str, when: str) -> Cause:
    fix = f"nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER -i {gpu}"
    return Cause("throttled", f"GPU{gpu} was throttled ({reasons}) {when}", fix, (gpu,), seen=True)


def errors(gpu: int, count: int) -> Cause:
    fix = f"nvidia-smi nvlink -e -i {gpu}"
    return Cause("new_errors", f"{count} new NVLink errors on GPU{gpu}", fix, (gpu,), seen=True)


def unhealthy(causes: dict[int, Cause], others: dict[int, str]) -> UnhealthyDevices:
    return replace(watched(), causes=causes, shared=others)


NONE = unhealthy({}, {})


@pytest.mark.parametrize(
    ("title", "seen", "expected"),
    [
        ("nothing", watched(), NONE),
        ("somebody's process", watched((shared(1),)), unhealthy({}, {1: "in 1 of 4 trials"})),
        ("reported twice of one trial", watched((shared(1), shared(1))), unhealthy({}, {1: "in 1 of 4 trials"})),
        (
            "throttled",
            watched((throttled(2, "HW slowdown"),)),
            unhealthy({2: throttling(2, "HW slowdown", "in 1 of 4 trials")}, {}),
        ),
        ("clocks that somebody set", watched((throttled(2, "applications clocks setting"),)), NONE),
        ("hot", watched((hot(2, 95),)), NONE),
        (
            "what trials reported goes before health",
            watched((shared(0),), before=(Health(processes=1),)),
            unhealthy({}, {0: "in 1 of 4 trials"}),
        ),
        (
            "health, before and after",
            watched(
                before=(Health(throttle=("SW power cap", "HW slowdown")), Health()),
                after=(Health(throttle=("SW power cap",)), Health(processes=2)),
            ),
            unhealthy({0: throttling(0, "SW power cap, HW slowdown", "before measuring")}, {1: "after measuring"}),
        ),
        (
            "a process that has only opened it",
            watched((shared(0),), before=(Health(processes=1, others_memory=526 * 2**20, utilization=2),)),
            NONE,
        ),
        (
            "counters that grew, the first of a device",
            watched(
                before=(Health(nvlink_errors=1, ecc_errors=0), Health(nvlink_replays=5), Health(ecc_errors=None)),
                after=(Health(nvlink_errors=4, ecc_errors=9), Health(nvlink_replays=5), Health(ecc_errors=3)),
            ),
            unhealthy({0: errors(0, 3)}, {}),
        ),
        ("a counter that began anew", watched(before=(Health(ecc_errors=5),), after=(Health(ecc_errors=0),)), NONE),
        ("one that is gone", watched(before=(Health(ecc_errors=0),), after=(Health(),)), NONE),
        ("more states than devices", watched(before=(*[Health()] * 3, Health(processes=1))), NONE),
    ],
)
def test_what_was_seen_on_the_devices(title: str, seen: UnhealthyDevices, expected: UnhealthyDevices) -> None:
    assert (seen.causes, seen.shared) == (expected.causes, expected.shared)


def test_the_cause_is_of_the_first_device_throttling_before_errors() -> None:
    before, after = (tuple(Health(nvlink_errors=count) for _ in range(3)) for count in (1, 2))
    seen = watched((throttled(1, "hot"), throttled(2, "capped")), before, after)
    assert [seen.cause((gpu,)) for gpu in range(3)] == [
        errors(0, 1),
        *(throttling(gpu, reason, "in 1 of 4 trials") for gpu, reason in ((1, "hot"), (2, "capped"))),
    ]
    assert seen.cause((3,)) is None
    assert seen.cause((3, 1, 0)) == seen.cause((1,))
    together = seen.cause((2, 1))
    assert together is not None
    assert (together.text, together.devices) == ("GPU1, GPU2 were throttled", (1, 2))
    assert seen.cause((0, 1)) == errors(0, 1)


@pytest.mark.parametrize(
    ("fabric", "factor"),
    [*((fabric, 0.5) for fabric in fabrics.names()), ("dgx-1v", 0.2), ("pcie-4-two-bridges", 0.8)],
)
def test_a_throttled_gpu_is_the_one_cause_of_all_of_its_slow_links(fabric: str, factor: float) -> None:
    machine = fabrics.load(fabric)
    gpu = random.Random(fabric).randrange(len(machine.gpus))
    slowed = Fault(FaultKind.THROTTLED_GPU, (gpu,), factor=factor, words="HW slowdown")
    asked = replace(ALL, backend="sim", sizes=(2**26,), command=("pairs",))
    found = faults(simulate(replace(machine, faults=(slowed,)), asked, 1))
    assert len(found) == (len(machine.gpus) > 2 or found != []), found  # two GPUs have no others to be compared with
    for verdict in found:
        assert (verdict.cause.name, verdict.cause.devices) == ("throttled", (gpu,))
        assert verdict.kind is not Kind.NV_NOT_USED or len(machine.gpus) == 2


def test_a_throttled_gpu_is_no_excuse_where_no_gpu_uses_its_nvlinks() -> None:
    run = flagged(h200(lambda work, _members: 0.07 if work.variant is Variant.PLAIN else 1.0), throttled(2))
    assert Kind.NV_NOT_USED in [verdict.kind for verdict in faults(run)]


def test_the_label_of_a_verdict_is_that_of_its_figures() -> None:
    """All links of one GPU of a DGX-1V are slow, of which some are NV1 and some NV2."""
    machine = fabrics.load("dgx-1v")
    slowed = Fault(FaultKind.SLOW_GPU, (1,), factor=0.9)
    asked = replace(ALL, backend="sim", sizes=(2**26,), command=("pairs",))
    run = simulate(replace(machine, faults=(slowed,)), asked, 1)
    for verdict in faults(run):
        assert f" GB/s of the best {verdict.label} links (" in verdict.text
        assert verdict.measured is not None
        low, _, high = verdict.measured
        assert high < 1.2 * low
        assert high < float(verdict.text.split(" GB/s")[0].split()[-1]) < 1.2 * high


def with_shares(shares: dict[Link, float]) -> list[tuple[Kind, tuple[int, ...]]]:
    """Return the faults of a machine whose links reach these shares of their rates, and NCCL that of the slower way."""

    def share(work: Work, members: tuple[int, ...]) -> float:
        if len(members) == 1 or work.variant is not Variant.PLAIN:
            return 1.0
        ways = [members, members[::-1]] if work.operation.is_collective else [members]
        return min(shares.get((way[0], way[1]), 1.0) for way in ways)

    return [(verdict.kind, verdict.members) for verdict in faults(h200(share))]


def test_a_link_slower_than_its_opposite_is_named_beside_the_gpu_that_slows_both() -> None:
    found = with_shares(dict.fromkeys(both_ways((other, 3) for other in range(3)), 0.95) | {(0, 3): 0.82})
    assert found == [(Kind.ASYMMETRY, (0, 3)), (Kind.INTRA_LABEL_OUTLIER, (3,))]


def test_a_pair_slow_both_ways_is_named_beside_the_port_that_slows_one_of_them() -> None:
    found = with_shares({(1, 0): 0.86 * 0.94, (2, 0): 0.86, (3, 0): 0.86, (0, 1): 0.94})
    assert found == [(Kind.ASYMMETRY, (0,)), (Kind.INTRA_LABEL_OUTLIER, (0, 1))]
