"""A command loads what it runs: which modules are loaded at the end of four commands, and how many of ours."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PAIRS = ("pairs", "--backend", "sim", "--fabric", "dgx-1v", "--sizes", "64K")
LABELS = Path(__file__).parents[1] / "data" / "topologies" / "dgx-1v.txt"
_RUN = """
import sys
from collbench.cli import main
status = main()
sys.stdout.flush()
sys.stderr.write("\\n".join(["loaded", *sys.modules]))
sys.exit(status)
"""


@pytest.mark.parametrize(
    ("command", "most", "without"),
    [
        pytest.param(["--help"], 10, {"numpy", "rich", "subprocess"}, id="help"),
        pytest.param(["topo", "--topology", str(LABELS)], 22, {"numpy", "rich", "importlib.metadata"}, id="topo"),
        pytest.param(["select", "2", "--topology", str(LABELS)], 31, {"scipy", "rich", "pynvml"}, id="select"),
        pytest.param([*PAIRS], 75, {"scipy", "torch", "pynvml", "importlib.metadata"}, id="pairs"),
    ],
)
def test_a_command_loads_few_modules(command: list[str], most: int, without: set[str], tmp_path: Path) -> None:
    run = [sys.executable, "-c", _RUN, *command]
    environment = {"HOME": str(tmp_path), "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    ended = subprocess.run(run, capture_output=True, text=True, env=environment, check=False)
    assert ended.returncode == 0, ended.stderr
    loaded = ended.stderr.partition("loaded\n")[2].split("\n")
    ours = [name for name in loaded if name.partition(".")[0] == "collbench"]
    assert "collbench.cli.program" in ours
    assert len(ours) <= most, ours
    assert not without & set(loaded)


_WHEN = """
import sys
from collbench.cli import main
from collbench.measurement.backends import factory
from collbench.measurement.backends.protocol import Backend
seen = []
def noting(function):
    def called(*arguments, **keywords):
        seen.append(set(sys.modules))
        return function(*arguments, **keywords)
    return called
factory.open_backend = noting(factory.open_backend)
Backend.ready = noting(Backend.ready)
sys.argv[0] = "collbench"
status = main()
sys.stdout.flush()
opening, ready = seen
print("numpy" in opening, *sorted(set(sys.modules) - ready), sep="\\n", file=sys.stderr)
sys.exit(status)
"""


def test_numpy_is_loaded_while_gpus_open_neither_before_nor_after(tmp_path: Path) -> None:
    environment = {"HOME": str(tmp_path), "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    command = [sys.executable, "-c", _WHEN, *PAIRS, "--output", str(tmp_path / "run.json")]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert ended.returncode == 0, ended.stderr
    numpy_before, *late = ended.stderr.splitlines()
    assert numpy_before == "False"
    assert "numpy" not in late
