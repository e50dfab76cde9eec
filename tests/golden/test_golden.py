"""The golden set: what some 200 commands print, write and return, compared with texts in tests/golden/expected.

Each command of tests/golden/commands.py runs in this process, in a folder with copies of the files that it names.
After an intended change, write the texts again and read their difference:

    COLLBENCH_GOLDEN=write .venv/bin/pytest tests/golden && git diff tests/golden/expected
"""

from __future__ import annotations

import hashlib
import html.parser
import json
import os
import random
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib import resources
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from rich.text import Text

from collbench.api import by_run
from collbench.choose.freshness import Here
from collbench.cli.program import cli
from collbench.cli.terminal import show_page
from collbench.cluster import measure
from collbench.measurement.backends import factory
from collbench.report import layout
from collbench.report.layout import Page
from collbench.runfile import run_file
from tests.cli.program import Program, Result, fake_gpus, list_only, save_run
from tests.golden.commands import CLUSTER, COMMANDS, FABRICS, KEPT, MACHINES, ON_GPUS, ON_SAVED_RUNS, SIMULATED
from tests.golden.made import MADE_RUNS

ROOT = Path(__file__).parents[2]
EXPECTED = Path(__file__).parent / "expected"
WRITE = os.environ.get("COLLBENCH_GOLDEN") == "write"
BEGAN = datetime.now(UTC) - timedelta(seconds=2)
# The variables of NCCL that every golden run records; any others of this machine are removed.
NCCL = {"NCCL_NVLS_ENABLE": "0"}
ALL = COMMANDS | {f"help-{name}": f"{name} --help" for name in cli.list_commands(None)}  # type: ignore[arg-type]


