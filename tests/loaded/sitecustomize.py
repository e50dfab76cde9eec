"""Lets processes that tests start begin with collbench loaded (COLLBENCH_TEST_PROGRAM)."""

import os
import sys

_args = sys.orig_argv[1:]
_flags = _args[: _args.index("-m")] if "-m" in _args else ["no module"]
_module = _args[len(_flags) + 1] if set(_flags) <= {"-P", "-u"} else None
_script = _args[0] if _args and os.path.basename(_args[0]) == "uses_collbench.py" else ""  # noqa: PTH119
# Libraries are looked for where the loader was told to when a process began.
_libraries = os.environ.get("COLLBENCH_TEST_LIBRARIES", "")
if (
    "COLLBENCH_TEST_PROGRAM" in os.environ
    and (_module in {"collbench", "collbench.measurement.backends.worker"} or _script)
    and os.environ.get("LD_LIBRARY_PATH", "") == _libraries
    and "LD_PRELOAD" not in os.environ
):
    from stand_in import stand_in

    stand_in(
        os.environ["COLLBENCH_TEST_PROGRAM"],
        _module,
        _script,
        folders=() if "-P" in _flags or _script else (os.getcwd(),),  # noqa: PTH109  # pathlib takes longer to load
    )
