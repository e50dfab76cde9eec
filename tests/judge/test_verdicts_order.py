"""Links against their like and labels against each other, at the border of what noise allows."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations

import pytest

from collbench.judge.diagnose import Kind, Severity, judge
from collbench.judge.diagnose.links import link_state
from collbench.judge.diagnose.readings import Facts
from collbench.model.operations import Operation, Variant, Work
from collbench.model.run import Run
from tests.builders import gpus, measured, pair_run, paths, run_of
from tests.judge.checked import Members, Rate, faults, h200, pcie, run_on, the, trials, what

WRITE = Work(Operation.CE_WRITE)
INVERTED, OUTLYING = math.log(1.1), 0.025


def written(labels: dict[Members, str], rate: Rate) -> Run:
    """Return a run of plain writes alone between four GPUs over PCIe."""
    run = pcie(labels, rate)
    return replace(run, measurements=[found for found in run.measurements if found.point.work == WRITE])


def errors(run: Run) -> tuple[float, dict[str, float]]:
    """Return how many errors a bound lies off, and the error of each label's readings."""
    readings = Facts(run).readings
    return readings.z, {reading.label: reading.error for reading in readings.points}


@pytest.mark.parametrize("spread", [0.0, 0.05])
@pytest.mark.parametrize(("beyond", "found"), [(-1e-4, False), (1e-4, True)])
def test_a_better_label_is_beaten_beyond_ten_percent_and_the_error_of_two_medians(
    spread: float, beyond: float, found: bool
) -> None:
    """A median of n has 1.2533 σ / √n; links that truly differ, by a median deviation of s, have σ = 1.4826 s."""

    def made(gap: float) -> Run:
        def rate(_work: Work, members: Members) -> float:
            if set(members) == {0, 1}:
                return 22 * math.exp(-gap)
            side = 1 if sum(members) % 2 else -1  # as many on either side
            return 22 * math.exp(0.0 if set(members) == {2, 3} else side * spread)

        return written({(0, 1): "PIX", (2, 3): "SYS"}, rate)

    z, error = errors(made(0.2))
    ours = math.hypot(
        1.2533 * error["PIX"] / math.sqrt(2), 1.2533 * math.hypot(error["PHB"], 1.4826 * spread) / math.sqrt(8)
    )
    border = INVERTED + z * ours
    verdicts = [v for v in judge(made(border + beyond)) if v.kind is Kind.ORDER_INVERSION and "PHB pairs" in what(v)]
    assert bool(verdicts) is found


def test_a_variable_explains_labels_that_only_nccl_inverts() -> None:
    """Through host memory pairs below one switch share its uplink: NCCL reaches half of a copy."""

    def rate(work: Work, members: Members) -> float:
        return 12.0 if work.operation.is_collective and set(members) in ({0, 1}, {2, 3}) else 22.0

    run = pcie({(0, 1): "PIX", (2, 3): "PIX"}, rate)
    disabled = replace(run, settings=replace(run.settings, environment={"NCCL_P2P_DISABLE": "1"}))
    for judged, cause in ((run, "uplink_shared"), (disabled, "NCCL_P2P_DISABLE")):
        inverted = [verdict for verdict in judge(judged) if verdict.kind is Kind.ORDER_INVERSION]
        assert {verdict.cause.name for verdict in inverted} == {cause}


def test_labels_are_compared_between_equal_products() -> None:
    """GPU0 is half as fast as the others, so two of three PIX pairs are, and one of three SYS pairs."""
    devices = list(gpus(4, "NVIDIA A40"))
    devices[0] = replace(devices[0], name="Tesla T4", pcie_generation=3)

    def run(pix: float) -> Run:
        found = [
            measured(Operation.ALLREDUCE, pair, (9.0 if 0 in pair else 18.0) * (pix if 3 not in pair else 1.0))
            for pair in combinations(range(4), 2)
        ]
        return run_of(devices, found, paths(4, "PIX", dict.fromkeys(((0, 3), (1, 3), (2, 3)), "SYS")))

    assert [verdict.kind for verdict in faults(run(1.0))] == []
    assert [verdict.kind for verdict in faults(run(0.8))] == [Kind.ORDER_INVERSION]


def test_a_slow_gpu_is_why_its_better_label_is_slower() -> None:
    """GPU0 has one neighbor on its socket, and copies with host memory show that it is slow itself."""

    def rate(work: Work, members: Members) -> float:
        return (20.0 if 0 in members else 24.0) * (0.8 if work.operation.is_collective else 1.0)

    devices = [replace(gpu, name="Tesla T4" if gpu.index != 1 else "NVIDIA A40") for gpu in gpus(4)]
    but = dict.fromkeys(((0, 1), (2, 3)), "PHB")
    links = tuple(replace(path, theory_gbs=31.5) for path in paths(4, "SYS", but))
    (verdict,) = faults(run_on(devices, links, rate, slot=(4, 16)))
    assert (verdict.kind, verdict.cause.name, verdict.cause.devices) == (Kind.ORDER_INVERSION, "gpu", (0,))


