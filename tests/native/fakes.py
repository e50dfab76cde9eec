"""Builds the fake NVIDIA libraries and runs programs on them, always in another process."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import collbench

HERE = Path(__file__).parent
_PACKAGES = Path(collbench.__file__).parents[1]
SOURCES = {
    "libcuda.so.1": ("cuda", "streams", "engine", "memory", "kernels", "numbers", "settings"),
    "libnccl.so.2": ("nccl", "collectives", "registration", "numbers", "settings"),
    "libnvidia-ml.so.1": ("nvml", "settings"),
    "libclock.so": ("clock",),
    "libnodes.so": ("nodes",),
}
_TIMEOUT_S = 100
# Variables that a test must not inherit from the machine that it runs on.
_CLEARED = ("CUDA_VISIBLE_DEVICES", "COLLBENCH_NCCL", "LD_PRELOAD")

# Names that every script may use. BAD stands in for a PTX that the driver does not take.
_PRELUDE = """
import gc, json, os, sys
from collbench import _native as native
PTX = open(os.path.join(os.path.dirname(native.__file__), "kernels", "kernels.ptx")).read()
BAD = "no image"
def report(**values):
    print(json.dumps(values))
def failure(call, *arguments, **keywords):
    try:
        call(*arguments, **keywords)
    except Exception as error:
        return {"kind": type(error).__name__, "text": str(error), **vars(error)}
    return {"kind": "none"}
def open_gpus(count=4, buffer=65536, ptx=None, peers=True):
    gpus = native.Gpus(list(range(count)), ptx or PTX, peers)
    gpus.allocate(buffer)
    return gpus
def times(gpus, groups, multiprocessors=False, **changes):
    plan = dict(pull=False, bytes=1024, iterations=4, batches=1, warmup=0, deadline=30.0)
    engine = native.Engine.multiprocessors if multiprocessors else native.Engine.copy_engine
    return gpus.time_copies(native.CopyRound(groups=groups, engine=engine, **(plan | changes)))
def transfers(gpus, groups, **changes):
    return times(gpus, groups, **changes).seconds
def copies(gpus, links, **changes):
    return transfers(gpus, [[link] for link in links], **changes)
def chase(gpus, links, **changes):
    plan = dict(accesses=100, batches=1, warmup=0, deadline=30.0)
    return gpus.time_chase(native.ChaseRound(links=links, **(plan | changes)))
def session(gpus):
    return native.Collectives(gpus, native.Nccl(os.environ["NCCL"]))
