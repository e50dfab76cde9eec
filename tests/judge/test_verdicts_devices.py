"""Other people's processes, PCIe slots, peer access that does not pay, and pairs that disturb each other."""

import math
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from collbench.judge.diagnose import Diagnosis, Kind, judge
from collbench.judge.diagnose.readings import Facts
from collbench.model.operations import Operation, Variant, Work
from collbench.model.run import Health, Measurement, Members, Run
from collbench.model.units import figure
from collbench.report import verdicts
from collbench.report.html import content
from collbench.report.ranking import pairs_page
from collbench.runfile import run_file
from tests.builders import nvml_says, shared, smi_says, throttled
from tests.judge.checked import HOST, STAGED, faults, flagged, h200, pcie, slow, the, trials, what, with_check
from tests.report.pages import text

KEPT = Path(__file__).parents[2] / "benchmarks/results/2026-11-21-4xh200-judging/runs.tar.gz"
ROW = [(3, other) for other in (0, 1, 2)] + [(other, 3) for other in (0, 1, 2)]


def test_a_foreign_process_is_contention_and_explains_its_gpus_slow_links() -> None:
    run = flagged(h200(slow(ROW, 0.5)), shared(3))
    verdict = the(run, Kind.CONTENTION)
    assert verdict.members == (3,)
    assert "on GPU3 in " in what(verdict)
    assert verdict.fix == "nvidia-smi -i 3 --query-compute-apps=pid,name,used_memory --format=csv"
    assert {Kind.NV_DEGRADED, Kind.ASYMMETRY} & set(verdict.explains) == {Kind.NV_DEGRADED}


@pytest.mark.parametrize("gpus_below", [(2,), (1, 2)])
def test_where_a_job_computes_no_slot_is_blamed_for_copies_with_host_memory(gpus_below: Members) -> None:
    """NVLinks join all GPUs, so these copies cross no link; a GPU without the job keeps its slot's verdict."""
    run = flagged(h200(lambda work, ends: 0.5 if work in HOST and ends[0] in gpus_below else 1.0), shared(2))
    contention, *others = faults(run)
    assert (contention.kind, contention.members) == (Kind.CONTENTION, (2,))
    assert contention.explains == (Kind.INTRA_LABEL_OUTLIER,)
    assert [(v.kind, v.members) for v in others] == [(Kind.INTRA_LABEL_OUTLIER, (1,))] * (len(gpus_below) - 1)


@pytest.mark.parametrize("when", ["before", "after"])
def test_processes_that_only_health_saw(when: str) -> None:
    states = tuple(Health(processes=int(gpu == 1)) for gpu in range(4))
    run = replace(h200(), **{f"health_{when}": states})  # type: ignore[arg-type]
    verdict = the(run, Kind.CONTENTION)
    assert (verdict.members, what(verdict)) == ((1,), f"another process was on GPU1 {when} measuring.")


def test_a_process_that_has_only_opened_a_gpu_is_not_blamed() -> None:
    """As torch does on an NVSwitch machine: it copies between GPUs 0 and 1, and opens all four [4 × H200]."""
    run = flagged(flagged(h200(), shared(0)), shared(2))
    works = Health(processes=1, others_memory=782 * 2**20, utilization=99)
    rests = Health(processes=1, others_memory=526 * 2**20, utilization=2)
    states = (works, Health(), rests, Health())
    assert the(replace(run, health_before=states), Kind.CONTENTION).members == (0,)


def test_both_ends_of_a_kept_job_that_copies_are_shared_and_no_link_is_blamed() -> None:
    """A job copied from GPU0 to GPU1: NVML counted 98% of GPU0 and 0% of GPU1, where the job held as much memory.

    Its raw rates: of copies from GPU0 66% of others', of those into GPU1 52%, of all other links 99% to 100%.
    """
    with tarfile.open(KEPT) as archive:
        kept = archive.extractfile("busy.json")
        assert kept is not None
        run = run_file.loads(kept.read().decode(), "busy.json")
    assert [state.utilization for state in run.health_before] == [98, 0, 1, 2]
    assert [(v.kind, v.members) for v in faults(run)] == [(Kind.CONTENTION, (0, 1))]
    rests = replace(run, health_before=tuple(replace(one, utilization=0) for one in run.health_before))
    assert (Kind.NV_DEGRADED, (1,)) in [(v.kind, v.members) for v in faults(rests)]


