"""Real torchrun on jobs that fail, are restarted or disagree: messages and statuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.api.torchrun.test_execution import TIMEOUT_S, needs_torch, start

pytestmark = [needs_torch, pytest.mark.usefixtures("loaded_torch")]
GPUS = [(3, "GPU-aaaa"), (0, "GPU-bbbb")]

FAIL_ONCE = """
import os, pathlib, sys
rank, restarts = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
pathlib.Path(f"rank{rank}.start{restarts}").write_text(os.environ["CUDA_VISIBLE_DEVICES"])
sys.exit(5 if restarts == "0" and rank == "1" else 0)
"""


def test_a_restarted_group_keeps_its_devices_and_a_success_is_a_success(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(FAIL_ONCE)
    training = start(tmp_path, "cuda", GPUS, "--devices", "3,0", "--max-restarts", "1", "train.py")
    _, err = training.communicate(timeout=TIMEOUT_S)
    assert training.returncode == 0, err
    seen = {path.name: path.read_text() for path in tmp_path.glob("rank*")}
    started = [name for name in seen if name.endswith(".start1")]
    assert sorted(started) == ["rank0.start1", "rank1.start1"]
    assert set(seen.values()) == {"GPU-aaaa,GPU-bbbb"}


def test_of_a_script_that_crashes_at_once_the_traceback_comes_first(tmp_path: Path) -> None:
    # one rank: of two, the lines would mingle
    (tmp_path / "train.py").write_text("def broken():\n    return 1 / 0\nbroken()\n")
    training = start(tmp_path, "cuda", GPUS[:1], "--devices", "3", "train.py")
    _, err = training.communicate(timeout=TIMEOUT_S)
    assert training.returncode == 1
    first = err[err.index("Traceback") :].splitlines()
    assert "train.py" in first[1]
    assert err.index("ZeroDivisionError: division by zero") < err.index("ChildFailedError")
    assert "collbench/launch" not in err  # nothing of ours stands between
