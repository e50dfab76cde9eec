"""The torchrun command and environment, read back by torch's own parser."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.api import training
from collbench.api.training import Chosen, for_devices, shell_line
from collbench.choose.choice import QUICK_PROBE, saved_run
from collbench.measurement.backends.factory import Present
from collbench.model.errors import MachineError, UsageError
from collbench.model.run import Device
from tests.api.torchrun.made import script

GPUS = (Device(3, "GPU-aaaa", "H200"), Device(0, "GPU-bbbb", "H200"))
CORES = (Device(2, "CPU-2", "CPU"), Device(5, "CPU-5", "CPU"))
AGENT = ["py", "-P", "-m", "torch.distributed.run"]


def command(line: str, backend: str = "cuda", inherited: dict[str, str] | None = None, python: str = "py") -> list[str]:
    devices = CORES if backend == "host" else GPUS
    arguments = script(["--auto-select", "2", *shlex.split(line)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", python)
        return training.start_command(arguments, devices, inherited or {}, backend=backend)


def options_in(args: list[str]) -> list[str]:
    """Return what torchrun's parser gets."""
    return args[args.index("torch.distributed.run") + 1 :]


CUDA_COMMANDS = {
    "a script alone": ("a.py --x", "--standalone --nproc-per-node 2 -- a.py --x"),
    "torchrun's options are written in full": (
        "-t3 --log_dir d a.py",
        "--standalone --nproc-per-node 2 --tee 3 --log-dir d -- a.py",
    ),
    "restarts and binding by hand": (
        "--max-restarts 3 --numa-binding=socket a.py",
        "--standalone --nproc-per-node 2 --max-restarts 3 --numa-binding socket -- a.py",
    ),
    "the right number of processes by hand": ("--nproc_per_node=2 a.py", "--standalone --nproc-per-node 2 -- a.py"),
    "standalone by hand": ("--standalone a.py", "--nproc-per-node 2 --standalone -- a.py"),
    "a rendezvous by hand": ("--rdzv_endpoint h:1 a.py", "--nproc-per-node 2 --rdzv-endpoint h:1 -- a.py"),
    "a module": ("-m pkg.a -m", "--standalone --nproc-per-node 2 --module -- pkg.a -m"),
    "several nodes": (
        "--nnodes 2 --rdzv-endpoint h:1 a.py --x",
        "--rdzv-backend c10d --nproc-per-node 2 --nnodes 2 --rdzv-endpoint h:1 -- a.py --x",
    ),
    "a program of its own on several nodes": (
        "--nnodes 2 --master-addr h --no-python ./a.sh",
        "--nproc-per-node 2 --nnodes 2 --master-addr h --no-python -- ./a.sh",
    ),
}

REFUSED = {
    "another number of processes": ("--nproc-per-node 3 a.py", "cuda", "--nproc-per-node 3 contradicts"),
    "a number that torchrun would find itself": ("--nproc-per-node gpu a.py", "cuda", "leave it out"),
}


@pytest.mark.parametrize(("line", "expected"), CUDA_COMMANDS.values(), ids=CUDA_COMMANDS)
def test_gpu_commands(line: str, expected: str) -> None:
    assert command(line) == [*AGENT, *expected.split()]


def test_ranks_stay_on_the_chosen_cores() -> None:
    expected = ["taskset", "-c", "2,5", *AGENT, "--standalone", "--nproc-per-node", "2", "--", "a.py", "--x"]
    assert command("a.py --x", backend="host") == expected