@pytest.mark.parametrize(
    ("case", "links", "found"),
    [
        ("copies to the other process's memory", "out into", {(Kind.CONTENTION, (0, 1))}),
        ("copies from there", "into out", {(Kind.CONTENTION, (0, 1))}),
        ("ports in one direction: nobody copies between them", "into into", {(Kind.NV_DEGRADED, (1,))}),
        ("one GPU's ports only", "none into", {(Kind.NV_DEGRADED, (1,))}),
        ("one path", "out path", {(Kind.NV_DEGRADED, (1, 2))}),
    ],
)
def test_an_idle_process_beside_a_busy_one_explains_only_the_other_end_of_its_copies(
    case: str, links: str, found: set[tuple[Kind, tuple[int, ...]]]
) -> None:
    """GPU0 is busy, and a process holds memory of GPU1 without utilization."""
    others = {0: (1, 2, 3), 1: (0, 2, 3)}
    slowed = []
    for gpu, which in zip((0, 1), links.split(), strict=True):
        out, into = [(gpu, other) for other in others[gpu]], [(other, gpu) for other in others[gpu]]
        slowed += {"out": out, "into": into, "none": [], "path": [(1, 2), (2, 1)]}[which]
    run = h200(slow(slowed, 0.5))
    for gpu in (0, 1):
        run = flagged(run, shared(gpu))
    held = Health(processes=1, others_memory=784 * 2**20, utilization=0)
    run = replace(run, health_before=(replace(held, utilization=98), held, Health(), Health()))
    verdicts = {(v.kind, v.members) for v in faults(run)}
    assert found <= verdicts, case
    assert (Kind.CONTENTION, (0, 1)) in found or (Kind.CONTENTION, (0,)) in verdicts, case


def test_nvlinks_that_slow_each_other_down() -> None:
    verdict = the(with_check(h200(), Operation.CE_WRITE, "NV18", 0.6), Kind.CONTENTION)
    assert "concurrently they reach 0.60 of their isolated rate (ce-write)" in what(verdict)
    assert (verdict.label, verdict.members) == ("NV18", (0, 1, 2, 3))


@pytest.mark.parametrize(
    ("case", "label", "ratio", "found"),
    [
        ("PHB pairs share the host bridge, as the label says", "PHB", 0.5, False),
        ("pairs below one bridge share nothing", "PIX", 0.5, True),
        ("the interference check's own tolerance", "PIX", 0.99, False),
    ],
)
def test_pcie_paths_share_what_their_labels_name(case: str, label: str, ratio: float, found: bool) -> None:
    run = pcie({(0, 1): "PIX", (2, 3): "PIX"}, lambda _w, _m: 22.0)
    run = with_check(run, Operation.CE_WRITE, label, ratio)
    assert ([v.kind for v in faults(run)] == [Kind.CONTENTION]) is found, case


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        (Health(ecc_errors=3), Health(ecc_errors=3), "3 uncorrected ECC errors"),
        (Health(ecc_errors=0), Health(ecc_errors=1), "1 uncorrected ECC error"),
        (Health(ecc_errors=0, nvlink_errors=9), Health(ecc_errors=0, nvlink_errors=9), None),  # of the past
        (Health(nvlink_errors=9), Health(nvlink_errors=11), "2 new NVLink errors"),
        (
            Health(ecc_errors=2, nvlink_errors=0),
            Health(nvlink_errors=1),
            "2 uncorrected ECC errors and 1 new NVLink error",
        ),
        (Health(nvlink_errors=9), Health(), None),  # unknown
    ],
)
def test_a_gpu_that_counts_errors_is_no_healthy_one(before: Health, after: Health, text: str | None) -> None:
    run = pcie({}, lambda _w, _m: 22.0)
    rest = (Health(), Health(), Health())
    found = faults(replace(run, health_before=(*rest[:2], before, rest[2]), health_after=(*rest[:2], after, rest[2])))

    assert [(v.kind, v.members, v.text) for v in found] == ([(Kind.GPU_ERRORS, (2,), text)] if text else [])


