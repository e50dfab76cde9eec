"""What two runs differ in beside their figures."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest

from collbench.judge.compare import differences
from collbench.model.operations import Operation
from collbench.model.run import Health, Run
from tests.builders import gpus, in_words, measured, paths, run_of, shared, throttled

SAME = {index: index for index in range(4)}


def plain(operation: Operation = Operation.ALLREDUCE, n: int = 4) -> Run:
    """Return a run of three trials of every pair."""
    return run_of(gpus(n), [measured(operation, pair, 300.0, trials=3) for pair in combinations(range(n), 2)])


def reported(base: Run, new: Run, positions: dict[int, int] | None = None) -> list[tuple[str, str, str]]:
    found = differences(base, new, SAME if positions is None else positions)
    return [(one.what, one.base, one.new) for one in found]


def test_equal_runs_differ_in_nothing() -> None:
    assert reported(plain(), plain()) == []


@pytest.mark.parametrize("operation", [Operation.ALLREDUCE, Operation.CE_WRITE])
def test_dtypes_are_those_of_collectives(operation: Operation) -> None:
    base, new = plain(operation), plain(operation)
    new.settings = replace(new.settings, dtype="bfloat16", redop="max", processes=4)
    collective = [("dtype", "float32", "bfloat16"), ("redop", "sum", "max")] if operation.is_collective else []
    assert reported(base, new) == [*collective, ("processes", str(base.settings.processes), "4")]


def test_variables_are_reported_by_name_but_for_those_that_change_nothing() -> None:
    base, new = plain(), plain()
    base.settings.environment.update({"NCCL_PROTO": "LL", "NCCL_VERSION": "2.28", "NCCL_ALGO": "Ring"})
    new.settings.environment.update({"NCCL_PROTO": "LL128", "NCCL_BUFFSIZE": "1"})
    assert reported(base, new) == [
        ("NCCL_ALGO", "Ring", "not set"),
        ("NCCL_BUFFSIZE", "not set", "1"),
        ("NCCL_PROTO", "LL", "LL128"),
    ]


def test_the_command_line_is_for_people_and_no_difference() -> None:
    base, new = plain(), plain()
    new.settings = replace(new.settings, command=("pairs", "--sizes", "1M"))
    assert reported(base, new) == []


def test_labels_are_compared_on_the_same_devices_and_the_first_ones_reported() -> None:
    base, new = plain(), plain()
    base.paths = paths(4, but={(0, 1): "SYS"})
    new.paths = paths(4, but={(2, 3): "SYS"})
    moved = {0: 2, 1: 3, 2: 0, 3: 1}
    assert reported(base, new, moved) == []
    assert [what for what, _, _ in reported(base, new)] == ["label of GPU0-GPU1", "label of GPU2-GPU3"]
    pairs = list(combinations(range(4), 2))
    for count, more in ((4, []), (5, [("more labels", "", "1 others differ")])):
        new.paths = paths(4, but=dict.fromkeys(pairs[:count], "PIX"))
        found = reported(plain(), new)
        assert [what for what, _, _ in found[:4]] == [f"label of GPU{a}-GPU{b}" for a, b in pairs[:4]]
        assert found[4:] == more


def test_a_device_without_counterpart_has_no_label_to_compare() -> None:
    base, new = plain(n=2), plain(n=3)
    new.paths = paths(3, "SYS")
    assert [what for what, _, _ in reported(base, new, {1: 0, 2: 1})] == ["devices", "label of GPU0-GPU1"]


def test_flags_are_counted_by_trial_device_and_reason_the_commonest_first() -> None:
    base, new = plain(), plain()
    for index, flags in enumerate(
        [(throttled(0), throttled(1)), (throttled(0), shared(2)), (shared(3),), (shared(3),)]
    ):
        samples = new.measurements[index].samples
        samples[0] = replace(samples[0], flags=flags)
    capped = "throttled (SW power cap)"
    shown = f"2 shared on GPU3, 2 {capped} on GPU0, 1 shared on GPU2, 1 {capped} on GPU1"
    assert reported(base, new) == [("disturbed trials", "none", shown)]


def test_a_process_that_does_nothing_disturbs_no_trial() -> None:
    base, new = plain(), plain()
    for found in new.measurements:
        found.samples[0] = replace(found.samples[0], flags=(shared(0), shared(1)))
    notebook, worker = Health(processes=1, utilization=1), Health(processes=1, utilization=98)
    new.health_before = (notebook, worker)
    assert reported(base, new) == [("disturbed trials", "none", "6 shared on GPU1")]


def test_what_was_given_up_is_counted_and_an_interruption_reported() -> None:
    base, new = plain(), replace(plain(), complete=False, version="0.2.0")
    new.measurements[1:3] = [replace(found, failure=in_words("no answer")) for found in new.measurements[1:3]]
    assert reported(base, new) == [
        ("data points that failed", "0", "2"),
        ("complete", "yes", "no"),
        ("collbench", "0.1.0", "0.2.0"),
    ]


def test_other_devices_are_named_by_kind_and_multicast_is_unknown_on_old_machines() -> None:
    base, new = plain(), plain()
    new.devices = (*new.devices[:3], replace(new.devices[3], name="NVIDIA H100"))
    base.machine = replace(base.machine, multicast=None)
    new.machine = replace(new.machine, multicast=False)
    assert reported(base, new) == [
        ("multicast (NVLS)", "unknown", "no"),
        ("devices", "4 × NVIDIA H200", "3 × NVIDIA H200, 1 × NVIDIA H100"),
    ]
