"""Find this process's rank, world size and rendezvous from the variables that launchers set. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from itertools import product
from typing import NamedTuple

from collbench.model.errors import UsageError

# Slurm's compressed lists of nodes and tasks: "node[01-03,7]" and "2(x3),1".

_MAX_NODES = 1 << 16
# A name's pieces: text, or numbers and ranges in brackets; a name ends at a comma outside brackets.
_PIECE = re.compile(r"[^\[\],\s]+|\[[\d,-]+\]", re.ASCII)
_NAME = re.compile(rf"(?:{_PIECE.pattern})+", re.ASCII)
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)
_TASKS = re.compile(r"(\d{1,9})(?:\(x(\d{1,9})\))?", re.ASCII)


def expand_node_list(text: str) -> tuple[str, ...]:
    """Return the names in a node list, in order. Raises UsageError."""
    names: list[str] = []
    position, text = 0, text.strip()
    while True:
        match = _NAME.match(text, position)
        if match is None or text[match.end() : match.end() + 1] not in ("", ","):
            raise UsageError(f"node list '{text}' cannot be read: write names and ranges as Slurm does, node[01-16,20]")
        pieces = [_choices(piece, text) for piece in _PIECE.findall(match[0])]
        if len(names) + math.prod(map(len, pieces)) > _MAX_NODES:
            raise UsageError(f"node list '{text}' has more than {_MAX_NODES:,} nodes")
        names += map("".join, product(*pieces))
        if match.end() == len(text):
            return tuple(names)
        position = match.end() + 1


def _choices(piece: str, text: str) -> list[str]:
    """Return what may stand in a name's piece: itself, or the numbers of its brackets with their leading zeros."""
    if not piece.startswith("["):
        return [piece]
    numbers: list[str] = []
    for part in piece[1:-1].split(","):
        match = _RANGE.fullmatch(part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if match is None or last < first or last - first >= _MAX_NODES:
            raise UsageError(f"node list '{text}' cannot be read: '{part}' is not a range of numbers")
        numbers += (str(number).zfill(len(match[1])) for number in range(first, last + 1))
    return numbers


def first_host(nodes: str) -> str:
    """Return the first host of a node list: "node01" of "node[01-03,7],login". Raises UsageError."""
    try:
        return expand_node_list(nodes)[0]
    except UsageError as error:
        raise UsageError(f"{error}; or set MASTER_ADDR to the host of rank 0") from error


def tasks_on_node(tasks: str, node: int) -> int | None:
    """Return the number of tasks of the `node`-th node in a list: 1 of "2(x3),1" for 3; None if unknown."""
    for entry in filter(None, tasks.split(",")):
        match = _TASKS.fullmatch(entry.strip())
        if match is None:
            return None
        node -= int(match[2] or 1)
        if node < 0:
            return int(match[1])
    return None


# From the variables that launchers set to this process's rank among the others.

# torchrun's own default, so that a firewall that lets torchrun through lets us through.
_DEFAULT_PORT = 29500
# Slurm names no port. Jobs that share a node need different ones: below the kernel's ephemeral range (32768 on).
_FIRST_PORT, _PORTS = 10_000, 20_000
# Numbers in variables: int() refuses 4,300 digits, and no launcher sets more than these.
NUMBER = re.compile(r"\d{1,18}", re.ASCII)
_LONGEST_SHOWN = 40
# Ranks of one job, one per GPU: several times what the largest machines have.
_MAX_RANKS = 2**20


class LaunchEnvironment(NamedTuple):
    """One of `world_size` processes that were started together; `local_*` count those on its host.

    The rendezvous is `master_addr`:`master_port`: rank 0 listens there, or the launcher if `agent_listens`.
    `generation` counts the launcher's restarts. `launcher` is "torchrun", "Slurm" or "Open MPI".
    """

    rank: int
    world_size: int
    local_rank: int
    local_size: int
    master_addr: str
    master_port: int
    launcher: str
    agent_listens: bool = False
    generation: int = 0

    @property
    def meeting_point(self) -> str:
        """The rendezvous as text: "node0:29500"."""
        return f"{self.master_addr}:{self.master_port}"


def find_launch(environment: Mapping[str, str]) -> LaunchEnvironment | None:
    """Return this process's launch environment, or None if it was started alone. Raises UsageError for contradictions.

    torchrun is checked first, because srun and mpirun also start it; mpirun before srun, which mpirun uses inside
    Slurm.
    """
    for launched in (_by_torchrun, _by_open_mpi, _by_slurm):
        recognized, launch = launched(environment)
        if recognized:
            return _checked(launch) if launch is not None else None
    return None


class SlurmStep(NamedTuple):
    """A Slurm step over several nodes with one task on each: this is node number `node`, from 0, of `nodes`.

    The rendezvous is `host`:`port`, the first node; `name` identifies the step ("4711.0").
    """

    nodes: int
    node: int
    host: str
    port: int
    name: str


def find_step(environment: Mapping[str, str]) -> SlurmStep | None:
    """Return the Slurm step that this process is a task of, None outside one or on one node. Raises UsageError."""
    slurm_step, launch = _by_slurm(environment)
    if not slurm_step or launch is None:
        return None
    values = _Values(environment, "srun")
    nodes = values.number("SLURM_STEP_NUM_NODES", values.number("SLURM_NNODES", 1))
    if _checked(launch).local_size > 1 or nodes != launch.world_size:
        raise UsageError(
            f"srun starts {launch.world_size} tasks on {nodes} nodes, but each task starts all ranks of a node: "
            "write srun --ntasks-per-node 1"
        )
    job, step = environment.get("SLURM_JOB_ID", "0"), environment.get("SLURM_STEP_ID", "0")
    return SlurmStep(nodes, launch.rank, launch.master_addr, launch.master_port, f"{job}.{step}")


def _by_torchrun(environment: Mapping[str, str]) -> tuple[bool, LaunchEnvironment | None]:
    if not ("RANK" in environment and "WORLD_SIZE" in environment):
        return False, None
    if "LOCAL_RANK" not in environment and "PET_NNODES" in environment:
        return False, None  # a pod of a PyTorchJob, in which torchrun has not started yet: RANK is the pod's
    values = _Values(environment, "torchrun")
    world_size = values.ranks("WORLD_SIZE")
    if world_size == 1:
        return True, None
    return True, LaunchEnvironment(
        rank=values.number("RANK"),
        world_size=world_size,
        local_rank=values.number("LOCAL_RANK"),
        local_size=values.number("LOCAL_WORLD_SIZE", world_size),
        master_addr=values.text("MASTER_ADDR"),
        master_port=values.number("MASTER_PORT"),
        launcher="torchrun",
        agent_listens=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",  # as torch itself reads it
        generation=values.number("TORCHELASTIC_RESTART_COUNT", 0),
    )


def _by_open_mpi(environment: Mapping[str, str]) -> tuple[bool, LaunchEnvironment | None]:
    if "OMPI_COMM_WORLD_SIZE" not in environment:
        return False, None
    values = _Values(environment, "mpirun")
    world_size = values.ranks("OMPI_COMM_WORLD_SIZE")
    if world_size == 1:
        return True, None
    local_size = values.number("OMPI_COMM_WORLD_LOCAL_SIZE")
    master = environment.get("MASTER_ADDR", "127.0.0.1" if local_size == world_size else "")
    if not master:
        raise UsageError("mpirun does not report the host of rank 0: add -x MASTER_ADDR=HOST, the first host of mpirun")
    return True, LaunchEnvironment(
        rank=values.number("OMPI_COMM_WORLD_RANK"),
        world_size=world_size,
        local_rank=values.number("OMPI_COMM_WORLD_LOCAL_RANK"),
        local_size=local_size,
        master_addr=master,
        master_port=values.number("MASTER_PORT", _DEFAULT_PORT),
        launcher="Open MPI",
    )


def _by_slurm(environment: Mapping[str, str]) -> tuple[bool, LaunchEnvironment | None]:
    # In a batch script SLURM_PROCID is 0 too, but no other rank exists: only a step has these tasks.
    values = _Values(environment, "srun")
    world_size = values.ranks("SLURM_STEP_NUM_TASKS", 1)
    if world_size == 1 or "SLURM_PROCID" not in environment:
        return False, None
    nodes = environment.get("SLURM_STEP_NODELIST") or values.text("SLURM_NODELIST")
    tasks = environment.get("SLURM_STEP_TASKS_PER_NODE", "")
    job, step = values.number("SLURM_JOB_ID", 0), environment.get("SLURM_STEP_ID", "")
    own_port = _FIRST_PORT + (job + (int(step) if NUMBER.fullmatch(step) else 0)) % _PORTS
    return True, LaunchEnvironment(
        rank=values.number("SLURM_PROCID"),
        world_size=world_size,
        local_rank=values.number("SLURM_LOCALID"),
        local_size=tasks_on_node(tasks, values.number("SLURM_NODEID", 0)) or world_size,
        master_addr=environment.get("MASTER_ADDR") or first_host(nodes),
        master_port=values.number("MASTER_PORT", own_port),
        launcher="Slurm",
    )


def _checked(launch: LaunchEnvironment) -> LaunchEnvironment:
    """Return the launch environment. Raises UsageError if its numbers contradict each other."""
    for what, number, size in (
        ("rank", launch.rank, launch.world_size),
        ("local rank", launch.local_rank, launch.local_size),
    ):
        if not 0 <= number < size:
            raise UsageError(
                f"{launch.launcher}'s variables contradict each other: {what} {number} of {size}; unset them to "
                "measure with one process"
            )
    if not (launch.local_size <= launch.world_size and 0 < launch.master_port < 2**16):
        raise UsageError(
            f"{launch.launcher}'s variables contradict each other: {launch.local_size} of {launch.world_size} "
            f"ranks here, port {launch.master_port}; unset them to measure with one process"
        )
    try:
        launch.master_addr.encode("idna")
    except UnicodeError as error:
        raise UsageError(
            f"MASTER_ADDR={shown(launch.master_addr)} is not the name or address of a host: set it to that of rank 0"
        ) from error
    return launch


def shown(value: str) -> str:
    """Return a variable's value as messages show it."""
    return value if len(value) <= _LONGEST_SHOWN else f"{value[:_LONGEST_SHOWN]}… ({len(value):,} characters)"


class _Values(NamedTuple):
    """Environment variables as numbers and texts that must be set."""

    environment: Mapping[str, str]
    launcher: str

    def text(self, name: str) -> str:
        """Return a variable that must be set. Raises UsageError."""
        value = self.environment.get(name, "").strip()
        if not value:
            raise UsageError(
                f"{name} is not set, but other variables of {self.launcher} are: start collbench with "
                f"{self.launcher}, or unset them to measure with one process"
            )
        return value

    def number(self, name: str, default: int | None = None) -> int:
        """Return a variable as a number ≥ 0; `default` where it is not set. Raises UsageError."""
        if default is not None and not self.environment.get(name, "").strip():
            return default
        value = self.text(name)
        if not NUMBER.fullmatch(value):
            digits = " of at most 18 digits" if value.isdecimal() else ""
            raise UsageError(
                f"{name}={shown(value)} is not a number{digits}: {self.launcher} sets one; unset or correct it"
            )
        return int(value)

    def ranks(self, name: str, default: int | None = None) -> int:
        """Return a variable as a number of ranks. Raises UsageError."""
        count = self.number(name, default)
        if count > _MAX_RANKS:
            raise UsageError(f"{name}={count} is more than {_MAX_RANKS:,} ranks, which no job has: unset or correct it")
        return count
