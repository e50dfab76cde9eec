"""One node's part of a run of two nodes with two GPUs each."""

from __future__ import annotations

from collbench.analysis.nodes import own_run
from collbench.model.operations import Operation
from tests.builders import gpus, measured, paths, run_of


def test_positions_and_pairs_are_the_nodes_own() -> None:
    pairs = [measured(Operation.ALLREDUCE, members, 100.0) for members in ((0, 1), (2, 3), (0, 1, 2, 3), (3, 2))]
    run = run_of(gpus(4), pairs, paths(4))
    own = own_run(run, (2, 3))
    assert [device.index for device in own.devices] == [2, 3]
    assert [found.cell.members for found in own.measurements] == [(0, 1), (1, 0)]
    assert [path.devices for path in own.paths] == [(0, 1)]
    assert len(run.measurements) == 4