@pytest.mark.parametrize(
    ("gpus_held", "share", "place", "text"),
    [
        ((0, 1, 2, 3), 1.0, "all 4 GPUs", "throttled in 100% of their trials (HW thermal slowdown)"),
        ((2,), 1.0, "GPU2", "throttled in 100% of its trials (HW thermal slowdown)"),
        ((2,), 0.05, "", ""),
    ],
)
def test_a_throttled_gpu_is_said_though_nothing_is_slow(
    gpus_held: tuple[int, ...], share: float, place: str, text: str
) -> None:
    run = pcie({}, lambda _w, _m: 22.0)
    many = round(1 / share)
    held = [
        replace(
            found,
            samples=[
                replace(
                    sample,
                    flags=tuple(
                        throttled(gpu, "HW thermal slowdown")
                        for gpu in gpus_held
                        if gpu in found.point.members and (place_of + number) % many == 0
                    ),
                )
                for number, sample in enumerate(found.samples)
            ],
        )
        for place_of, found in enumerate(run.measurements)
    ]
    found = faults(replace(run, measurements=held))
    assert [(v.kind, v.members, v.place, v.text) for v in found] == (
        [(Kind.THROTTLED, gpus_held, place, text)] if text else []
    )


def test_a_throttled_gpu_is_said_though_another_job_explains_its_slow_links() -> None:
    found = faults(flagged(flagged(h200(slow(ROW, 0.5)), shared(3)), throttled(3)))
    assert [(v.kind, v.members) for v in found] == [(Kind.CONTENTION, (3,)), (Kind.THROTTLED, (3,))]


SPREAD = (0.97, 1.03, 1.0, 0.98, 1.02)


def slot(run: Run, generation: int | None, width: int | None, gpu: int = 2) -> Run:
    states = list(run.health_after)
    states[gpu] = Health(pcie_generation=generation, pcie_width=width)
    return replace(run, health_after=tuple(states))


def test_a_slot_with_half_of_its_lanes() -> None:
    run = slot(pcie({}, lambda _w, m: 11.0 if 2 in m else 22.0), 4, 8)
    host = [
        replace(m, samples=[replace(s, seconds=(s.seconds[0] * 2,) * 2) for s in m.samples])
        if m.point.variant is Variant.HOST and m.point.members == (2,)
        else m
        for m in run.measurements
    ]
    verdict = the(replace(run, measurements=host), Kind.PCIE_DEGRADED)
    assert verdict.members == (2,)
    assert "gen 4 ×8 right after measuring; its maximum is gen 4 ×16" in what(verdict)
    assert verdict.fix == "sudo lspci -vvv -s 0000:03:00.0 | grep LnkSta:"
    assert Kind.INTRA_LABEL_OUTLIER in verdict.explains
    assert verdict.theory_gbs == 31.5
    assert verdict.measured is not None
    assert verdict.measured[0] < 12.0 < verdict.measured[2]


def test_copies_with_any_numa_nodes_memory_show_what_a_slot_carries() -> None:
    run = slot(pcie({}, lambda _w, _m: 22.0), 3, 16)
    on_node = [
        replace(m, point=replace(m.point, numa_node=1)) if m.point.variant is Variant.HOST else m
        for m in run.measurements
    ]
    assert faults(replace(run, measurements=on_node)) == []


def only(run: Run, *variants: Variant) -> Run:
    return replace(run, measurements=[m for m in run.measurements if m.point.variant in variants])


