"""From a request to the data points that a machine can measure."""

import itertools
import random
import re
from dataclasses import replace

import pytest

from collbench.measurement.plan import (
    Plan,
    Request,
    check_registrations,
    default_sizes,
    default_stopping_rule,
    iterations,
    make_plan,
)
from collbench.measurement.sweep import Watcher, sweep
from collbench.model.errors import UsageError
from collbench.model.operations import COLLECTIVES, Operation, Registration, Variant, Work
from collbench.model.run import NO_PEERS, SkipKind, Skipped
from collbench.report import sentences
from tests.builders import ALL, gpus, run_of
from tests.measurement.fakes import FakeBackend

MIB, GIB = 2**20, 2**30
ONE = replace(ALL, copies=(), collectives=(Work(Operation.ALLREDUCE),), pairs=False)


def planned(request: Request, backend: FakeBackend) -> tuple[set[tuple[str, tuple[int, ...]]], list[str]]:
    plan, skipped = make_plan(request, backend)
    return {(str(work), members) for work, groups in plan.groups.items() for members in groups}, [
        sentences.skipped(skip, run_of(backend.devices(), [])) for skip in skipped
    ]


def test_copies_are_planned_on_directed_links_and_collectives_on_pairs_or_on_all() -> None:
    works, skipped = planned(replace(ALL, collectives=(Work(Operation.ALLREDUCE),)), FakeBackend(2))
    assert works == {
        ("ce-write", (0, 1)),
        ("ce-write", (1, 0)),
        ("sm-read", (0, 1)),
        ("sm-read", (1, 0)),
        ("allreduce", (0, 1)),
    }
    assert skipped == []
    together = replace(ALL, copies=(), collectives=(Work(Operation.ALLREDUCE),), pairs=False)
    assert planned(together, FakeBackend(4))[0] == {("allreduce", (0, 1, 2, 3))}


def test_a_link_that_cannot_run_a_copy_is_skipped_by_name() -> None:
    (backend := FakeBackend(2)).unreachable[Operation.SM_READ, 0, 1] = NO_PEERS
    works, skipped = planned(ALL, backend)
    assert ("sm-read", (0, 1)) not in works
    assert ("sm-read", (1, 0)) in works
    assert skipped == ["sm-read GPU0 → GPU1: no peer access, so a kernel cannot address the other GPU's memory"]


def test_sizes_without_room_are_skipped_by_name_with_what_is_free() -> None:
    backend = FakeBackend(2)
    backend.capacity = 600 * MIB
    plan, skipped = make_plan(replace(ALL, sizes=(MIB, 512 * MIB, GIB, 2 * GIB)), backend)
    assert set(plan.sizes.values()) == {(MIB, 512 * MIB)}
    free = backend.free_bytes()
    assert skipped == [Skipped(SkipKind.ROOM, sizes=(GIB, 2 * GIB), limit_bytes=600 * MIB, free_bytes=free)]
    assert sentences.skipped(skipped[0], run_of(backend.devices(), [])) == (
        "sizes 1G, 2G: the fullest device has room for messages of 600 MiB; free now: GPU0 1.758 GiB, GPU1 1.758 GiB, "
        "shared by three buffers plus those of NCCL"
    )


def test_sizes_below_one_element_are_left_to_the_copies() -> None:
    plan, skipped = make_plan(replace(ALL, sizes=(1, 2, 8)), FakeBackend(2))
    assert plan.sizes[Work(Operation.CE_WRITE)] == (1, 2, 8)
    assert plan.sizes[Work(Operation.ALLREDUCE)] == (8,)
    assert [(skip.kind, skip.work, skip.sizes) for skip in skipped] == [
        (SkipKind.SMALL_ELEMENT, Work(operation), (1, 2)) for operation in (Operation.ALLREDUCE, Operation.BROADCAST)
    ]


def test_a_size_that_just_fits_is_measured() -> None:
    backend = FakeBackend(2)
    backend.capacity = 512 * MIB
    plan, skipped = make_plan(replace(ALL, sizes=(512 * MIB, 512 * MIB + 8)), backend)
    assert set(plan.sizes.values()) == {(512 * MIB,)}
    assert [skip.sizes for skip in skipped] == [(512 * MIB + 8,)]


