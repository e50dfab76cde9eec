"""What NVML, nvidia-smi and CUDA say, against each other."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, permutations

import pytest

from collbench.judge.diagnose import Kind, judge
from collbench.model.run import Run
from tests.builders import nvml_says, smi_says
from tests.judge.checked import faults, h200, kinds, pcie, slow, the, undone, what


def saying(run: Run, pair: tuple[int, int], **words: object) -> Run:
    """Return the run in which the tools say something else of one pair."""
    paths = tuple(replace(p, **words) if p.devices == pair else p for p in run.paths)  # type: ignore[arg-type]
    return replace(run, paths=paths)


def test_links_that_went_down_since_nvidia_smi_was_asked() -> None:
    verdict = the(saying(h200(), (0, 1), nvlinks=16), Kind.LINKCOUNT_MISMATCH)
    assert verdict.members == (0, 1)
    assert "topo -m reports NV18, NVML counts 16" in what(verdict)
    assert verdict.fix == "nvidia-smi nvlink -s -i 0,1"


OF_GPU0 = [link for link in permutations(range(4), 2) if 0 in link]


def four_down(links: Sequence[tuple[int, int]], share: float) -> Run:
    """Return a run in which 14 of 18 links are up at GPU0, and copies on these links reach that share of 18's rate."""
    run = h200(slow(links, share))
    for pair in ((0, 1), (0, 2), (0, 3)):
        run = saying(run, pair, label="NV14", nvlinks=14, theory_gbs=350.0)
    return run


@pytest.mark.parametrize(
    ("links", "share", "found", "slower"),
    [
        (OF_GPU0, 14 / 18, [(Kind.LINKCOUNT_MISMATCH, (0,))], False),
        (OF_GPU0, 0.8 * 14 / 18, [(Kind.LINKCOUNT_MISMATCH, (0,))], True),
        # Not all are slower: a link at half the rate has a fault of its own.
        ([(0, 3), (3, 0)], 0.5, [(Kind.LINKCOUNT_MISMATCH, (0,)), (Kind.NV_DEGRADED, (0, 3))], False),
        ([(1, 2), (2, 1)], 0.5, [(Kind.LINKCOUNT_MISMATCH, (0,)), (Kind.NV_DEGRADED, (1, 2))], False),
    ],
)
def test_missing_links_explain_a_rate_in_proportion_and_no_less(
    links: Sequence[tuple[int, int]], share: float, found: list[object], slower: bool
) -> None:
    verdicts = faults(four_down(links, share))
    assert [(verdict.kind, verdict.members) for verdict in verdicts] == found
    assert ("where 14 NVLinks elsewhere carry 30" in what(verdicts[0])) is slower


def counting(pairs: Sequence[tuple[int, int]], count: int, product: str = "NVIDIA H200") -> Run:
    """Return a run in which all sources agree on so many NVLinks of some pairs, whose copies reach their share."""
    run = h200(slow([link for pair in pairs for link in (pair, pair[::-1])], count / 18))
    for pair in pairs:
        run = saying(run, pair, label=f"NV{count}", tool_label=f"NV{count}", nvlinks=count, theory_gbs=25.0 * count)
    return replace(run, devices=tuple(replace(device, name=product) for device in run.devices))


PAIRS = [*combinations(range(4), 2)]


@pytest.mark.parametrize(
    ("title", "run", "found"),
    [
        ("a GPU", counting([(0, 3), (1, 3), (2, 3)], 14), [(3,)]),
        ("a plane of all", counting(PAIRS, 14), [(0, 1, 2, 3)]),
        ("a third of all to each other GPU, by cables", counting(PAIRS, 6), []),
        (
            "not all are joined, so by cables, though these are more than such a GPU has",
            saying(counting(PAIRS[:-1], 7), (2, 3), label="SYS", tool_label="SYS", nvlinks=0, theory_gbs=63.0),
            [],
        ),
        ("nobody knows how many the GPU has", counting(PAIRS, 14, "NVIDIA Q100"), []),
    ],
)
def test_links_to_nvswitches_that_are_missing_though_all_sources_agree(
    title: str, run: Run, found: list[tuple[int, ...]]
) -> None:
    assert [verdict.members for verdict in faults(run) if verdict.kind is Kind.LINKCOUNT_MISMATCH] == found, title


@pytest.mark.parametrize(
    ("case", "words", "reported"),
    [
        ("CUDA refuses", {"cuda_peers": False}, "CUDA no"),
        ("nvidia-smi refuses", {"tool_peer_access": smi_says("CNS")}, "nvidia-smi topo -p2p CNS"),
        ("one direction refused", {"tool_peer_access": smi_says("OK", "GNS")}, "OK, GNS"),
        ("NVML refuses reading", {"peer_access": nvml_says("TNS", "OK")}, "NVML read TNS"),
    ],
)
def test_peer_access_that_the_sources_disagree_on(case: str, words: dict[str, object], reported: str) -> None:
    verdict = the(saying(h200(), (0, 1), **words), Kind.P2P_CAP_MISMATCH)
    assert verdict.members == (0, 1), case
    assert reported in what(verdict), case


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("nobody was asked", {"peer_access": None, "tool_peer_access": (), "cuda_peers": None}),
        ("one does not know", {"tool_peer_access": smi_says("U")}),
        ("writing alone is refused, and -p2p r is about reading", {"peer_access": nvml_says("OK", "CNS")}),
    ],
)
def test_peer_access_that_nobody_contradicts(case: str, words: dict[str, object]) -> None:
    assert faults(saying(h200(), (0, 1), **words)) == [], case