@pytest.mark.parametrize(("line", "backend", "message"), REFUSED.values(), ids=REFUSED)
def test_contradictions_get_one_clear_line(line: str, backend: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        command(line, backend=backend)


AWKWARD = st.sampled_from(
    ["--", "-h", "--r", "--n=1", "-m", "$$", "${local_rank}", "$local_rank", "", "a b", "--x=$HOME"]
)


@given(
    program=st.lists(AWKWARD | st.text()),
    kind=st.sampled_from(["", "--no-python"]),
    backend=st.sampled_from(["cuda", "host"]),
)
def test_torch_hands_the_program_on_byte_for_byte(program: list[str], kind: str, backend: str) -> None:
    """Through torch's parser and its macros, which would eat `--`, expand `$` and trip over `--r`."""
    run = pytest.importorskip("torch.distributed.run", reason="torch is absent: its parser cannot be asked")
    args = command(shlex.join([*kind.split(), "a$$.py", *program]), backend=backend)
    parsed = run.get_args_parser().parse_args(options_in(args))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")  # else torch sets it, here and in every later test
        _, executable, arguments = run.config_from_args(parsed)
    received = [executable, *run.macros.substitute(arguments, "1")]
    assert received[-len(program) - 1 :] == ["a$$.py", *program]


@pytest.mark.parametrize("backend", ["cuda", "host"])
@pytest.mark.parametrize(
    ("line", "named"), [("train.py", "train.py"), ("-m train", "train"), ("--no-python ./train.sh", "./train.sh")]
)
def test_torchs_report_of_a_failure_names_the_users_script(line: str, named: str, backend: str) -> None:
    """By torch's own function."""
    run = pytest.importorskip("torch.distributed.run", reason="torch is absent: its parser cannot be asked")
    from torch.distributed.launcher.api import _get_entrypoint_name

    args = command(f"{line} --epochs 1", backend, python=sys.executable)  # torch knows its own interpreter by this name
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        _, executable, arguments = run.config_from_args(run.get_args_parser().parse_args(options_in(args)))
    assert _get_entrypoint_name(executable, arguments) == named


ENVIRONMENTS = {
    "GPUs by UUID, in the order of ranks": (GPUS, "cuda", {}, {"CUDA_VISIBLE_DEVICES": "GPU-aaaa,GPU-bbbb"}),
    "another choice is replaced": (
        GPUS,
        "cuda",
        {"CUDA_VISIBLE_DEVICES": "0"},
        {"CUDA_VISIBLE_DEVICES": "GPU-aaaa,GPU-bbbb"},
    ),
    "what already fits is no change": (GPUS, "cuda", {"CUDA_VISIBLE_DEVICES": "GPU-aaaa,GPU-bbbb"}, {}),
    "the host backend hides all GPUs": (CORES, "host", {"NCCL_DEBUG": "INFO"}, {"CUDA_VISIBLE_DEVICES": ""}),
    "GPUs hidden already": (CORES, "host", {"CUDA_VISIBLE_DEVICES": ""}, {}),
}


@pytest.mark.parametrize(("devices", "backend", "inherited", "expected"), ENVIRONMENTS.values(), ids=ENVIRONMENTS)
def test_environment_changes(
    devices: tuple[Device, ...], backend: str, inherited: dict[str, str], expected: dict[str, str]
) -> None:
    assert for_devices(devices, inherited, backend=backend) == expected


def test_the_choice_is_one_line_with_names_and_evidence() -> None:
    source = saved_run("2026-11-21T02:00:31+00:00", "/r.json")
    assert Chosen(GPUS, "all pairs tie within 0.4%", source).line(Present("cuda", GPUS)) == (
        "using GPU3, GPU0 (GPU-aaaa, GPU-bbbb): all pairs tie within 0.4% (run of 2026-11-21 02:00, saved at /r.json)"
    )
    assert Chosen(CORES, "fastest", QUICK_PROBE).line(Present("host", CORES)) == (
        "using CPU2, CPU5 (host backend): fastest (quick probe)"
    )


def test_a_dry_run_line_means_the_same_to_a_shell() -> None:
    args = ["printf", "%s\n", "a b", "$HOME", "it's", "--", "*"]
    line = shell_line({"CUDA_VISIBLE_DEVICES": "", "X": "a;b"}, [sys.executable, "-c", SHOW, *args])
    shown = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True).stdout
    assert shown == f"{['', 'a;b']}{args}\n"


SHOW = "import os,sys; print([os.environ['CUDA_VISIBLE_DEVICES'], os.environ['X']], sys.argv[1:], sep='')"


def test_a_missing_script_is_named_but_modules_are_not_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"script 'x\.py' does not exist in .*check its path"):
        training.check_script(script(["--devices", "0", "x.py"]))
    training.check_script(script(["--devices", "0", "-m", "x"]))
    (tmp_path / "x.py").touch()
    training.check_script(script(["--devices", "0", "x.py"]))


@pytest.mark.parametrize(
    ("title", "program", "message"),
    [
        ("nowhere", "no-such-program", "program 'no-such-program' does not exist: check its path"),
        ("not here", "./a.sh", r"program '\./a\.sh' does not exist"),
        (
            "a file that may not be run",
            "./x.py",
            r"'\./x\.py' cannot be executed: chmod \+x \./x\.py, or leave --no-py",
        ),
        ("a folder", "./folder", r"'\./folder' does not exist"),
    ],
)
def test_a_program_that_cannot_start_is_one_line_and_not_torchruns_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, title: str, program: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.py").touch(mode=0o644)
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match=message):
        training.check_script(script(["--devices", "0", "--no-python", program]))
    for there in ("sh", sys.executable):
        training.check_script(script(["--devices", "0", "--no-python", there]))


def test_a_machine_without_torch_learns_how_to_install_it(tmp_path: Path) -> None:
    code = f"import sys; sys.path[:0] = {sys.path!r}\nfrom collbench.api.training import find_torch\n"
    bare = f"{code}sys.path[:] = [{str(tmp_path)!r}]\nimport collbench.model.errors\n"
    bare += "try: find_torch()\nexcept collbench.model.errors.MachineError as error: print(error)"
    shown = subprocess.run([sys.executable, "-S", "-c", bare], capture_output=True, text=True, check=True).stdout
    assert "torch is not installed" in shown
    assert "-m pip install torch" in shown


def test_a_command_that_cannot_start_is_one_line() -> None:
    with pytest.raises(MachineError, match="cannot start '/no/such/python': No such file or directory"):
        training.execute(["/no/such/python"], {})
