import pytest

from collbench.model.operations import Operation
from collbench.model.run import Measurement, Run
from collbench.report.text.measured import page
from tests.builders import gpus, measured, run_of
from tests.report.pages import text

MIB = 2**20
FOUR = (0, 1, 2, 3)


def at(size: int, microseconds: float, launch: float | None = None, trials: int = 5) -> Measurement:
    """Return an all-reduce over four GPUs at the time that nccl-tests printed (tests/data/h200x4)."""
    gbs = size / microseconds / 1e3
    return measured(Operation.ALLREDUCE, FOUR, gbs, size, trials, None if launch is None else launch * 1e-6)


def after_header(run: Run) -> str:
    return text(page(run)).split("\n\n", 1)[1]


def rows(shown: str) -> list[list[str]]:
    """Return the words of the first table's lines, its head first."""
    lines = shown.split("\n")[1:]
    return [
        line.replace(" B ", "B ").split()
        for line in lines[: next(i for i, line in enumerate(lines) if line.startswith("time:"))]
    ]


# Words as nccl-tests' doc/PERFORMANCE.md has the factors; counts as its GetCollByteCount has them for 1 MiB of float32
# on four ranks.
@pytest.mark.parametrize(
    ("operation", "factor", "busbw", "count", "title"),
    [
        (Operation.ALLREDUCE, "2(n-1)/n", "300.00", "262144", "float32, sum"),
        (Operation.BROADCAST, "1", "200.00", "262144", "float32, root 0 (GPU0)"),
        (Operation.REDUCE, "1", "200.00", "262144", "float32, sum, root 0 (GPU0)"),
        (Operation.ALLGATHER, "(n-1)/n", "150.00", "65536", "float32"),
        (Operation.REDUCESCATTER, "(n-1)/n", "150.00", "65536", "float32, sum"),
        (Operation.ALLTOALL, "(n-1)/n", "150.00", "65536", "float32"),
        (Operation.SENDRECV, "1", "200.00", "262144", "float32"),
        (Operation.GATHER, "(n-1)/n", "150.00", "65536", "float32, root 0 (GPU0)"),
        (Operation.SCATTER, "(n-1)/n", "150.00", "65536", "float32, root 0 (GPU0)"),
    ],
)
def test_every_collective_says_its_factor_and_what_a_size_is(
    operation: Operation, factor: str, busbw: str, count: str, title: str
) -> None:
    shown = after_header(run_of(gpus(4), [measured(operation, FOUR, 200.0, MIB)], command=(operation.value,)))
    assert shown.startswith(f"{operation} over GPU0, GPU1, GPU2, GPU3 (4 ranks): {title}\n")
    assert rows(shown)[1] == ["1M", count, "5.24", "200.00", busbw, f"{busbw}-{busbw}", "0"]
    assert f"\nbusbw = algbw × {factor}; " in shown
    assert ("all ranks' blocks together" in shown) == (factor == "(n-1)/n")


@pytest.mark.parametrize(
    ("command", "first"),
    [
        (("pairs", "-o", "x.json"), "labels"),
        ((), "labels"),
        (("allreduce",), "allreduce over"),
        (("broadcast",), "allreduce over"),
    ],
)
def test_the_page_is_that_of_the_command_which_measured(command: tuple[str, ...], first: str) -> None:
    assert after_header(run_of(gpus(4), [at(MIB, 19.06)], command=command)).startswith(first)
