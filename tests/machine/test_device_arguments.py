"""The chosen devices in other programs' formats, read back as those programs and the shells read them."""

from __future__ import annotations

import csv
import itertools
import os
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


def _srun(words: list[str], allocated: list[str]) -> list[list[str]]:
    """Return the chosen command of each task with the GPUs that it sees, as Slurm documents it.

    srun's own options end at the first word that is none; each task's CUDA_VISIBLE_DEVICES is set anew; and a binding
    other than "none", which --gpus-per-task implies, hides from a task what it is not bound to [srun(1), --tres-bind].
    """
    options = dict(word.removeprefix("--").split("=", 1) for word in itertools.takewhile(_is_option, words))
    assert options.keys() <= {"nodes", "ntasks", "gpu-bind", "gpus-per-task"}, "nothing else is documented here"
    kind, _, bound = options.get("gpu-bind", "per_task:1" if "gpus-per-task" in options else "none").partition(":")
    entries = bound.split(",") if bound else []
    seen = []
    for task in range(int(options["ntasks"])):
        if kind == "map_gpu":
            visible = [allocated[int(entries[task % len(entries)])]]
        elif kind in ("per_task", "single"):
            visible = allocated[task : task + 1]
        else:
            assert kind == "none", kind
            visible = allocated
        command = [*itertools.dropwhile(_is_option, words), "sh", "-c", 'printf %s "$CUDA_VISIBLE_DEVICES"']
        environment = {"PATH": os.environ["PATH"], "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(len(visible))))}
        asked = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split(",")
        named = [visible[int(one)] if one.isdigit() else one for one in asked]
        seen.append([one for one in named if one in visible])
    return seen


def _is_option(word: str) -> bool:
    return word.startswith("--")


def test_each_task_of_srun_sees_all_chosen_gpus() -> None:
    """NCCL has no P2P with a GPU that a binding hides from a task [NVIDIA/nccl#1066]."""
    allocated = [FIRST, "GPU-1", "GPU-2", LAST]
    chosen = shlex.split(device_line("slurm", GPUS))
    assert _srun(chosen, allocated) == [[FIRST, LAST], [FIRST, LAST]]
    assert _srun(["--gpus-per-task=1", *chosen], allocated) == [[FIRST, LAST], [FIRST, LAST]]
    assert _srun(["--ntasks=2", "--gpu-bind=map_gpu:0,3"], allocated) == [[FIRST], [LAST]]
    assert _srun(["--ntasks=2", "--gpus-per-task=1"], allocated) == [[FIRST], ["GPU-1"]]


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
