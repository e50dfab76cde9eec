"""No command replaces an existing file without --force: one line, before measuring. Streams are written to."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from collbench.cli.program import cli
from collbench.jobs import job_file
from collbench.model.operations import COLLECTIVES
from tests.builders import gpus
from tests.cli.program import RANK_0, Program, collbench, save_run
from tests.jobs.replay.made import data_parallel

SIM = "--backend sim --fabric nvlink-pairs-2x2 --quick --sizes 8"
FAST = "--backend sim --fabric nvlink-pairs-2x2 --quick"
OVERLAP = "--backend sim --fabric nvlink-pairs-2x2 --sizes 1M --trials 1"
LINE = "it exists; choose another place with"
# Each command that writes a file, its command line, and the file.
WRITERS = [
    ("pairs", f"pairs {SIM} -o out.json", "out.json"),
    ("copies", f"copies {SIM} -o out.json", "out.json"),
    ("latency", f"latency {FAST} -o out.json", "out.json"),
    ("allreduce", f"allreduce {SIM} --output out.json", "out.json"),
    ("check", f"check {FAST} -o out.json", "out.json"),
    ("nodes", "nodes --backend host -o out.json", "out.json"),
    ("ablate", "ablate --backend host --auto-select 2 --without p2p -o out.json -- train.py", "out.json"),
    ("overlap", f"overlap {OVERLAP} -o out.json", "out.json"),
    ("replay", f"replay job.json {OVERLAP.replace('--sizes 1M ', '')} --devices 0,1 -o out.json", "out.json"),
    ("record", "record -o out.json -- true", "out.json"),
    ("import", "import trace-0.json -o out.json", "out.json"),
    ("export", "export run.json --format csv -o out.csv", "out.csv"),
    ("report", "report run.json -o out.html", "out.html"),
    ("report, by the run's name", "report run.json", "run.html"),
]

TRACE = Path(__file__).parents[1] / "data" / "traces" / "gloo-0.json"


@pytest.fixture
def program_in_folder(program: Program, tmp_path: Path) -> Program:
    """The program in a folder that holds a run, a job, a trace and a script."""
    save_run(tmp_path / "run.json", gpus(4))
    (tmp_path / "trace-0.json").write_bytes(TRACE.read_bytes())
    job_file.save(data_parallel(), tmp_path / "job.json")
    (tmp_path / "train.py").write_text("print('mine')\n")
    return program


def snapshot(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and "state" not in path.parts}


@pytest.mark.parametrize(("what", "args", "file"), WRITERS, ids=[row[0] for row in WRITERS])
def test_a_file_that_exists_is_refused_before_anything_is_measured(
    program_in_folder: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, args: str, file: str
) -> None:
    for name, value in RANK_0.items() if what == "nodes" else ():
        monkeypatch.setenv(name, value)
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text("somebody's work\n")
    before = snapshot(tmp_path)
    result = program_in_folder(*args.split())
    assert (result.status, result.out) == (2, ""), what
    assert f"{file}: {LINE}" in result.line, what
    assert result.line.endswith("--force"), what
    assert snapshot(tmp_path) == before, what


def test_every_command_with_an_output_has_a_row_and_force() -> None:
    context = cli.make_context("collbench", ["--version"], resilient_parsing=True)
    writing = set()
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None
        options = {option for param in command.params for option in param.opts}
        if options & {"--output", "--install"}:
            writing.add(name)
            assert "--force" in options, name
    assert writing == {args.split()[0] for _, args, _ in WRITERS} | {*COLLECTIVES}  # which are one function


@pytest.mark.parametrize(
    ("what", "args", "file"),
    [row for row in WRITERS if row[0] in ("pairs", "check", "export", "report")],
    ids=lambda row: row if " " not in row else "",
)
def test_force_replaces_it(program_in_folder: Program, tmp_path: Path, what: str, args: str, file: str) -> None:
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text("somebody's work\n")
    result = program_in_folder(*args.split(), "--force")
    assert result.status == 0, (what, result.err)
    assert "somebody" not in (tmp_path / file).read_text(), what
    assert not list(tmp_path.glob(".*.part"))


@pytest.mark.parametrize(
    "args",
    [
        "export run.json --format json -o run.json",
        "export run.json --format json -o ./link.json",
        "report run.json page.html -o page.html",
    ],
)
def test_what_is_read_is_never_written_not_even_by_force(program_in_folder: Program, tmp_path: Path, args: str) -> None:
    (tmp_path / "link.json").symlink_to("run.json")
    (tmp_path / "page.html").write_bytes((tmp_path / "run.json").read_bytes())
    before = snapshot(tmp_path)
    result = program_in_folder(*args.split(), "--force")
    assert (result.status, result.out) == (2, "")
    assert "it is the input file" in result.line
    assert snapshot(tmp_path) == before


def test_an_empty_file_has_nothing_to_lose(program_in_folder: Program, tmp_path: Path) -> None:
    """As mktemp makes it."""
    (tmp_path / "out.csv").touch()
    assert program_in_folder("export", "run.json", "--format", "csv", "-o", "out.csv").status == 0
    assert (tmp_path / "out.csv").stat().st_size


EXPORT, MEASURE = "export run.json --format csv -o {}", f"pairs {SIM} -o {{}}"


@pytest.mark.parametrize(
    ("args", "target", "kind"),
    [
        (EXPORT, "/dev/stdout", "pipe"),
        (EXPORT, "/proc/self/fd/1", "pipe"),
        (MEASURE, "/dev/stdout", "file"),
        (MEASURE, "mine", "pipe"),
    ],
)
def test_standard_output_is_written_to_whatever_it_is(
    program_in_folder: Program, args: str, target: str, kind: str
) -> None:
    """Earlier output stays: a shell's > file holds both."""
    Path("mine").symlink_to("/dev/stdout")
    command, file = collbench(*args.format(target).split()), Path("caught.txt")
    file.write_text("before\n", encoding="utf-8")
    environment = os.environ | {"NO_COLOR": "1"}
    if kind == "pipe":
        output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    else:
        with file.open("a", encoding="utf-8") as caught:
            subprocess.run(command, env=environment, stdout=caught, check=True)
        output = file.read_text(encoding="utf-8")
        assert output.startswith("before\n")
    assert "collbench" in output
    assert '"format": "collbench-run"' in output or output.count("GPU2") > 1


@pytest.mark.parametrize(
    "args",
    [
        f"pairs {SIM}",
        "report run.json",
        "ablate --devices 0 --without p2p",
        "record",
    ],
)
def test_a_dash_is_no_file(program_in_folder: Program, tmp_path: Path, args: str) -> None:
    command = ["--", "train.py"] if args.split(maxsplit=1)[0] in ("ablate", "record") else []
    result = program_in_folder(*args.split(), "-o", "-", *command)
    said = "collbench: --output - names no file, and standard output has the page: name a file, or write ./-\n"
    assert (result.status, result.err, result.out) == (2, said, "")
    assert not (tmp_path / "-").exists()


def test_an_export_to_a_dash_is_printed_as_without_it(program_in_folder: Program, tmp_path: Path) -> None:
    printed, dashed = (
        program_in_folder("export", "run.json", "--format", "csv", *dash) for dash in ([], ["--output", "-"])
    )
    assert (dashed.status, dashed.out, dashed.err) == (printed.status, printed.out, printed.err)
    assert printed.out.count("\n") > 5
    assert not (tmp_path / "-").exists()
