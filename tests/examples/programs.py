"""A fake `collbench` for scripts that call it; its behavior is set by the test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"

_FAKE = """\
import json, os, shutil, subprocess, sys, time
args = sys.argv[1:]
with open({log!r}, "a") as log:
    log.write(json.dumps([args, os.environ.get("CUDA_VISIBLE_DEVICES")]) + "\\n")
if args[0] != "check":
    sys.exit(subprocess.call([{python!r}, "-m", "collbench", *args]))
print({says!r} or ("GPU0-GPU1: NV_DEGRADED" if {status!r} else "Labels, tools and measurement agree."))
if {run!r}:
    shutil.copy({run!r}, args[args.index("--output") + 1])
if {hang!r}:
    time.sleep(600)
sys.exit({status!r})
"""


@dataclass(frozen=True)
class FakeProgram:
    """A folder with a fake `collbench` and the log of its calls."""

    folder: Path

    @property
    def program(self) -> Path:
        """The fake's path."""
        return self.folder / "collbench"

    def will(self, status: int = 0, run: Path | None = None, hang: bool = False, says: str = "") -> None:
        """Let `collbench check` print this, save this run, and exit with this status or hang; other commands are real.

        By default it says that all agree, or a verdict.
        """
        code = _FAKE.format(
            log=str(self.folder / "calls"),
            python=sys.executable,
            run=str(run or ""),
            hang=hang,
            status=status,
            says=says,
        )
        self.program.write_text(f"#!{sys.executable}\n{code}", encoding="utf-8")
        self.program.chmod(0o755)

    def calls(self) -> list[tuple[list[str], str | None]]:
        """Return the arguments and CUDA_VISIBLE_DEVICES of each call."""
        log = self.folder / "calls"
        return [tuple(json.loads(line)) for line in log.read_text().splitlines()] if log.exists() else []

    def start(self, script: Path, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a script of examples/ as a daemon would: in an environment that has these variables and no others."""
        ours = {"COLLBENCH": str(self.program), "PYTHONPATH": str(ROOT / "src"), "TMPDIR": str(self.folder)}
        return subprocess.run(
            [str(script)], env=ours | environment, capture_output=True, text=True, check=False, timeout=100,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip


def shellcheck() -> str | None:
    """Return the path of shellcheck: from its wheel, next to this Python, or from PATH."""
    installed = Path(sys.executable).parent / "shellcheck"
    if installed.exists():
        return str(installed)
    candidates = [Path(folder) / "shellcheck" for folder in os.environ["PATH"].split(os.pathsep)]
    return next((str(path) for path in candidates if path.exists()), None)
