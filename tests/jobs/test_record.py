"""`collbench record`: the job's own status and output, and one clear line for what could not be recorded."""

from __future__ import annotations

import json
import os
import pty
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from collbench.jobs import job_file, recording
from collbench.jobs.job import Ending, Unknown
from collbench.model.errors import UsageError
from tests.cli.program import collbench
from tests.native.recorded import PLUGIN, Made, host

pytestmark = pytest.mark.usefixtures("loaded_program")

STEP = "sleep 900\n" + Made("allreduce", 100).line() + "sleep 100\n" + Made("allgather", 10, "bfloat16").line()


def script(folder: Path, rank: int, ranks: int = 2, ending: str = "finalize 0\n", gpu: str = "", abi: int = 5) -> str:
    """Return the shell command that plays rank `rank` of a job."""
    path = folder / f"script-{rank}"
    path.write_text(f"comm 0 77 {rank} {ranks} world\nvirtual\n{gpu}repeat 9\n{STEP}end\n{ending}", encoding="utf-8")
    return f"{host()} $NCCL_PROFILER_PLUGIN {abi} <{path}"


def record(folder: Path, *args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if name != "NCCL_PROFILER_PLUGIN"}
    variables = {**inherited, "TMPDIR": str(folder), **environment}
    command = collbench("record", *args)
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)


RECORDED = (
    "collbench: recorded 36 calls of 2 ranks; the step has 2 and ran 9 times (a micro-batch may look the same in 9 "
    "repetitions): job.json"
)


def test_all_ranks_are_merged_and_status_and_output_are_the_jobs(tmp_path: Path) -> None:
    ranks = " & ".join(script(tmp_path, rank) for rank in range(2))
    done = record(tmp_path, "--", "sh", "-c", f"echo out; echo err >&2; {ranks} & wait; exit 7")
    assert (done.returncode, done.stdout) == (7, "out\n")
    assert done.stderr.splitlines() == ["err", RECORDED]
    job = job_file.load(tmp_path / "job.json")
    assert [rank.rank for rank in job.ranks] == [0, 1]
    assert job.command[:2] == ("sh", "-c")
    assert job.groups[0].ranks == (0, 1)
    assert not list(tmp_path.glob("collbench-record-*"))


def test_the_jobs_environment_is_its_own_but_for_two_variables(tmp_path: Path) -> None:
    shown = "env | grep -E 'NCCL|NVSHMEM|TORCH_SYMM|COLLBENCH_R' | sort"
    own = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
    done = record(tmp_path, "--", "sh", "-c", shown, **own)
    names = [line.partition("=")[0] for line in done.stdout.splitlines()]
    assert sorted(names) == sorted([*own, "NCCL_PROFILER_PLUGIN", "COLLBENCH_RECORD_FOLDER"])
    assert f"NCCL_PROFILER_PLUGIN={PLUGIN}" in done.stdout


def test_gpu_times_are_recorded_on_request(tmp_path: Path) -> None:
    """From the option to the page: rank 1 comes late, and rank 0's kernels wait for it."""
    ranks = "; ".join(script(tmp_path, rank, gpu=f"gpu {90_000 - 50_000 * rank} 2 fine\n") for rank in range(2))
    done = record(tmp_path, "--gpu-times", "--", "sh", "-c", f"{ranks}; env | grep COLLBENCH_RECORD_G")
    assert (done.returncode, done.stdout) == (0, "asks for kernel events\n" * 2 + "COLLBENCH_RECORD_GPU_TIMES=1\n")
    assert done.stderr.splitlines() == [RECORDED]
    job = job_file.load(tmp_path / "job.json")
    assert Unknown.GPU_TIMES not in job.unknown
    command = collbench("show", "job.json", "--json")
    shown = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    waiting = {rank["rank"]: rank["waiting_seconds"] for rank in json.loads(shown)["ranks"]}
    assert waiting[0] == pytest.approx(100e-6, abs=1e-7)  # two calls of 50 µs each
    assert waiting[1] == pytest.approx(0.0, abs=1e-7)


GPU_TIMES_MESSAGES = {
    "too old": ("", 3, "no GPU times: this NCCL does not give them to a plugin, 2.27 or newer does: "),
    "missing": ("gpu 1000 2 none\n", 5, "18 of NCCL's calls have no GPU time (18: NCCL reported no end of them)"),
    "implausible": (
        "gpu 1000 2 backwards\n",
        5,
        "18 of NCCL's calls have no GPU time (18: the times that NCCL reported are impossible)",
    ),
}