_surveyed = cache(measure.survey_cluster)


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Program:
    """The program, where nothing of this machine is seen."""
    for name in os.environ:
        if name.startswith(("NCCL_", "CUDA_", "COLLBENCH_", "SLURM_", "TORCH_", "PYTORCH_", "NO_COLOR", "FORCE_COLOR")):
            monkeypatch.delenv(name)
    for name, value in {**NCCL, "TZ": "UTC", "TERM": "xterm-256color"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(random.SystemRandom, "randrange", lambda *_: 1)  # the seed where none is given
    monkeypatch.setattr(measure, "survey_cluster", _surveyed)
    return Program(monkeypatch, capsys)


@pytest.fixture(scope="session")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of runs that are simulated when first named, by any process that pytest-xdist starts."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "simulated"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.mark.parametrize("name", ALL)
def test_a_command_prints_what_it_printed(
    name: str, program: Program, simulated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = expanded(ALL[name])

    def ran(columns: int) -> tuple[Result, list[Path], Path]:
        """Run the command in a folder of its own; return what it printed, the files that it wrote, and the folder."""
        folder = tmp_path / str(columns)
        enter(words, folder, program, simulated, monkeypatch)
        if name in ON_GPUS:
            list_gpus(monkeypatch)
            save_run(folder / "here.json", fake_gpus(), timedelta(0))
        if name in ON_SAVED_RUNS:
            save_three(folder / "state" / "collbench" / "runs")
        before = {*folder.iterdir()}
        monkeypatch.setenv("COLUMNS", str(columns))
        if paged:
            monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
            draw_twice(monkeypatch)
        result = program(*words)
        return result, sorted({*folder.iterdir()} - before - {folder / "state"}), folder

    paged = not {"--json", "--format", "--help"} & {*words}
    result, written, folder = ran(NARROW)
    views = {f"{NARROW} columns" if paged else "a pipe": seen(as_narrow(result), written, folder)}
    if paged:
        twice = ran(WIDE) if words[0] in WRAP_THEIR_LINES else (as_wide(result), written, folder)
        views[f"{WIDE} columns"] = seen(*twice)
    if len({*views.values()}) == 1:
        views = {" and ".join(views): views.popitem()[1]}
    text = "".join(f"$ collbench {' '.join(words)}    # in {view}\n{page}\n" for view, page in views.items())
    file = EXPECTED / f"{name}.txt"
    if WRITE:
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")


# The two terminals. Most commands print pages, which are drawn for both; these wrap their own lines, and run twice.
NARROW, WIDE = 80, 120
WRAP_THEIR_LINES = ("select", "nodes")
_WIDE_BEGINS, _NARROW_BEGINS, _END = "\0w", "\0n", "\0e"


def draw_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each page of a narrow terminal be drawn for a wide one as well, before it and between marks."""
    drawn = layout.drawn

    def both(page: Page, **how: Any) -> Iterator[Text]:
        parts = [*page]
        if os.environ["COLUMNS"] == str(NARROW):
            sys.stdout.write(_WIDE_BEGINS)
            monkeypatch.setenv("COLUMNS", str(WIDE))
            show_page(parts)
            monkeypatch.setenv("COLUMNS", str(NARROW))
            sys.stdout.write(_NARROW_BEGINS)
            yield from drawn(parts, **how)
            sys.stdout.write(_END)
        else:
            yield from drawn(parts, **how)

    monkeypatch.setattr(layout, "drawn", both)


def as_narrow(result: Result) -> Result:
    """Return what a narrow terminal shows of pages that were drawn twice."""
    out = re.sub(f"{_WIDE_BEGINS}.*?{_NARROW_BEGINS}|{_END}", "", result.out, flags=re.DOTALL)
    return replace(result, out=out)


def as_wide(result: Result) -> Result:
    """Return what a wide terminal shows of them."""
    page = f"{_WIDE_BEGINS}(.*?){_NARROW_BEGINS}.*?{_END}"
    return replace(result, out=re.sub(page, r"\1", result.out, flags=re.DOTALL))


def expanded(command: str) -> list[str]:
    """Return the words of a command, those of its machine included."""
    return [part for word in command.split() for part in MACHINES.get(word, word).split()]


def test_each_expected_text_has_a_command() -> None:
    assert sorted(file.stem for file in EXPECTED.iterdir()) == sorted(ALL)


def test_a_short_page_fits_a_screen() -> None:
    """Of 50 lines of 80 columns, also of eight GPUs."""
    short = [name for name, command in COMMANDS.items() if not {"-v", "--verbose"} & {*command.split()}]
    tall = {name for name in short if screen_lines(EXPECTED / f"{name}.txt") > 50}
    assert tall == {"made-tiers", "made-all-unlike"}  # of 16 and 17 GPUs


def test_every_page_begins_with_its_answer() -> None:
    """Not with the machine, the settings or the date, which stand below it."""
    files = {name: (EXPECTED / f"{name}.txt").read_text(encoding="utf-8") for name in ALL}
    provenance = re.compile(r"^--- stdout\n(backend|machine|driver|settings|measured|simulated) ", re.MULTILINE)
    assert [name for name, text in files.items() if provenance.search(text)] == []


def screen_lines(file: Path) -> int:
    """Return the lines that a page takes in a terminal of 80 columns; 0 where the command prints none there."""
    head, _, rest = file.read_text(encoding="utf-8").partition("\n")
    first = re.split(r"^\$ collbench ", rest, maxsplit=1, flags=re.MULTILINE)[0]
    page = first.partition("--- stdout\n")[2].partition("\n--- ")[0].rstrip()
    return sum(max(1, -(-len(line) // 80)) for line in page.splitlines()) if "80 columns" in head else 0


def enter(words: list[str], folder: Path, program: Program, simulated: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the folder, with all files that these words of a command name, and enter it; it has the saved runs, too."""
    for word in words:
        if word in SIMULATED and not (simulated / word).exists():
            command, own = expanded(SIMULATED[word]), simulated / f"by-{os.getpid()}"
            enter(command, own, program, simulated, monkeypatch)
            program(*command, "-o", word)
            minute = [*SIMULATED].index(word)  # two runs would else differ by their start, or not
            text = (own / word).read_text(encoding="utf-8")
            fixed = re.sub(r'"started": "[^"]*"', f'"started": "2026-01-01T00:{minute:02}:00Z"', text, count=1)
            (own / word).write_text(fixed, encoding="utf-8")
            (own / word).rename(simulated / word)  # complete: another process may read it
    (folder / "state").mkdir(parents=True, exist_ok=True)
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    monkeypatch.setenv("PATH", str(folder))  # no program of this machine
    monkeypatch.chdir(folder)
    for word in words:
        if (content := content_of(word, simulated)) is not None:
            (folder / word).write_bytes(content)
            (folder / word).chmod(0o700)


def list_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process find four GPUs that are well."""
    list_only(monkeypatch, fake_gpus())
    monkeypatch.setattr(factory, "resolve", lambda _name: ("cuda", None))
    monkeypatch.setattr(by_run, "here", lambda of: Here("cuda", of.candidates, "580.159.04", "2.28.9"))
    Path("apptainer").touch(0o700)  # the only program of this machine


def save_three(saved: Path) -> None:
    """Save three kept runs as if they had been measured without a name."""
    saved.mkdir(parents=True, mode=0o700)
    for run in ("h200x4.json", "h200x4-allreduce.json", "cores.json"):
        content = (ROOT / KEPT[run]).read_bytes()
        stamp = re.sub("[-:]", "", json.loads(content)["started"])
        (saved / f"{stamp}-cuda-{Path(run).stem}-0123abcd.json").write_bytes(content)


def content_of(word: str, simulated: Path) -> bytes | None:
    """Return what a file of this name contains, None where a word names no file."""
    if word in KEPT:
        return (ROOT / KEPT[word]).read_bytes()
    if word in SIMULATED:
        return (simulated / word).read_bytes()
    if word in FABRICS:
        machine, faults = FABRICS[word]
        description = json.loads((resources.files("collbench.sim") / "machines" / f"{machine}.json").read_bytes())
        return json.dumps(description | {"faults": faults}).encode()
    if word in MADE_RUNS:
        return run_file.dumps(MADE_RUNS[word]()).encode()
    return MADE[word].encode() if word in MADE else None


_WHOLE = (ROOT / KEPT["h200x4-allreduce.json"]).read_text(encoding="utf-8")
MADE = {
    "eight.cluster": json.dumps(CLUSTER),
    "damaged.json": _WHOLE.replace('"backend": "cuda"', '"backend": 7'),
    "truncated.json": _WHOLE[: len(_WHOLE) // 2],
    "empty.json": "",
    "newer.json": re.sub(r'"format_version": \d+', '"format_version": 99', _WHOLE),
    "train.py": "",
    "image.sif": "",
}


def seen(result: Result, written: list[Path], folder: Path) -> str:
    """Return all that a command gave: its status, both streams, and the files that it wrote."""
    parts = {"stdout": re.sub(r"\x1b\[[0-9;]*m", "", result.out), "stderr": result.err}
    parts |= {file.name: read(file) for file in written}
    shown = "".join(f"--- {name}\n{scrubbed(short(text), folder).rstrip()}\n" for name, text in parts.items() if text)
    return f"exit status {result.status}\n{shown}"


def read(file: Path) -> str:
    """Return a file's text; of HTML and SVG what people read, and a digest of all that they do not."""
    text = file.read_text(encoding="utf-8")
    if file.suffix not in (".html", ".svg"):
        return text
    page = _Text()
    page.feed(text)
    return "\n".join(page.lines)


class _Text(html.parser.HTMLParser):
    """The text of a page, a line for each row of a table; a digest of its scripts with their data, and of its style."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._tag, self._row = "", False

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self._tag = tag
        if tag == "tr":
            self._row = True
            self.lines.append("|")

    def handle_endtag(self, tag: str) -> None:
        self._tag = ""
        if tag == "tr":
            self._row = False

    def handle_data(self, data: str) -> None:
        text = " ".join(data.split())
        if self._tag in ("style", "script"):
            self.lines.append(f"{self._tag}: {_rest(data.split())}")
        elif text and self._row:
            self.lines[-1] += f" {text} |"
        elif text:
            self.lines.append(text)


def short(text: str) -> str:
    """Return text with numbers of six digits, and JSON laid out; of long lists the first items, then a digest."""
    try:
        return json.dumps(_short(json.loads(text)), indent=1, ensure_ascii=False)
    except ValueError:
        lines = re.sub(r"\d+\.\d{6,}(e-?\d+)?", lambda number: f"{float(number[0]):.6g}", _undated(text)).split("\n")
        return "\n".join([*lines[:250], *([_rest(lines[250:])] if lines[250:] else [])])


def _short(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _short(item) for key, item in value.items()}
    if isinstance(value, list):
        items = [_short(item) for item in value]
        return items if len(items) <= 4 else [*items[:2], _rest(items[2:])]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _rest(items: list[Any]) -> str:
    return f"{len(items)} more, sha256 {hashlib.sha256(_undated(json.dumps(items)).encode()).hexdigest()[:12]}"


def scrubbed(text: str, folder: Path) -> str:
    """Return text without what differs between days and machines: this folder and Python, our version, now."""
    text = text.replace(str(folder), "FOLDER").replace(sys.executable, "PYTHON")
    return _undated(re.sub(rf"(?<![\w.])({re.escape(version('collbench'))}|0\.1\.0)(?![\w.])", "VERSION", text))


_STAMPS = (
    (re.compile(r"\d{8}T\d{6}Z(?=-)"), "%Y%m%dT%H%M%SZ", "STAMP"),
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(Z|\+00:00)?"), None, "DATE"),
    (re.compile(r"\b1[7-9]\d{8}\b|\b1\.[7-9]\d+e\+09"), "", "EPOCH"),
)


def _undated(text: str) -> str:
    def replaced(match: re.Match[str], form: str | None, name: str) -> str:
        stamp = match[0]
        if form == "":
            when = datetime.fromtimestamp(float(stamp), UTC)
        else:
            when = datetime.strptime(stamp, form) if form else datetime.fromisoformat(stamp)
        when = when.replace(tzinfo=UTC)
        return name if BEGAN.replace(second=0, microsecond=0) <= when <= datetime.now(UTC) else stamp

    for pattern, form, name in _STAMPS:
        text = pattern.sub(lambda match, form=form, name=name: replaced(match, form, name), text)  # type: ignore[misc]
    return re.sub(r"STAMP(-\w+-\w+)-[0-9a-f]{8}", r"STAMP\1-ID", text)
