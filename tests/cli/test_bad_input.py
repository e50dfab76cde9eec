"""Bad input gets one clear line on stderr, exit status 2, and loses nothing."""

from __future__ import annotations

import importlib.util
import shlex
from pathlib import Path

import pytest

from tests.builders import gpus
from tests.cli.program import Program, has_library, list_only

# case, arguments, what the message names, what it advises
Row = tuple[str, str, str, str]

OTHERS: list[Row] = [
    ("an unknown operation", "--operations copy,scan", "'scan' is unknown", "copy, allreduce, broadcast"),
    ("an unknown type", "--dtype float12", "'float12' is unknown", "float16"),
    ("a precision in words", "--precision fine", "'fine' is not a share", "write 1%, 0.5% or 0.01"),
    ("a precision of nothing", "--precision 0%", "0% is not above 0", "write 1%, 0.5% or 0.01"),
    ("a budget without a unit", "--budget 10", "'10' is not a number and a unit", "write 10s, 500ms or 2min"),
    ("quick and precise", "--quick --precision 1%", "--quick and --precision", "use only one"),
    ("a negative seed", "--seed -1", "--seed -1", "whole number from 0"),
    ("letters in another order", "--devcies 0", "no such option '--devcies'", "did you mean '--devices'?"),
    ("other tools' name of an option", "--gpus 0,1", "no such option '--gpus'", "did you mean '--devices'?"),
]
COLLECTIVES: list[Row] = [
    ("pairs and sets", "reduce --pairs --split 2", "--pairs and --split both say", "use only one"),
    ("launches beyond counting", f"reduce --latency {10**20}", "is not in the range 1<=x<=1000000", "see 'collbench"),
    ("NCCL of cores", "reduce --backend host --nccl x.so", "--nccl: the host backend loads no NCCL", "leave it out"),
    ("a root that no pair has", "reduce --pairs --root 2", "--root 2 is not a rank of a pair", "write 0 or 1"),
    ("sizes twice", "reduce --sizes 1M -b 8", "--sizes and --minbytes both say which sizes", "use only one"),
    ("devices twice", "reduce -g 2 --devices 0,1", "--devices and --ngpus both say which", "use only one"),
    ("two things to print", "reduce --json --format nccl-tests", "both say what to print", "use only one"),
    ("nccl-tests' registration", "allreduce -R 1", "no such option '-R'", "did you mean '--registration'?"),
    ("one letter, which is no word", "allreduce -p 3", "no such option '-p'; see", "'collbench allreduce --help'"),
    ("operations of pairs", "reduce --operations copy", "no such option '--operations'", "reduce --help'"),
]
PATTERNS: list[Row] = [
    ("an unknown pattern", "copies --patterns ring", "'ring' is unknown", "one-way, both-ways, one-to-all"),
    ("layers of no token", "latency --layers 80", "--layers is for --collectives", "add it, or leave out --layers"),
    ("cores", "latency --collectives --backend host", "the host backend has no NCCL", "leave out --collectives"),
    (
        "patterns that cores lack",
        "copies --backend host --patterns one-way,both-ways,staged",
        "copies one-way only",
        "leave out both-ways, staged",
    ),
]
DEVICES: list[Row] = [
    ("an index of 5000 digits", "9" * 5000, "is not available", "0, 1, 2, 3"),
    ("an index in superscript", "0,³", "'³' is neither a device index", "indices (0, 1, 2, 3)"),
    ("index and UUID of one GPU", "1,GPU-1", "names GPU1 twice", "each device once"),
    ("a UUID cut too short", "0,GPU-", "'GPU-' fits more than one", "'nvidia-smi -L'"),
    ("commas alone", ",", "',' names no device", "indices (0, 1, 2, 3)"),
    ("a comma at the end", "0,", "'0,' has an empty entry", "indices (0, 1, 2, 3)"),
]
COMMANDS: list[Row] = [
    ("a command that is almost right", "pair", "no such command 'pair'", "did you mean 'pairs'?"),
    ("a cluster by a machine's option", "nodes --fabric x", "no such option '--fabric'", "mean '--fabric-cluster'?"),
    ("nothing near that could delete", "export run.json --fabric x", "'--fabric'; see", "'collbench export --help'"),
    ("figures of an unknown operation", "reference H100 allreduse", "OPERATION='allreduse'", "mean 'allreduce'?"),
    ("topo of one GPU", "topo 0", "1 was given", "write 'collbench topo 0 1'"),
    ("topo of a GPU that is not there", "topo --topology topo.txt 0 99", "device 99", "0, 1"),
    ("topo from a missing file", "topo --topology missing.txt", "missing.txt", "nvidia-smi topo -m > FILE"),
    ("topo from a folder", "topo --topology .", "Is a directory", "nvidia-smi topo -m > FILE"),
]
TRAIN: list[Row] = [
    ("K forgotten", "--auto-select train.py", "'--auto-select'", "'train.py' is not a whole number"),
    ("a missing script", "--auto-select 2 other.py", "'other.py' does not exist", "check its path"),
    ("a script that is a folder", "--auto-select 2 .", "is a folder without __main__.py", "name the file"),
    ("an age without a unit", "--auto-select 4 --max-age 7 train.py", "'7'", "write 7d"),
    (
        "a simulated machine",
        "--auto-select 1 --backend sim train.py",
        "no devices to train on",
        "select K --backend sim",
    ),
    ("a process count that contradicts", "--devices 0,1 --nproc-per-node 3 train.py", "contradicts", "leave it out"),
]


