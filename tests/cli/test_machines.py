"""Machines that lack what a command needs, or have too little of it: one clear line, or smaller sizes by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from collbench.runfile import run_file
from tests.cli.program import collbench, environment, has_library, on_gpus, one_line, without_nccl
from tests.native.fakes import Fakes

_MIB = 2**20
QUICK = ("--sizes", "1K", "--output", "run.json")


@pytest.mark.parametrize(
    ("case", "args", "settings", "named", "advice"),
    [
        ("no GPU", ("pairs", "--backend", "cuda"), {"gpus": 0}, "would be 0 (none)", "CUDA_VISIBLE_DEVICES"),
        ("one GPU chosen", ("pairs", "--devices", "2"), {}, "would be 1 (GPU2)", "name more with --devices"),
        ("no NCCL at this path", ("allreduce", "--nccl", "/nowhere/nccl.so"), {}, "/nowhere/nccl.so", "check --nccl"),
        ("an old NCCL", ("broadcast",), {"nccl": 21602}, "2.16.2", "needs 2.18 or newer"),
        ("full memory", ("pairs", "--sizes", "1G"), {"free": f"{2400 * _MIB},2={2312 * _MIB}"}, "1G", "GPU2 2.258 GiB"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_one_clear_line(
    fakes: Fakes, tmp_path: Path, case: str, args: tuple[str, ...], settings: dict[str, object], named: str, advice: str
) -> None:
    measures = () if args[0] == "topo" or "--sizes" in args else QUICK
    done = on_gpus(fakes, [*args, *measures], **settings)
    assert (done.code, done.stdout) == (2, "")
    assert named in one_line(done.stderr)
    assert advice in one_line(done.stderr)
    assert list(tmp_path.rglob("*.json")) == []


@pytest.mark.skipif(has_library("libnccl.so.2"), reason="this machine has an NCCL of its own")
@pytest.mark.parametrize("args", [("pairs", *QUICK), ("train", "--auto-select", "2", "train.py")])
def test_without_any_nccl(fakes: Fakes, tmp_path: Path, args: tuple[str, ...]) -> None:
    (tmp_path / "train.py").touch()
    folder = without_nccl(fakes, tmp_path / "machine")
    path = f"{folder}:{fakes.environment()['PYTHONPATH']}"
    extra = {"LD_LIBRARY_PATH": str(folder), "COLLBENCH_NCCL": "", "PYTHONPATH": path}
    done = on_gpus(fakes, args, extra)
    assert (done.code, done.stdout) == (2, "")
    assert "NCCL cannot be opened" in one_line(done.stderr)
    assert "--nccl PATH" in one_line(done.stderr)


def test_auto_without_a_gpu_falls_back_to_the_host_and_says_so(fakes: Fakes, tmp_path: Path) -> None:
    done = on_gpus(fakes, ["pairs", "--operations", "copy", *QUICK], gpus=0)
    assert done.code == 0
    assert run_file.load(tmp_path / "run.json").backend == "host"
    assert one_line(done.stderr).startswith("measuring CPU cores (host backend): ")


def test_measuring_needs_only_one_word(fakes: Fakes, tmp_path: Path) -> None:
    """`collbench pairs` without options: sizes that do not fit are left out, and the run is saved where train looks."""
    done = fakes.run(collbench("allreduce"), environment(fakes), gpus=2, memory=2**32, free=1281 * _MIB)
    assert (done.code, done.stderr) == (0, "")
    saved = Path(done.stdout.rpartition("saved     ")[2].rstrip("\n"))
    assert saved.parent == tmp_path / "state" / "collbench" / "runs"
    assert run_file.load(saved).complete
