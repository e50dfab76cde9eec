"""How much memory this process may still take, from /proc/meminfo and the memory cgroups that hold it."""

from __future__ import annotations

import pathlib


def available_bytes(root: pathlib.Path = pathlib.Path("/")) -> int:
    """Return the bytes that can be allocated before the machine or a cgroup limit runs out; 0 where unknown.

    `root` holds proc/ and sys/.
    """
    return max(0, min([_machine_available(root), *_cgroup_available(root)]))


def _machine_available(root: pathlib.Path) -> int:
    # MemAvailable is the kernel's own estimate (in kB) of what can be had without swapping.
    return _fields(root / "proc/meminfo").get("MemAvailable:", 0) * 1024


def _cgroup_available(root: pathlib.Path) -> list[int]:
    """Return what each memory cgroup above this process has left: its parents' limits bind as well."""
    left = []
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, name = line.split(":", 2)
        if controllers == "":
            left += _walk(root / "sys/fs/cgroup", name, ("memory.max", "memory.current", "inactive_file"))
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            left += _walk(root / "sys/fs/cgroup/memory", name, names)
    return left


def _walk(mount: pathlib.Path, name: str, names: tuple[str, str, str]) -> list[int]:
    """Return limit − use for the cgroup and its parents; page cache that nobody uses counts as free."""
    leaf = mount / name.lstrip("/")
    left = []
    for folder in (leaf, *leaf.parents):
        limit, used = _number(folder / names[0]), _number(folder / names[1])
        if limit is not None and used is not None:
            left.append(limit - used + _fields(folder / "memory.stat").get(names[2], 0))
        if folder == mount:
            break
    return left


def _number(file: pathlib.Path) -> int | None:
    """Return the file's number; None where it is absent or says "max"."""
    text = _text(file).strip()
    return int(text) if text.isdigit() else None


def _fields(file: pathlib.Path) -> dict[str, int]:
    """Return the first two columns of each line whose second is a number."""
    rows = (line.split() for line in _text(file).splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()}


def _text(file: pathlib.Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
