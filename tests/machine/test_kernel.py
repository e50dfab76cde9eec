"""How much memory and CPU time a process may take, on trees of /proc and /sys as Linux lays them out.

Memory is in kB in meminfo, in bytes elsewhere.
"""

from __future__ import annotations

import pathlib

import pytest

from collbench.machine.kernel import available_bytes, has_gpu_files, unseen_in_step, withheld
from tests.machine.roots import write

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
    write(tmp_path, MEMINFO | files)
    assert available_bytes(tmp_path) == expected, title


@pytest.mark.parametrize(
    ("title", "shown", "mark", "said"),
    [
        ("all of them", 2, ".dockerenv", ""),
        (
            "one of them",
            1,
            ".dockerenv",
            "PCI has 1 more, which the docker container was not given: start the container",
        ),
        ("no container", 1, "etc/hostname", "PCI has 1 more: see collbench doctor"),
    ],
)
def test_gpus_that_the_driver_does_not_show_are_counted_on_pci(
    tmp_path: pathlib.Path, title: str, shown: int, mark: str, said: str
) -> None:
    gpu = {"vendor": "0x10de\n", "class": "0x030200\n"}
    devices = {"0000:01:00.0": gpu, "0000:02:00.0": gpu, "0000:02:00.1": {**gpu, "class": "0x040300\n"}}
    files = {f"sys/bus/pci/devices/{at}/{name}": text for at, one in devices.items() for name, text in one.items()}
    write(tmp_path, files | {mark: ""})
    answer = withheld(shown, {}, tmp_path)
    assert answer.startswith(said) if said else answer == "", title
    bound = withheld(shown, {"SLURM_GPUS_ON_NODE": "3"}, tmp_path)
    assert bound.startswith(f"Slurm's step has {3 - shown} more, which this task is not bound to: srun --gpu-bind=none")


@pytest.mark.parametrize(
    ("count", "unseen"), [(None, None), ("", None), ("two", None), ("1", 0), ("2", 0), ("4", 2), ("²", None)]
)
def test_a_task_knows_how_many_gpus_its_step_has(count: str | None, unseen: int | None) -> None:
    """As srun sets it for a step, and not at all for one without GPUs [srun(1), SLURM_GPUS_ON_NODE]."""
    assert unseen_in_step(2, {} if count is None else {"SLURM_GPUS_ON_NODE": count}) == unseen


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ((), False),
        (("nvidiactl", "nvidia-uvm"), False),  # a container with --gpus '""', or a driver without GPUs
        (("nvidia0",), False),
        (("nvidiactl", "nvidia-caps", "nvidia7"), True),
    ],
)
def test_device_files_show_whether_this_process_was_given_gpus(
    tmp_path: pathlib.Path, files: tuple[str, ...], found: bool
) -> None:
    (tmp_path / "dev").mkdir()
    for name in files:
        (tmp_path / "dev" / name).touch()
    assert has_gpu_files(tmp_path) is found
