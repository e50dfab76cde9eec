"""`collbench ablate` on CPU cores and on simulated GPUs, with scripts whose step times are exact."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

import collbench as package_of_ours
from collbench.ablations import ablation as ablations
from collbench.ablations.ablation import Ablation
from tests.builders import gpus
from tests.cli.program import RANK_0, Program, collbench, fake_gpus, fake_uuid, list_only, on_gpus, save_run, saved_in
from tests.native.fakes import Fakes

pytestmark = pytest.mark.usefixtures("loaded_torch")
LOADED = Path(__file__).parents[1] / "loaded"
# Torch takes seconds to load, and most of these tests only need a program that starts ranks as torchrun does.
TORCHRUN = """
import os, signal, subprocess, sys
options, program = sys.argv[1:sys.argv.index("--")], sys.argv[sys.argv.index("--") + 1:]
count = int(options[options.index("--nproc-per-node") + 1])
python = [] if "--no-python" in options else [sys.executable, "-u"]
ranks = [subprocess.Popen([*python, *program], env={**os.environ, "RANK": str(n), "LOCAL_RANK": str(n)})
         for n in range(count)]
signal.signal(signal.SIGTERM, lambda *_: [rank.terminate() for rank in ranks])
sys.exit(max(rank.wait() for rank in ranks))
"""
# Three slow steps, then ten of 8 ms, or of 10 without P2P; only rank 0 prints.
SCRIPT = """
import os
step = 10 if os.environ.get("NCCL_P2P_DISABLE") else 8
if os.environ["RANK"] == "0":
    for number in range(13):
        print(f"step {number} step_time={900 if number < 3 else step}.000ms loss=5.3")
    print("sees", os.environ["CUDA_VISIBLE_DEVICES"] or "no GPU", os.environ.get("NCCL_NVLS_ENABLE"))
"""
# One rank only: Python writes a traceback in pieces, and the pieces of two crashing ranks would mix.
CRASHES = """
import os, time
if os.environ.get("NCCL_P2P_DISABLE"):
    time.sleep(100 * int(os.environ["RANK"]))
    raise ValueError("no data here")
print("step_time=1ms\\n" * 9)
"""


@pytest.fixture(autouse=True)
def script(tmp_path: Path) -> Path:
    """A script that prints steps."""
    path = tmp_path / "train.py"
    path.write_text(SCRIPT, encoding="utf-8")
    return path


@pytest.fixture
def torchrun(tmp_path: Path) -> dict[str, str]:
    """The environment in which `torch` is only a fast fake torchrun."""
    folder = tmp_path / "quick" / "torch" / "distributed"
    folder.mkdir(parents=True)
    for package in (folder.parent, folder):
        (package / "__init__.py").touch()
    (folder / "run.py").write_text(TORCHRUN, encoding="utf-8")
    folders = (folder.parents[1], LOADED, Path(package_of_ours.__file__).parents[1])
    return {"PYTHONPATH": os.pathsep.join(map(str, folders))}


def on_cores(tmp_path: Path, *args: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run ablate on two CPU cores."""
    command = collbench("ablate", "--backend", "host", "--devices", first_cores(), *args)
    variables_set = {"XDG_STATE_HOME": str(tmp_path / "state"), **variables}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NCCL_")}
    return subprocess.run(
        command, env=kept | variables_set, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False
    )


def first_cores() -> str:
    return ",".join(str(core) for core in sorted(os.sched_getaffinity(0))[:2])


def saved(tmp_path: Path) -> Ablation:
    [path] = (tmp_path / "state" / "collbench" / "ablations").glob("*.json")
    return ablations.load(path)


needs_two_cores = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="this machine has one CPU core")


@needs_two_cores
def test_on_cpu_cores(tmp_path: Path, torchrun: dict[str, str]) -> None:
    options = ["--without", "NCCL_P2P_DISABLE=1", "--repeats", "2", "--seed", "0", "--no-allreduce"]
    done = on_cores(tmp_path, *options, "--", "train.py", "--epochs", "1", **torchrun)
    assert done.returncode == 0, done.stderr
    assert (
        "with NCCL_P2P_DISABLE=1 a step of this job takes 25.0% longer than as is (95% interval 25.0%)" in done.stdout
    )
    assert "backend   host: gloo on CPU cores, which ignores NCCL variables" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("saved     ")
    lines = [line for line in done.stderr.splitlines() if line.startswith("collbench: run ")]
    assert lines == [
        "collbench: run 1 of 4, as is: 8.000 ms a step",
        "collbench: run 2 of 4, with NCCL_P2P_DISABLE=1: 10.00 ms a step",
        "collbench: run 3 of 4, with NCCL_P2P_DISABLE=1: 10.00 ms a step",
        "collbench: run 4 of 4, as is: 8.000 ms a step",
    ]
    saved_ablation = saved(tmp_path)
    assert saved_ablation.command == ("train.py", "--epochs", "1")
    assert [arm.allreduce for arm in saved_ablation.arms] == [(), ()]
    assert [len(run.step_seconds) for run in saved_ablation.made] == [13] * 4
    [logs] = (tmp_path / "state" / "collbench" / "ablations").glob("*-logs")
    assert sorted(path.name for path in logs.iterdir()) == [f"run-{number}.log" for number in range(1, 5)]
    assert "step 12 step_time=8.000ms loss=5.3" in (logs / "run-1.log").read_text(encoding="utf-8")