@pytest.mark.parametrize(
    ("case", "variants", "gbs", "now", "found"),
    [
        ("gen 1, and copies between GPUs were faster", (Variant.PLAIN,), 22.0, (1, 16), False),
        ("gen 1, and no copy was faster: the other GPUs may be why", (Variant.PLAIN,), 3.0, (1, 16), False),
        ("gen 3, and copies through host memory were slower", (Variant.STAGED,), 22.0, (3, 16), False),
        ("gen 1, and host copies were faster", (Variant.HOST,), 22.0, (1, 16), False),
        ("half of the lanes, at rest: 15 GB/s are what they allow awake", (Variant.PLAIN,), 15.0, (1, 8), True),
        ("a quarter of the lanes, and no copy", (), 22.0, (1, 4), True),
        ("half of the lanes, but 22 GB/s were copied", (Variant.PLAIN,), 22.0, (4, 8), False),
    ],
)
def test_a_low_generation_needs_slow_host_copies_and_lost_lanes_none(
    case: str, variants: tuple[Variant, ...], gbs: float, now: tuple[int, int], found: bool
) -> None:
    run = slot(only(pcie({}, lambda _w, _m: gbs), *variants), *now)
    assert [v.kind for v in judge(run)].count(Kind.PCIE_DEGRADED) == found, case


def via_host(gbs: float, staged: float) -> Run:
    """Return a run whose pair 0-1 copies at `gbs` directly and all at `staged` through host memory."""
    return staged_at(pcie({}, lambda work, m: gbs if work.operation.is_copy and set(m) == {0, 1} else 22.0), staged)


def staged_at(run: Run, staged: float) -> Run:
    scale = 9.0 / staged
    return replace(
        run,
        measurements=[
            replace(m, samples=[replace(s, seconds=(s.seconds[0] * scale,) * 2) for s in m.samples])
            if m.point.variant is Variant.STAGED
            else m
            for m in run.measurements
        ],
    )


def test_peer_access_that_is_slower_than_host_memory() -> None:
    """nccl#814: 9.9 GB/s with peer access, 22 without."""
    verdict = the(via_host(9.9, 21.0), Kind.P2P_SLOWER_THAN_STAGED)
    assert verdict.members == (0, 1)
    assert "through host memory, which reaches 21.0 GB/s" in what(verdict)
    assert verdict.cause.name == "peer_detour"
    assert "only this path is slow" in verdict.cause.text
    assert Kind.INTRA_LABEL_OUTLIER in verdict.explains


@pytest.mark.parametrize(("direct", "staged"), [(22.0, 21.0), (20.5, 21.0), (16.0, 21.0)])
def test_peer_access_that_pays_or_nearly(direct: float, staged: float) -> None:
    assert Kind.P2P_SLOWER_THAN_STAGED not in [v.kind for v in judge(via_host(direct, staged))]


def test_more_than_a_third_faster_through_host_memory_is_a_contradiction() -> None:
    assert Kind.P2P_SLOWER_THAN_STAGED in [v.kind for v in judge(via_host(15.5, 21.0))]


WITHOUT_STAGING = (Variant.PLAIN, Variant.HOST)


@pytest.mark.parametrize("direct", [9.9, 15.5])
def test_without_staged_copies_the_page_says_that_p2p_may_be_the_slower(direct: float) -> None:
    """What `check` accuses once it has staged copies is left open without them, never denied."""
    run = only(via_host(direct, 21.0), *WITHOUT_STAGING)
    diagnosis = Diagnosis(run)
    assert {reading.members for reading in diagnosis.unstaged} == {(0, 1), (1, 0)}
    assert f"P2P reaches {figure(direct)} GB/s on GPU0-GPU1; a" in verdicts.against_staging(diagnosis)
    alone = replace(run, devices=run.devices[:2], paths=run.paths[:1])
    alone.measurements[:] = [m for m in run.measurements if set(m.point.members) <= {0, 1}]
    assert faults(alone) == []  # nothing to compare the two with
    page = text(verdicts.page(Diagnosis(alone)))
    assert page.startswith("Nothing contradicts the labels, but P2P may be slower than host memory.")
    assert "a full 'collbench check' tells whether host memory is faster" in page
    assert "agree" not in page.partition("\n")[2]
    assert "p2p       P2P reaches" in text(pairs_page(Diagnosis(alone)))
    *_, wrong = content([("run.json", alone)], "0.1.0")["runs"][0]["answers"]
    assert verdicts.against_staging(Diagnosis(alone)) in str(wrong)


