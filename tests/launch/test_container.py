"""torchrun in an image: its command, the environment inside, and what is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from collbench.launch import torchrun
from collbench.launch.arguments import split
from collbench.launch.torchrun import SHIMS, wrap
from collbench.model.errors import MachineError, UsageError
from collbench.model.run import Device

GPUS = (Device(3, "GPU-aaaa", "H200"), Device(0, "GPU-bbbb", "H200"))
CORES = (Device(2, "core-2", "CPU"), Device(5, "core-5", "CPU"))


def wrapped(line: str, environment: dict[str, str], *, backend: str = "cuda") -> list[str]:
    arguments = split(["--auto-select", "2", "--container", "a.sif", *line.split()])
    devices = CORES if backend == "host" else GPUS
    command = torchrun.start_command(arguments, devices, environment, backend=backend, inside=torchrun.inside_image())
    return torchrun.in_container(arguments, command, environment, "/opt/apptainer")


def test_on_one_node_only_the_devices_get_inside() -> None:
    environment = {"CUDA_VISIBLE_DEVICES": "GPU-aaaa,GPU-bbbb", "HOME": "/root"}
    assert " ".join(wrapped("a.py --x", environment)) == (
        "/opt/apptainer exec --nv --env CUDA_VISIBLE_DEVICES=GPU-aaaa,GPU-bbbb a.sif "
        "python3 -m torch.distributed.run --standalone --nproc-per-node 2 -- a.py --x"
    )


def test_what_nccl_and_torchrun_read_gets_inside_unchanged_even_where_a_site_cleans_the_environment() -> None:
    reported = {"NCCL_NVLS_ENABLE": "0", "NCCL_SOCKET_IFNAME": "eth0,ib0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
            "NVSHMEM_DISABLE_NVLS": "1", "PET_NNODES": "1"}  # fmt: skip
    args = wrapped("a.py", reported | {"CUDA_VISIBLE_DEVICES": "0", "TOKEN": "secret"})
    inside = [args[index + 1] for index, word in enumerate(args) if word == "--env"]
    assert sorted(inside) == sorted(
        [*(f"{name}={value}" for name, value in reported.items()), "CUDA_VISIBLE_DEVICES=0"]
    )


def test_the_folder_of_rank_start_is_bound_read_only() -> None:
    args = wrapped("--nnodes 2 --rdzv-endpoint h:1 a.py", {"CUDA_VISIBLE_DEVICES": "0"})
    folder = Path(torchrun.__file__).parent
    assert args[args.index("--bind") + 1] == f"{folder}:{SHIMS}:ro"
    assert args.index("--bind") < args.index("a.sif")
    assert (folder / "rank_start.py").is_file()
    assert f"'{SHIMS}/rank_start.py'" in args[args.index("-S") + 1]
    pinned = wrapped("a.py", {"CUDA_VISIBLE_DEVICES": ""}, backend="host")
    assert f"'{SHIMS}/rank_start.py'" in pinned[pinned.index("-S") + 1]


def test_an_empty_list_hides_all_gpus_inside_too() -> None:
    assert "--env CUDA_VISIBLE_DEVICES= a.sif" in " ".join(wrap(["x"], "a.sif", {}, apptainer="a", shims=""))


@pytest.mark.parametrize(
    ("title", "image", "commands", "kind", "message"),
    [
        ("a missing image", "b.sif", ["apptainer"], UsageError, r"image 'b\.sif' does not exist in .*check its path"),
        ("no apptainer", "a.sif", [], MachineError, "cannot run a.sif: neither apptainer nor singularity is on PATH"),
        ("no apptainer for an image from afar", "docker://x", [], MachineError, "neither apptainer nor singularity"),
        ("neither", "b.sif", [], UsageError, "does not exist"),
    ],
)
def test_what_cannot_run_is_one_clear_line(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    title: str,
    image: str,
    commands: list[str],
    kind: type[Exception],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.sif").touch()
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}" if name in commands else None)
    with pytest.raises(kind, match=message):
        torchrun.find_apptainer(image)


@pytest.mark.parametrize(
    ("commands", "image", "expected"),
    [
        (["apptainer", "singularity"], "a.sif", "/bin/apptainer"),
        (["singularity"], "a.sif", "/bin/singularity"),
        (["apptainer"], "docker://pytorch/pytorch", "/bin/apptainer"),
    ],
)
def test_apptainer_goes_before_singularity(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, commands: list[str], image: str, expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.sif").touch()
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}" if name in commands else None)
    assert torchrun.find_apptainer(image) == expected
