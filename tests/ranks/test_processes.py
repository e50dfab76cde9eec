"""Real processes on CPU cores: as torchrun, srun and mpirun start them, on one host and on two network namespaces."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from collbench.machine.launchers import LaunchEnvironment
from collbench.model.errors import BackendError
from collbench.ranks import nonzero as nonzero_ranks
from collbench.ranks import store as store_module
from collbench.ranks.factory import World, join
from collbench.ranks.store import Store
from collbench.runfile import run_file
from tests.builders import ALL
from tests.cli.program import Program
from tests.ranks import namespaces
from tests.ranks.processes import (
    LAUNCHERS,
    PATIENCE_S,
    STORE_ONLY,
    as_mpirun,
    as_slurm,
    ends,
    free_port,
    started,
    the_run,
    torchrun,
    wait_for,
    worker_of,
)

pytestmark = pytest.mark.usefixtures("loaded_torch")


def test_torchrun_measures_once_prints_once_and_verifies_every_element(tmp_path: Path) -> None:
    done = torchrun(tmp_path, 2, "allreduce", "--backend", "host", "--sizes", "8,4K,64K", "--quick", "-v")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("backend   host") == 1
    assert done.stdout.count("saved     ") == 1
    assert "processes 2 (torchrun), one for each device" in done.stdout
    assert "(2 ranks)" in done.stdout
    run = the_run(tmp_path)
    assert (run.complete, run.settings.processes, run.settings.launcher) == (True, 2, "torchrun")
    assert [measurement.point.size_bytes for measurement in run.measurements] == [8, 4096, 65536]
    assert {measurement.wrong for measurement in run.measurements} == {0}
    assert {measurement.point.members for measurement in run.measurements} == {(0, 1)}
    assert {path.label for path in run.paths} <= {"NODE", "SYS"}
    assert len(run.devices) == 2


def test_mpirun_measures_pairs(tmp_path: Path) -> None:
    arguments = ["pairs", "--operations", "allreduce", "--backend", "host", "--sizes", "4K", "--quick", "-v"]
    port = free_port()
    with started(tmp_path, arguments, [as_mpirun(rank, 3, port) for rank in range(3)]) as processes:
        (status, out, err), *other_outputs = ends(processes)
    assert status == 0, err
    assert "processes 3 (Open MPI)" in out
    assert other_outputs == [(0, "", "")] * 2
    run = the_run(tmp_path)
    assert {measurement.point.members for measurement in run.measurements} == {(0, 1), (0, 2), (1, 2)}
    assert {measurement.wrong for measurement in run.measurements} == {0}


@pytest.mark.parametrize(
    ("title", "arguments", "message"),
    [
        ("copies", ["copies", "--backend", "host"], "time collectives"),
        ("all of pairs", ["pairs", "--backend", "host"], "pairs --operations allreduce,broadcast"),
        ("a wait that is none", ["allreduce", "--backend", "host"], "COLLBENCH_JOIN_SECONDS=soon: write whole seconds"),
        ("judging", ["check", "--backend", "host"], "one process judges"),
        ("labels", ["topo"], "topo was started in several processes"),
        (
            "a job in two arms",
            ["ablate", "--auto-select", "2", "--without", "p2p", "--", "x.py"],
            "ablate starts torchrun",
        ),
        ("training", ["train", "--auto-select", "2", "x.py"], "once on each node (srun --ntasks-per-node 1)"),
        ("devices", ["allreduce", "--backend", "host", "--devices", "0,1"], "--devices is for one process"),
        ("a word that is no option", ["allreduce", "--bckend", "host"], "--bckend"),
    ],
)
def test_commands_of_one_process_are_refused_once(
    title: str, arguments: list[str], message: str, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith(LAUNCHERS)]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(nonzero_ranks, "_AFTER_RANK_0_S", 0.0)
    if "soon" in message:
        monkeypatch.setenv("COLLBENCH_JOIN_SECONDS", "soon")
    for rank in range(2):
        for name, value in as_slurm(rank, 2, 1).items():
            monkeypatch.setenv(name, str(value))
        output = program(*arguments)
        if rank == 0:
            assert (output.status, output.out) == (2, ""), title
            assert message in output.line, title
        else:
            assert (output.status, output.out, output.err) == (2, "", ""), title


# Runs until it is ended: no data point ever settles.
ENDLESS = ["--backend", "host", "--sizes", "8,64K", "--precision", "0.0001%", "--budget", "10min"]


def test_a_rank_that_is_killed_is_named_and_what_was_measured_is_saved(tmp_path: Path) -> None:
    file, port = tmp_path / "run.json", free_port()
    arguments = ["allreduce", *ENDLESS, "--output", str(file)]
    with started(tmp_path, arguments, [as_slurm(rank, 3, port) for rank in range(3)]) as processes:
        wait_for("the first trial", file.exists, processes)
        processes[2].kill()
        (status, _out, err), survivor, _ = ends(processes)
    assert status == 1
    assert err.count("\n") == 1
    assert f"rank 2 on {socket.gethostname()} is gone" in err
    assert f"saved as {file}" in err
    assert survivor == (0, "", ""), "rank 0 has released it"
    saved = run_file.load(file)
    assert not saved.complete
    assert any(measurement.samples for measurement in saved.measurements)


@pytest.mark.usefixtures("own_program")  # the test looks for the worker among its threads' children
def test_a_worker_that_is_killed_costs_its_point_and_the_ranks_meet_again(tmp_path: Path) -> None:
    file, port = tmp_path / "run.json", free_port()
    arguments = ["allreduce", *ENDLESS, "--output", str(file)]
    with started(tmp_path, arguments, [as_slurm(rank, 2, port) for rank in range(2)]) as processes:
        wait_for("the first trial", file.exists, processes)
        os.kill(worker_of(processes[1], "gloo_worker"), signal.SIGKILL)
        (status, _out, err), other_output = ends(processes)
    assert status == 1, err
    assert other_output == (0, "", "")
    run = run_file.load(file)
    assert run.complete
    assert any(len(measurement.samples) >= 3 for measurement in run.measurements), "they have measured on"
    (failed,) = (measurement for measurement in run.measurements if measurement.failure)
    assert failed.failure is not None
    assert (failed.failure.rank, failed.failure.devices, failed.failure.signal) == (1, (1,), 9)


# The program, whose ranks say after a second, not after ten, for whom they wait.
PROGRAM = """
from collbench.ranks import factory, store
store.UNSAID_S = factory.UNSAID_S = 1.0
from collbench.cli import entry
entry()
"""
SAYS_SOON = [sys.executable, "-c", PROGRAM]


def test_a_rank_without_rank_0_reports_how_long_it_waits_and_handles_signals(tmp_path: Path) -> None:
    """Rank 0 ended in its first second. A wait inside torch's C++ would handle no signal."""
    environments = [as_slurm(1, 2, free_port(), COLLBENCH_JOIN_SECONDS=600)]
    with started(tmp_path, ["allreduce", *ENDLESS], environments, program=SAYS_SOON) as (waiting,):
        assert waiting.stderr is not None
        message = waiting.stderr.readline()  # after some seconds
        waiting.send_signal(signal.SIGTERM)
        ((status, out, err),) = ends([waiting])
    assert re.fullmatch(
        r"collbench: rank 1 on \S+ has not found rank 0 at 127.0.0.1:\d+ yet: waiting 5\d\d s more at most "
        r"\(of 600, which COLLBENCH_JOIN_SECONDS sets\)\n",
        message.replace("localhost", "127.0.0.1"),
    )
    assert (status, out) == (143, "")
    assert err == "collbench: interrupted before it was done\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_store_that_accepts_and_never_answers_does_not_keep_a_rank_from_ending(
    number: signal.Signals, tmp_path: Path
) -> None:
    """As when rank 0 is stopped."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        environments = [as_slurm(1, 2, silent.getsockname()[1], COLLBENCH_JOIN_SECONDS=600, MASTER_ADDR="127.0.0.1")]
        with started(tmp_path, ["allreduce", *ENDLESS], environments) as (waiting,):
            torch = asks_something(silent)
            waiting.send_signal(number)
            ((status, out, err),) = ends([waiting])
            torch.close()
    assert (status, out) == (128 + number, "")
    assert err == "collbench: interrupted before it was done\n"


def asks_something(server: socket.socket) -> socket.socket:
    """Return the first client that sends anything."""
    server.settimeout(PATIENCE_S)
    while True:
        client, _ = server.accept()
        client.settimeout(PATIENCE_S)
        if client.recv(1):
            return client
        client.close()  # it only tried the port


def test_a_rank_gives_a_silent_store_up_at_its_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(
            BackendError, match=rf"store at 127\.0\.0\.1:{port} did not answer for 1 s: rank 0 is stopped"
        ):
            join(LaunchEnvironment(1, 2, 1, 2, "127.0.0.1", port, "Slurm"), REQUEST, timeout_s=1.0)


def test_a_store_that_is_stopped_later_is_given_up_too() -> None:
    with open_store() as (store_process, port):
        store = Store(LaunchEnvironment(1, 2, 1, 2, "127.0.0.1", port, "Slurm"), 1.0)
        store_process.send_signal(signal.SIGSTOP)
        for use in (lambda: store.read("listener"), lambda: store.publish("listener", "x")):
            with pytest.raises(BackendError, match="did not answer for 1 s"):
                use()


def test_ranks_end_soon_if_the_launcher_that_keeps_the_store_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It opens the store before it starts them, so nobody will open the port."""
    monkeypatch.setattr(store_module, "_CLOSED_S", 0.1)
    port = free_port()
    launch = LaunchEnvironment(1, 2, 1, 2, "127.0.0.1", port, "torchrun", agent_listens=True)
    with pytest.raises(BackendError, match=rf"stops: torchrun, which kept the store at 127\.0\.0\.1:{port}, is gone"):
        join(launch, REQUEST, timeout_s=600.0)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_ends_when_its_launcher_is_killed(rank: int, tmp_path: Path) -> None:
    """Even one that waits for others: rank 0 for rank 1, which has found no rank 0."""
    script = "import subprocess, sys; subprocess.run(sys.argv[1:])"
    launcher = [sys.executable, "-c", script, *SAYS_SOON]
    environments = [as_slurm(rank, 2, free_port(), COLLBENCH_JOIN_SECONDS=600, TORCH_CPP_LOG_LEVEL="ERROR")]
    with started(tmp_path, ["allreduce", *ENDLESS], environments, program=launcher) as (process,):
        assert process.stderr is not None
        process.stderr.readline()  # it waits
        process.kill()
        last = process.stderr.read()  # until both have ended
    assert re.fullmatch(r"collbench: interrupted.*\n", last)


