"""Watching GPUs while they are measured, on described machines; nothing here waits for a clock."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from collbench.machine.health import HealthWatch, Occupants
from collbench.machine.nvml import Glance, Nvml
from collbench.model.run import Flag
from tests.builders import gpus, hot, shared, throttled
from tests.machine import machines

WELL = Glance(temperature=41, processes=frozenset())
NOBODY: frozenset[int] = frozenset()


class Clock:
    """A clock whose seconds pass only when the test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def later(self) -> None:
        self.now += 1.0


def watch_of(readings: Sequence[Sequence[Glance]], own_pids: Sequence[int] = ()) -> HealthWatch:
    """Return a watch of as many GPUs as a reading has; it sees the next reading when a second has passed."""
    coming = iter(readings)
    count = len(readings[0])
    return HealthWatch(gpus(count), lambda: next(coming), Occupants([NOBODY] * count, lambda: own_pids), Clock())


@pytest.mark.parametrize(
    ("title", "glance", "flags"),
    [
        ("a cool idle GPU", WELL, ()),
        ("a GPU of which NVML tells nothing", Glance(), ()),
        ("slowed by its own heat", Glance(79, ("SW thermal slowdown",)), (throttled(1, "SW thermal slowdown"),)),
        ("at its power limit", Glance(60, ("SW power cap",)), (throttled(1),)),
        ("two reasons", Glance(60, ("HW slowdown", "HW power brake slowdown")), (
            throttled(1, "HW slowdown"),
            throttled(1, "HW power brake slowdown"),
        )),
        ("clocks that somebody set", Glance(50, ("applications clocks setting", "display clock setting")), ()),
        ("80 °C is not yet hot", Glance(80), ()),
        ("86 °C is", Glance(86), (hot(1, 86),)),
        ("one process besides ours", Glance(50, (), frozenset({77, 4242})), (shared(1),)),
        ("two", Glance(50, (), frozenset({4242, 4243, 77})), (shared(1, 2),)),
        ("ours alone", Glance(50, (), frozenset({77})), ()),
    ],
)  # fmt: skip
def test_flags_say_what_is_wrong_on_which_gpu(title: str, glance: Glance, flags: tuple[Flag, ...]) -> None:
    watch = watch_of([[WELL, glance]], own_pids=(77,))
    assert watch.flags((0, 1)) == flags, title
    assert watch.flags((0,)) == (), "of the GPUs that were asked for alone"


def test_it_reads_four_times_a_second_at_most() -> None:
    clock, looks = Clock(), list[float]()

    def read() -> Sequence[Glance]:
        looks.append(clock.now)
        return [WELL]

    watch = HealthWatch(gpus(1), read, Occupants([NOBODY], tuple), clock)
    for _ in range(1024):
        watch.flags((0,))
        clock.now += 1 / 1024
    assert looks == [0.0, 0.25, 0.5, 0.75]


def pids_of(*pids: int) -> frozenset[int]:
    return frozenset(pids)


@pytest.mark.parametrize(
    ("title", "before", "now", "own_pids", "others"),
    [
        ("nothing runs", pids_of(), pids_of(), (1322,), 0),
        ("NVML does not tell", pids_of(), None, (1322,), None),
        ("ours, by its id", pids_of(), pids_of(1322), (1322,), 0),
        ("ours and one that was there before", pids_of(4242), pids_of(1322, 4242), (1322,), 1),
        ("ours and one that came later", pids_of(), pids_of(1322, 4242), (1322,), 1),
        ("several of ours", pids_of(), pids_of(1322, 1323, 4242), (1322, 1323), 1),
        ("a container: ours has the host's id", pids_of(), pids_of(90001), (7,), 0),
        ("a container: ours and an old one", pids_of(80000), pids_of(80000, 90001), (7,), 1),
        ("a container: ours and a newer one", pids_of(), pids_of(90001, 90002), (7,), 1),
        ("a container: the old one left", pids_of(80000), pids_of(90001), (7,), 0),
        ("a container: the old one alone, ours is not up yet", pids_of(80000), pids_of(80000), (7,), 1),
        ("a container: two of ours", pids_of(80000), pids_of(80000, 90001, 90002), (7, 8), 1),
        ("a container: the second of ours is not up yet", pids_of(80000), pids_of(80000, 90001), (7, 8), 1),
        ("a container: ours was restarted under another id", pids_of(80000), pids_of(80000, 90007), (7,), 1),
    ],
)
def test_other_peoples_processes_are_counted_without_ours(
    title: str, before: frozenset[int], now: frozenset[int] | None, own_pids: Sequence[int], others: int | None
) -> None:
    assert Occupants([before], lambda: own_pids).others(0, now) == others, title


def test_a_killed_worker_of_ours_is_not_counted_as_another_process() -> None:
    own_pids = [1322]
    occupants = Occupants([NOBODY], lambda: own_pids)
    assert occupants.others(0, pids_of(1322)) == 0
    own_pids[:] = []
    assert occupants.others(0, pids_of(1322)) == 0
    own_pids[:] = [1400]
    assert occupants.others(0, pids_of(1322, 1400, 4242)) == 1


def test_a_glance_reads_what_nvml_reports() -> None:
    machine = machines.h200x4()
    machine.gpus[1].answers |= {
        "nvmlDeviceGetTemperature": 87,
        "nvmlDeviceGetCurrentClocksEventReasons": 0x1 | 0x20,  # nvml.h: idle, SW thermal slowdown
        "nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(pid=4242), SimpleNamespace(pid=77)],
    }
    with Nvml(machine) as nvml:
        glances = [nvml.glance(device) for device in nvml.devices()[:2]]
    assert glances == [Glance(38, (), pids_of()), Glance(87, ("SW thermal slowdown",), pids_of(77, 4242))]
