"""As much of torch as ranks need to meet: its own compiled code, without the Python that takes a second to load.

Ranks on cores start gloo workers, which need all of it: what a rank starts finds torch itself.
"""

import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path

_OURS = Path(__file__).parents[1]
_TESTS = _OURS.parents[1]  # tests/loaded stands for torch, too
_folders = [Path(folder) for folder in os.environ["PYTHONPATH"].split(os.pathsep) if folder]

os.environ["PYTHONPATH"] = os.pathsep.join(str(folder) for folder in _folders if folder != _OURS)
_real = PathFinder.find_spec("torch", [folder for folder in sys.path if folder and _TESTS not in Path(folder).parents])
assert _real is not None
__path__ += _real.submodule_search_locations or []