@needs_two_cores
def test_on_cpu_cores_there_is_no_p2p_to_go_without(tmp_path: Path) -> None:
    """Both arms would train the same way: gloo reads no variable of NCCL, and no script reads it for `p2p`."""
    done = on_cores(tmp_path, "--without", "p2p,shm", "--", "train.py")
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(
        "collbench: the host backend has no p2p, shm to deny NCCL, so both arms would train the same"
    )


def test_on_gpus_both_arms_get_the_best_pair_and_keep_the_environment(
    fakes: Fakes, tmp_path: Path, torchrun: dict[str, str]
) -> None:
    save_run(saved_in(tmp_path), fake_gpus())
    args = ["ablate", "--auto-select", "2", "--without", "nvlink", "--repeats", "2", "--seed", "1", "-o", "a.json"]
    extra = {"NCCL_NVLS_ENABLE": "0", **torchrun}
    # Memory for all-reduces of 8 bytes only, for larger ones take the simulated GPUs seconds to minutes.
    done = on_gpus(fakes, [*args, "--json", "--", "train.py"], extra, free=(256 + 2 * 512 + 2) * 2**20)
    assert done.code == 0, done.stderr
    assert "collbench: NCCL cannot turn off only NVLink: " in done.stderr
    assert "collbench: using GPU2, GPU3 (" in done.stderr
    saved_ablation = ablations.load(tmp_path / "a.json")
    assert json.loads(done.stdout) == json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    assert [(arm.name, arm.environment) for arm in saved_ablation.arms] == [
        ("with nvlink", {}),
        ("without nvlink", {"NCCL_P2P_DISABLE": "1"}),
    ]
    assert [arm.devices for arm in saved_ablation.arms] == [(2, 3), (2, 3)]
    assert saved_ablation.environment == {"NCCL_NVLS_ENABLE": "0"}
    assert [[allreduce.size_bytes for allreduce in arm.allreduce] for arm in saved_ablation.arms] == [[8]] * 2
    assert all(arm.allreduce[0].busbw_gbs > 0 for arm in saved_ablation.arms)
    assert saved_ablation.result is not None
    assert saved_ablation.result.ratio.middle == pytest.approx(1.25)
    for log in (tmp_path / "state" / "collbench" / "ablations").glob("*-logs/run-*.log"):
        assert f"sees {fake_uuid(2)},{fake_uuid(3)} 0" in log.read_text(encoding="utf-8")


@needs_two_cores
def test_a_script_that_crashes_shows_its_traceback_first_and_says_what_is_saved(tmp_path: Path) -> None:
    """By torchrun itself, whose files are gone at the end."""
    (tmp_path / "tmp").mkdir()
    (tmp_path / "train.py").write_text(CRASHES, encoding="utf-8")
    args = ["--without", "NCCL_P2P_DISABLE=1", "--no-allreduce", "--seed", "1", "-o", "a.json", "--", "train.py"]
    done = on_cores(tmp_path, *args, TMPDIR=str(tmp_path / "tmp"))
    assert (done.returncode, done.stdout) == (1, "")
    assert list((tmp_path / "tmp").iterdir()) == []
    lines = done.stderr.splitlines()
    assert lines[-1].startswith(
        "collbench: run 1, with NCCL_P2P_DISABLE=1: the script failed (exit status 1, see above)"
    )
    reported = "\n".join(lines[:-1])
    assert "ValueError: no data here" in reported, reported
    assert reported.index("Traceback (most recent call last)") < reported.index("ValueError: no data here")
    assert [run.status for run in ablations.load(tmp_path / "a.json").made] == [1]