@pytest.mark.parametrize("case", GPU_TIMES_MESSAGES)
def test_missing_gpu_times_are_counted_in_a_line(case: str, tmp_path: Path) -> None:
    gpu, abi, text = GPU_TIMES_MESSAGES[case]
    done = record(tmp_path, "--gpu-times", "--", "sh", "-c", script(tmp_path, 0, 1, gpu=gpu, abi=abi))
    assert done.returncode == 0
    lines = done.stderr.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith(f"collbench: {text}")
    assert Unknown.GPU_TIMES in job_file.load(tmp_path / "job.json").unknown


def test_gpu_times_of_an_outer_recorder_are_not_inherited(tmp_path: Path) -> None:
    args = ("--", "sh", "-c", script(tmp_path, 0, 1))
    done = record(tmp_path, *args, COLLBENCH_RECORD_GPU_TIMES="1")
    assert (done.returncode, done.stdout) == (0, "")


def test_the_jobs_ranges_are_read_on_request_and_missing_ones_are_named(tmp_path: Path) -> None:
    args = ("--", "sh", "-c", f"{script(tmp_path, 0, 1)}; env | grep -E 'NVTX|STEP' | sort")
    done = record(tmp_path, "--step-range", "iteration", *args)
    set_for_the_job = ["COLLBENCH_RECORD_STEP_RANGE=iteration", f"NVTX_INJECTION64_PATH={PLUGIN}"]
    assert (done.returncode, done.stdout.splitlines()) == (0, set_for_the_job)
    missing = "collbench: the job began no NVTX range 'iteration': its step is looked for in its calls"
    assert done.stderr.splitlines()[0] == missing
    outer = {"COLLBENCH_RECORD_STEP_RANGE": "iteration", "NVTX_INJECTION64_PATH": str(PLUGIN)}
    inner = record(tmp_path, "--force", *args, **outer)
    assert (inner.returncode, inner.stdout.splitlines()) == (0, ["COLLBENCH_RECORD_STEP_RANGE=", set_for_the_job[1]])


def test_another_nvtx_tool_is_named_only_if_ranges_are_wanted(tmp_path: Path) -> None:
    args = ("--", "sh", "-c", script(tmp_path, 0, 1))
    refused = record(tmp_path, "--step-range", "step", *args, NVTX_INJECTION64_PATH="/opt/nsys.so")
    assert refused.returncode == 2
    said = "collbench: cannot record: NVTX_INJECTION64_PATH is '/opt/nsys.so', and NVTX loads only one tool; unset it"
    assert refused.stderr.startswith(said)
    assert record(tmp_path, *args, NVTX_INJECTION64_PATH="/opt/nsys.so").returncode == 0
    nameless = record(tmp_path, "--step-range", " ", *args)
    assert (nameless.returncode, nameless.stderr.count("\n")) == (2, 1)
    both = record(tmp_path, "--step-range", "step", "--calls-per-step", "3", *args)
    assert both.returncode == 2
    assert both.stderr == "collbench: --step-range and --calls-per-step both say what a step is: use only one\n"


def test_a_killed_rank_is_reported_and_kept(tmp_path: Path) -> None:
    command = f"{script(tmp_path, 0)}; {script(tmp_path, 1, ending='kill')}"
    done = record(tmp_path, "-o", "killed.json", "--", "sh", "-c", command)
    assert done.returncode == 137
    assert "1 of 2 ranks was killed" in done.stderr
    endings = [rank.ending for rank in job_file.load(tmp_path / "killed.json").ranks]
    assert endings == [Ending.COMPLETE, Ending.CUT_OFF]


