"""Run by torchrun once per rank on the host backend: pin this process to its core, then become the program.

    python -m collbench.launch.pin --cores=2,3 [--program=PROGRAM] -- [PROGRAM] ARGUMENT…

Imports only os and sys, because it delays the start of every rank.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence


def core_and_program(arguments: Sequence[str], environment: Mapping[str, str]) -> tuple[int, list[str]]:
    """Return this rank's core number and the program's arguments. Raises SystemExit with one line."""
    options = (
        dict(option.partition("=")[::2] for option in arguments[: arguments.index("--")]) if "--" in arguments else {}
    )
    program = [options["--program"]] if "--program" in options else []
    program += arguments[len(options) + 1 :]
    if "--cores" not in options or not program:
        raise SystemExit("collbench: cannot pin a rank: usage: pin --cores=2,3 -- PROGRAM ARGUMENT…")
    cores, rank = options["--cores"].split(","), environment.get("LOCAL_RANK", "")
    if not rank.isdecimal() or int(rank) >= len(cores):
        raise SystemExit(
            f"collbench: cannot pin local rank '{rank}' to one of the cores {options['--cores']}: "
            "torchrun sets LOCAL_RANK, and --nproc-per-node must not exceed the number of cores"
        )
    return int(cores[int(rank)]), program


def main(arguments: Sequence[str]) -> None:
    """Pin this process and exec the program. A missing core or program raises SystemExit with one line."""
    core, program = core_and_program(arguments, os.environ)
    try:
        os.sched_setaffinity(0, {core})
    except OSError as error:
        raise SystemExit(f"collbench: cannot pin to core {core}: {error.strerror}: choose other --devices") from None
    try:
        os.execvp(program[0], program)
    except OSError as error:
        raise SystemExit(f"collbench: cannot start '{program[0]}': {error.strerror}: check its path") from None


if __name__ == "__main__":
    main(sys.argv[1:])