@pytest.mark.parametrize(
    ("title", "run"),
    [
        ("a healthy machine", only(via_host(22.0, 21.0), *WITHOUT_STAGING)),
        ("staged copies tell", via_host(9.9, 21.0)),
        ("NVLinks", only(h200(slow(ROW, 0.3)), *WITHOUT_STAGING)),
        ("a throttled GPU", flagged(only(via_host(9.9, 21.0), *WITHOUT_STAGING), throttled(1))),
        ("another job", flagged(only(via_host(9.9, 21.0), *WITHOUT_STAGING), shared(0))),
    ],
)
def test_nothing_is_left_open_where_the_rates_do_not_make_it_likely(title: str, run: Run) -> None:
    assert Diagnosis(run).unstaged == [], title


@pytest.mark.parametrize(
    ("title", "staged", "labels", "left"),
    [
        ("they are not faster there, so nowhere on this label", 12.0, {}, set()),
        ("they are faster there, and may be elsewhere", 21.0, {}, {(0, 2), (0, 3), (1, 2), (1, 3), (2, 3)}),
        ("of another label they tell nothing", 12.0, {(0, 1): "PIX"}, {(0, 2), (0, 3), (1, 2), (1, 3), (2, 3)}),
    ],
)
def test_copies_through_host_memory_on_one_pair_tell_of_its_label(
    title: str, staged: float, labels: dict[Members, str], left: set[Members]
) -> None:
    slow = pcie(labels, lambda work, _m: 9.9 if work.operation.is_copy else 8.0)
    slow = replace(slow, measurements=[m for m in slow.measurements if set(m.point.members) <= {0, 1} or plain(m)])
    run = staged_at(slow, staged)
    assert {tuple(sorted(reading.members)) for reading in Diagnosis(run).unstaged} == left, title


def plain(measurement: Measurement) -> bool:
    return measurement.point.variant is Variant.PLAIN


def test_without_peer_access_both_are_staged() -> None:
    run = via_host(9.9, 21.0)
    reported = {"cuda_peers": False, "peer_access": nvml_says("GNS"), "tool_peer_access": smi_says("GNS")}
    refused = tuple(replace(path, **reported) for path in run.paths)  # type: ignore[arg-type]  # a table of fields
    kinds = [v.kind for v in judge(replace(run, paths=refused))]
    assert Kind.P2P_SLOWER_THAN_STAGED not in kinds
    without = only(replace(run, paths=refused), *WITHOUT_STAGING)
    assert Diagnosis(without).unstaged == []


def test_copies_beside_others_are_not_compared_with_staged_ones() -> None:
    run = via_host(9.9, 21.0)
    plain = Work(Operation.CE_WRITE)
    busy = [
        replace(m, samples=[replace(s, concurrent=True) for s in m.samples]) if m.point.work == plain else m
        for m in run.measurements
    ]
    kinds = [v.kind for v in judge(replace(run, measurements=busy))]
    assert Kind.P2P_SLOWER_THAN_STAGED not in kinds