def test_a_job_ended_by_a_signal_ends_as_in_a_shell(tmp_path: Path) -> None:
    done = record(tmp_path, "--", "sh", "-c", f"{script(tmp_path, 0)}; kill -TERM $$")
    assert done.returncode == 128 + signal.SIGTERM
    assert (tmp_path / "job.json").is_file()
    assert "1 of 2 ranks left no stream: 1" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_a_signal_goes_to_the_job_and_what_it_had_sent_is_saved(tmp_path: Path, number: signal.Signals) -> None:
    command = f"{script(tmp_path, 0)}; echo ready; exec sleep 100"
    started = subprocess.Popen(
        collbench("record", "--", "sh", "-c", command),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert started.stdout is not None
    assert started.stdout.readline() == "ready\n"
    time.sleep(0.2)  # `exec` of sleep: its shell would also end, with the same status
    started.send_signal(number)
    _, stderr = started.communicate(timeout=60)
    assert started.returncode == 128 + number
    assert "recorded 18 calls of 1 rank" in stderr
    assert job_file.load(tmp_path / "job.json").ranks[0].calls == 18


# `collbench`, to which a signal comes while it merges.
SIGNALED = """
import os, signal, sys
from collbench.jobs import api as jobs
from collbench.cli import main
number, merge = int(sys.argv.pop(1)), jobs.merge
def signaled(*args, **options):
    os.kill(os.getpid(), number)
    return merge(*args, **options)
jobs.merge = signaled
sys.exit(main())
"""


def record_signaled(folder: Path, number: signal.Signals) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", SIGNALED, str(int(number)), "record", "--", "sh", "-c", script(folder, 0)]
    variables = {**os.environ, "TMPDIR": str(folder)}
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGQUIT])
def test_a_signal_while_streams_are_merged_leaves_them_and_says_where(tmp_path: Path, number: signal.Signals) -> None:
    done = record_signaled(tmp_path, number)
    assert done.returncode == 128 + number
    (line,) = done.stderr.splitlines()
    assert line.startswith("collbench: interrupted before the job was saved; what was recorded is in ")
    assert not (tmp_path / "job.json").exists()
    subprocess.run(command_in(line, tmp_path / "job.json"), check=True, capture_output=True)
    assert job_file.load(tmp_path / "job.json").ranks[0].calls == 18


def command_in(line: str, file: Path) -> list[str]:
    """Return the command that a line names."""
    return collbench(*shlex.split(line.partition(": collbench ")[2].replace("FILE", str(file))))


def test_a_terminal_that_closes_while_streams_are_merged_costs_nothing(tmp_path: Path) -> None:
    done = record_signaled(tmp_path, signal.SIGHUP)
    assert done.returncode == 0
    assert job_file.load(tmp_path / "job.json").ranks[0].calls == 18
    assert not list(tmp_path.glob("collbench-record-*"))


def test_what_a_lost_terminal_cannot_show_is_saved(tmp_path: Path) -> None:
    """Each line on it is an error: that a rank was killed, that one left no stream, what was recorded."""
    master, slave = pty.openpty()
    job = subprocess.Popen(
        collbench("record", "--", "sh", "-c", f"read line; {script(tmp_path, 0, ending='kill')} 2>error"),
        cwd=tmp_path, env={**os.environ, "TMPDIR": str(tmp_path)}, stdin=subprocess.PIPE, stdout=slave, stderr=slave,
    )  # fmt: skip
    os.close(slave)
    os.close(master)
    job.communicate(b"go\n")
    assert job.returncode == 128 + signal.SIGKILL
    assert job_file.load(tmp_path / "job.json").ranks[0].ending is Ending.CUT_OFF
    assert not list(tmp_path.glob("collbench-record-*"))


IGNORING = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"


def test_a_job_ends_with_its_status_where_the_caller_ignores_its_children(tmp_path: Path) -> None:
    command = collbench("record", "--", "sh", "-c", f"{script(tmp_path, 0)}; exit 7")
    done = subprocess.run([sys.executable, "-c", IGNORING, *command], cwd=tmp_path, check=False, timeout=60)
    assert done.returncode == 7
    assert (tmp_path / "job.json").is_file()