@pytest.mark.parametrize(("iterations", "launches"), [(None, 20), (7, 7)])
def test_a_launch_loop_has_as_many_launches_as_nccl_tests_or_as_requested(
    iterations: int | None, launches: int
) -> None:
    assert plan_of(replace(ONE, launches=True, iterations=iterations)).launches == launches
    assert plan_of(replace(ONE, iterations=iterations)).launches == 0


def test_how_long_each_request_measures() -> None:
    default = default_stopping_rule("cuda")
    assert ALL.stopping_rule().screening == default.screening < 6
    assert ALL.stopping_rule().budget_seconds == default.budget_seconds
    assert replace(ONE, sets=((0, 1), (0, 2))).stopping_rule().screening == 6
    assert replace(ALL, quick=True).stopping_rule().budget_seconds == 1.0


@pytest.mark.parametrize(("backend", "largest"), [("cuda", GIB), ("host", 64 * MIB)])
def test_default_sizes_are_powers_of_two_from_8_bytes(backend: str, largest: int) -> None:
    sizes, of_links = default_sizes(backend), default_sizes(backend, of_links=True)
    assert (sizes[0], sizes[-1]) == (8, largest) == (of_links[0], of_links[-1])
    assert set(of_links) <= set(sizes)
    assert [b // a for a, b in itertools.pairwise(of_links)][1:] == [4] * (len(of_links) - 2)
    assert all(size == 8 * 2**index for index, size in enumerate(sizes))


def plan_of(request: Request, count: int = 4) -> Plan:
    return make_plan(request, FakeBackend(count))[0]


@pytest.mark.parametrize("sets", [((0, 1), (2, 3), (0, 3)), ((0, 1, 2), (0, 2, 3))])
def test_named_sets_are_measured_in_turn_at_least_six_times(sets: tuple[tuple[int, ...], ...]) -> None:
    """docs/method/choosing.md 5; sets that share no GPU would otherwise run at the same time."""
    backend, request = FakeBackend(4), replace(ONE, sets=sets, sizes=(MIB,), budget_seconds=1e-9)
    plan, _ = make_plan(request, backend)
    assert plan.groups == {Work(Operation.ALLREDUCE): sets}
    run = run_of(gpus(4), [])
    sweep(backend, plan, run, request.stopping_rule(), random.Random(1), Watcher(lambda *_: None, lambda: None))
    assert {step.groups for step in backend.steps} == {(devices,) for devices in sets}
    assert {
        measurement.point.members: len(measurement.samples) >= 6 for measurement in run.measurements
    } == dict.fromkeys(sets, True)
    # In turn: every pass has each set once.
    trials = [step.groups[0] for step in backend.steps][-len(sets) * 6 :]
    assert all(set(trials[at : at + len(sets)]) == set(sets) for at in range(0, len(trials), len(sets)))


@pytest.mark.parametrize(
    ("title", "wrong", "count", "message"),
    [
        ("sets of unequal size", {"split": 2}, 3, "--split 2 of 3 devices"),
        ("a root that is no rank", {"root": 4}, 4, "--root 4 is not a rank: 4 ranks count from 0 to 3"),
        ("only sizes without a batch", {"collectives": (Work(Operation.ALLGATHER),), "sizes": (8, 63)}, 4, "16 bytes"),
        (
            "only sizes without an element",
            {"sizes": (1, 2)},
            2,
            "allreduce of 1 B, 2 B is left out (less than an element)",
        ),
    ],
)
def test_what_cannot_be_planned_says_why(title: str, wrong: dict[str, object], count: int, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        plan_of(replace(ONE, **wrong), count)  # type: ignore[arg-type]
    assert message in str(caught.value)


@pytest.mark.parametrize("operation", COLLECTIVES)
def test_sizes_are_cut_as_nccl_tests_cuts_them(operation: Operation) -> None:
    # 1000100 bytes over 4 ranks of float: 62506 elements a rank, cut to a multiple of 4: 62504 [src/all_gather.cu:10].
    plan = plan_of(replace(ONE, collectives=(Work(operation),), sizes=(1_000_103,)))
    assert plan.sizes[Work(operation)] == (4 * 4 * 62504 if operation.shares or operation.irregular else 1_000_100,)


@pytest.mark.parametrize(
    ("title", "sizes", "dtype", "expected"),
    [
        ("whole elements stay", (8, 16), "float32", (8, 16)),
        ("odd sizes round down", (9, 15), "int64", (8,)),
        ("sizes that meet are merged", (8, 9, 10), "float32", (8,)),
        ("less than one element is dropped", (1, 2, 4), "float32", (4,)),
    ],
)
def test_sizes_of_a_reduction(title: str, sizes: tuple[int, ...], dtype: str, expected: tuple[int, ...]) -> None:
    assert plan_of(replace(ONE, sizes=sizes, dtype=dtype)).sizes == {Work(Operation.ALLREDUCE): expected}


@pytest.mark.parametrize(
    ("variant", "groups"),
    [
        (Variant.BOTH_WAYS, {(0, 1), (0, 2), (1, 2)}),
        (Variant.ONE_TO_ALL, {(0, 1, 2), (1, 0, 2), (2, 0, 1)}),
        (Variant.ALL_TO_ONE, {(0, 1, 2), (1, 0, 2), (2, 0, 1)}),
        (Variant.STAGED, {(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)}),
        (Variant.HOST, {(0,), (1,), (2,)}),
    ],
)
def test_where_each_kind_of_copy_runs(variant: Variant, groups: set[tuple[int, ...]]) -> None:
    plan = plan_of(replace(ALL, copies=(variant,), collectives=()), count=3)
    assert {work.variant for work in plan.groups} == {variant}
    for planned_groups in plan.groups.values():
        assert set(planned_groups) == groups


def test_all_to_one_needs_room_for_a_message_of_every_sender() -> None:
    backend = FakeBackend(4)
    backend.capacity = 2 * GIB
    plan, skipped = make_plan(replace(ALL, copies=(Variant.ALL_TO_ONE,), collectives=(), sizes=(MIB, GIB)), backend)
    assert set(plan.sizes.values()) == {(MIB,)}
    assert plan.largest_bytes() == 3 * MIB
    works = [Work(operation, Variant.ALL_TO_ONE) for operation in (Operation.CE_WRITE, Operation.SM_READ)]
    assert skipped == [
        Skipped(SkipKind.CONCURRENT_ROOM, work, sizes=(GIB,), limit_bytes=2 * GIB, count=3) for work in works
    ]


HOST = replace(ALL, copies=(Variant.HOST,), collectives=(), sizes=(8, 64 * MIB))


@pytest.mark.parametrize(
    ("title", "nodes", "expected"),
    [
        ("one node has nothing to compare with", (0,), {None}),
        ("none known", (), {None}),
        ("two sockets", (0, 1), {0, 1}),
        ("numbers with gaps", (0, 8), {0, 8}),
    ],
)
def test_host_copies_run_once_for_each_numa_node(title: str, nodes: tuple[int, ...], expected: set[int | None]) -> None:
    backend = FakeBackend(3)
    backend.nodes = nodes
    plan, skipped = make_plan(HOST, backend)
    assert {work.numa_node for work in plan.groups} == expected, title
    assert set(plan.groups.values()) == {((0,), (1,), (2,))}
    assert {point.numa_node for point in plan.points()} == expected
    assert skipped == []


def test_cores_have_no_nccl_that_registers_memory() -> None:
    on_windows = (Work(Operation.ALLREDUCE, registration=Registration.WINDOW),)
    with pytest.raises(UsageError, match="registers no memory"):
        check_registrations(replace(ALL, backend="host", collectives=on_windows))
    check_registrations(replace(ALL, backend="sim", collectives=on_windows))


@pytest.mark.parametrize(
    ("kind", "nccl", "message"),
    [
        (Registration.BUFFER, "2.18.6", "--registration buffer needs NCCL 2.19, and this is 2.18.6"),
        (Registration.BUFFER, "2.19.0", ""),
        (Registration.WINDOW, "2.26.2", "--registration window needs NCCL 2.27, and this is 2.26.2"),
        (Registration.WINDOW, "2.27.3", ""),
    ],
)
def test_memory_that_an_old_nccl_lacks_is_refused_by_name_and_left_out_of_small_allreduces(
    kind: Registration, nccl: str, message: str
) -> None:
    request = replace(
        ALL, collectives=tuple(Work(Operation.ALLREDUCE, registration=one) for one in (Registration.NONE, kind))
    )
    if message:
        with pytest.raises(UsageError, match=re.escape(message)):
            request.supported_by(nccl)
    else:
        assert request.supported_by(nccl) == (request, [])
    small, skipped = replace(request, layers=80).supported_by(nccl)
    assert len(small.collectives) == (1 if message else 2)
    assert [one.kind for one in skipped] == ([SkipKind.OLD_NCCL] if message else [])


def test_only_host_copies_know_numa_nodes() -> None:
    backend = FakeBackend(2)
    backend.nodes = (0, 1)
    plan, _ = make_plan(replace(HOST, copies=tuple(Variant), chase=True), backend)
    host = {Variant.HOST, Variant.HOST_BOTH_WAYS, Variant.HOST_ALL, Variant.HOST_ALL_BOTH_WAYS}
    assert {work.variant for work in plan.groups if work.numa_node is not None} == host
    # All at once, memory on each device's own node is one more case.
    none = {work.variant for work in plan.groups if work.numa_node is None and work.operation.is_copy}
    assert none & host == {Variant.HOST_ALL, Variant.HOST_ALL_BOTH_WAYS}


def test_copies_that_name_all_others_as_busy_are_timed_in_one_step() -> None:
    plan, _ = make_plan(replace(HOST, copies=(Variant.HOST_ALL, Variant.HOST_BOTH_WAYS)), FakeBackend(3))
    all_at_once, both_ways = (
        Work(Operation.CE_WRITE, Variant.HOST_ALL),
        Work(Operation.CE_WRITE, Variant.HOST_BOTH_WAYS),
    )
    assert plan.rounds(all_at_once, random.Random(0)) == [[(0, 1, 2), (1, 0, 2), (2, 0, 1)]]
    assert sorted(plan.rounds(both_ways, random.Random(0))) == [[(0,)], [(1,)], [(2,)]]


@pytest.mark.parametrize(
    ("title", "variant", "size", "messages"),
    [
        ("256 MiB concurrently", Variant.HOST_ALL, 64 * MIB, 4),
        ("a large message concurrently", Variant.HOST_BOTH_WAYS, 512 * MIB, 1),
        ("as many messages again follow: 14 at most", Variant.HOST_ALL_BOTH_WAYS, MIB, 14),
        ("small ones, too", Variant.HOST_ALL, 8, 14),
        ("8 GiB within a memory", Variant.LOCAL, 512 * MIB, 16),
    ],
)
def test_batches_of_host_and_local_copies_have_lengths_of_their_own(
    title: str, variant: Variant, size: int, messages: int
) -> None:
    for batch_bytes in (128 * MIB, 16 * GIB):
        assert iterations(Work(Operation.H2D_CE, variant), 2, size, batch_bytes) == messages, title


def test_host_copies_use_any_memory_where_it_cannot_be_bound_to_a_node() -> None:
    (backend := FakeBackend(2)).unreachable[Operation.H2D_CE, 0] = Skipped(
        SkipKind.NUMA, detail="Operation not permitted"
    )
    backend.nodes = (0, 1)
    _, skipped = planned(HOST, backend)
    assert skipped[0] == "host copies by NUMA node: Operation not permitted"


@pytest.mark.parametrize(
    ("title", "sizes", "planned_sizes", "skipped_sizes"),
    [
        ("small ones stay", (8, 64 * MIB), (8, 64 * MIB), []),
        ("larger ones are left out", (8, MIB, 128 * MIB, GIB), (8, MIB), [(128 * MIB, GIB)]),
        ("the limit itself stays", (8, 64 * MIB, 128 * MIB), (8, 64 * MIB), [(128 * MIB,)]),
        ("where all are larger, the largest that is allowed", (GIB,), (64 * MIB,), [(GIB,)]),
    ],
)
def test_messages_with_a_nodes_memory_have_64_mib_at_most(
    title: str, sizes: tuple[int, ...], planned_sizes: tuple[int, ...], skipped_sizes: list[tuple[int, ...]]
) -> None:
    backend = FakeBackend(2)
    backend.nodes = (0, 1)
    plan, skipped = make_plan(replace(HOST, sizes=sizes), backend)
    assert set(plan.sizes.values()) == {planned_sizes}, title
    assert skipped == [Skipped(SkipKind.NODE_LIMIT, sizes=sizes, limit_bytes=64 * MIB) for sizes in skipped_sizes]