def test_a_rank_that_waits_ends_at_once_when_rank_0_does(tmp_path: Path) -> None:
    """Rank 0 is killed while it waits for a third, before anything is measured."""
    of_0, of_1 = ([as_slurm(rank, 3, port)] for port in (free_port(),) for rank in range(2))
    with started(tmp_path, ["allreduce", *ENDLESS], of_1, program=SAYS_SOON) as (rank_1,):
        assert rank_1.stderr is not None
        assert "has not found rank 0" in rank_1.stderr.readline()  # it asks again and again: ten seconds are enough
        with started(tmp_path, ["allreduce", *ENDLESS], of_0) as (rank_0,):
            assert rank_0.stderr is not None
            assert "rank 2 of 3 not connected yet" in rank_0.stderr.readline()
            rank_0.send_signal(signal.SIGKILL)
            status, out, err = ends([rank_0, rank_1])[1]
    assert (status, out) == (1, "")
    assert err.splitlines()[-1] == "collbench: rank 1 stops: rank 0 is gone, and its output says why"


REQUEST = replace(ALL, backend="host", copies=(), pairs=False, command=("allreduce",))


def test_ranks_that_never_connect_are_named() -> None:
    port = free_port()
    with pytest.raises(BackendError, match=rf"ranks 1, 2 of 3 did not connect to 127\.0\.0\.1:{port} within 1 s"):
        World(LaunchEnvironment(0, 3, 0, 3, "127.0.0.1", port, "Slurm"), REQUEST, timeout_s=1.0)