@pytest.fixture
def four_gpus(monkeypatch: pytest.MonkeyPatch, program: Program, tmp_path: Path) -> None:
    """A machine whose four GPUs are only listed, a script, and a saved label matrix."""
    list_only(monkeypatch, gpus(4))
    (tmp_path / "train.py").touch()
    (tmp_path / "topo.txt").write_text("\tGPU0\tGPU1\nGPU0\t X \tNV4\nGPU1\tNV4\t X \n")


def assert_refused(program: Program, args: str, named: str, advice: str) -> None:
    result = program(*shlex.split(args))
    assert result.status == 2
    assert named in result.line
    assert advice in result.line
    assert result.out == ""
    assert not Path("state").exists()  # no run was begun


@pytest.mark.usefixtures("four_gpus")
@pytest.mark.parametrize(("case", "args", "named", "advice"), OTHERS)
def test_options_of_pairs(program: Program, case: str, args: str, named: str, advice: str) -> None:
    assert_refused(program, f"pairs {args}", named, advice)


@pytest.mark.usefixtures("four_gpus")
@pytest.mark.parametrize(("case", "devices", "named", "advice"), DEVICES)
def test_devices(program: Program, case: str, devices: str, named: str, advice: str) -> None:
    value = devices if devices.startswith("=") else f" {devices}"
    assert_refused(program, f"train --backend cuda --devices{value} --dry-run train.py", named, advice)


@pytest.mark.usefixtures("four_gpus")
@pytest.mark.parametrize(("case", "args", "named", "advice"), COMMANDS + COLLECTIVES + PATTERNS)
def test_commands(program: Program, case: str, args: str, named: str, advice: str) -> None:
    assert_refused(program, args, named, advice)


@pytest.mark.usefixtures("four_gpus")
@pytest.mark.parametrize(("case", "args", "named", "advice"), TRAIN)
def test_train(program: Program, case: str, args: str, named: str, advice: str) -> None:
    backend = "" if "--backend" in args else "--backend cuda "
    assert_refused(program, f"train {backend}{args}", named, advice)


def test_a_host_without_that_much_memory_says_how_much_there_is(program: Program) -> None:
    result = program("pairs", "--backend", "host", "--sizes", "1048576T", "-o", "run.json")
    assert result.status == 2
    assert "size 1048576T does not fit" in result.line
    assert "room for messages of" in result.line
    assert "free memory" in result.line


def test_training_without_torch_says_how_to_get_it(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("train.py").touch()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert_refused(program, "train --auto-select 2 --backend cuda train.py", "torch is not installed", "pip install")


@pytest.mark.skipif(has_library("libnvidia-ml.so.1"), reason="this machine has an NVIDIA driver")
@pytest.mark.parametrize(
    ("args", "advice"),
    [
        ("topo", "topo --topology FILE"),
        ("train --auto-select 2 train.py", "--backend host"),
        ("train --devices 0,1 train.py", "--backend host"),
    ],
)
def test_without_a_driver(program: Program, args: str, advice: str) -> None:
    Path("train.py").touch()
    assert_refused(program, args, "no NVIDIA driver", advice)


@pytest.mark.skipif(has_library("libnvidia-ml.so.1"), reason="this machine has an NVIDIA driver")
def test_measuring_gpus_without_a_driver(program: Program) -> None:
    result = program("pairs", "--backend", "cuda", "-o", "run.json")
    assert result.status == 2
    assert "no NVIDIA driver" in result.line
    assert "--backend host" in result.line
