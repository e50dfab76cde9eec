"""collbench measures what the wires between GPUs really carry, and chooses the best ones.

In Python: `select` chooses GPUs for this process, `measure` measures, `runs` lists saved runs, `load` reads one,
`rank`, `check`, `compare` and `predict` judge it, `nodes` chooses nodes, `topo` and `doctor` look at the machine,
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
        load,
        measure,
        nodes,
        predict,
        rank,
        runs,
        select,
        topo,
        train_command,
    )

    __version__: str

__all__ = [
    "Error",
    "check",
    "compare",
    "doctor",
    "load",
    "measure",
    "nodes",
    "predict",
    "rank",
    "runs",
    "select",
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