def test_a_rank_that_finds_no_store_reports_the_address() -> None:
    port = free_port()
    with pytest.raises(BackendError, match=rf"rank 1 on .* reached no store at 127\.0\.0\.1:{port} within 1 s"):
        join(LaunchEnvironment(1, 2, 1, 2, "127.0.0.1", port, "Slurm"), REQUEST, timeout_s=1.0)


def test_ranks_that_wait_for_a_store_end_with_it() -> None:
    """As when rank 0, or the launcher that keeps the store, is killed before rank 0 reported where it listens."""
    with open_store() as (store_process, port):
        store = Store(LaunchEnvironment(1, 2, 1, 2, "127.0.0.1", port, "Slurm"), 600.0)
        threading.Timer(0.2, store_process.kill).start()  # before or after `read` begins to wait: it is the same
        with pytest.raises(
            BackendError, match=rf"rank 1 on \S+ stops: rank 0, which kept the store at .*{port}, is gone"
        ):
            store.read("listener")


@contextmanager
def open_store() -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Yield a process that keeps a store, and the store's port."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-c", f"from torch.distributed import TCPStore; s = TCPStore('127.0.0.1', {port}, 2, True, "
         "wait_for_workers=False); print('open', flush=True); input()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(STORE_ONLY)},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield process, port
    finally:
        process.kill()
        process.communicate()


def test_a_taken_port_is_reported() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as bound,
        pytest.raises(BackendError, match=r"rank 0 cannot listen at .*MASTER_PORT a free port"),
    ):
        World(LaunchEnvironment(0, 2, 0, 2, "127.0.0.1", bound.getsockname()[1], "Slurm"), REQUEST, timeout_s=1.0)


def test_two_hosts_find_each_other_and_are_named(tmp_path: Path) -> None:
    arguments = ["alltoall", "--backend", "host", "--sizes", "64K", "--quick", "-v"]
    first = namespaces.address(0)
    one_task_per_node = {"SLURM_LOCALID": 0, "SLURM_STEP_TASKS_PER_NODE": "1(x2)", "MASTER_ADDR": first}
    environments = [as_slurm(rank, 2, 29500, SLURM_NODEID=rank, **one_task_per_node) for rank in range(2)]
    with namespaces.hosts(2) as hosts, started(tmp_path, arguments, environments, hosts) as processes:
        (status, out, err), other_output = ends(processes)
    assert status == 0, err
    assert "processes 2 (Slurm), one for each device; hosts n0, n1" in out
    assert other_output == (0, "", "")
    run = the_run(tmp_path)
    assert [device.host for device in run.devices] == ["n0", "n1"]
    assert [path.label for path in run.paths] == ["NET"]
    assert [(measurement.point.members, measurement.wrong) for measurement in run.measurements] == [((0, 1), 0)]
