"""What `collbench train` says of its choice: one line for stderr, and the command that --dry-run prints."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime

from collbench.model import Device
from collbench.printable import one_line

QUICK_PROBE = "quick probe"


def saved_run(started: str, path: str) -> str:
    """Return the words for a saved run as the source of a choice; `started` is `Run.started`, in its own time zone."""
    try:
        when = f"{datetime.fromisoformat(started):%Y-%m-%d %H:%M}"
    except ValueError:  # of another machine's file, whose age nobody has checked
        when = f"'{started}'"
    return f"run of {when}, saved at {one_line(path)}"


def choice(
    devices: Sequence[Device], reason: str, source: str, *, backend: str, among: str = "", binding: str = ""
) -> str:
    """Return the line that says which devices train, why (`reason`), and on what evidence (`source`).

    `among` is a clause on what limited the choice and `binding` one on NUMA nodes, "" for none.
    """
    if backend == "host":
        which = ", ".join(f"core {device.index}" for device in devices) + " (host backend)"
    else:
        names = ", ".join(f"GPU{device.index}" for device in devices)
        which = f"{names} ({', '.join(device.uuid for device in devices)})"
    clauses = [f"{reason}, {among}" if among else reason, f" ({source})", f"; {binding}" if binding else ""]
    return f"collbench: using {which}: {''.join(clauses)}"


def against(found: Sequence[tuple[Device, str]]) -> str:
    """Return devices with what is said against each: "GPU1 (busy: 1 other process), GPU3 (faulty: …)"."""
    return ", ".join(f"{device.tag} ({why})" for device, why in found)


def shell_line(changes: Mapping[str, str], command: Sequence[str]) -> str:
    """Return changes and command as one line that does the same when pasted into a POSIX shell."""
    assignments = [f"{name}={shlex.quote(value)}" for name, value in changes.items()]
    return " ".join([*assignments, shlex.join(command)])
