"""The annexes: a folder for each feature beside the main house, which knows of them what stands here, and no more.

To remove one, delete its folder and its row: nothing else loads it. Type checkers also see its names in `__init__.py`.
A row whose needs are not all there counts for nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing's, whose import takes milliseconds: `import collbench` reads this table
if TYPE_CHECKING:
    from typing import Any

# By folder, in the order of `collbench --help`; modules are named as of collbench. The parts of a row:
# needs      the annexes that it uses
# commands   by name what `collbench --help` says of each
# home       of the commands: their group in `collbench --help`, and the module that has them
# names      of Python: their modules
# runs       kinds of runs, which are commands: the section of the run file, and a package with the modules `results`
#            and `view`, which read and show it; "" for a run that has only what the main house measures
# files      what a file's "format" says: the module that offers what `api.runs.FileKind` lists
# alone      commands that several processes cannot run together: what to do instead
# each_node  those of them that may be started once on each node
# spoiled    commands: the variables that make their figures false
# exclusive  options of its commands that contradict each other, as cli.options has them of all commands
# hooks      places in the main house: the module that is asked there
_ROWS: dict[str, dict[str, Any]] = {
    "preflight": {
        "commands": {"doctor": "Find what would disturb a run on this machine."},
        "home": ("Read", "preflight.command"),
        "names": {"doctor": "preflight.command"},
    },
    "p2p": {
        "needs": ("preflight",),
        "hooks": {"p2p": "p2p.examine"},
    },
    "overlaps": {
        "commands": {"overlap": "Time a collective while the GPUs compute, as in training."},
        "home": ("Measure", "overlaps.command"),
        "names": {"overlap": "overlaps.command"},
        "runs": {"overlap": ("overlaps", "overlaps")},
        "alone": {"overlap": "overlap starts one process per GPU itself: run 'collbench overlap' without a launcher"},
        "spoiled": {"overlap": ("CUDA_DEVICE_MAX_CONNECTIONS", "PYTORCH_NO_CUDA_MEMORY_CACHING")},
    },
    "ablations": {
        "commands": {"ablate": "Measure what P2P or other GPUs change in your training job."},
        "home": ("Choose and train", "ablations.command"),
        "files": {"collbench-ablation": "ablations.command"},
        "exclusive": (
            ("repeats", ("precision", "budget"), "{} says how often to train, {} when to stop"),
            ("without", ("against",), "{} changes what NCCL may use, {} changes the devices"),
        ),
        "alone": {"ablate": "ablate starts torchrun itself, many times: run 'collbench ablate' without a launcher"},
    },
    "jobs": {
        "needs": ("overlaps", "ablations"),
        "commands": {
            "record": "Record every NCCL call of a job.",
            "import": "Import a job that another tool traced.",
            "replay": "Time the communication of a recorded job's step.",
            "predict": "Predict what communication costs a training step.",
        },
        "home": ("Jobs", "jobs.command"),
        "names": {
            **dict.fromkeys(("import_job", "load_job"), "jobs.api"),
            "predict": "jobs.predict.network",
            "replay": "jobs.replay.measure",
            "step": "jobs.marks",
        },
        "runs": {"replay": ("replays", "jobs.replay")},
        "files": {"collbench-job": "jobs.job_file"},
        "alone": {"replay": "replay starts one process per GPU itself: run 'collbench replay' without a launcher"},
        "exclusive": (("step_range", ("calls_per_step",), "{} and {} both say what a step is"),),
        "each_node": {"record": "record starts the job itself: run 'collbench record -- srun …', or once on each node"},
        "spoiled": {"replay": ("PYTORCH_NO_CUDA_MEMORY_CACHING",)},
        "hooks": {"saved files": "jobs.options", "not a run": "jobs.traces.formats"},
    },
    "cluster": {
        "needs": ("ranks",),
        "commands": {"nodes": "Find slow nodes and uplinks of a cluster, and choose nodes."},
        "home": ("Cluster", "cluster.api"),
        "names": {"nodes": "cluster.api"},
        "runs": {"nodes": ("", "")},
        "files": {"collbench-nodes": "cluster.saved"},
    },
    "ranks": {"hooks": {"launch": "ranks.nonzero", "network ports": "ranks.ports"}},
}
_THERE = [row for row in _ROWS.values() if _ROWS.keys() >= {*row.get("needs", ())}]

COMMANDS = {name: (*row["home"], text) for row in _THERE for name, text in row.get("commands", {}).items()}
NAMES, RUNS, FILES, ALONE, EACH_NODE, SPOILED, HOOKS = (
    {key: value for row in _THERE for key, value in row.get(part, {}).items()}
    for part in ("names", "runs", "files", "alone", "each_node", "spoiled", "hooks")
)
EXCLUSIVE = tuple(contradiction for row in _THERE for contradiction in row.get("exclusive", ()))


def load(module: str) -> Any:
    """Return a module of collbench, imported now."""
    from importlib import import_module

    return import_module(f"collbench.{module}")


def hook(place: str) -> Any:
    """Return the module that is asked at a place, None where no annex has one."""
    return load(HOOKS[place]) if place in HOOKS else None
