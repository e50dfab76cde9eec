from itertools import combinations, permutations

from collbench.model.operations import Operation
from collbench.model.run import Run
from collbench.report.text.matrix import render_bandwidths
from tests.builders import GIB, gpus, measured, pair_run, run_of
from tests.report.pages import text


def rows_of(run: Run, operation: Operation) -> list[list[str]]:
    """Return the cells of a matrix, a list for each row, without its heads."""
    return [line.split()[1:] for line in render_bandwidths(run, operation, GIB).plain.split("\n")[2:]]


def test_a_copys_matrix_is_row_source_column_destination() -> None:
    links = permutations(range(3), 2)
    run = run_of(gpus(3), [measured(Operation.CE_WRITE, (a, b), 10.0 * a + b + 1) for a, b in links])
    assert rows_of(run, Operation.CE_WRITE) == [["-", "2.00", "3.00"], ["11.0", "-", "13.0"], ["21.0", "22.0", "-"]]


def test_a_collectives_matrix_is_symmetric() -> None:
    rows = rows_of(pair_run(3, lambda a, b: 100.0 * a + b), Operation.ALLREDUCE)
    assert rows == [["-", "1.00", "2.00"], ["1.00", "-", "102.0"], ["2.00", "102.0", "-"]]


def test_other_sizes_operations_and_larger_groups_are_left_out() -> None:
    points = [measured(Operation.ALLREDUCE, (0, 1, 2), 1.0), measured(Operation.ALLREDUCE, (0, 1), 1.0, size=8)]
    run = run_of(gpus(3), [*points, measured(Operation.BROADCAST, (0, 1), 1.0)])
    assert rows_of(run, Operation.ALLREDUCE) == [["-"] * 3] * 3


def test_sixteen_gpus_fit_80_columns_without_touching() -> None:
    pairs = list(combinations(range(16), 2))
    values = {pair: (395.2, 9.96, 99.96, 9.94, 0.5)[i % 5] for i, pair in enumerate(pairs)}
    lines = text([render_bandwidths(pair_run(16, lambda a, b: values[a, b]), Operation.ALLREDUCE, GIB)]).split("\n")
    assert max(map(len, lines)) <= 80
    assert lines[1].split() == [str(i) for i in range(16)]
    assert [line.split()[0] for line in lines[2:18]] == [f"GPU{i}" for i in range(16)]
    assert lines[2].split()[1:7] == ["-", "395", "10", "100", "9.9", "0.5"]
    assert all(len(line.split()) == 17 for line in lines[2:18])


def test_colours_step_down_from_the_best() -> None:
    rates = {(0, 1): 400.0, (0, 2): 390.0, (0, 3): 350.0, (1, 2): 310.0, (1, 3): 250.0, (2, 3): 50.0}
    run = pair_run(4, lambda a, b: rates[a, b])
    lines = text([render_bandwidths(run, Operation.ALLREDUCE, GIB)], terminal=True)
    colour = {rate: code for code, rate in _coloured(lines)}
    assert [colour[rate] for rate in ("400.0", "390.0", "350.0", "310.0", "250.0", "50.0")] == [
        227,
        149,
        36,
        36,
        31,
        54,
    ]


def _coloured(shown: str) -> list[tuple[int, str]]:
    """Return (256-colour number, text) of each coloured piece."""
    pieces = (piece.split("m", 1) for piece in shown.split("48;5;")[1:])
    return [(int(code), rest.split("\x1b")[0].strip()) for code, rest in pieces]
