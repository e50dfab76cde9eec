from dataclasses import replace

import pytest

from collbench.model import Measurement, Operation, Run, Skipped
from collbench.report import collective
from collbench.report.page import page
from tests.builders import GIB, gpus, measured, run_of
from tests.report.pages import text

MIB = 2**20
FOUR = (0, 1, 2, 3)


def at(size: int, microseconds: float, launch: float | None = None, visits: int = 5) -> Measurement:
    """Return an all-reduce over four GPUs at the time that nccl-tests printed (tests/data/h200x4)."""
    gbs = size / microseconds / 1e3
    return measured(Operation.ALLREDUCE, FOUR, gbs, size, visits, None if launch is None else launch * 1e-6)


def after_header(run: Run) -> str:
    return text(page(run)).split("\n\n", 1)[1]


def test_one_communicator_reads_like_nccl_tests() -> None:
    cells = [at(64 * MIB, 325.34, 331.0), at(8, 8.94, 20.04), at(GIB, 4543.50, 4550.0)]
    assert after_header(run_of(gpus(4), cells, command=("allreduce",))) == (
        "allreduce over GPU0, GPU1, GPU2, GPU3 (4 ranks)\n"
        "size      count     type  redop  time us  launch us   algbw   busbw       interval  wrong\n"
        "   8          2  float32    sum     8.94      20.04    0.00    0.00      0.00-0.00      0\n"
        " 64M   16777216  float32    sum   325.34     331.00  206.27  309.41  309.41-309.41      0\n"
        "  1G  268435456  float32    sum  4543.50    4550.00  236.32  354.49  354.49-354.49      0\n"
        "time: one collective on the device, the slowest rank, median; launch: one call\n"
        "of an ungraphed loop, as a training step makes it; busbw = algbw × 2(n-1)/n;\n"
        "interval: 95 % of busbw, GB/s; wrong: elements that failed verification\n"
    )


def test_without_a_launch_loop_or_enough_blocks_the_columns_say_so() -> None:
    shown = after_header(run_of(gpus(4), [at(MIB, 19.06, visits=2)], command=("allreduce",)))
    assert "launch us" not in shown
    assert shown.split("\n")[2].split() == ["1M", "262144", "float32", "sum", "19.06", "55.01", "82.52", "-", "0"]


def test_a_broadcast_reduces_nothing_and_its_factor_is_one() -> None:
    cell = measured(Operation.BROADCAST, FOUR, 200.0, MIB)
    shown = after_header(run_of(gpus(4), [cell], command=("broadcast",)))
    assert shown.split("\n")[2].split()[3:] == ["none", "5.24", "200.00", "200.00", "200.00-200.00", "0"]
    assert "busbw = algbw × 1;" in shown


@pytest.mark.parametrize(("dtype", "count"), [("bfloat16", "524288"), ("float64", "131072"), ("int8", "1048576")])
def test_the_count_is_in_elements(dtype: str, count: str) -> None:
    run = run_of(gpus(4), [at(MIB, 19.06)], command=("allreduce",))
    run.settings = replace(run.settings, dtype=dtype, redop="max")
    assert after_header(run).split("\n")[2].split()[1:4] == [count, dtype, "max"]


def test_each_pair_has_its_table() -> None:
    cells = [measured(Operation.ALLREDUCE, pair, 300.0, size) for pair in ((1, 2), (0, 1)) for size in (MIB, 8)]
    shown = after_header(run_of(gpus(3), cells, command=("allreduce", "--pairs")))
    assert shown.index("allreduce over GPU0, GPU1 (2 ranks)") < shown.index("allreduce over GPU1, GPU2 (2 ranks)")
    assert shown.count("size") == 2
    assert shown.count("busbw = ") == 1


def test_what_was_skipped_is_said() -> None:
    run = run_of(gpus(4), [at(MIB, 19.06)], command=("allreduce",))
    run.skipped = [Skipped("collectives of 1 bytes", "smaller than one float32")]
    assert after_header(run).endswith("skipped   collectives of 1 bytes: smaller than one float32\n")


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


def test_nothing_measured_is_a_header() -> None:
    run = run_of(gpus(2), [], command=("allreduce",))
    assert text(collective.page(run)).count("\n") == 5