OPERATIONS = list(native.Collective.__members__)
# Dtypes and reductions by NCCL's numbers.
# Of an all-to-all-v: none, half and all of an even share, differently to every rank.
def blocks_of(ranks, count):
    share = [count // ranks * part // 2 for part in (1, 0, 2, 1, 0)]  # of a rank, by its destination, and over again
    return [block for source in range(ranks) for block in (share[-source % 3 :][:3] * (ranks // 3 + 1))[:ranks]]
def collect(session, groups, operation="allreduce", dtype=7, reduction=0, registration="none", **changes):
    plan = dict(root=0, count=256, in_place=False, verify=True, iterations=4, batches=1, warmup=0, launch_iterations=0,
                launch_warmup=0, deadline=30.0)
    names = dict(operation=getattr(native.Collective, operation), dtype=native.Dtype(dtype))
    names["reduction"] = native.Reduction(reduction)
    if operation == "alltoallv":
        plan["blocks"] = blocks_of(len(groups[0]), changes.get("count", 256))
    names["registration"] = native.Registration.__members__[registration]
    return session.time(native.CollectiveRound(groups=groups, **names, **(plan | changes)))
def collective(*arguments, **changes):
    times = collect(*arguments, **changes)
    return times.seconds, times.launch_seconds
def coverage(times):
    return [[one.verified, one.moved] for one in times.coverage]
"""


@dataclass(frozen=True)
class Outcome:
    """The result of a program: its exit code, its output, and the fakes' log."""

    code: int
    stdout: str
    stderr: str
    log: tuple[str, ...]

    @property
    def reported(self) -> dict[str, Any]:
        """The last values that the script reported."""
        reported: dict[str, Any] = json.loads(self.stdout.splitlines()[-1])
        return reported

    def lines(self, start: str) -> list[str]:
        """Return the log's lines that begin with these words."""
        return [line for line in self.log if line.startswith(start)]

    def leaks(self) -> list[str]:
        """Return what was created and never released, by the fakes' own names; communicators may outlive us.

        The memory that NCCL allocated may, too: a thread that is stuck in NCCL may still register it.
        """
        nccl_memory = {line.split()[1] for line in self.lines("+ncclmemory ")}
        balance: Counter[str] = Counter()
        for line in self.log:
            if line[0] in "+-" and not line.startswith(("+comm ", "-comm ")) and line.split()[1] not in nccl_memory:
                balance[line[1:]] += 1 if line[0] == "+" else -1
        return [name for name, count in balance.items() if count != 0]


@dataclass(frozen=True)
class Fakes:
    """A folder of built fakes. Settings are the FAKE_* variables of fake.h, written without the prefix, or others.

    Programs run in `place`; `loaded` are variables by which code in `asks` finds a process that has loaded collbench.
    """

    folder: Path
    place: Path = Path()
    loaded: Mapping[str, str] = field(default_factory=dict)
    asks: Path | None = None

    @property
    def nccl(self) -> Path:
        """The fake NCCL's path."""
        return self.folder / "libnccl.so.2"

    def environment(self, **settings: object) -> dict[str, str]:
        """Return the variables under which a program finds these GPUs: `gpus=2` sets FAKE_GPUS."""
        inherited = {name: value for name, value in os.environ.items() if name not in _CLEARED and "FAKE_" not in name}
        fakes = {f"FAKE_{name.upper()}": str(value) for name, value in settings.items()}
        folders = os.pathsep.join(filter(None, (str(self.asks or ""), str(_PACKAGES), os.environ.get("PYTHONPATH"))))
        libraries = {"LD_LIBRARY_PATH": str(self.folder), "NCCL": str(self.nccl), "PYTHONPATH": folders}
        # A fork's parent is not the one that started it.
        return inherited | libraries | ({} if "signal_parent" in settings else {**self.loaded}) | fakes

    def run(self, command: Sequence[str], extra: dict[str, str] | None = None, /, **settings: object) -> Outcome:
        """Run a command on these GPUs. Fails the test where the fakes saw a use that hangs real ones."""
        log = self.place / "fake.log"
        log.unlink(missing_ok=True)
        environment = self.environment(log=log, **settings) | (extra or {})
        if sanitizer := os.environ.get("COLLBENCH_TEST_SANITIZER"):  # a library that must be loaded first
            environment["LD_PRELOAD"] = ":".join(filter(None, (sanitizer, environment.get("LD_PRELOAD"))))
        if self._can_fork(command, environment):
            done = _forked(self.loaded["COLLBENCH_TEST_PROGRAM"], command, environment, self.place)
        else:
            done = subprocess.run(
                command,
                env=environment,
                cwd=self.place,
                capture_output=True,
                text=True,
                timeout=_TIMEOUT_S,
                check=False,
            )
        assert "FAULT" not in done.stderr, done.stderr
        lines = tuple(log.read_text().splitlines()) if log.exists() else ()
        assert not [line for line in lines if line.startswith("FAULT")]  # of a worker, whose stderr is not ours
        return Outcome(done.returncode, done.stdout, done.stderr, lines)

    def _can_fork(self, command: Sequence[str], environment: Mapping[str, str]) -> bool:
        """Return whether a fork of the process that has loaded collbench can stand for a command."""
        return (
            command[0] == sys.executable
            and command[1] in ("-c", "-m")
            and "COLLBENCH_TEST_PROGRAM" in environment
            and environment["LD_LIBRARY_PATH"] == str(self.folder)
            and environment["PYTHONPATH"] == self.environment()["PYTHONPATH"]
            and not {"LD_PRELOAD", "PYTHONMALLOC"} & environment.keys()
        )

    def script(self, code: str, extra: dict[str, str] | None = None, /, **settings: object) -> Outcome:
        """Run Python code on these GPUs; it may use the prelude's names. Fails the test if the code does."""
        program = _PRELUDE + textwrap.dedent(code)
        done = self.run([sys.executable, "-c", program], extra, **settings)
        assert done.code == 0, done.stderr
        return done


def _forked(
    server: str, command: Sequence[str], environment: Mapping[str, str], folder: Path
) -> subprocess.CompletedProcess[str]:
    """Run `python -m MODULE …` or `python -c CODE …` in a fork of the server (tests/fork_server.py)."""
    _, option, program, *arguments = command
    state = {
        "module": program if option == "-m" else None,
        "code": program if option == "-c" else None,
        "arguments": [option, *arguments],
        "folders": [str(folder), *environment["PYTHONPATH"].split(os.pathsep), *sys.path],
        "variables": dict(environment),
        "folder": str(folder),
        "unbuffered": True,
        "files": [0, 1, 2],
    }
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection,
        tempfile.TemporaryFile() as stdin,
        tempfile.TemporaryFile() as stdout,
        tempfile.TemporaryFile() as stderr,
    ):
        connection.settimeout(_TIMEOUT_S)
        connection.connect(server)
        files = [file.fileno() for file in (stdin, stdout, stderr)]
        socket.send_fds(connection, [json.dumps(state).encode()], files)
        assert connection.recv(16), "no fork was made"
        status = int(connection.recv(16))
        texts = [os.pread(file, os.fstat(file).st_size, 0).decode() for file in files[1:]]
    return subprocess.CompletedProcess(command, status, *texts)


def build(folder: Path) -> Fakes:
    """Compile the fakes into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for library in SOURCES:
        _compile(folder, library, ["-O3"])
    return Fakes(folder)


def build_without(fakes: Fakes, folder: Path, library: str, functions: Sequence[str]) -> None:
    """Compile one fake into a folder, without some functions: they have other names. NCCL's finds a driver beside it.

    Not optimized: it is compiled for one test.
    """
    if library != "libcuda.so.1":
        shutil.copy(fakes.folder / "libcuda.so.1", folder)
    _compile(folder, library, ["-O0", *(f"-D{name}=absent_{name}" for name in functions)])


def _compile(folder: Path, library: str, flags: Sequence[str]) -> None:
    modules = SOURCES[library]
    sources = [str(HERE / f"fake_{module}.c") for module in modules]
    driver = [f"-L{folder}", "-l:libcuda.so.1", "-Wl,-rpath,$ORIGIN"] if "nccl" in modules else []
    warnings = ["-Wall", "-Wextra", "-Werror=implicit-function-declaration"]
    shared = ["-std=gnu17", "-fPIC", "-shared", "-fvisibility=hidden", *warnings, f"-Wl,-soname,{library}"]
    compiler = os.environ.get("CC", "cc")
    subprocess.run([compiler, *shared, *flags, *sources, "-o", str(folder / library), *driver, "-lm"], check=True)
