"""One row is a collective: an imaginary one is seen everywhere, or refused by name of what it lacks."""

import csv
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

import collbench
from collbench.model.capabilities import capabilities
from collbench.model.errors import UsageError
from collbench.model.operations import COLLECTIVES, Buffer, Operation

SOURCE = pathlib.Path(collbench.__file__).parent
CSRC = pathlib.Path(__file__).parents[2] / "csrc"
# A shuffle: like an all-reduce, but for a factor that no other collective has, and without any native call.
SHUFFLE = {
    "title": '"shuffle-it"',
    "does": '"every rank gets some of the data"',
    "summary": '"every rank gets some"',
    "example": '"--split 2"',
    "nccl": '"Shuffle"',
    "tuned": "True",
    "native": "None",
    "gloo_buffers": "None",
    "nccl_tests": '"shuffle_perf"',
    "prints_redop": "False",
    "reduces": "False",
    "rooted": "False",
    "shares": "True",
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


def python(folder: pathlib.Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(folder), "COLUMNS": "200", "XDG_STATE_HOME": str(folder / "state")}
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return with_row(tmp_path_factory.mktemp("one-more-row"), SHUFFLE)


@pytest.fixture(scope="module")
def measured(changed: pathlib.Path) -> str:
    """Measure the imaginary collective, and for comparison an all-reduce, on a simulated machine; return the page."""
    for name in ("shuffle", "allreduce"):
        words = (name, "--backend", "sim", "--fabric", "dgx-1v", "--seed", "1", "--sizes", "1M,64M")
        done = python(changed, "-m", "collbench", *words, "--output", f"{name}.json")
        assert done.returncode == 0, done.stderr
        if name == "shuffle":
            page = done.stdout
    return page


def exported(changed: pathlib.Path, name: str) -> list[dict[str, str]]:
    done = python(changed, "-m", "collbench", "export", f"{name}.json", "--format", "csv")
    assert done.returncode == 0, done.stderr
    return list(csv.DictReader(done.stdout.splitlines()))


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("--help", "Time shuffle-it: every rank gets some."),
        ("shuffle --help", "every rank gets some of the data"),
        ("shuffle --help", "collbench shuffle --sizes 64M --split 2"),
        ("shuffle --help", "bytes of all ranks' blocks together"),
    ],
)
def test_help_shows_it(changed: pathlib.Path, words: str, shown: str) -> None:
    done = python(changed, "-m", "collbench", *words.split())
    assert shown in " ".join(done.stdout.split()), done.stderr


def test_its_page_shows_its_own_factor(measured: str) -> None:
    assert "shuffle over GPU0" in measured
    assert "busbw = algbw × (n+1)/n" in measured


def test_its_bus_bandwidth_goes_by_its_own_factor(changed: pathlib.Path, measured: str) -> None:
    for row in exported(changed, "shuffle"):
        assert float(row["busbw_gbs"]) == pytest.approx(9 / 8 * float(row["algbw_gbs"]), rel=1e-3)


def test_physics_limits_it(changed: pathlib.Path, measured: str) -> None:
    """The same bytes as an all-reduce's cross every border, so the limits of busbw differ as the factors do."""
    ours, known = ([float(row["limit_gbs"]) for row in exported(changed, name)] for name in ("shuffle", "allreduce"))
    assert ours == pytest.approx([limit * (9 / 8) / (14 / 8) for limit in known], rel=1e-3)


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("show shuffle.json", "shuffle over GPU0"),
        ("export shuffle.json --format markdown", "shuffle"),
        ("export shuffle.json --format json", '"shuffle"'),
        ("export shuffle.json --format prometheus", 'operation="shuffle"'),
        ("export shuffle.json --format nccl-tests", "shuffle_perf"),
        ("report shuffle.json -o report.html", ""),
    ],
)
def test_every_output_shows_it(changed: pathlib.Path, measured: str, words: str, shown: str) -> None:
    done = python(changed, "-m", "collbench", *words.split())
    assert done.returncode == 0, done.stderr
    text = done.stdout if shown else (changed / "report.html").read_text(encoding="utf-8")
    assert (shown or "shuffle") in text


def test_what_cannot_time_it_names_what_lacks(changed: pathlib.Path) -> None:
    done = python(changed, "-m", "collbench", "shuffle", "--backend", "host", "--sizes", "1M")
    assert done.returncode == 2
    assert "backends/gloo_worker.py" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    program = (
        "from collbench.model.capabilities import CUDA, Operation; from pathlib import Path; import collbench; "
        "print(Path(collbench.__file__).parent, CUDA.lacks(Operation.SHUFFLE))"
    )
    done = python(changed, "-c", program)
    assert done.stdout.startswith(str(changed)), done.stderr
    assert "csrc/collective_round.hpp" in done.stdout


@pytest.mark.parametrize("field", SHUFFLE)
def test_a_row_that_lacks_a_field_does_not_import(tmp_path: pathlib.Path, field: str) -> None:
    text = (SOURCE / "model" / "operations.py").read_text(encoding="utf-8")
    before, _ = text.split("class Operation(StrEnum)")
    row = ", ".join(f"{k}={v}" for k, v in SHUFFLE.items() if k != field)
    with pytest.raises(TypeError, match=f"'{field}'"):
        exec(f"{before}\nCollective({row})", {"__name__": "collbench.model.operations"})  # noqa: S102


def test_native_numbers_are_those_of_the_extension() -> None:
    text = (CSRC / "collective_round.hpp").read_text(encoding="utf-8")
    found = re.search(r"enum class Collective \{([^}]*)\}", text)
    assert found is not None
    assert [word.strip() for word in found[1].split(",")] == [
        one.value for one in sorted(COLLECTIVES, key=lambda one: one.collective.native or 0)
    ]
    assert sorted(one.collective.native or 0 for one in COLLECTIVES) == list(range(len(COLLECTIVES)))


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
