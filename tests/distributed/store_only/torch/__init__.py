"""As much of torch as ranks need to meet: its own compiled code, without the Python that takes a second to load.

Ranks on cores start gloo workers, which need all of it: what a rank starts finds torch itself.
"""

import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path

_OURS = Path(__file__).parents[1]


def _without_ours(folders: list[str]) -> list[str]:
    return [folder for folder in folders if folder and Path(folder) != _OURS]


os.environ["PYTHONPATH"] = os.pathsep.join(_without_ours(os.environ["PYTHONPATH"].split(os.pathsep)))
_real = PathFinder.find_spec("torch", _without_ours(sys.path))
assert _real is not None
__path__ += _real.submodule_search_locations or []
