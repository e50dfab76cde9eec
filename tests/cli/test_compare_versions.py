"""`collbench compare` across NCCL versions, drivers, machines and dates; and from a measurement to its comparison."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

from tests.cli.program import Program, on_gpus
from tests.native.fakes import Fakes

PAGE = Path(__file__).parents[2] / "docs" / "compare.md"


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