def test_nothing_is_started_where_the_result_could_not_be_kept(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text("mine", encoding="utf-8")
    done = record(tmp_path, "--", "touch", "started")
    assert done.returncode == 2
    assert "it exists" in done.stderr
    assert not (tmp_path / "started").exists()
    assert (tmp_path / "job.json").read_text(encoding="utf-8") == "mine"


ONE_LINE = {
    "another plugin": ((), ("true",), {"NCCL_PROFILER_PLUGIN": "inspector"}, "collbench import", 2),
    "no program": ((), ("no-such-program",), {}, "program 'no-such-program' does not exist", 2),
    "a program's own words": ((), ("echo", "gone.py"), {}, "no NCCL loaded the plugin", 2),
    "a module's own words": ((), ("python3", "-m", "this", "gone.py"), {}, "no NCCL loaded the plugin", 2),
    "no command": ((), (), {}, "no command to record", 2),
    "no NCCL": ((), ("true",), {}, "no NCCL loaded the plugin", 2),
    "no NCCL, and a job that fails": ((), ("sh", "-c", "exit 3"), {}, "no NCCL loaded the plugin", 3),
    "GPU times of no command": (("--gpu-times", "--streams", "none"), (), {}, "--gpu-times needs a command", 2),
    "no folder to merge": (("--streams", "none"), (), {}, "does not exist", 2),
}


@pytest.mark.parametrize("case", ONE_LINE)
def test_what_cannot_be_recorded_is_one_line(case: str, tmp_path: Path) -> None:
    options, command, environment, message, status = ONE_LINE[case]
    done = record(tmp_path, *options, *(("--", *command) if command else ()), **environment)
    assert done.returncode == status
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("collbench: ")
    assert message in done.stderr
    assert not (tmp_path / "job.json").exists()
    assert list(tmp_path.iterdir()) == []


def test_hosts_share_a_folder_and_it_is_merged_afterwards(tmp_path: Path) -> None:
    for rank in range(2):
        done = record(tmp_path, "--streams", "shared", "--", "sh", "-c", script(tmp_path, rank))
        assert done.returncode == 0
        assert "merge the streams" in done.stderr
    done = record(tmp_path, "--streams", "shared", "-o", "both.json")
    assert done.returncode == 0, done.stderr
    assert [rank.rank for rank in job_file.load(tmp_path / "both.json").ranks] == [0, 1]


def test_a_damaged_stream_is_left_out_and_named(tmp_path: Path) -> None:
    record(tmp_path, "--streams", "shared", "--", "sh", "-c", script(tmp_path, 0))
    (tmp_path / "shared" / "other.stream").write_bytes(b"CBSTREAM and nothing else")
    done = record(tmp_path, "--streams", "shared", "-o", "job.json")
    assert done.returncode == 0
    assert "other.stream is left out" in done.stderr
    for whole in (tmp_path / "shared").glob("*-*.stream"):
        whole.rename(tmp_path / "whole")
    done = record(tmp_path, "--streams", "shared", "-o", "none.json")
    assert (done.returncode, (tmp_path / "none.json").exists()) == (2, False)
    assert done.stderr.endswith("collbench: nothing that was recorded can be read: 1 stream is left out\n")


def test_a_copy_of_a_stream_is_no_other_rank(tmp_path: Path) -> None:
    record(tmp_path, "--streams", "shared", "--", "sh", "-c", f"{script(tmp_path, 0)}; {script(tmp_path, 1)}")
    _, second = sorted((tmp_path / "shared").glob("*.stream"))
    (tmp_path / "shared" / f"{second.stem}-copy.stream").write_bytes(second.read_bytes())
    done = record(tmp_path, "--streams", "shared", "-o", "job.json")
    assert done.returncode == 0
    assert "it is a copy of " in done.stderr
    assert [rank.rank for rank in job_file.load(tmp_path / "job.json").ranks] == [0, 1]


def test_what_another_user_may_have_put_into_the_folder_is_left_out(tmp_path: Path) -> None:
    for rank in range(2):
        record(tmp_path, "--streams", "shared", "--", "sh", "-c", script(tmp_path, rank))
    writable, own = (tmp_path / "shared").glob("*.stream")
    writable.chmod(0o666)
    os.mkfifo(tmp_path / "shared" / "pipe.stream")
    (tmp_path / "shared" / "link.stream").symlink_to(own)
    done = record(tmp_path, "--streams", "shared", "-o", "job.json")
    assert done.returncode == 0
    left_out = {line.split("/")[-1].split()[0] for line in done.stderr.splitlines() if "is left out" in line}
    assert left_out == {writable.name, "pipe.stream", "link.stream"}


def test_a_plugins_path_that_nccl_would_cut_is_refused(tmp_path: Path) -> None:
    plugin = tmp_path.joinpath(*["deep" * 20] * 4, "_profiler.so")
    with pytest.raises(UsageError, match="NCCL cuts the plugin's path"):
        recording.environment({}, plugin, tmp_path)


def test_a_full_disk_is_reported(tmp_path: Path) -> None:
    command = f"trap '' XFSZ; ulimit -f 1000; {script(tmp_path, 0)}"
    done = record(tmp_path, "--", "bash", "-c", command)
    assert done.returncode == 2
    assert "a process could not write its stream: File too large" in done.stderr
