from collections.abc import Mapping
from itertools import combinations
from pathlib import Path as File

import numpy as np
import pytest

from collbench.choose.bands import by_pairs, predict
from collbench.choose.choice import Band, How
from collbench.choose.wiring import Wiring, wiring
from collbench.model.operations import Operation
from collbench.model.run import InterferenceCheck, Path
from tests.builders import gpus

Pair = tuple[int, int]


def wired(
    n: int,
    labels: Mapping[Pair, str],
    rates: Mapping[str, float],
    other: str = "SYS",
    *,
    name: str = "",
    slow: Mapping[Pair, float] | None = None,
    checks: tuple[InterferenceCheck, ...] = (),
) -> Wiring:
    """Return n devices whose pairs have the labels given (`other` where none), at the label's rate in GB/s."""
    paths = {pair: Path(pair, labels.get(pair, other)) for pair in combinations(range(n), 2)}
    matrix = np.zeros((n, n))
    for pair, path in paths.items():
        matrix[pair] = matrix[pair[::-1]] = (slow or {}).get(pair, rates[path.label])
    return wiring(gpus(n, name), paths, matrix, checks)


V100 = {"NV1": 24.2, "NV2": 48.3, "PIX": 11.0, "SYS": 9.5}
SQUARE = {(0, 1): "NV1", (1, 2): "NV1", (2, 3): "NV1", (0, 3): "NV1"}


def check(label: str, ratio: float) -> InterferenceCheck:
    return InterferenceCheck(Operation.ALLREDUCE, (0, 1), label, 10.0, 10.0 * ratio, ratio, 0.02, trusted=ratio > 0.98)


@pytest.mark.parametrize(
    ("title", "machine", "lo", "hi", "how"),
    [
        ("two are their pair", wired(2, {}, V100), 9.5, 9.5, "the pair itself"),
        ("a square of NVLinks has a ring each way", wired(4, SQUARE, V100), 48.4, 48.4, "2 NVLink rings"),
        # Tillson 1980: no three whole rings in a full square, but halves of six rings carry three.
        ("a full square", wired(4, {}, V100, other="NV1"), 48.4, 72.6, "2 NVLink rings"),
        ("a star has no ring but PCIe", wired(4, {(0, i): "NV2" for i in (1, 2, 3)}, V100), 5.7, 9.5, "one PCIe ring"),
        # NCCL counts links: it need not leave out the slow one, though that would be best.
        ("a slow link may slow all", wired(4, {}, V100, "NV1", slow={(0, 2): 12.5}), 25.0, 60.9, "2 NVLink rings"),
        (
            "a link slower than PCIe may be unused or slow all rings",
            wired(4, SQUARE | {(0, 2): "NV1"}, V100, slow={(0, 2): 8.0}),
            16.0,
            48.4,
            "2 NVLink rings",
        ),
        ("or slows all rings", wired(4, SQUARE, V100, slow={(0, 1): 20.0}), 40.0, 44.2, "2 NVLink rings"),
        ("NV18 to three others is a switch", wired(4, {}, {"NV18": 298.0}, "NV18"), 298.0, 298.0, "NVSwitch"),
        (
            "a ring can pass by a slow pair of a switch, and may not",
            wired(4, {}, {"NV18": 298.0}, "NV18", slow={(0, 1): 200.0}),
            200.0,
            298.0,
            "NVSwitch",
        ),
        (
            "NV4 among four A100 is no switch",
            wired(4, {}, {"NV4": 94.0}, "NV4", name="A100"),
            282.0,
            282.0,
            "12 NVLink rings",
        ),
        ("NV6 among four V100 is one", wired(4, {}, {"NV6": 140.0}, "NV6", name="V100"), 140.0, 140.0, "NVSwitch"),
        ("a switch that a virtual machine hides", wired(4, {}, {"PHB": 396.0}, "PHB"), 396.0, 396.0, "NVSwitch"),
        ("NVLinks that are not used", wired(4, SQUARE, {"NV1": 9.4, "SYS": 9.5}), 4.7, 9.4, "one PCIe ring"),
    ],
)
def test_bands_of_small_machines(title: str, machine: Wiring, lo: float, hi: float, how: str) -> None:
    found = by_pairs(machine)
    assert [found.lo, found.hi] == pytest.approx([lo, hi], rel=0.01)
    assert found.basis == how


def test_where_nvlinks_close_no_ring_a_tree_may_be_faster_than_a_ring_over_pcie() -> None:
    """Up and down 2-0-1-3 the message crosses each hop once each way, where a ring moves 1.5 times its size."""
    chain = wired(4, {(0, 1): "NV2", (0, 2): "NV1", (1, 3): "NV2"}, V100)
    band = predict(chain)
    assert (band.lo, band.hi) == pytest.approx((9.5 / 2, 24.2 * 1.5), rel=0.01)
    assert str(band.how) == "one PCIe ring or a tree of NVLinks"
    assert by_pairs(chain).hi == 9.5


def test_noise_does_not_split_equal_links() -> None:
    """Four links within 1% of each other are two rings of one kind, not rings of four kinds."""
    noise = {(0, 1): 24.0, (1, 2): 24.3, (2, 3): 24.2, (0, 3): 24.1}
    assert predict(wired(4, SQUARE, V100, slow=noise)).basis == "2 NVLink rings"


@pytest.mark.parametrize(
    ("title", "ratio", "lo"),
    [("nobody looked", None, 5.7), ("no loss beside others", 1.0, 9.5), ("some", 0.8, 7.6), ("a lot", 0.25, 5.7)],
)
def test_what_the_interference_check_saw_orders_pcie_rings(title: str, ratio: float | None, lo: float) -> None:
    found = () if ratio is None else (check("SYS", ratio),)
    band = by_pairs(wired(3, {}, V100, checks=found))
    assert [band.lo, band.hi] == pytest.approx([lo, 9.5])


