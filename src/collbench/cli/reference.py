"""`collbench reference`: for which machines, operations, ranks and sizes there are published figures."""

from __future__ import annotations

import click

from collbench.cli.terminal import echo, show_page
from collbench.model.errors import UsageError


@click.command()
@click.argument("machine", metavar="[GPU]", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of the table (docs/compare.md).")
def reference(machine: str | None, as_json: bool) -> None:
    """List the published figures by which check and compare --reference judge a run.

    A line for each machine, operation, number of GPUs and kind of link: the sizes, the number of independent sources
    and the sizes at which they disagree, and what is normal at the largest size, in GB/s. GPU is a part of a product
    name.

    \b
    Examples:
      collbench reference
      collbench reference H100
      collbench reference "RTX PRO 6000" --json
    """
    from collbench.judge.references import by_kind, load  # late: numpy
    from collbench.report.text import reference as page

    wanted = (machine or "").strip().casefold()
    kinds = [kind for kind in by_kind(load()) if any(one.is_of(machine or "") for one in kind)]
    kinds = kinds or [kind for kind in by_kind(load()) if wanted in kind[0].machine.casefold()]
    if not kinds:
        raise UsageError(f"there is no published figure for '{machine}': 'collbench reference' lists all machines")
    if as_json:
        echo(page.coverage_json(kinds), end="")
    else:
        show_page([page.coverage(kinds)])
