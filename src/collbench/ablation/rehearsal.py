"""A rehearsal of each arm before anything is measured: what `collbench train` would refuse, it refuses at once."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from collbench.errors import CollbenchError


def rehearse(command: Sequence[str]) -> None:
    """Run a training command up to the point where it would start. Its line and its status, if it fails, are raised.

    `command` starts `collbench train`, and gets --dry-run.
    """
    place = command.index("train") + 1
    dry = [*command[:place], "--dry-run", *command[place:]]
    done = subprocess.run(dry, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode == 0:
        return
    lines = [line.removeprefix("collbench: ") for line in done.stderr.splitlines() if line.startswith("collbench: ")]
    told = lines[-1] if lines else f"'collbench train' ended with status {done.returncode}: {done.stderr[-500:]}"
    error = CollbenchError(told)
    error.exit_code = done.returncode if done.returncode > 0 else 1
    raise error
