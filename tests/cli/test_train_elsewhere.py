"""`collbench train` in a container image, under srun and in a pod, with real torchrun."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.cli.program import fake_gpus, fake_uuid, on_gpus, one_line, save_run
from tests.launch.test_rendezvous import BATCH, ELASTIC_POD, IN_STEP, POD, SLURM
from tests.native.fakes import Fakes

SCRIPT = """
import json, os, pathlib, sys
names = ("CUDA_VISIBLE_DEVICES", "NCCL_NVLS_ENABLE", "TOKEN", "WORLD_SIZE")
got = {name: os.environ.get(name) for name in names} | {"argv": sys.argv[1:]}
pathlib.Path("rank" + os.environ["RANK"] + ".json").write_text(json.dumps(got))
"""
# A fake apptainer: it passes only --env into the container, and replaces the path of a bound folder by its own.
APPTAINER = """#!{python}
import os, pathlib, sys
pathlib.Path("apptainer.args").write_text(" ".join(sys.argv[1:]))
args, inside, bound = sys.argv[1:], {{"PATH": {path!r}, "HOME": os.environ["HOME"]}}, []
assert args.pop(0) == "exec" and args.pop(0) == "--nv"
while args[0].startswith("--"):
    option, value = args.pop(0), args.pop(0)
    if option == "--env":
        inside.update([value.split("=", 1)])
    else:
        bound = value.split(":")
assert args.pop(0) == "image.sif"
args = [word.replace(bound[1], bound[0]) if bound else word for word in args]
os.execvpe(args[0], args, inside)
"""


@pytest.fixture(autouse=True)
def script(tmp_path: Path) -> None:
    """A script that writes what it got, and a saved run in which the pair 2-3 is the fastest."""
    (tmp_path / "train.py").write_text(SCRIPT, encoding="utf-8")
    save_run(tmp_path / "state" / "collbench" / "runs" / "20261121T000000Z-cuda-pairs.json", fake_gpus())


@pytest.fixture
def image(tmp_path: Path) -> dict[str, str]:
    """An image, and the environment in which the fake apptainer is found."""
    (tmp_path / "image.sif").touch()
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    (bin_folder / "apptainer").write_text(APPTAINER.format(python=sys.executable, path=path), encoding="utf-8")
    (bin_folder / "apptainer").chmod(0o755)
    return {"PATH": f"{bin_folder}:{path}", "NCCL_NVLS_ENABLE": "0", "TOKEN": "secret"}


def test_the_choice_reaches_inside_an_image_and_so_does_what_nccl_reads(
    fakes: Fakes, tmp_path: Path, image: dict[str, str]
) -> None:
    args = ["train", "--auto-select", "2", "--container", "image.sif", "train.py", "--lr", "a b", "$HOME"]
    done = on_gpus(fakes, tmp_path, args, image)
    assert done.code == 0, done.stderr
    assert done.stderr.startswith("collbench: using GPU2, GPU3 ")
    ranks = [json.loads((tmp_path / f"rank{rank}.json").read_text(encoding="utf-8")) for rank in (0, 1)]
    visible = f"{fake_uuid(2)},{fake_uuid(3)}"
    expected = {"CUDA_VISIBLE_DEVICES": visible, "NCCL_NVLS_ENABLE": "0", "TOKEN": None, "WORLD_SIZE": "2"}
    assert ranks == [expected | {"argv": ["--lr", "a b", "$HOME"]}] * 2


def test_the_comparison_of_nodes_works_inside_an_image(fakes: Fakes, tmp_path: Path, image: dict[str, str]) -> None:
    args = ["train", "--auto-select", "2", "--nnodes", "1:2", "--rdzv-endpoint", "localhost:0"]
    args += ["--rdzv-conf", "last_call_timeout=1", "--container", "image.sif", "train.py"]
    done = on_gpus(fakes, tmp_path, args, image)
    assert done.code == 0, done.stderr
    assert "--compare-nodes" in (tmp_path / "apptainer.args").read_text()
    assert json.loads((tmp_path / "rank1.json").read_text(encoding="utf-8"))["WORLD_SIZE"] == "2"


@pytest.mark.parametrize(
    ("case", "image_name", "path", "message"),
    [
        ("a missing image", "other.sif", None, "container image 'other.sif' does not exist"),
        ("no apptainer", "image.sif", "/nowhere", "neither apptainer nor singularity is on PATH"),
    ],
)
def test_a_container_that_cannot_be_is_one_clear_line_and_nothing_is_measured(
    fakes: Fakes, tmp_path: Path, image: dict[str, str], case: str, image_name: str, path: str | None, message: str
) -> None:
    args = ["train", "--auto-select", "2", "--fresh", "--container", image_name, "train.py"]
    done = on_gpus(fakes, tmp_path, args, image | ({} if path is None else {"PATH": path}))
    assert (done.code, done.stdout) == (2, ""), case
    assert message in one_line(done.stderr)


@pytest.mark.parametrize(
    ("case", "environment", "expected"),
    [
        ("srun, one task a node", SLURM, f"{IN_STEP} --nproc-per-node 2 --no-python -- "),
        ("a batch script", BATCH, "--standalone --nproc-per-node 2 -- train.py\n"),
        ("a pod", POD, "--nproc-per-node 2 --no-python -- "),
    ],
)
def test_what_schedulers_set_is_found(
    fakes: Fakes, tmp_path: Path, case: str, environment: dict[str, str], expected: str
) -> None:
    done = on_gpus(fakes, tmp_path, ["train", "--auto-select", "2", "--dry-run", "train.py"], environment)
    assert (done.code, done.stderr.count("\n")) == (0, 1), done.stderr
    assert done.stdout.partition(" -m torch.distributed.run ")[2].startswith(expected), case


def test_a_pods_number_of_processes_is_overridden_in_one_line(fakes: Fakes, tmp_path: Path) -> None:
    done = on_gpus(fakes, tmp_path, ["train", "--auto-select", "2", "--dry-run", "train.py"], ELASTIC_POD)
    assert done.stderr.splitlines()[0] == "collbench: PET_NPROC_PER_NODE=8 is overridden by the 2 chosen here"
    assert " --nproc-per-node 2 " in done.stdout


def test_two_tasks_on_a_node_are_refused_by_the_first_only(fakes: Fakes, tmp_path: Path) -> None:
    crowded = SLURM | {"SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_TASKS_PER_NODE": "2(x2)"}
    args = ["train", "--auto-select", "2", "train.py"]
    first = on_gpus(fakes, tmp_path, args, crowded | {"SLURM_PROCID": "0", "SLURM_NODEID": "0"})
    assert first.code == 2
    assert "srun --ntasks-per-node 1" in one_line(first.stderr)
    last = on_gpus(fakes, tmp_path, args, crowded | {"SLURM_PROCID": "3", "SLURM_NODEID": "1", "SLURM_LOCALID": "1"})
    assert (last.code, last.stdout, last.stderr) == (2, "", "")


@pytest.mark.parametrize("environment", [SLURM, POD], ids=["srun", "a pod"])
def test_a_probe_measures_this_node_only(fakes: Fakes, tmp_path: Path, environment: dict[str, str]) -> None:
    args = ["train", "--auto-select", "2", "--fresh", "--dry-run", "train.py"]
    done = on_gpus(fakes, tmp_path, args, environment, rate="100,0-1=10")
    assert done.code == 0, done.stderr
    assert done.stderr.splitlines()[-1].endswith("(quick probe)")
