"""`--format nccl-tests` has numbers out of place and in place, as its readers expect."""

import pytest

from collbench.measurement.backends.host import GlooWorld, check
from collbench.measurement.backends.protocol import Step, Timing
from tests.cli.program import Program


@pytest.fixture(autouse=True)
def world(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fake gloo ranks that take no time and refuse the same; tests/measurement/backends/test_gloo.py has real ones."""

    def time(world: GlooWorld, step: Step) -> Timing:
        check(step)
        return Timing(seconds=((1e-5,) * step.batches,) * len(step.groups))

    monkeypatch.setattr(GlooWorld, "time", time)


@pytest.mark.parametrize(
    ("backend", "operation", "in_place"),
    [
        (("--backend", "sim", "--fabric", "dgx-1v"), "allreduce", True),
        (("--backend", "sim", "--fabric", "dgx-1v"), "alltoall", True),
        (("--backend", "host"), "allgather", True),
        (("--backend", "host"), "sendrecv", False),  # gloo has no such call in place
    ],
)
def test_both_halves_of_a_row_have_numbers(
    program: Program, backend: tuple[str, ...], operation: str, in_place: bool
) -> None:
    result = program(operation, *backend, "--sizes", "64K", "--budget", "100ms", "--format", "nccl-tests")
    assert result.status == 0, result.err
    (row,) = (line.split() for line in result.out.splitlines() if not line.startswith("#") and line.strip())
    assert (len(row), row[0]) == (13, "65536")
    out, inside = row[5:8], row[9:12]  # time, algbw, busbw
    assert all(float(number) > 0 for number in out)
    assert all(float(number) > 0 for number in inside) if in_place else inside == ["N/A"] * 3
    assert "trusted" not in result.out  # nothing failed
