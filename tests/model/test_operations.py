"""A collective is one row: an imaginary one appears everywhere."""

import csv
import json
import os
import pathlib
import shutil
import subprocess
import sys
from typing import Any

import pytest
from jsonschema import Draft202012Validator

import collbench
from collbench import _native
from collbench.model.errors import UsageError
from collbench.model.operations import COLLECTIVES, Buffer, Operation
from collbench.model.run import capabilities

SOURCE = pathlib.Path(collbench.__file__).parent
CSRC = pathlib.Path(__file__).parents[2] / "csrc"
# A shuffle: like an all-reduce, but for a factor that no other collective has.
SHUFFLE = {
    "title": '"shuffle-it"',
    "does": '"every rank gets some of the data"',
    "example": '"--split 2"',
    "nccl": '"Shuffle"',
    "nccl_tests": '"shuffle_perf"',
    "reduces": "False",
    "rooted": "False",
    "shares": "True",
    "irregular": "False",
    "sends": "Buffer.WHOLE",
    "receives": "Buffer.WHOLE",
    "in_place": "InPlace.DEFINED",
    "busbw": 'BusFactor("(n+1)/n", lambda n: (n + 1) / n)',
    "traffic": "_ALLREDUCED",
    "ring_bound": "False",
    "steps": "lambda n: n",
}


def with_row(folder: pathlib.Path, fields: dict[str, str]) -> pathlib.Path:
    """Copy collbench to a folder, with one more row in the table of collectives and no other change."""
    shutil.copytree(SOURCE, folder / "collbench", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for library in SOURCE.glob("*.so"):
        (folder / "collbench" / library.name).symlink_to(library)
    table = folder / "collbench" / "model" / "operations.py"
    text = table.read_text(encoding="utf-8")
    row = f'    SHUFFLE = ("shuffle", Collective({", ".join(f"{k}={v}" for k, v in fields.items())}))\n'
    first = "    @property\n    def is_collective"
    assert text.count(first) == 1
    table.write_text(text.replace(first, f"{row}\n{first}"), encoding="utf-8")
    return folder


# The commands run in one process, the only one whose table has the row; the first two measure on a simulated machine.
SIM = "--backend sim --fabric dgx-1v --seed 1 --sizes 1M,64M"
SESSION = (
    f"shuffle {SIM} -v -o shuffle.json",
    f"allreduce {SIM} -o allreduce.json",
    "--help",
    "shuffle --help",
    "show shuffle.json",
    "export shuffle.json --format csv",
    "export allreduce.json --format csv",
    "export shuffle.json --format markdown",
    "export shuffle.json --format json",
    "export shuffle.json --format prometheus",
    "export shuffle.json --format nccl-tests",
    "report shuffle.json -o report.html",
)
PROGRAM = """
import contextlib, io, json, sys
from pathlib import Path
import collbench
from collbench.cli import main
printed = {"where": str(Path(collbench.__file__).parent.parent)}
for line in json.loads(sys.argv[1]):
    sys.argv = ["collbench", *line.split()]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main()
    printed[line] = [int(status), out.getvalue(), err.getvalue()]
print(json.dumps(printed))
"""


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return with_row(tmp_path_factory.mktemp("one-more-row"), SHUFFLE)


@pytest.fixture(scope="module")
def session(changed: pathlib.Path) -> dict[str, Any]:
    """Return what each command of the session answers: its status, stdout and stderr."""
    environment = {**os.environ, "PYTHONPATH": str(changed), "COLUMNS": "200", "XDG_STATE_HOME": str(changed / "state")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(SESSION)],
        cwd=changed,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    printed: dict[str, Any] = json.loads(done.stdout)
    assert printed["where"] == str(changed)
    return printed


def answer(session: dict[str, Any], line: str) -> str:
    status, out, err = session[line]
    assert status == 0, err
    assert isinstance(out, str)
    return out


def exported(session: dict[str, Any], name: str) -> list[dict[str, str]]:
    return list(csv.DictReader(answer(session, f"export {name}.json --format csv").splitlines()))


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (SESSION[0], "shuffle over GPU0"),
        (SESSION[0], "busbw = algbw × (n+1)/n"),
        ("--help", "gather, scatter, shuffle."),
        ("shuffle --help", "every rank gets some of the data"),
        ("shuffle --help", "collbench shuffle --sizes 64M --split 2"),
        ("shuffle --help", "bytes of all ranks' blocks together"),
        ("show shuffle.json", "shuffle over GPU0"),
        ("export shuffle.json --format markdown", "shuffle"),
        ("export shuffle.json --format json", '"shuffle"'),
        ("export shuffle.json --format prometheus", 'operation="shuffle"'),
        ("export shuffle.json --format nccl-tests", "shuffle_perf"),
    ],
)
def test_every_page_and_export_shows_it(session: dict[str, Any], line: str, shown: str) -> None:
    assert shown in " ".join(answer(session, line).split())