def test_one_link_of_a_worse_label_has_its_own_error() -> None:
    labels = {(0, 1): "PIX", (0, 2): "SYS"}
    for beyond, found in ((-1e-4, False), (1e-4, True)):

        def made(gap: float) -> Run:
            links = (path for path in paths(3, "PHB", {(0, 1): "PIX"}) if path.devices != (1, 2))
            rates = {(0, 1): 22 * math.exp(-gap), (0, 2): 22.0}
            return run_of(gpus(3), [trials(WRITE, members, rate) for members, rate in rates.items()], tuple(links))

        z, error = errors(made(0.2))
        gap = INVERTED + z * math.hypot(error["PIX"], error["PHB"]) + beyond
        assert (Kind.ORDER_INVERSION in [v.kind for v in judge(made(gap))]) is found, labels


@pytest.mark.parametrize("collective", [False, True])
def test_copies_and_collectives_invert_labels(collective: bool) -> None:
    """Of collectives alone, and of copies alone."""

    def rate(work: Work, members: Members) -> float:
        return 15.0 if set(members) == {0, 1} and work.operation.is_collective is collective else 22.0

    verdict = the(pcie({(0, 1): "PIX"}, rate), Kind.ORDER_INVERSION)
    assert ("allreduce" in what(verdict), "ce-write" in what(verdict)) == (collective, not collective)


@pytest.mark.parametrize(
    ("title", "better", "slow", "members"),
    [
        ("one switch of two", [(0, 1), (2, 3)], [(0, 1)], [(0, 1)]),
        ("the other", [(0, 1), (2, 3)], [(2, 3)], [(2, 3)]),
        ("all that a switch joins", [(0, 1), (1, 2)], [(0, 1), (1, 2)], [(0, 1, 2)]),
        ("two that a later link joins", [(0, 1), (2, 3), (1, 2)], [(0, 1), (2, 3), (1, 2)], [(0, 1, 2, 3)]),
    ],
)
def test_what_a_better_label_joins_is_judged_together(
    title: str, better: list[Members], slow: list[Members], members: list[Members]
) -> None:
    run = written(dict.fromkeys(better, "PIX"), lambda _w, m: 15.0 if tuple(sorted(m)) in slow else 22.0)
    inverted = [v for v in judge(run) if v.kind is Kind.ORDER_INVERSION]
    assert [v.members for v in inverted] == members
    others = len(better) > len(slow)
    assert {v.cause.name for v in inverted} == {"path_alone" if others else "uplink_shared"}


def test_copies_and_nccl_of_one_inverted_pair_are_one_verdict() -> None:
    """NCCL's gap is the wider one, and the rates are its: the copies of the pair, which are slow too, are the same."""

    def rate(work: Work, members: Members) -> float:
        slow, nccl = {*members} == {0, 1}, work.operation.is_collective
        return (7.0 if nccl else 10.0) if slow else 22.0

    run = pcie({(0, 1): "PIX", (2, 3): "PIX"}, rate)
    run = replace(run, measurements=[m for m in run.measurements if m.point.variant is Variant.PLAIN])
    (verdict,) = (v for v in judge(run) if v.severity is not Severity.INFO)
    assert (verdict.kind, verdict.members) == (Kind.ORDER_INVERSION, (0, 1))
    assert Kind.INTRA_LABEL_OUTLIER in verdict.explains


def test_on_slots_alike_a_better_label_has_no_excuse() -> None:
    verdict = the(written({(0, 1): "PIX"}, lambda _w, m: 25.0 if set(m) == {0, 1} else 30.0), Kind.ORDER_INVERSION)
    assert "reach 17% less than the 30.0 GB/s of PHB pairs" in what(verdict)


def test_nvlinks_that_pcie_beats_are_not_used() -> None:
    run = pair_run(4, lambda a, b: 5.0 if (a, b) == (0, 1) else 10.0, paths(4, "SYS", {(0, 1): "NV1"}))
    (verdict,) = (v for v in judge(run) if v.kind is Kind.ORDER_INVERSION)
    assert verdict.cause.name == "nvlinks_of_label_unused"


def test_nvlinks_whose_copies_are_well_are_used_and_nccl_takes_another_path() -> None:
    def rate(work: Work, members: Members) -> float:
        bridged = set(members) == {0, 1}
        return (14.0 if bridged else 18.0) if work.operation.is_collective else 27.0 if bridged else 24.0

    run = pcie({(0, 1): "NV2"}, rate, theory=28.0)
    paths_of_run = tuple(replace(path, nvlinks=2 * (path.label == "NV2")) for path in run.paths)
    found = [one for one in judge(replace(run, paths=paths_of_run)) if one.kind is Kind.ORDER_INVERSION]
    assert {verdict.cause.name for verdict in found} == {"nccl_path"}