@pytest.mark.parametrize(
    ("title", "nodes", "found"),
    [
        ("each pair on a node of its own", (0, 0, 1, 1), True),
        ("all on one", (0, 0, 0, 0), False),
        ("one of the others on theirs", (0, 0, 0, 1), False),
        ("over two nodes", (0, 1, 2, 2), False),
        ("the others over two", (0, 0, 1, 2), False),
        ("nobody tells the others' nodes", (0, 0, None, None), False),
        ("nobody tells theirs", (None, None, 1, 1), False),
    ],
)
def test_two_pairs_on_numa_nodes_of_their_own_share_nothing(
    title: str, nodes: tuple[int | None, ...], found: bool
) -> None:
    run = pcie({}, lambda _w, _m: 22.0)
    run = replace(run, devices=tuple(replace(gpu, numa_node=n) for gpu, n in zip(run.devices, nodes, strict=True)))
    slowed = with_check(run, Operation.CE_WRITE, "PHB", 0.5)
    assert ([v.kind for v in faults(slowed)] == [Kind.CONTENTION]) is found
    refused = tuple(replace(path, cuda_peers=False) for path in run.paths)
    assert Kind.CONTENTION not in [v.kind for v in judge(replace(slowed, paths=refused))]


@pytest.mark.parametrize(("beyond", "found"), [(0.999, False), (1.001, True)])
def test_an_interference_check_contradicts_beyond_its_tolerance_and_the_noise_of_two_medians(
    beyond: float, found: bool
) -> None:
    run = h200()
    readings = Facts(run).readings
    error = max(one.error for one in readings.of(Work(Operation.CE_WRITE)).values())
    ratio = math.exp(-beyond * (0.02 + readings.z * math.hypot(error, error)))
    assert bool(faults(with_check(run, Operation.CE_WRITE, "NV18", ratio))) is found


def test_what_an_interference_check_shows_has_the_interval_of_its_noise() -> None:
    verdict = the(with_check(h200(), Operation.CE_WRITE, "NV18", 0.6), Kind.CONTENTION)
    assert verdict.measured is not None
    low, middle, high = verdict.measured
    assert verdict.theory_gbs is not None
    assert middle == pytest.approx(0.6 * verdict.theory_gbs)
    assert 0.99 * middle < low < middle < high < 1.01 * middle
    assert low * high == pytest.approx(middle**2)


@pytest.mark.parametrize(("host", "found"), [(15.5, True), (15.75, True), (15.8, False), (24.0, False)])
def test_a_slot_that_carried_more_than_it_shows_had_gone_to_rest(host: float, found: bool) -> None:
    """Gen 3 ×16 carries 15.75 GB/s; the host copies' trials vary by a thousandth."""
    run = slot(pcie({}, lambda _w, _m: 15.0), 3, 16)
    kept = [m for m in run.measurements if m.point.variant is not Variant.HOST]
    copies = [trials(work, (gpu,), host if gpu == 2 else 24.0) for work in HOST for gpu in range(4)]
    assert (Kind.PCIE_DEGRADED in [v.kind for v in judge(replace(run, measurements=[*kept, *copies]))]) is found


def test_copies_of_another_size_are_not_compared_with_staged_ones() -> None:
    """In as much time, twice as much: their rate is the higher one."""
    run = via_host(9.0, 14.0)
    assert Kind.P2P_SLOWER_THAN_STAGED in [v.kind for v in judge(run)]
    other = [
        replace(m, point=replace(m.point, size_bytes=m.point.size_bytes * 2)) if m.point.work == STAGED else m
        for m in run.measurements
    ]
    assert Kind.P2P_SLOWER_THAN_STAGED not in [v.kind for v in judge(replace(run, measurements=other))]


def test_what_disturbs_nvlinks_is_no_bridge() -> None:
    over_nvlink = the(with_check(h200(), Operation.CE_WRITE, "NV18", 0.6), Kind.CONTENTION)
    assert over_nvlink.cause.name == "nvlink_traffic"
    run = with_check(pcie({(0, 1): "PIX", (2, 3): "PIX"}, lambda _w, _m: 22.0), Operation.CE_WRITE, "PIX", 0.5)
    assert the(run, Kind.CONTENTION).cause.name == "bridge_detour"


