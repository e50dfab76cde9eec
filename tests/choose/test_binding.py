"""Which NUMA node suits a GPU, on host copies whose rates are written down."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.choose.numa_binding import Binding, bindings
from collbench.model.operations import Operation, Variant
from collbench.model.run import Device, Measurement, Run
from collbench.report.text.selection import node_of
from tests.builders import gpus, measured, noisy, run_of

H2D, D2H = Operation.H2D_CE, Operation.D2H_CE
MIB = 2**20
SIZE = 64 * MIB
Rates = float | Sequence[float]


def host(operation: Operation, member: int, node: int | None, gbs: Rates, size: int = SIZE) -> Measurement:
    found = measured(operation, (member,), gbs, size, trials=3)
    found.point = replace(found.point, variant=Variant.HOST, numa_node=node)
    return found


def labelled(nodes: Sequence[int | None]) -> tuple[Device, ...]:
    return tuple(replace(gpu, numa_node=node) for gpu, node in zip(gpus(len(nodes)), nodes, strict=True))


def run_with(
    labels: Sequence[int | None], rate: Callable[[Operation, int, int], Rates], nodes: Sequence[int] = (0, 1)
) -> Run:
    points = [host(op, m, node, rate(op, m, node)) for op in (H2D, D2H) for m in range(len(labels)) for node in nodes]
    return run_of(labelled(labels), points)


def by(rates: Mapping[int, float]) -> Callable[[Operation, int, int], float]:
    return lambda _operation, _member, node: rates[node]


@pytest.mark.parametrize(
    ("title", "label", "rates", "best", "tied", "agrees", "text"),
    [
        ("the label is right", 0, {0: 55.0, 1: 38.0}, (0,), False, True,
         "GPU0: node 0, as NVML reports (node 0 55.0, node 1 38.0 GB/s)"),
        ("the label is wrong", 0, {0: 38.0, 1: 55.0}, (1,), False, False,
         "GPU0: node 1 is faster than node 0, which NVML reports (node 1 55.0, node 0 38.0 GB/s)"),
        ("no label", None, {0: 55.0, 1: 38.0}, (0,), False, None,
         "GPU0: node 0, NVML reports none (node 0 55.0, node 1 38.0 GB/s)"),
        ("equal nodes", 0, {0: 55.0, 1: 54.9}, (0, 1), True, None,
         "GPU0: its NUMA nodes tie (node 0 55.0, node 1 54.9 GB/s)"),
        ("less than 2% changes nobody's decision", 1, {0: 55.0, 1: 54.1}, (0, 1), True, None,
         "GPU0: its NUMA nodes tie (node 0 55.0, node 1 54.1 GB/s)"),
        ("two of four are near, the label is one", 1, {0: 55.0, 1: 54.9, 2: 40.0, 3: 39.0}, (0, 1), False, None,
         "GPU0: no NUMA node is significantly faster (node 0 55.0, node 1 54.9, node 2 40.0, node 3 39.0 GB/s)"),
        ("two of four are near, the label is neither", 2, {0: 55.0, 1: 54.9, 2: 40.0, 3: 39.0}, (0, 1), False, False,
         "GPU0: node 0 or 1 is faster than node 2, which NVML reports "
         "(node 0 55.0, node 1 54.9, node 2 40.0, node 3 39.0 GB/s)"),
        ("the label is a node that was not measured", 7, {0: 55.0, 1: 38.0}, (0,), False, None,
         "GPU0: node 0, NVML reports node 7, which was not measured (node 0 55.0, node 1 38.0 GB/s)"),
    ],
)  # fmt: skip
def test_a_gpus_node(
    title: str,
    label: int | None,
    rates: dict[int, float],
    best: tuple[int, ...],
    tied: bool,
    agrees: bool | None,
    text: str,
) -> None:
    run = run_with([label], by(rates), tuple(rates))
    (found,) = bindings(run)
    assert (found.best, found.tied, found.agrees, node_of(found, run)) == (best, tied, agrees, text), title
    assert found.labelled == label


def test_the_slower_direction_counts() -> None:
    rates = {(H2D, 0): 56.0, (D2H, 0): 20.0, (H2D, 1): 40.0, (D2H, 1): 41.0}
    (found,) = bindings(run_with([0], lambda op, _member, node: rates[op, node]))
    assert [(rate.node, round(rate.gbs, 6)) for rate in found.rates] == [(1, 40.0), (0, 20.0)]
    assert found.agrees is False


def test_each_gpu_has_its_own_node() -> None:
    found = bindings(run_with([0, 0, 1, 1], lambda _op, member, node: 55.0 if member // 2 == node else 38.0))
    assert [(one.member, one.best, one.agrees) for one in found] == [
        (0, (0,), True),
        (1, (0,), True),
        (2, (1,), True),
        (3, (1,), True),
    ]


def test_noise_that_would_hide_the_difference_decides_nothing() -> None:
    seeds = iter(range(100))
    (found,) = bindings(run_with([1], lambda _op, _m, node: noisy(55.0 - 3 * node, 0.05, next(seeds), trials=3)))
    assert (len(found.best), found.agrees, found.tied) == (2, None, False)


@pytest.mark.parametrize(
    ("title", "points"),
    [
        ("no host copies", []),
        ("copies with memory anywhere", [host(op, 0, None, 55.0) for op in (H2D, D2H)]),
        ("one node", [host(op, 0, 0, 55.0) for op in (H2D, D2H)]),
        ("one direction", [host(H2D, 0, node, 55.0) for node in (0, 1)]),
        ("a node without one direction", [host(H2D, 0, 0, 55.0), host(D2H, 0, 0, 55.0), host(H2D, 0, 1, 55.0)]),
    ],
)
def test_what_does_not_compare_nodes_says_nothing(title: str, points: list[Measurement]) -> None:
    assert bindings(run_of(labelled([0]), points)) == (), title


def test_a_gpu_that_lacks_a_node_is_left_out_and_the_others_are_judged() -> None:
    run = run_with([0, 0], by({0: 55.0, 1: 38.0}))
    run.measurements = [m for m in run.measurements if (m.point.members, m.point.numa_node) != ((1,), 1)]
    assert [one.member for one in bindings(run)] == [0]


def test_a_largest_size_that_few_reached_is_passed_over() -> None:
    run = run_with([0], by({0: 55.0, 1: 38.0}))
    run.measurements.append(host(H2D, 0, 1, 99.0, 2 * SIZE))
    (found,) = bindings(run)
    assert [(rate.node, round(rate.gbs, 6)) for rate in found.rates] == [(0, 55.0), (1, 38.0)]


def facts(found: Sequence[Binding]) -> dict[int, tuple[object, ...]]:
    return {one.member: (one.rates, one.best, one.tied, one.agrees) for one in found}


@given(st.permutations(range(4)))
def test_relabelling_the_gpus_permutes_the_answer(order: list[int]) -> None:
    rates = {m: {node: 30.0 + (7 * m + 11 * node) % 13 for node in (0, 1)} for m in range(4)}
    labels = [0, 1, None, 0]
    plain = facts(bindings(run_with(labels, lambda _op, m, node: rates[m][node])))
    moved = facts(bindings(run_with([labels[m] for m in order], lambda _op, m, node: rates[order[m]][node])))
    assert moved == {index: plain[m] for index, m in enumerate(order)}
