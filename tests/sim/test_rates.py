"""Rates of isolated and concurrent transfers: max-min fairness, worked out by hand."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.model.operations import Operation
from collbench.sim import fabrics
from collbench.sim.fabrics import Bridge, Fabric, Fault, FaultKind
from collbench.sim.network import Transfer, max_min
from tests.sim.made import complete, copy_rates, faulty, tree

# Two GPUs on each of two switches whose uplinks carry half of what a slot does.
NARROW = (Bridge("a", "root0", 10, 10), Bridge("b", "root0", 10, 10))
FOUR = tree(("a", "a", "b", "b"), NARROW)


def rates(fabric: Fabric, *links: tuple[int, int], staged: bool = False) -> list[float]:
    return copy_rates(fabric, [Transfer(a, b, staged=staged) for a, b in links])


@pytest.mark.parametrize(
    ("title", "fabric", "links", "expected"),
    [
        ("alone under one switch: the slot", FOUR, [(0, 1)], [20]),
        ("alone across: the uplink", FOUR, [(0, 2)], [10]),
        ("two across share the uplink", FOUR, [(0, 2), (1, 3)], [5, 5]),
        ("there and back do not share", FOUR, [(0, 2), (3, 1)], [10, 10]),
        ("one inside keeps what one across leaves", FOUR, [(0, 1), (0, 2)], [10, 10]),
        ("three out of a slot, one of them across", FOUR, [(2, 3), (2, 3), (2, 0)], [20 / 3] * 3),
        ("NVLinks are each a pair's own", complete(3), [(0, 1), (1, 2), (0, 2)], [10, 10, 10]),
        ("no peer access: through host memory", replace(FOUR, pcie_peers=False), [(0, 1)], [10]),
        ("a bottleneck", faulty(complete(4), Fault(FaultKind.BOTTLENECK, gbs=15)), [(0, 1), (2, 3)], [7.5, 7.5]),
        ("sockets' link", tree(("root0", "root0", "root2", "root2")), [(0, 2), (1, 3)], [15, 15]),
    ],
)
def test_transfers_share_what_they_cross(
    title: str, fabric: Fabric, links: list[tuple[int, int]], expected: list[float]
) -> None:
    assert rates(fabric, *links) == pytest.approx(expected), title


@pytest.mark.parametrize(
    ("title", "fault", "expected"),
    [
        ("slow both ways", Fault(FaultKind.SLOW_LINK, (0, 1), factor=0.5), (5, 5, 10)),
        ("slow one way", Fault(FaultKind.SLOW_LINK, (0, 1), factor=0.5, one_way=True), (5, 10, 10)),
        ("a slow GPU", Fault(FaultKind.SLOW_GPU, (1,), factor=0.3), (3, 3, 10)),
        ("a throttled GPU", Fault(FaultKind.THROTTLED_GPU, (0,), factor=0.3), (3, 3, 3)),
        ("a job on a GPU", Fault(FaultKind.FOREIGN_LOAD, (0,), factor=0.6), (6, 6, 6)),
        ("a job that copies", Fault(FaultKind.FOREIGN_LOAD, (0, 1), factor=0.6), (6, 10, 10)),
        ("not used: PCIe", Fault(FaultKind.NVLINK_UNUSED, (0, 1)), (20, 20, 10)),
        ("not used by one GPU", Fault(FaultKind.NVLINK_UNUSED, (0,)), (20, 20, 20)),
        ("not used by another", Fault(FaultKind.NVLINK_UNUSED, (2,)), (10, 10, 20)),
        ("no link left but one", Fault(FaultKind.LINKS_DOWN, (2, 0)), (10, 10, 0)),
        ("hidden is as fast", Fault(FaultKind.HIDDEN_NVLINK), (10, 10, 10)),
        ("only collectives are slow", Fault(FaultKind.SLOW_COLLECTIVES, factor=0.1), (10, 10, 10)),
    ],
)
def test_faults_of_nvlinks(title: str, fault: Fault, expected: tuple[float, float, float]) -> None:
    fabric = faulty(complete(3), fault)
    gbs = [rates(fabric, link)[0] for link in ((0, 1), (1, 0), (0, 2))]
    assert gbs == pytest.approx(expected), title


@pytest.mark.parametrize(
    ("name", "link", "operation", "expected"),
    [
        ("hgx-h200", (0, 1), Operation.CE_WRITE, 396),
        ("hgx-h200", (0, 1), Operation.CE_READ, 394),
        ("hgx-h200", (0, 1), Operation.SM_READ, 376),
        ("hgx-h200", (0, 1), Operation.SM_WRITE, 370),
        ("dgx-1v", (0, 1), Operation.CE_WRITE, 24.2),
        ("dgx-1v", (0, 3), Operation.CE_WRITE, 48.3),
        ("dgx-1v", (0, 5), Operation.CE_WRITE, 9.5),
    ],
)
def test_named_fabrics_have_the_measured_rates(
    name: str, link: tuple[int, int], operation: Operation, expected: float
) -> None:
    """Figures of docs/method/verdicts.md 2."""
    (gbs,) = copy_rates(fabrics.load(name), [Transfer(*link, operation)])
    assert gbs == pytest.approx(expected, rel=0.01)


def test_staged_copies_of_h200_have_the_measured_rate() -> None:
    assert rates(fabrics.load("hgx-h200"), (0, 1), staged=True) == pytest.approx([38], rel=0.01)


@given(
    st.lists(st.floats(0.5, 100), min_size=1, max_size=6).flatmap(
        lambda capacity: st.tuples(
            st.just(capacity),
            st.lists(
                st.dictionaries(
                    st.integers(0, len(capacity) - 1), st.floats(0.5, 3), min_size=1, max_size=len(capacity)
                ),
                min_size=1,
                max_size=7,
            ),
        )
    )
)
def test_nothing_is_overfull_and_everybody_is_stopped_by_something_full(
    case: tuple[list[float], list[dict[int, float]]],
) -> None:
    """The definition of max-min fairness: Bertsekas & Gallager, Data Networks, section 6.5."""
    capacity, loads = case
    allocation = max_min(capacity, loads)
    used = [
        sum(rate * load.get(index, 0) for rate, load in zip(allocation, loads, strict=True))
        for index in range(len(capacity))
    ]
    assert all(use <= room * (1 + 1e-9) for use, room in zip(used, capacity, strict=True))
    for rate, load in zip(allocation, loads, strict=True):
        full = [index for index in load if used[index] >= capacity[index] * (1 - 1e-6)]
        assert any(
            rate >= max(r for r, other in zip(allocation, loads, strict=True) if index in other) * (1 - 1e-6)
            for index in full
        )
