"""`collbench compare` across NCCL versions, drivers, machines and dates; and from a measurement to its comparison."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from collbench.model.run import Run
from collbench.runfile import run_file
from tests.builders import gpus
from tests.cli.program import Program, on_gpus
from tests.judge.runs import copies, scaled
from tests.native.fakes import Fakes

PAGE = Path(__file__).parents[2] / "docs" / "compare.md"
LATER = "2026-03-01T00:00:00Z"


def of(run: Run, **machine: Any) -> Run:
    return replace(run, machine=replace(run.machine, **machine))


def elsewhere(run: Run) -> Run:
    devices = tuple(replace(gpu, uuid=f"GPU-other-{gpu.index}") for gpu in gpus(4))
    return of(replace(run, devices=devices), hostname="other")


# title, the change of the run, the lines that report it
CHANGES: list[tuple[str, Callable[[Run], Run], list[str]]] = [
    ("another NCCL", lambda run: of(run, nccl="2.30.1", nccl_path="/opt/new/libnccl.so"),
     ["differs   NCCL: 2.28.9 → 2.30.1", "differs   NCCL library: none → /opt/new/libnccl.so"]),
    ("another driver", lambda run: of(run, driver="590.44", cuda="13.1"),
     ["differs   driver: 580.159.04 → 590.44", "differs   CUDA: 13.0 → 13.1"]),
    ("another machine of the kind", elsewhere,
     ["devices   other devices, matched by their order", "differs   hostname: vm → other"]),
    ("another day", lambda run: replace(run, started=LATER), [f"differs   started: 2026-01-02T03:04:05Z → {LATER}"]),
]  # fmt: skip


@pytest.mark.parametrize(("title", "change", "lines"), CHANGES, ids=[row[0] for row in CHANGES])
def test_what_else_changed_stands_above_what_became_slower(
    program: Program, title: str, change: Callable[[Run], Run], lines: list[str]
) -> None:
    base = of(copies(), hostname="vm", cuda="13.0", nccl_path="")
    run_file.save(base, Path("base.json"))
    run_file.save(change(scaled(base, 1.25)), Path("new.json"))
    result = program("compare", "-v", "base.json", "new.json")
    assert result.status == 3
    above = result.out.partition("\nworse\n")[0].splitlines()
    assert [
        line for line in above if line.startswith(("devices", "differs")) and "matched by UUID" not in line
    ] == lines


def test_the_pages_example_across_two_nccl_libraries(program: Program, fakes: Fakes, tmp_path: Path) -> None:
    """docs/compare.md: the same GPUs, timed with two NCCL libraries; the second reports version 2.30.1."""
    newer = tmp_path / "libnccl-newer.so"
    shutil.copy(fakes.nccl, newer)
    text = PAGE.read_text(encoding="utf-8").replace("/opt/nccl-new/lib/libnccl.so.2", str(newer))
    lines = re.findall(r"^    collbench (.*(?:before|after)\.json)$", text, re.MULTILINE)
    before, after, comparison = map(shlex.split, lines)
    for args, number in ((before, 22809), (after, 23001)):
        done = on_gpus(fakes, [*args, "--sizes", "64K"], nccl=number)
        assert done.code == 0, done.stderr
    # The fakes' clock is that of a busy test machine: only the lines on libraries are certain.
    result = program(*comparison, "-v", "--fail-below", "99.9%")
    assert result.err == ""
    assert f"differs   NCCL: 2.28.9 → 2.30.1\ndiffers   NCCL library: {fakes.nccl} → {newer}\n" in result.out
    assert re.search(r"^points +1 data point in both: ", result.out, re.MULTILINE)
