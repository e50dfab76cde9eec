"""The command line: arguments, wiring, printing, exit codes."""

# Only what Python has loaded already: Ctrl-C during an import here would print a traceback.
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def main() -> int:
    """Run the program; return its exit status: that of `ExitStatus`, or 128 + a signal."""
    try:
        # Late: loading the commands takes a moment in which Ctrl-C must not print a traceback either.
        from collbench.cli.program import run

        return run()
    except KeyboardInterrupt:
        sys.stderr.write("collbench: interrupted before it was done\n")
        return 130  # 128 + SIGINT, as shells have it


def entry() -> "NoReturn":
    """Run the program and end the process.

    At once: main has flushed what it printed, and the exit handlers of CUDA and NCCL would take 0.3 s (4 × H200) to
    release what the driver takes back anyway.
    """
    try:
        status = main()
    except KeyboardInterrupt:  # as main ended
        status = 130
    os._exit(status)
