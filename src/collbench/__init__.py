"""collbench measures the bandwidth and latency between GPUs, and chooses the best GPUs.

In Python: `select` chooses GPUs for this process, `measure` and `overlap` measure, `import_job`, `load_job` and
`replay` take what a job sent, `step` marks its steps, `runs` lists saved runs, `load` reads one, `rank`, `check`,
`compare`, `tails` and `predict` judge it, `explain` words what they find, `nodes` chooses nodes, `topo` and `doctor`
look at the machine, `train_command` says what `collbench train` would start, and `Error` is what they raise.
docs/python.md shows them.
Importing collbench loads nothing: numpy, torch and CUDA come when needed.
"""

__version__ = "0.1.0"

TYPE_CHECKING = False  # typing's, whose import takes milliseconds: Ctrl-C here would print a traceback
if TYPE_CHECKING:
    from collbench.api.runs import check as check
    from collbench.api.runs import compare as compare
    from collbench.api.runs import explain as explain
    from collbench.api.runs import load as load
    from collbench.api.runs import rank as rank
    from collbench.api.runs import runs as runs
    from collbench.api.runs import tails as tails
    from collbench.cli.calls import measure as measure
    from collbench.cli.calls import select as select
    from collbench.cli.calls import train_command as train_command
    from collbench.cli.topo import topo as topo
    from collbench.cluster.api import nodes as nodes
    from collbench.jobs.api import import_job as import_job
    from collbench.jobs.api import load_job as load_job
    from collbench.jobs.marks import step as step
    from collbench.jobs.predict.network import predict as predict
    from collbench.jobs.replay.measure import replay as replay
    from collbench.model.errors import CollbenchError as CollbenchError
    from collbench.overlaps.command import overlap as overlap
    from collbench.preflight.command import doctor as doctor

    Error = CollbenchError
    __all__: list[str]

# The module that holds each name of the main house.
_HOMES = {
    "check": "api.runs",
    "compare": "api.runs",
    "explain": "api.runs",
    "load": "api.runs",
    "measure": "cli.calls",
    "rank": "api.runs",
    "runs": "api.runs",
    "select": "cli.calls",
    "tails": "api.runs",
    "topo": "cli.topo",
    "train_command": "cli.calls",
}


def _homes() -> dict[str, str]:
    """Return the module that holds each name: an annex's row has its own."""
    from collbench.annexes import NAMES  # late: Ctrl-C while this module is loaded would print a traceback

    return {**NAMES, **_HOMES}


def __getattr__(name: str) -> object:
    """Return what the interface offers, loaded when it is first asked for: the command line needs none of it."""
    if name == "Error":
        from collbench.model.errors import CollbenchError

        return CollbenchError
    if name == "__all__":
        return ["Error", *sorted(_homes())]
    home = None if name.startswith("_") else _homes().get(name)
    if home is None:
        raise AttributeError(f"module 'collbench' has no attribute '{name}'")
    from collbench.annexes import load

    found = getattr(load(home), name)
    if name == "step":
        globals()[name] = found  # a training step calls it, and is not to come here again
    return found


def __dir__() -> list[str]:
    """Return what the interface offers, loaded or not, for completion."""
    return sorted(["Error", "__version__", *_homes()])