def test_the_report_shows_it(changed: pathlib.Path, session: dict[str, Any]) -> None:
    answer(session, "report shuffle.json -o report.html")
    assert "shuffle" in (changed / "report.html").read_text(encoding="utf-8")


def test_its_bus_bandwidth_goes_by_its_own_factor(session: dict[str, Any]) -> None:
    for row in exported(session, "shuffle"):
        assert float(row["busbw_gbs"]) == pytest.approx(9 / 8 * float(row["algbw_gbs"]), rel=1e-3)


def test_physics_limits_it(session: dict[str, Any]) -> None:
    """The same bytes as an all-reduce's cross every border, so the limits of busbw differ as the factors do."""
    predicted, known = (
        [float(row["limit_gbs"]) for row in exported(session, name)] for name in ("shuffle", "allreduce")
    )
    assert predicted == pytest.approx([limit * (9 / 8) / (14 / 8) for limit in known], rel=1e-3)


def test_the_published_schema_refuses_it(changed: pathlib.Path, session: dict[str, Any]) -> None:
    """A new collective changes the published format: whoever adds one adds it there."""
    answer(session, SESSION[0])
    run = json.loads((changed / "shuffle.json").read_text(encoding="utf-8"))
    schema = json.loads((CSRC.parent / "docs" / "run-file.schema.json").read_text(encoding="utf-8"))
    assert any(error.instance == "shuffle" for error in Draft202012Validator(schema).iter_errors(run))


def test_a_row_that_lacks_a_field_does_not_import() -> None:
    text = (SOURCE / "model" / "operations.py").read_text(encoding="utf-8")
    before, _ = text.split("class Operation(StrEnum)")
    names = {"__name__": "collbench.model.operations"}
    exec(before, names)  # noqa: S102
    for field in SHUFFLE:
        row = ", ".join(f"{k}={v}" for k, v in SHUFFLE.items() if k != field)
        with pytest.raises(TypeError, match=f"'{field}'"):
            exec(f"Collective({row})", names)  # noqa: S102


def test_native_names_are_those_of_the_extension() -> None:
    assert {operation.value for operation in COLLECTIVES} == set(_native.Collective.__members__)


@pytest.mark.parametrize(
    ("part", "root", "elsewhere"), [(Buffer.WHOLE, 12, 12), (Buffer.BLOCK, 3, 3), (Buffer.WHOLE_AT_ROOT, 12, 0)]
)
def test_how_many_elements_a_rank_holds_of_twelve_on_four(part: Buffer, root: int, elsewhere: int) -> None:
    assert part.count(12, 4, at_root=True) == root
    assert part.count(12, 4, at_root=False) == elsewhere


def test_a_copy_has_no_row() -> None:
    with pytest.raises(ValueError, match="ce-write is no collective"):
        _ = Operation.CE_WRITE.collective


def test_an_unknown_backend_has_no_capabilities() -> None:
    with pytest.raises(UsageError, match="'tpu' is unknown"):
        capabilities("tpu")
