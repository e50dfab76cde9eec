"""A run with something in every column, on a machine whose names try to be more than text."""

from __future__ import annotations

from dataclasses import replace

from collbench.model.operations import Operation, Skew, SkewKind, Variant
from collbench.model.run import DataPoint, Flag, FlagKind, Measurement, Path, Run, StopReason
from tests.builders import gpus, in_words, measured, run_of, throttled

# A quote, a comma, a pipe, a line break, a spreadsheet's formula, HTML, Markdown, a backslash, an accent, edge blanks.
NAME = " =cmd|' /C calc'!A1, \"H200\"\n<b>*x*</b> _y_ `z` \\n $1 [a](b) & é "


def hostile_run() -> Run:
    """Return a run with copies, collectives, host copies, a chase, a failed data point and an undisturbed one."""
    devices = (replace(gpus(3)[0], name=NAME, uuid='GPU-"0,|\n'), *gpus(3)[1:])
    both = Measurement(
        DataPoint(Operation.CE_READ, (2, 1), 4096, Variant.BOTH_WAYS), measured(Operation.CE_READ, (2, 1), 7).samples
    )
    host = measured(Operation.H2D_CE, (1,), 50.0, size=2**26)
    host.point = replace(host.point, variant=Variant.HOST, numa_node=1)
    reduce = measured(Operation.REDUCE, (0, 1, 2), 100.0 / 3, size=2**20, launch=1.25e-5)
    flags = (
        throttled(1, "SW thermal slowdown"),
        Flag(FlagKind.OTHER, (), reason='shared: "1" other\nprocess | on GPU0'),
    )
    reduce.samples[0] = replace(reduce.samples[0], flags=flags, concurrent=True)
    hang = Measurement(
        DataPoint(Operation.SM_READ, (1, 2), 8), [], StopReason.FAILED, failure=in_words('no answer for 30 s, "x" | y')
    )
    uneven = measured(Operation.ALLTOALLV, (0, 2), 300.0, size=2**20)
    uneven.point = replace(uneven.point, skew=Skew(SkewKind.MATRIX, matrix=((0, 2**20), (16, 0))))
    measurements = [
        measured(Operation.CE_WRITE, (0, 1), [390.1, 1 / 3, 401.7]),
        both,
        host,
        measured(Operation.CHASE, (0, 1), 0.008, size=8),
        reduce,
        measured(Operation.ALLREDUCE, (0, 2), 300.0, trials=2),
        uneven,
        hang,
    ]
    run = run_of(devices, measurements, [Path((0, 1), "NV18", theory_gbs=478.125)])
    run.settings.environment.update({"NCCL_DEBUG_FILE": "a b'c\"d"})
    run.machine = replace(run.machine, hostname=NAME, multicast=True)
    return run