def test_the_way_back_is_compared_only_where_it_may_be() -> None:
    """What ran beside others over PCIe, or was not measured, is slower or missing for reasons of its own."""
    run = written({}, lambda _w, m: 11.0 if m == (0, 1) else 22.0)
    assert [v.members for v in faults(run)] == [(0, 1)]
    for slow in ((0, 1), (1, 0)):
        busy = [
            replace(found, samples=[replace(sample, concurrent=True) for sample in found.samples])
            if found.point.members == slow
            else found
            for found in run.measurements
        ]
        assert Kind.ASYMMETRY not in [v.kind for v in judge(replace(run, measurements=busy))]
    half = [found for found in run.measurements if found.point.members != (1, 0)]
    assert Kind.ASYMMETRY not in [v.kind for v in judge(replace(run, measurements=half))]


@pytest.mark.parametrize(("share", "works"), [(1.2, "(ce-read, ce-write, sm-read, sm-write)"), (0.8, None)])
def test_small_gaps_of_all_copies_are_surer_together(share: float, works: str | None) -> None:
    """Each of four gaps reaches half of its own error beyond the threshold, or a little more or less."""
    z, error = errors(h200())
    gap = OUTLYING + share * z * error["NV18"] / 2
    run = h200(lambda work, m: math.exp(-gap) if work.operation.is_copy and set(m) == {0, 1} else 1.0)
    plain = [found for found in run.measurements if found.point.work.operation.is_copy]
    found = [v for v in judge(replace(run, measurements=plain)) if v.kind is Kind.INTRA_LABEL_OUTLIER]
    assert [works in what(v) if works else True for v in found] == ([True] if works else [])


@pytest.mark.parametrize(("beyond", "found"), [(-1e-4, False), (1e-4, True)])
def test_an_outlier_is_below_what_noise_lifts_the_others_upper_quartile_by(beyond: float, found: bool) -> None:
    """Five equal pairs and one below: their upper quartile is 0.6745 errors above the middle of equals."""
    rates = dict.fromkeys(combinations(range(4), 2), 326.0)

    def made(gap: float) -> Run:
        some = rates | {(1, 2): 326 * math.exp(-gap)}
        return run_of(gpus(4), [trials(Work(Operation.ALLREDUCE), pair, gbs) for pair, gbs in some.items()])

    z, error = errors(made(0.0))
    one = error["NV18"]
    gap = OUTLYING + 0.6745 * one + z * math.hypot(one, one / math.sqrt(6))
    assert (Kind.INTRA_LABEL_OUTLIER in [v.kind for v in judge(made(gap + beyond))]) is found


def test_a_best_link_without_equals_is_what_the_others_are_held_to() -> None:
    rates = {(0, 1): 326.0, (0, 2): 310.0, (1, 2): 280.0}
    found = faults(pair_run(3, lambda a, b: rates[a, b]))
    assert [(v.members, what(v).split(": ")[1].split(" below")[0]) for v in found] == [((2,), "up to 14%")]


@pytest.mark.parametrize(("beyond", "found"), [(-1e-5, False), (1e-5, True)])
def test_of_two_links_one_is_an_outlier_where_they_are_no_equals(beyond: float, found: bool) -> None:
    """Then the best stands for itself, and nothing lifts it."""

    def made(gap: float) -> Run:
        rates = {(0, 1): 326.0, (0, 2): 326 * math.exp(-gap)}
        return run_of(gpus(3), [trials(Work(Operation.ALLREDUCE), pair, gbs) for pair, gbs in rates.items()])

    z, error = errors(made(0.0))
    gap = OUTLYING + z * math.hypot(error["NV18"], error["NV18"])
    assert [v.members for v in judge(made(gap + beyond))] == ([(0, 2)] if found else [])


@pytest.mark.parametrize(
    ("title", "backend", "label", "bus", "command"),
    [
        ("NVLinks", "cuda", "NV18", True, "nvidia-smi nvlink -s -i 0,1; "),
        (
            "PCIe",
            "cuda",
            "PHB",
            True,
            "sudo lspci -vvv -s 0000:01:00.0 | grep LnkSta:; sudo lspci -vvv -s 0000:02:00.0",
        ),
        ("slots that nobody named", "cuda", "PHB", False, "sudo lspci -vvv | grep -e NVIDIA"),
        ("cores", "host", "PHB", True, "lscpu -e"),
    ],
)
def test_how_a_links_wires_are_looked_at(title: str, backend: str, label: str, bus: bool, command: str) -> None:
    devices = gpus(2) if bus else tuple(replace(gpu, pci_bus_id="") for gpu in gpus(2))
    facts = Facts(run_of(devices, [], paths(2, label), backend=backend))
    assert link_state(facts, (0, 1)).startswith(command)


@pytest.mark.parametrize("bus", [":0", "0000:", "0000:01:00.0; reboot", "zz:01:00.0", "0000:01:00"])
def test_a_slot_that_a_file_has_wrong_is_no_part_of_a_command(bus: str) -> None:
    devices = tuple(replace(gpu, pci_bus_id=bus) for gpu in gpus(2))
    facts = Facts(run_of(devices, [], paths(2, "PHB")))
    assert link_state(facts, (0, 1)) == "sudo lspci -vvv | grep -e NVIDIA -e LnkSta"
