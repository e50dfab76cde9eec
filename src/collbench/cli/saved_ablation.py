"""What other commands do with a saved ablation; `api/file_kinds.py` finds this module by the file's format."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from collbench.cli.terminal import echo, show_page
from collbench.launch.ablation import dumps, load
from collbench.model.errors import UsageError
from collbench.model.printable import one_line

NAME, CALL, OPTIONS = "a saved ablation", "json.load(open({!r}))", ()


def show(file: Path, *, as_json: bool) -> None:
    """Print the page that `collbench ablate` printed, or its JSON."""
    from collbench.report.text.ablation import page  # late: rich's tables

    ablation = load(file)
    if as_json:
        echo(dumps(ablation), end="")
    else:
        show_page(page(ablation))


def export(file: Path, layout: str) -> str:
    """Raise UsageError: no format of export is for an ablation."""
    raise UsageError(f"{one_line(str(file))} is {NAME}, and --format {layout} is for a run: the file is JSON already")


def html(_files: Sequence[Path]) -> str:
    """Raise UsageError: an ablation has no page in HTML."""
    raise UsageError(f"{NAME} has no HTML page: 'collbench show' prints it")
