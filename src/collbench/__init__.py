"""collbench measures the bandwidth and latency between GPUs, and chooses the best GPUs.

In Python: `select` chooses GPUs for this process, `measure` and `overlap` measure, `import_job`, `load_job` and
`replay` take what a job sent, `runs` lists saved runs, `load` reads one, `rank`, `check`, `compare`, `tails` and
`predict` judge it, `explain` words what they find, `nodes` chooses nodes, `topo` and `doctor` look at the machine,
`train_command` says what `collbench train` would start, and `Error` is what they raise. docs/python.md shows them.
Importing collbench loads nothing: numpy, torch and CUDA come when needed.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collbench.api import (
        Error,
        check,
        compare,
        doctor,
        explain,
        import_job,
        load,
        load_job,
        measure,
        nodes,
        overlap,
        predict,
        rank,
        replay,
        runs,
        select,
        tails,
        topo,
        train_command,
    )

    __version__: str

__all__ = [
    "Error",
    "check",
    "compare",
    "doctor",
    "explain",
    "import_job",
    "load",
    "load_job",
    "measure",
    "nodes",
    "overlap",
    "predict",
    "rank",
    "replay",
    "runs",
    "select",
    "tails",
    "topo",
    "train_command",
]


def __getattr__(name: str) -> object:
    """Return what the interface offers, loaded when it is first asked for: the command line needs none of it."""
    if name == "__version__":
        from importlib.metadata import version  # more than half of the import, which every process would pay

        return version("collbench")
    if name not in __all__:
        raise AttributeError(f"module 'collbench' has no attribute '{name}'")
    from collbench import api

    return getattr(api, name)