def test_nvlinks_that_run_over_pcie_share_its_wires() -> None:
    run = h200(slow([(a, b) for a in range(4) for b in range(4) if a != b], 38.4 / 393.8))
    assert Kind.NV_NOT_USED in [v.kind for v in judge(run)]
    assert Kind.CONTENTION not in [v.kind for v in judge(with_check(run, Operation.CE_WRITE, "NV18", 0.6))]


def test_an_interference_check_is_held_to_the_noise_of_its_own_work() -> None:
    run = h200()
    wild = [
        replace(
            m, samples=[replace(s, seconds=(s.seconds[0] * f,) * 2) for s, f in zip(m.samples, SPREAD, strict=True)]
        )
        if m.point.operation is Operation.SM_WRITE
        else m
        for m in run.measurements
    ]
    run = replace(run, measurements=wild)
    assert Kind.CONTENTION in [v.kind for v in judge(with_check(run, Operation.CE_WRITE, "NV18", 0.95))]
    assert Kind.CONTENTION not in [v.kind for v in judge(with_check(run, Operation.SM_WRITE, "NV18", 0.95))]


@pytest.mark.parametrize(("generation", "width", "cause"), [(4, 8, "fewer_lanes"), (3, 16, "lower_generation")])
def test_lanes_and_generations_go_down_for_other_reasons(generation: int, width: int, cause: str) -> None:
    run = slot(pcie({}, lambda _w, _m: 11.0), generation, width)
    kept = [m for m in run.measurements if m.point.variant is not Variant.HOST]
    copies = [trials(work, (gpu,), 11.0) for work in HOST for gpu in range(4)]
    (verdict,) = (v for v in judge(replace(run, measurements=[*kept, *copies])) if v.kind is Kind.PCIE_DEGRADED)
    assert verdict.cause.name == cause


def test_a_detour_of_one_path_may_be_its_own_and_of_a_gpu_is_not() -> None:
    assert "only this path is slow" in the(via_host(9.9, 21.0), Kind.P2P_SLOWER_THAN_STAGED).cause.text
    row = pcie({}, lambda work, m: 5.0 if work.operation.is_copy and 2 in m else 22.0)
    (verdict,) = (v for v in judge(row) if v.kind is Kind.P2P_SLOWER_THAN_STAGED)
    assert (verdict.members, verdict.cause.name) == ((2,), "peer_detour")
    assert "only this path" not in verdict.cause.text


def test_one_slow_direction_of_two_gpus_is_no_detour_alone() -> None:
    """The other direction takes the same way, and is fast."""
    run = pcie({}, lambda work, m: 9.9 if work.operation.is_copy and m == (0, 1) else 22.0, count=2)
    measurements = [trials(STAGED, m.point.members, 21.0) if m.point.work == STAGED else m for m in run.measurements]
    verdict = the(replace(run, measurements=measurements), Kind.P2P_SLOWER_THAN_STAGED)
    assert verdict.explains == (Kind.ASYMMETRY, Kind.INTRA_LABEL_OUTLIER)
    assert verdict.cause.text.startswith("only one direction of this path is slow (a riser, a switch port), or the")


@pytest.mark.parametrize(
    ("label", "crossed"),
    [
        ("PIX", "peer traffic takes a detour, usually because ACS or the IOMMU routes it through the root complex;"),
        ("NODE", "the root complex carries peer traffic slowly ("),
        ("SYS", "the root complex or the link between sockets carries peer traffic slowly ("),
    ],
)
def test_a_detour_is_explained_by_what_the_path_crosses(label: str, crossed: str) -> None:
    run = staged_at(pcie({}, lambda work, _m: 9.9 if work.operation.is_copy else 22.0), 21.0)
    run = replace(run, paths=tuple(replace(path, label=label, tool_label=label, ancestor=label) for path in run.paths))
    cause = the(run, Kind.P2P_SLOWER_THAN_STAGED).cause
    assert cause.text.startswith(crossed)
    assert ("sockets" in cause.text) is (label == "SYS")
