"""How much memory is free, on trees of /proc and /sys as Linux lays them out. Units: kB in meminfo, bytes elsewhere."""

from __future__ import annotations

import pathlib

import pytest

from collbench.machine import memory

MEMINFO = {"proc/meminfo": "MemTotal:       24684000 kB\nMemAvailable:       1000 kB\n"}
V2, V1 = {"proc/self/cgroup": "0::/a/b\n"}, {"proc/self/cgroup": "4:memory:/a/b\n1:cpu:/\n0::/\n"}


@pytest.mark.parametrize(
    ("title", "files", "expected"),
    [
        ("no cgroup", {}, 1_024_000),
        ("no limit", V2 | {"sys/fs/cgroup/a/b/memory.max": "max", "sys/fs/cgroup/a/b/memory.current": "5"}, 1_024_000),
        ("v2 limit", V2 | {"sys/fs/cgroup/a/b/memory.max": "900", "sys/fs/cgroup/a/b/memory.current": "500"}, 400),
        ("v2 limit of a parent", V2 | {"sys/fs/cgroup/a/memory.max": "90", "sys/fs/cgroup/a/memory.current": "50"}, 40),
        (
            "idle page cache is free",
            V2
            | {
                "sys/fs/cgroup/a/b/memory.max": "900",
                "sys/fs/cgroup/a/b/memory.current": "500",
                "sys/fs/cgroup/a/b/memory.stat": "anon 300\ninactive_file 200\n",
            },
            600,
        ),
        (
            "v1 seen from within a container, where the named folder is not mounted",
            V1
            | {
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "900",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": "500",
            },
            400,
        ),
        ("over its limit", V2 | {"sys/fs/cgroup/a/memory.max": "1", "sys/fs/cgroup/a/memory.current": "9"}, 0),
    ],
)
def test_available_memory_is(tmp_path: pathlib.Path, title: str, files: dict[str, str], expected: int) -> None:
    for name, text in (MEMINFO | files).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert memory.available_bytes(tmp_path) == expected, title


def test_this_machine_has_some() -> None:
    assert memory.available_bytes() > 2**20