def test_pcie_without_peer_access_contradicts_no_label() -> None:
    """GeForce cards refuse it (GNS), and PIX names the way alone."""
    run = pcie({(0, 1): "PIX"}, lambda _w, _m: 22.0)
    for path in run.paths:
        run = saying(
            run,
            (path.devices[0], path.devices[1]),
            peer_access=nvml_says("GNS"),
            tool_peer_access=smi_says("GNS"),
            cuda_peers=False,
        )
    assert kinds(run) == []


def test_pcie_names_that_differ_are_explained() -> None:
    (verdict,) = judge(saying(pcie({}, lambda _w, _m: 22.0), (0, 1), tool_label="NODE"))
    assert (verdict.kind, verdict.severity, verdict.members) == (Kind.LABELS_DIFFER, "info", (0, 1))


def flat(run: Run, virtualization: str, numa: int | None) -> Run:
    devices = tuple(replace(device, numa_node=numa) for device in run.devices)
    return replace(run, devices=devices, machine=replace(run.machine, virtualization=virtualization))


@pytest.mark.parametrize(
    ("case", "labels", "virtualization", "numa", "found"),
    [
        ("passed through, one label, no NUMA node", {}, "pass-through", None, True),
        ("a slice of a GPU", {}, "vGPU", None, True),
        ("bare metal", {}, "none", None, False),
        ("the NUMA nodes are reported", {}, "pass-through", 0, False),
        ("labels differ", {(0, 1): "PIX"}, "pass-through", None, False),
    ],
)
def test_flat_virtual_labels(
    case: str, labels: dict[tuple[int, ...], str], virtualization: str, numa: int | None, found: bool
) -> None:
    run = flat(pcie(labels, lambda _w, _m: 22.0), virtualization, numa)
    assert (Kind.VIRTUAL_FLAT in kinds(run)) is found, case
    assert faults(run) == []


def test_nvlinks_of_a_virtual_machine_are_no_flat_labels() -> None:
    assert Kind.VIRTUAL_FLAT not in kinds(flat(h200(), "pass-through", None))


def test_flat_labels_explain_that_some_pairs_are_slower() -> None:
    run = flat(pcie({}, lambda _w, m: 12.0 if set(m) == {0, 3} else 22.0), "pass-through", None)
    (verdict,) = judge(run)
    assert (verdict.kind, verdict.explains) == (Kind.VIRTUAL_FLAT, (Kind.INTRA_LABEL_OUTLIER,))


def test_what_no_tool_said_is_said() -> None:
    run = h200()
    silent = tuple(replace(path, tool_label=None, tool_peer_access=(), cuda_peers=None) for path in run.paths)
    (line,) = undone(replace(run, paths=silent))
    assert (
        line
        == "the labels against nvidia-smi topo -m, nvidia-smi topo -p2p, CUDA's peer access: not recorded in this run"
    )


def test_pairs_that_share_a_saying_show_their_limit_where_it_is_one() -> None:
    run = saying(saying(h200(), (0, 1), nvlinks=16), (0, 2), nvlinks=16)
    run = saying(run, (0, 3), nvlinks=16)
    assert the(run, Kind.LINKCOUNT_MISMATCH).theory_gbs == 450.0
    assert the(saying(run, (0, 3), theory_gbs=400.0), Kind.LINKCOUNT_MISMATCH).theory_gbs is None


def test_a_file_by_hand_that_counts_no_links_contradicts_no_label() -> None:
    assert faults(saying(h200(), (0, 1), nvlinks=0, tool_label=None)) == []
    assert what(the(saying(h200(), (0, 1), nvlinks=1, tool_label=None), Kind.LINKCOUNT_MISMATCH)).startswith(
        "GPU0-GPU1: the label reports NV18, NVML counts 1"
    )


@pytest.mark.parametrize(
    ("ancestors", "reported"),
    [
        (("PHB",) * 6, "has PHB (a PCIe host bridge). Both"),
        (("SYS",) * 6, "has SYS. Both"),
        (("PIX", *["SYS"] * 5), "has PIX, SYS. Both"),
    ],
)
def test_the_pcie_way_beside_nvlinks_is_named_where_it_is_one(ancestors: tuple[str, ...], reported: str) -> None:
    run = h200()
    paths = [replace(path, ancestor=word) for path, word in zip(run.paths, ancestors, strict=True)]
    (verdict,) = judge(replace(run, paths=tuple(paths)))
    assert reported in what(verdict)
