"""The chosen devices in other programs' formats, read back as those programs and the shells read them."""

from __future__ import annotations

import csv
import shlex
import shutil
import subprocess
from dataclasses import replace

import pytest

from collbench.machine.device_names import ACTING, device_line, variables
from collbench.model.errors import UsageError
from collbench.model.run import Device

# As nvidia-smi -L prints them, of the 4 × H200 in tests/data/h200x4.
FIRST, LAST = "GPU-543c5224-1c2b-7f6e-9d55-0e7a1b7a52c1", "GPU-60b4d778-9f0e-4a51-8d0c-6a3b2f6c7d10"
GPUS = (Device(0, FIRST, "NVIDIA H200"), Device(3, LAST, "NVIDIA H200"))
FROM_LABELS = (Device(0, "", ""), Device(3, "", ""))
CORES = (Device(0, "CPU-a", "EPYC"), Device(8, "CPU-b", "EPYC"))

ANSWERS = [
    ("list", GPUS, "0,3"),
    ("list", FROM_LABELS, "0,3"),
    ("list", CORES, "0,8"),
    ("env", GPUS, f"export CUDA_VISIBLE_DEVICES={FIRST},{LAST}"),
    ("env", FROM_LABELS, "export CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=0,3"),
    ("docker", GPUS, f"--gpus '\"device={FIRST},{LAST}\"'"),
    ("docker", FROM_LABELS, "--gpus '\"device=0,3\"'"),
    ("apptainer", GPUS, f"--nv --env CUDA_VISIBLE_DEVICES={FIRST},{LAST}"),
    ("apptainer", FROM_LABELS, "--nv --env CUDA_DEVICE_ORDER=PCI_BUS_ID --env CUDA_VISIBLE_DEVICES=0,3"),
    ("slurm", GPUS, f"--nodes=1 --ntasks=2 --gpu-bind=none env CUDA_VISIBLE_DEVICES={FIRST},{LAST}"),
    (
        "slurm",
        FROM_LABELS,
        "--nodes=1 --ntasks=2 --gpu-bind=none env CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=0,3",
    ),
]


@pytest.mark.parametrize(("output_format", "devices", "line"), ANSWERS)
def test_what_each_format_prints(output_format: str, devices: tuple[Device, ...], line: str) -> None:
    assert device_line(output_format, devices) == line


@pytest.mark.parametrize("shell", [shell for shell in ("sh", "bash", "dash", "zsh", "ksh") if shutil.which(shell)])
def test_eval_exports_the_variable_to_programs(shell: str) -> None:
    script = f'eval "$(cat)"; {shell} -c \'printf %s "$CUDA_VISIBLE_DEVICES"\''
    done = subprocess.run(
        [shell, "-c", script],
        input=device_line("env", GPUS),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{FIRST},{LAST}"


def test_docker_gets_the_value_that_its_csv_reader_takes_for_one_list() -> None:
    """Docker reads --gpus as a CSV record of key=value fields [docker/cli, opts/gpus.go]."""
    option, value = shlex.split(device_line("docker", GPUS))
    assert option == "--gpus"
    (record,) = csv.reader([value], strict=True)
    assert record == [f"device={FIRST},{LAST}"]


@pytest.mark.parametrize("output_format", ["apptainer", "slurm", "list"])
def test_these_need_no_quotes_so_an_unquoted_substitution_does(output_format: str) -> None:
    line = device_line(output_format, GPUS)
    assert shlex.split(line) == line.split()


@pytest.mark.parametrize("output_format", ACTING)
def test_cpu_cores_are_no_gpus(output_format: str) -> None:
    with pytest.raises(UsageError, match="--format list or json"):
        device_line(output_format, CORES)
    assert variables(CORES) == {}
    elsewhere = tuple(replace(core, host="node1") for core in CORES)  # whose names begin with the host's
    assert variables(elsewhere) == {}
