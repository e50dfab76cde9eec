"""One node's part of a run of two nodes with two GPUs each."""

from __future__ import annotations

from dataclasses import replace

from collbench.choose.freshness import restricted
from collbench.model.operations import Operation
from collbench.model.run import Flag, FlagKind, Mark, MarkKind, SkipKind, Skipped
from collbench.report import sentences
from tests.builders import gpus, measured, paths, run_of


def test_what_names_a_device_names_it_by_its_new_position() -> None:
    found = measured(Operation.ALLREDUCE, (3, 2), 100.0)
    flag, mark = Flag(FlagKind.HOT, (3,), 90), Mark(MarkKind.IMPOSSIBLE, (2,), 500.0, 450.0)
    found.samples = [replace(sample, flags=(flag,), marks=(mark,)) for sample in found.samples]
    run = run_of(gpus(4), [found], paths(4))
    run.skipped = [Skipped(SkipKind.NO_PEERS, None, one) for one in ((2, 3), (0, 3), ())]
    own = restricted(run, (3, 2))
    assert {(sample.flags[0].devices, sample.marks[0].devices) for sample in own.measurements[0].samples} == {
        ((0,), (1,))
    }
    assert sentences.flag(own.measurements[0].samples[0].flags[0], own.devices) == sentences.flag(flag, run.devices)
    assert [left.members for left in own.skipped] == [(1, 0), ()]
    assert run.measurements[0].samples[0].flags == (flag,)
