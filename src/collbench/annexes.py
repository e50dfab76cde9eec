"""The annexes: a folder for each feature beside the main house, which knows of them what stands here, and no more.

To remove one, delete its folder and its row: nothing else imports or names it. A row whose needs are not all there
counts for nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing's, whose import takes milliseconds: `import collbench` reads this table
if TYPE_CHECKING:
    from typing import Any, TypedDict

    class _Annex(TypedDict, total=False):
        """What the main house knows of an annex; modules are named as of collbench."""

        needs: tuple[str, ...]  # the annexes that it uses
        commands: dict[str, tuple[str, str, str]]  # its group in `collbench --help`, its module, what the help says
        names: dict[str, str]  # of Python, with their modules
        # Kinds of runs that it measures: the section of the run file, and a package with the modules `results` and
        # `section`, which read and show it; "" for a run that has only what the main house measures.
        runs: dict[str, tuple[str, str]]
        files: dict[str, str]  # what a file's "format" says, and the module that offers what `api.runs.FileKind` lists
        # Commands that several processes cannot run together, and what to do instead: those of `once_a_node` can be
        # started once on each.
        alone: dict[str, str]
        once_a_node: dict[str, str]
        spoiled: dict[str, tuple[str, ...]]  # commands, and the variables that make their figures false
        hooks: dict[str, str]  # modules that the main house asks at certain places


# In the order of `collbench --help`.
_ROWS: dict[str, _Annex] = {
    "overlaps": {
        "commands": {
            "overlap": ("Measure", "overlaps.command", "Time a collective while the GPUs compute, as in training.")
        },
        "names": {"overlap": "overlaps.command"},
        "runs": {"overlap": ("overlaps", "overlaps")},
        "alone": {"overlap": "overlap starts one process per GPU itself: run 'collbench overlap' without a launcher"},
        "spoiled": {"overlap": ("CUDA_DEVICE_MAX_CONNECTIONS", "PYTORCH_NO_CUDA_MEMORY_CACHING")},
    },
    "ablations": {
        "commands": {
            "ablate": (
                "Choose and train",
                "ablations.command",
                "Measure what P2P or other GPUs change in your training job.",
            )
        },
        "files": {"collbench-ablation": "ablations.command"},
        "alone": {"ablate": "ablate starts torchrun itself, many times: run 'collbench ablate' without a launcher"},
    },
    "jobs": {
        "needs": ("overlaps", "ablations"),
        "commands": {
            "record": ("Jobs", "jobs.command", "Record every NCCL call of a job."),
            "import": ("Jobs", "jobs.command", "Import a job that another tool traced."),
            "replay": ("Jobs", "jobs.command", "Time the communication of a recorded job's step."),
            "predict": ("Jobs", "jobs.command", "Predict what communication costs a training step."),
        },
        "names": {
            "import_job": "jobs.api",
            "load_job": "jobs.api",
            "predict": "jobs.predict.network",
            "replay": "jobs.replay.measure",
            "step": "jobs.marks",
        },
        "runs": {"replay": ("replays", "jobs.replay")},
        "files": {"collbench-job": "jobs.hooks"},
        "alone": {"replay": "replay starts one process per GPU itself: run 'collbench replay' without a launcher"},
        "once_a_node": {
            "record": "record starts the job itself: run 'collbench record -- srun …', or once on each node"
        },
        "spoiled": {"replay": ("PYTORCH_NO_CUDA_MEMORY_CACHING",)},
        "hooks": {"unread": "jobs.traces.formats"},
    },
    "cluster": {
        "needs": ("ranks",),
        "commands": {
            "nodes": ("Cluster", "cluster.api", "Find slow nodes and uplinks of a cluster, and choose nodes.")
        },
        "names": {"nodes": "cluster.api"},
        "runs": {"nodes": ("", "")},
    },
    "ranks": {
        "hooks": {"launch": "ranks.nonzero", "ports": "ranks.ports"},
    },
}
_THERE = [row for row in _ROWS.values() if _ROWS.keys() >= {*row.get("needs", ())}]

COMMANDS = {name: command for row in _THERE for name, command in row.get("commands", {}).items()}
NAMES = {name: module for row in _THERE for name, module in row.get("names", {}).items()}
RUNS = {kind: section for row in _THERE for kind, section in row.get("runs", {}).items()}
FILES = {name: module for row in _THERE for name, module in row.get("files", {}).items()}
ALONE = {command: instead for row in _THERE for command, instead in row.get("alone", {}).items()}
ONCE_A_NODE = {command: instead for row in _THERE for command, instead in row.get("once_a_node", {}).items()}
SPOILED = {command: names for row in _THERE for command, names in row.get("spoiled", {}).items()}
HOOKS = {place: module for row in _THERE for place, module in row.get("hooks", {}).items()}


def load(module: str) -> Any:
    """Return a module of collbench, imported now."""
    from importlib import import_module

    return import_module(f"collbench.{module}")


def hook(place: str) -> Any:
    """Return the module that is asked at a place, None where no annex has one."""
    return load(HOOKS[place]) if place in HOOKS else None