# Two PCIe switches with four GPUs each and 10 GB/s up; GPUs cannot reach each other, so all hops go through the host.
# Two GPUs below one switch then get half each.
SWITCHES = {pair: "PIX" for pair in combinations(range(8), 2) if pair[0] // 4 == pair[1] // 4}
STAGED = {"PIX": 5.0, "PHB": 10.0, "NV4": 47.0}
BRIDGES = {(0, 1): "NV4", (2, 3): "NV4", (4, 5): "NV4", (6, 7): "NV4"}


@pytest.mark.parametrize(
    ("title", "members", "hi", "hops"),
    [
        ("one GPU of each switch", (0, 4), 10.0, 0),
        ("two hops up one uplink", (0, 2, 4), 5.0, 3),
        ("three hops up one uplink", (0, 2, 4, 6), 5.0, 4),
        ("a bridge keeps one of them down", (0, 1, 4), 10.0, 2),
        ("two bridges", (0, 1, 4, 5), 10.0, 2),
        ("two bridges below one switch", (0, 1, 2, 3), 5.0, 2),
        ("four hops up each uplink but for the bridges", tuple(range(8)), 5.0, 4),
    ],
)
def test_hops_through_the_host_share_the_uplink_of_their_switch(
    title: str, members: tuple[int, ...], hi: float, hops: float
) -> None:
    band = predict(wired(8, SWITCHES | BRIDGES, STAGED, "PHB").of(members))
    assert [band.hi, band.hops] == pytest.approx([hi, hops])


def test_a_slow_slot_does_not_look_like_a_full_uplink() -> None:
    """All pairs of one GPU are slow, those below its switch as those beyond: the others' uplink is not shared."""
    slow = {pair: 4.0 for pair in combinations(range(4), 2) if 1 in pair}
    machine = wired(4, {(0, 1): "PIX", (2, 3): "PIX"}, {"PIX": 12.0, "PHB": 12.0}, "PHB", slow=slow)
    assert predict(machine.of((0, 2, 3))).hi == 12.0
    assert predict(machine).hi == 4.0


def published() -> list[tuple[str, int, float, float]]:
    """Return machine, ranks, and all-reduce busbw in GB/s of two ranks and of so many, of 64 MiB and more."""
    lines = (File(__file__).parents[1] / "data" / "published_ranks.csv").read_text().splitlines()
    rows = [line.split(",") for line in lines if not line.startswith("#")]
    return [(f"{gpu} {mib} MiB", int(ranks), float(pair), float(gbs)) for gpu, mib, ranks, pair, gbs in rows]


@pytest.mark.parametrize("name", ["H200", "H100", "A100", "B200", "B300", "GB200", "GB300"])
def test_machines_that_others_measured_lie_in_the_band_of_their_pairs(name: str) -> None:
    """Sets of one NVSwitch, each predicted from the busbw of two of its ranks at the same size."""
    found = [row for row in published() if row[0].startswith(f"{name} ")]
    assert found
    for what, ranks, pair, gbs in found:
        band = predict(wired(ranks, {}, {"NV18": pair}, "NV18"))
        assert band.lo <= gbs <= band.hi, what
        assert band.hi < 2 * band.lo


@pytest.mark.parametrize(("count", "least", "most"), [(2, 1.0, 1.0), (3, 0.95, 1.25), (4, 0.95, 1.25), (5, 0.85, 1.6)])
def test_more_ranks_than_a_pair_has_make_a_band_of_equal_pairs(count: int, least: float, most: float) -> None:
    machine = wired(5, {}, {"NV18": 200.0}, "NV18")
    band = predict(machine.of(range(count)))
    assert (band.lo, band.hi) == pytest.approx((200 * least, 200 * most))
    assert predict(wired(4, {}, {"NV18": 400.0}, "NV18", name="NVIDIA H200")).hi == pytest.approx(450)


def test_links_at_their_limit_leave_a_mesh_no_room_above() -> None:
    links = {pair: Path(pair, "NV1", "SYS", 1, 25.0) for pair in SQUARE}
    others = {pair: Path(pair, "SYS", "SYS", 0, 15.75) for pair in [(0, 2), (1, 3)]}
    assert predict(wiring(gpus(4), links | others, wired(4, SQUARE, V100).rates)).hi == 50


def test_hops_that_turn_round_below_a_switch_leave_its_uplink_alone() -> None:
    band = predict(wired(8, SWITCHES, {"PIX": 12.0, "PHB": 10.0}, "PHB"))
    assert (band.hi, band.hops) == (10.0, 2)


@pytest.mark.parametrize(
    ("rates", "text"),
    [
        (Band(5.7, 9.5, How.PAIR), "5.7–9.5 GB/s"),
        (Band(48.38, 48.4, How.PAIR), "48.4 GB/s"),
        (Band(0, 0, How.BROKEN), "nothing, one of its pairs is broken"),
        (Band(5.736, 9.54, How.PAIR), "5.74–9.54 GB/s"),
        (Band(0, 47.46, How.PAIR, unmeasured=1), "up to 47.5 GB/s"),
        (Band(1.0, 47.46, How.PAIR, unmeasured=1), "1–47.5 GB/s"),
        (Band(28.5, 47.46, How.PAIR, unmeasured=3), "28.5–47.5 GB/s"),
    ],
)
def test_a_band_in_words(rates: Band, text: str) -> None:
    assert str(rates) == text
