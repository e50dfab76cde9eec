"""How much memory and CPU time this process may use, by /proc and its cgroups."""

from __future__ import annotations

import pathlib
from collections.abc import Collection, Iterator

from collbench.machine.numa import read

_ROOT = pathlib.Path("/")


def available_bytes(root: pathlib.Path = _ROOT) -> int:
    """Return the bytes that can be allocated before the machine or a cgroup limit runs out; 0 if unknown.

    `root` holds proc/ and sys/.
    """
    # MemAvailable is the kernel's own estimate (in kB) of what can be had without swapping.
    free = _fields(root / "proc/meminfo").get("MemAvailable:", 0) * 1024
    return max(0, min([free, *_left(root)]))


def _left(root: pathlib.Path) -> Iterator[int]:
    """Yield limit − use of each memory cgroup that has a limit; inactive page cache counts as free."""
    for unified, folder in _folders(root, "memory"):
        names = ("memory.max", "memory.current", "inactive_file")
        if not unified:
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        limit, used = _number(folder / names[0]), _number(folder / names[1])
        if limit is not None and used is not None:
            yield limit - used + _fields(folder / "memory.stat").get(names[2], 0)


def cpu_quota(root: pathlib.Path = _ROOT) -> float | None:
    """Return the CPUs' worth of time that the tightest cgroup allows this process; None if none limits it."""
    quotas = []
    for unified, folder in _folders(root, "cpu"):
        files = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        texts = read(folder / "cpu.max").split() if unified else [read(folder / file).strip() for file in files]
        quotas.append(_quota(texts))
    return min((quota for quota in quotas if quota is not None), default=None)


def _quota(texts: Collection[str]) -> float | None:
    """Return quota / period of two numbers in µs; None for "max", -1 and what is no number."""
    try:
        quota, period = (int(text) for text in texts)
    except ValueError:
        return None
    return quota / period if quota > 0 and period > 0 else None


def _folders(root: pathlib.Path, controller: str) -> Iterator[tuple[bool, pathlib.Path]]:
    """Yield the folders of this process's cgroups and of their parents, whose limits bind as well.

    Each with True if it is of cgroups version 2, which have one tree for all controllers.
    """
    for line in read(root / "proc/self/cgroup").splitlines():
        _, controllers, name = (*line.split(":", 2), "", "")[:3]
        unified = controllers == ""
        if unified or controller in controllers.split(","):
            mount = root / "sys/fs/cgroup" / ("" if unified else controller)
            leaf = mount / name.strip("/")
            for folder in (leaf, *leaf.parents):
                if folder == mount or mount in folder.parents:
                    yield unified, folder


def _number(file: pathlib.Path) -> int | None:
    """Return the file's number; None if it is absent or says "max"."""
    text = read(file).strip()
    return int(text) if text.isdigit() else None


def _fields(file: pathlib.Path) -> dict[str, int]:
    """Return the first two columns of each line whose second is a number."""
    rows = (line.split() for line in read(file).splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()}
