"""The job's own NVTX ranges as marks of its steps, by NVIDIA's own headers."""

from __future__ import annotations

import os
import subprocess
from importlib.metadata import files
from pathlib import Path

import pytest

from collbench.jobs import streams
from tests.native.recorded import PLUGIN

KINDS = ("push", "push-ex", "start", "start-ex", "domain-push", "domain-start", "registered")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a compiled program that begins ranges."""
    header = next(file for file in files("nvidia-nvtx-cu12") or () if file.name == "nvToolsExt.h")
    compiled = tmp_path_factory.mktemp("nvtx") / "ranges"
    include = f"-I{Path(str(header.locate())).parents[1]}"
    source = str(Path(__file__).parent / "nvtx_ranges.c")
    subprocess.run([os.environ.get("CC", "cc"), include, source, "-o", str(compiled), "-ldl"], check=True)
    return compiled


def began(program: Path, folder: Path, *ranges: tuple[str, str], step: str = "step") -> list[tuple[int, int, int]]:
    """Begin ranges, by kind and name, and return for each the process, and its clock before and after."""
    marking = {"NVTX_INJECTION64_PATH": str(PLUGIN), "COLLBENCH_RECORD_STEP_RANGE": step}
    variables = {**os.environ, **marking, "COLLBENCH_RECORD_FOLDER": str(folder)}
    words = [word for one in ranges for word in one]
    done = subprocess.run([program, *words], env=variables, capture_output=True, text=True, check=True)
    return [
        (int(process), int(before), int(after)) for process, before, after in map(str.split, done.stdout.splitlines())
    ]


def test_each_way_to_begin_a_range_marks_the_moment(program: Path, tmp_path: Path) -> None:
    said = began(program, tmp_path, *((kind, f"step {number}") for number, kind in enumerate(KINDS)))
    ((who, times),) = streams.marks(tmp_path.iterdir()).items()
    assert who == (os.uname().nodename, said[0][0])
    assert all(before <= time <= after for (_, before, after), time in zip(said, times, strict=True))


@pytest.mark.parametrize("name", ["step", "step 12", "step#12/500", "step_3", "step12", "step: [4]"])
def test_a_step_is_a_name_and_what_counts_it(name: str, program: Path, tmp_path: Path) -> None:
    began(program, tmp_path, *((kind, name) for kind in KINDS))
    assert [len(times) for times in streams.marks(tmp_path.iterdir()).values()] == [len(KINDS)]


@pytest.mark.parametrize(
    "name", ["forward", "steps", "step_forward", "step 4 forward", "ste", "STEP", "step é", "", " step"]
)
def test_other_ranges_mark_nothing(name: str, program: Path, tmp_path: Path) -> None:
    began(program, tmp_path, *((kind, name) for kind in (*KINDS, "wide", "unnamed")))
    assert not list(tmp_path.iterdir())


def test_without_a_name_or_a_folder_nothing_is_marked(program: Path, tmp_path: Path) -> None:
    assert began(program, tmp_path / "missing", ("push", "step"))
    assert began(program, tmp_path, ("push", "step"), step="")
    assert not list(tmp_path.iterdir())


def test_a_forked_process_marks_its_own_steps(program: Path, tmp_path: Path) -> None:
    said = began(program, tmp_path, ("fork", "step"), ("push", "step 2"))
    marks = streams.marks(tmp_path.iterdir())
    assert sorted(map(len, marks.values())) == [1, 1]
    assert (os.uname().nodename, said[0][0]) in marks


OPEN = {"open-push": "pop", "open-domain-push": "domain-pop", "open-start": "end", "open-domain-start": "domain-end"}


@pytest.mark.parametrize("begin", OPEN)
def test_a_range_within_a_step_is_no_other_step(begin: str, program: Path, tmp_path: Path) -> None:
    """As of an optimizer's "step" within a trainer's, of any kind, at any depth; the next step is one again."""
    other = ("open-push", "forward"), ("open-wide", ""), ("push", "step"), ("pop", ""), ("pop", "")
    nested = [(kind, "step") for kind in KINDS]
    steps = [step for _ in range(3) for step in ((begin, "step"), *nested, *other, *nested, (OPEN[begin], ""))]
    said = began(program, tmp_path, *steps)
    ((_, times),) = streams.marks(tmp_path.iterdir()).items()
    outer = said[:: len(steps) // 3]
    assert len(times) == 3
    assert all(before <= time <= after for (_, before, after), time in zip(outer, times, strict=True))


def test_ranges_around_a_step_do_not_hide_it(program: Path, tmp_path: Path) -> None:
    """Within an epoch, after a pop too many, and after the end of a range that is no step."""
    stray = ("pop", ""), ("end", ""), ("open-start", "load"), ("end", "")
    began(program, tmp_path, ("open-push", "epoch"), *stray, ("push", "step 1"), *stray, ("start", "step 2"))
    assert [len(times) for times in streams.marks(tmp_path.iterdir()).values()] == [2]
