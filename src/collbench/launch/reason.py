"""What `collbench train` says of its choice: one line for stderr, and the command that --dry-run prints."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime

from collbench.model import Device

QUICK_PROBE = "quick probe"


def saved_run(started: str, path: str) -> str:
    """Return the words for a saved run as the source of a choice; `started` is `Run.started`, in its own time zone."""
    try:
        when = f"{datetime.fromisoformat(started):%Y-%m-%d %H:%M}"
    except ValueError:  # of another machine's file, whose age nobody has checked
        when = f"'{started}'"
    return f"run of {when}, saved at {path}"


def choice(devices: Sequence[Device], reason: str, source: str, *, backend: str, binding: str = "") -> str:
    """Return the line that says which devices train, why (`reason`), and on what evidence (`source`).

    `binding` is a clause on NUMA nodes, "" for none.
    """
    if backend == "host":
        which = ", ".join(f"core {device.index}" for device in devices) + " (host backend)"
    else:
        names = ", ".join(f"GPU{device.index}" for device in devices)
        which = f"{names} ({', '.join(device.uuid for device in devices)})"
    return f"collbench: using {which}: {reason} ({source}){'; ' if binding else ''}{binding}"


def shell_line(changes: Mapping[str, str], command: Sequence[str]) -> str:
    """Return changes and command as one line that does the same when pasted into a POSIX shell."""
    assignments = [f"{name}={shlex.quote(value)}" for name, value in changes.items()]
    return " ".join([*assignments, shlex.join(command)])