@needs_two_cores
@pytest.mark.parametrize(
    ("number", "status", "seed", "kept", "itself"),
    [
        (signal.SIGINT, 130, 0, "1 run saved as a.json", True),
        (signal.SIGTERM, 143, 1, "no run has ended, nothing is saved", False),
    ],
)
def test_an_interruption_ends_torchruns_ranks_and_says_what_is_saved(
    tmp_path: Path, torchrun: dict[str, str], number: signal.Signals, status: int, seed: int, kept: str, itself: bool
) -> None:
    """Torchrun gets SIGTERM for each of these signals, so one signal uses torchrun, and the others a fast fake.

    The ranks without P2P hold a pipe open: whoever reads it to its end has seen them all end.
    """
    os.mkfifo(tmp_path / "held")
    waits = f"{SCRIPT}\nif step == 10:\n    held = open('held', 'w')\n    import signal; signal.pause()\n"
    (tmp_path / "train.py").write_text(waits, encoding="utf-8")
    args = ["--without", "NCCL_P2P_DISABLE=1", "--no-allreduce", "--seed", str(seed), "-o", "a.json", "--", "train.py"]
    command = collbench("ablate", "--backend", "host", "--devices", first_cores(), *args)
    environment = os.environ | {"XDG_STATE_HOME": str(tmp_path / "state")} | ({} if itself else torchrun)
    with subprocess.Popen(command, env=environment, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as started:
        with (tmp_path / "held").open(encoding="utf-8") as held:  # opens once a rank waits
            started.send_signal(number)
            assert held.read() == ""
        _, reported = started.communicate(timeout=60)
    assert started.returncode == status, reported
    assert reported.splitlines()[-1] == f"collbench: interrupted: {kept}"
    assert (tmp_path / "a.json").exists() == (seed == 0)


BASE = "ablate --devices 0,1 --no-allreduce"
SOME = f"{BASE} --without p2p"
BAD = [
    ("one GPU", "ablate --devices 0 --without p2p train.py", "--devices 0 is one device"),
    ("a slip of the hand", f"{BASE} --without p2 train.py", "did you mean 'p2p'?"),
    ("the same GPUs", f"{BASE} --against 1,0 train.py", "both would train the same way"),
    ("fewer GPUs", f"{BASE} --against 2 train.py", "names 1 device and the other arm has 2"),
    ("an unusable pattern", f"{SOME} --step-pattern ( train.py", "is not a regular expression"),
    ("several nodes", f"{SOME} --nnodes 2 train.py", "ablate compares on one node, and --nnodes names several"),
    ("a folder for the file", f"{SOME} -o . train.py", "cannot save the ablation as .: it is a folder"),
]


@pytest.mark.parametrize(("case", "args", "reported"), BAD, ids=[case for case, _, _ in BAD])
def test_bad_input_is_one_line_before_anything_is_started(
    program: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, case: str, args: str, reported: str
) -> None:
    list_only(monkeypatch, gpus(4))
    result = program(*args.split())
    assert (result.status, result.out) == (2, ""), case
    *before, last = result.err.splitlines()
    assert reported in last
    assert all(line.startswith("collbench: using GPU0, GPU1 (") for line in before), case
    assert not list(tmp_path.glob("state/collbench/ablations/*")), case


@pytest.mark.parametrize(
    ("case", "variables", "reported"),
    [
        ("already without", {"NCCL_P2P_DISABLE": "1"}, "NCCL_P2P_DISABLE=1 is set already"),
        ("Kubeflow's nodes", {"PET_NNODES": "4"}, "PET_NNODES names several"),
        ("by torchrun", RANK_0, "run 'collbench ablate' without a launcher"),
    ],
)
def test_an_environment_that_does_not_fit_is_one_line(
    program: Program, monkeypatch: pytest.MonkeyPatch, case: str, variables: dict[str, str], reported: str
) -> None:
    list_only(monkeypatch, gpus(4))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    result = program(*SOME.split(), "train.py")
    assert (result.status, result.out) == (2, ""), case
    assert reported in result.line


def test_an_all_reduce_that_fails_trains_nothing(fakes: Fakes, tmp_path: Path) -> None:
    args = ["ablate", "--devices", "0,1", "--without", "p2p", "train.py"]
    done = on_gpus(fakes, args, fail="ncclAllReduce:2:1", free=(256 + 2 * 512 + 2) * 2**20)
    assert (done.code, done.stdout) == (1, "")
    assert "cannot measure the all-reduce with p2p (exit status 1, see above): nothing was trained" in done.stderr
    assert not list(tmp_path.glob("state/collbench/ablations/*-logs/run-*.log"))
