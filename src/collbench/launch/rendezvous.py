"""How the nodes of a job find each other: torchrun's options, the user's own or those that Slurm's variables give."""

from __future__ import annotations

import re
from collections.abc import Mapping

from collbench.launch.arguments import RENDEZVOUS, Script
from collbench.machine.launchers import Step, find_launch, find_step
from collbench.model.errors import UsageError

_OWN_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
# Whoever gives one of these has decided how the nodes meet.
_MEETING = ("--standalone", "--rdzv-endpoint", "--rdzv-backend", "--master-addr", "--master-port", "--node-rank")


def options(script: Script, environment: Mapping[str, str]) -> list[str]:
    """Return the torchrun options on the rendezvous that the user left to us. Raises UsageError.

    torchrun takes defaults from PET_* variables, which Kubeflow's PyTorchJob sets: they count as the user's.
    """
    _check_nnodes(script, environment)
    several = several_nodes(script, environment)
    if _meets(script, environment):
        return ["--rdzv-backend", "c10d"] if several and _lacks_backend(script, environment) else []
    step = find_step(environment) if several else None
    if step is not None:
        return _in_a_step(step, script)
    if several:
        raise UsageError(
            f"--nnodes {script.torchrun.get('--nnodes') or 'in PET_NNODES'} has no address for the nodes: add "
            "--rdzv-endpoint HOST:29500, with the same HOST on every node"
        )
    if any(_given(script, environment, name) is not None for name in RENDEZVOUS):
        return []  # --standalone would override it without a word
    _refuse_others(environment)
    return ["--standalone"]


def several_nodes(script: Script, environment: Mapping[str, str]) -> bool:
    """Return whether ranks may run on more than this node: --nnodes "4", "1:4", PET_NNODES, or a step of Slurm's."""
    given = _given(script, environment, "--nnodes")
    if given:
        return given.rpartition(":")[2].strip() != "1"
    return not _meets(script, environment) and find_step(environment) is not None


def variables(script: Script, environment: Mapping[str, str]) -> dict[str, str]:
    """Return what to set so that a node that was lost can come back; {} where none can, or where it is set already.

    After a restart torchrun's first node does not announce the address of its shared store, and a node that is new
    waits 60 s for it and fails [torch 2.13, elastic/rendezvous/dynamic_rendezvous.py, next_rendezvous].
    """
    fewest, _, most = (_given(script, environment, "--nnodes") or "").partition(":")
    restarts = (_given(script, environment, "--max-restarts") or "0") != "0" or most not in ("", fewest)
    if not restarts or not several_nodes(script, environment) or _OWN_STORE in environment:
        return {}
    return {_OWN_STORE: "1"}


def override_note(script: Script, environment: Mapping[str, str], count: int) -> str:
    """Return a clause if PET_NPROC_PER_NODE is not `count`, the number of ranks here; else ""."""
    per_node = environment.get("PET_NPROC_PER_NODE", "")
    if not re.fullmatch("[0-9]{1,9}", per_node) or int(per_node) == count or script.has("--nproc-per-node"):
        return ""
    return f"PET_NPROC_PER_NODE={per_node} is overridden by the {count} chosen here"


def _check_nnodes(script: Script, environment: Mapping[str, str]) -> None:
    """Raise UsageError for a number of nodes with which torchrun would print a traceback."""
    given = _given(script, environment, "--nnodes") or "1"
    numbers = re.fullmatch(r"([1-9][0-9]{0,8})(?::([1-9][0-9]{0,8}))?", given.strip())
    if numbers is None or int(numbers[1]) > int(numbers[2] or numbers[1]):
        name = "--nnodes" if script.has("--nnodes") else "PET_NNODES"
        raise UsageError(f"{name} '{given}' is not a number of nodes: write 4, or 1:4 for an elastic job")


def _in_a_step(step: Step, script: Script) -> list[str]:
    """Return the options for Slurm's step of one task a node. The first node is the host; is_host tells torchrun so."""
    given = script.torchrun.get("--nnodes")
    if given is not None and given.rpartition(":")[2] != str(step.nodes):
        raise UsageError(f"--nnodes {given} contradicts srun, which starts {step.nodes} nodes: leave it out")
    added = [] if given is not None else ["--nnodes", str(step.nodes)]
    added += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{step.host}:{step.port}"]
    added += [] if script.has("--rdzv-id") else ["--rdzv-id", step.name]
    return added + ([] if script.has("--rdzv-conf") else ["--rdzv-conf", f"is_host={int(step.node == 0)}"])


def _refuse_others(environment: Mapping[str, str]) -> None:
    """Raise UsageError where a launcher started this once on each of several nodes: each would train for itself."""
    launch = find_launch(environment)
    if launch is not None and launch.local_size < launch.world_size:
        raise UsageError(
            f"{launch.launcher} started this on {launch.world_size // launch.local_size} nodes, which do not know "
            "of each other: add --nnodes N --rdzv-endpoint HOST:29500, or --standalone"
        )


def _lacks_backend(script: Script, environment: Mapping[str, str]) -> bool:
    """Torchrun's default, static, needs a number for every node, which the same arguments on each node do not give."""
    static = ("--rdzv-backend", "--node-rank", "--master-addr")
    endpoint = _given(script, environment, "--rdzv-endpoint")
    return endpoint is not None and not any(_given(script, environment, name) for name in static)


def _meets(script: Script, environment: Mapping[str, str]) -> bool:
    return any(script.has(name) or _given(script, environment, name) is not None for name in _MEETING)


def _given(script: Script, environment: Mapping[str, str], name: str) -> str | None:
    """Return an option's value, else that of the variable that torchrun reads for it."""
    variable = f"PET_{name[2:].replace('-', '_').upper()}"
    return script.torchrun[name] if script.has(name) else environment.get(variable)
