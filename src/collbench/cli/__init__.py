"""The command line: arguments, wiring, printing, exit codes."""

from collbench.cli.main import main

__all__ = ["main"]
