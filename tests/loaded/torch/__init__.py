"""In place of torch: the process that imports it goes on in one that has loaded it (tests/fork_server.py).

Loading torch takes 2.5 s of a core. A program that imports torch before it does anything else may have it at once: a
fork runs the same program from its beginning. Any other program gets torch itself.
"""

import os
import sys
from pathlib import Path

_OURS = str(Path(__file__).parents[1])


def _main() -> tuple[str | None, str]:
    """Return the module that this process runs, if it runs one, and the script."""
    if sys.argv[0] == "-m":  # this package is looked at before the module in it has a name
        return sys.orig_argv[sys.orig_argv.index("-m") + 1], ""
    specification = sys.modules["__main__"].__spec__
    return specification.name if specification else None, sys.argv[0]


_module, _script = _main()
_has_begun = _module == "collbench.__main__" or _script == "-c"
# A library is preloaded when a process begins: a fork of another one would not have it.
if "COLLBENCH_TEST_TORCH" not in os.environ or _has_begun or "LD_PRELOAD" in os.environ:
    sys.path.remove(_OURS)
    del sys.modules["torch"]
    import torch  # noqa: F401  # itself
else:
    from stand_in import stand_in

    stand_in(os.environ["COLLBENCH_TEST_TORCH"], _module, _script)
