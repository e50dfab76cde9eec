"""The short pages: of eight GPUs each fits a screen of 50 lines of 80 columns, and a failure is on its first line."""

from __future__ import annotations

import io
import json
import shutil
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from collbench.cli import main
from tests.cli.program import Program

LINES, COLUMNS = 50, 80
_SIM = ("--backend", "sim", "--seed", "1", "--sizes", "8,64K,64M,1G")
_HANG = [{"kind": "hanging-link", "devices": [2, 3]}]
_SLOW = [{"kind": "throttled-gpu", "devices": [2], "factor": 0.5, "words": "SW thermal slowdown"}]
# Each command line; RUN, OTHER stand for saved runs of `pairs`.
PAGES = {
    "pairs": ("pairs", *_SIM),
    "copies": ("copies", *_SIM[:4]),
    "latency": ("latency", *_SIM[:4]),
    "allreduce": ("allreduce", "--in-place", *_SIM[:4]),
    "alltoall on pairs": ("alltoall", "--pairs", *_SIM),
    "allreduce, split": ("allreduce", "--split", "4", *_SIM),
    "check": ("check", "RUN"),
    "rank": ("show", "--ranking", "RUN"),
    "select": ("select", "4", "RUN", "--any-machine"),
    "show": ("show", "RUN"),
    "compare": ("compare", "OTHER", "RUN"),
    "compare --reference": ("compare", "RUN", "--reference"),
    "predict": ("predict", "RUN", "--params", "124M"),
}
NODES = ("nodes", "--backend", "sim", "--fabric-cluster", "tree-128-faulty", "--select", "64", "--seed", "1")


Page = Callable[..., list[str]]
FAULTS: dict[str, list[dict[str, Any]]] = {"healthy": [], "throttled": _SLOW, "hanging": _HANG}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a file of each machine, and a run of `pairs` on it."""
    folder = tmp_path_factory.mktemp("runs")
    machine = json.loads((resources.files("collbench.sim") / "machines" / "dgx-1v.json").read_text("utf-8"))
    for name, faults in FAULTS.items():
        fabric = folder / f"{name}.fabric.json"
        fabric.write_text(json.dumps(machine | {"faults": faults}), encoding="utf-8")
        args = ["collbench", "pairs", *_SIM, "--fabric", str(fabric), "-o", str(folder / f"{name}.json")]
        with pytest.MonkeyPatch.context() as patched, redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            patched.setattr(sys, "argv", args)
            main()
    return folder


@pytest.fixture
def page(program: Program, runs: Path, monkeypatch: pytest.MonkeyPatch) -> Page:
    """Return a function (args, machine) that gives the lines of a command's page in a terminal."""
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    monkeypatch.setenv("TERM", "dumb")  # no escape sequences

    def show(args: tuple[str, ...], machine: str) -> list[str]:
        files = {"RUN": str(runs / f"{machine}.json"), "OTHER": str(runs / "healthy.json")}
        if files["RUN"] == files["OTHER"]:
            files["OTHER"] = str(shutil.copy(files["RUN"], "other.json"))
        named = [files.get(word, word) for word in args]
        simulated = "--backend" in args and args[0] != "nodes"
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        fabric = ["--fabric", str(runs / f"{machine}.fabric.json")] if simulated else []
        return program(*named, *fabric).out.replace(str(Path.cwd()), "~").splitlines()

    return show


def screen(lines: list[str]) -> int:
    """Return the number of terminal rows that these lines would take."""
    return sum(max(1, -(-len(line) // COLUMNS)) for line in lines)


@pytest.mark.parametrize("args", [*PAGES.values(), NODES], ids=[*PAGES, "nodes"])
def test_a_page_of_eight_gpus_fits_a_screen(page: Page, args: tuple[str, ...]) -> None:
    lines = page(args, "throttled")  # whose page is longer than a healthy machine's
    assert lines
    assert screen(lines) <= LINES, "\n".join(lines)


# Of the others some print no page where everything fails, and some do not touch the pair that hangs.
@pytest.mark.parametrize(
    "name",
    ["pairs", "alltoall on pairs", "check", "rank", "show", "compare", "compare --reference"],
)
def test_what_failed_is_on_the_first_line_of_a_page_that_fits(page: Page, name: str) -> None:
    lines = page(PAGES[name], "hanging")
    assert lines[0].startswith("FAILED: ")
    assert "GPU2" in lines[0]
    assert screen(lines) <= LINES, "\n".join(lines)


def test_verbose_shows_more(page: Page) -> None:
    short = page(("show", "--ranking", "RUN"), "healthy")
    assert len(page(("show", "--ranking", "RUN", "--verbose"), "healthy")) > 2 * len(short)
    assert any("LABELS_DIFFER" in line for line in page(("check", "RUN", "-v"), "healthy"))
    assert not any("LABELS_DIFFER" in line for line in page(("check", "RUN"), "healthy"))
