"""`collbench show`, `collbench rank` and `collbench topo`: a saved run or a machine's labels, looked at again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from collbench.analysis.outcome import outcome
from collbench.api import inspecting
from collbench.api.measuring import MeasureOptions
from collbench.api.runs import load_named
from collbench.cli import options
from collbench.cli.measuring import FORMAT, JSON, NCCL_TESTS, Showing
from collbench.cli.runs import named_or_newest
from collbench.cli.terminal import NOTICES, echo, leave, show_page, verbose_option
from collbench.machine import visible_devices
from collbench.model.errors import ExitStatus, UsageError
from collbench.model.operations import Operation, Work
from collbench.model.run import Run
from collbench.model.units import format_size, parse_size
from collbench.output.text.layout import SECTIONS
from collbench.output.text.topology import explain_pair, render_topology
from collbench.runfile import job_file
from collbench.runfile import run_file as runfile_run_file
from collbench.runfile.codec import plain


def find_works(run: Run, typed: str, path: Path) -> list[Work]:
    """Return what "allreduce", "all-reduce in-place", "ce_write" or "h2d-ce host node 1" names in a run.

    An operation's name alone means its plain form, or where there is none all that it has. Raises UsageError that
    names what the file holds.
    """
    from collbench.output.text.curves import works_of  # late: it loads numpy

    held = works_of(run)
    exact = [work for work in held if as_typed(str(work)) == as_typed(typed)]
    works = exact or [work for work in held if as_typed(work.operation) == as_typed(typed)]
    if not works:
        there = ", ".join(map(str, held)) or "nothing that was measured"
        raise UsageError(f"{path} has no operation '{typed}': it holds {there}")
    return works


def check_size(run: Run, works: list[Work], size_bytes: int, path: Path) -> list[Work]:
    """Return the works that were measured at a size. Raises UsageError, which names the sizes that the file holds."""
    sizes = {
        work: {
            measurement.point.size_bytes for measurement in run.measured(work.variant) if measurement.point.work == work
        }
        for work in works
    }
    kept = [work for work in works if size_bytes in sizes[work]]
    if not kept:
        there = ", ".join(map(format_size, sorted(set[int]().union(*sizes.values()))))
        names = ", ".join(map(str, works))
        raise UsageError(f"{path} has no {names} at {format_size(size_bytes)}: it holds {there}")
    return kept


def as_typed(text: str) -> str:
    """Return a word without what people may leave out of it or write in its place."""
    return "".join(letter for letter in text.lower() if letter not in "-_ ")


@click.command(short_help="Print a saved run again, or maps and curves of one operation.")
@click.argument("file", metavar="[RUN.JSON]", required=False, type=click.Path(path_type=Path))
@click.option("--operation", metavar="OP", help="Show only this operation: heat maps, tiers, curves over the sizes.")
@click.option(
    "--size", metavar="SIZE", help="Show only this size.  [default: the largest and the smallest, and curves]"
)
@click.option(
    "--section", metavar="NAME", type=click.Choice(SECTIONS), help=f"Show only this section: {', '.join(SECTIONS)}."
)
@click.option("--rank", metavar="N", type=click.IntRange(min=0), help="For a recorded job: show this rank's step.")
@click.option(
    "--run",
    "against",
    metavar="RUN",
    multiple=True,
    type=click.Path(path_type=Path),
    help="For a job: run with its calls' rates in isolation.  [default: the newest that fits]",
)
@click.option(
    "--overlap",
    metavar="RUN",
    type=click.Path(path_type=Path),
    help="For a job: run with their rates overlapping compute.",
)
@FORMAT
@JSON
@verbose_option
def show(
    file: Path | None,
    *,
    operation: str | None,
    size: str | None,
    section: str | None,
    layout: str,
    as_json: bool,
    **of_job: Any,
) -> None:
    """Print a saved run again, as the command that measured it did, or the step of a recorded job.

    --operation shows one of the run's operations (allreduce, ce-write, 'ce-write both-ways', …): heat maps and tiers of
    links and pairs, and bandwidth over size with the theoretical rate of the path. The run may be of any machine; the
    page names the machine. For a job (docs/job-page.md) it prints its calls, their rates in the job and in isolation,
    and late ranks.

    \b
    Examples:
      collbench show run.json
      collbench show run.json --section health
      collbench show run.json --operation ce-write
      collbench show run.json --operation allreduce --size 64M
      collbench show --format nccl-tests allreduce.json
      collbench show job.json --run run.json
    """
    if file is not None and job_file.holds_job(file):
        if layout == NCCL_TESTS or any(option is not None for option in (operation, size, section)):
            raise UsageError(f"{file} is a recorded job: it takes only --rank, --run, --overlap, --json and --verbose")
        show_job(file, **of_job, as_json=as_json)
    elif any(option not in (None, ()) for option in of_job.values()):
        raise UsageError("--rank, --run and --overlap are for a recorded job: name its file, as in 'show job.json'")
    else:
        if as_json and any(option is not None for option in (operation, size, section)):
            raise UsageError("--json prints the whole run: leave out --operation, --size and --section")
        _show_run(file, operation, size, section, Showing.of(MeasureOptions(), layout, as_json=as_json))


def _show_run(
    file: Path | None, operation: str | None, size: str | None, section: str | None, showing: Showing
) -> None:
    size_bytes = None if size is None else parse_size(size)
    if showing.as_nccl_tests and (operation is not None or size is not None):
        raise UsageError("--operation and --size draw pictures, --format nccl-tests prints tables: use only one")
    if section is not None and (operation is not None or showing.as_nccl_tests):
        raise UsageError(f"--section {section} is a part of the page: leave out --operation and --format nccl-tests")
    run_file = named_or_newest(file)
    run = runfile_run_file.load(run_file)
    if section is not None:
        from collbench.output.text import measured  # late, as below

        show_page(measured.section(run, section))
        return
    if operation is None:
        if size is not None:
            raise UsageError(f"--size {size} needs an operation: add --operation allreduce, ce-write, …")
        showing.show(run)
        return
    works = find_works(run, operation, run_file)
    if size_bytes is not None:
        works = check_size(run, works, size_bytes, run_file)
    from collbench.output.text.operation import page  # late: numpy takes as long to load as the rest of the program

    show_page(page(run, works, size_bytes))


def show_job(file: Path, rank: int | None, against: tuple[Path, ...], overlap: Path | None, *, as_json: bool) -> None:
    """Print what a recorded job's step says."""
    from collbench.api import jobs  # late, as above
    from collbench.output.text import job as pages

    report, compared = jobs.report(
        job_file.load(file),
        rank,
        load_named(against),
        load_named([] if overlap is None else [overlap]),
    )
    if as_json:
        echo(json.dumps(pages.as_json(report, compared), ensure_ascii=False, indent=1))
    else:
        show_page(pages.page(report, compared))


@click.command(short_help="Rank the links and pairs of a saved run.")
@click.argument("file", metavar="[RUN.JSON]", required=False, type=click.Path(path_type=Path))
@click.option("--operation", metavar="OP", help="Only this operation: allreduce, ce-write, …  [default: all]")
@click.option("--size", metavar="SIZE", help="Rank at this size.  [default: the largest, and the smallest up to 64K]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: members are indices into its list of devices.")
@verbose_option
def rank(file: Path | None, operation: str | None, size: str | None, as_json: bool) -> None:
    """Show which links and pairs of a saved run differ, and which tie.

    For each operation: tiers of links, pairs or devices, one sentence on whether the choice matters, a heat map, and
    latency and bandwidth fitted over the sizes. The run may be of any machine; the page names what the run lacks. Exit
    status: 0; 1 if there are too few trials to rank anything; 1 or 4 if data points failed.

    \b
    Examples:
      collbench rank run.json
      collbench rank run.json --operation allreduce --size 64M
      collbench rank run.json --json
    """
    # Late: numpy takes as long to load as the rest of the program.
    from collbench.analysis.summary import rank_summary
    from collbench.output.text import ranking

    wanted = None if operation is None else parse_operation(operation)
    size_bytes = None if size is None else parse_size(size)
    run_file = named_or_newest(file, of_links=True)
    run = runfile_run_file.load(run_file)
    summary = rank_summary(run, wanted, size_bytes)
    if not any(ranked.rankings for ranked in summary.works):
        raise UsageError(f"{run_file} has nothing to rank{_of_operation_at_size(wanted, size_bytes)}: {_present(run)}")
    if as_json:
        echo(json.dumps(ranking.as_json(run, summary), indent=1))
    else:
        show_page(ranking.page(run, summary))
    status = max(outcome(run).status, ExitStatus.DONE if summary.judged else ExitStatus.FAILED)
    leave(status)


def parse_operation(text: str) -> Operation:
    """Return the operation that a word names. Raises UsageError."""
    for operation in Operation:
        if as_typed(text) == as_typed(operation):
            return operation
    raise UsageError(f"--operation '{text}' is unknown: choose from {', '.join(Operation)}")


def _of_operation_at_size(operation: Operation | None, size_bytes: int | None) -> str:
    of = f" of {operation}" if operation else ""
    return of if size_bytes is None else f"{of} at {format_size(size_bytes)}"


def _present(run: Run) -> str:
    """Say what could be ranked instead."""
    works = {
        measurement.point.work
        for measurement in run.measurements
        if measurement.samples and len(measurement.point.members) <= 2
    }
    if not works:
        return "it holds no link, pair or device: measure with 'collbench pairs' first"
    names = ", ".join(sorted(map(str, works)))
    return f"it holds {names} at {', '.join(map(format_size, run.settings.sizes))}"


@click.command(short_help="Print the labels of all paths, or explain one pair.")
@click.argument("pair", nargs=-1, metavar="[GPU GPU]")
@click.option("--from", "file", metavar="FILE", help="Read saved 'nvidia-smi topo -m' text instead of this machine.")
@options.backend_of_a_machine
@options.fabric
@click.option("--json", "as_json", is_flag=True, help="Print JSON: devices and paths as the run file has them.")
def topo(pair: tuple[str, ...], file: str | None, backend: str, fabric: str | None, as_json: bool) -> None:
    """Print the label matrix with its legend, CPU and NUMA affinity, and the theoretical rate of each label.

    With two GPUs it explains the path between them in one sentence. A label is the kind of path that the driver
    reports, not a bandwidth: 'collbench pairs' measures bandwidth.

    \b
    Examples:
      collbench topo
      collbench topo 0 1
      collbench topo --from topo.txt
      collbench topo --backend sim --fabric dgx-1v
    """
    if len(pair) not in (0, 2):
        raise UsageError(
            f"topo explains two devices or shows all, but {len(pair)} was given: write 'collbench topo 0 1'"
        )
    topology_shown = inspecting.topo(file, backend=backend, fabric=fabric, notices=NOTICES)
    paths = topology_shown.paths
    if pair:
        wanted = {
            topology_shown.devices.index(device)
            for device in visible_devices.select(topology_shown.devices, ",".join(pair))
        }
        paths = tuple(path for path in paths if set(path.devices) == wanted)
    if as_json:
        head = {"backend": topology_shown.backend, "fabric": topology_shown.fabric}
        echo(
            json.dumps(
                {**head, "devices": plain(topology_shown.devices), "paths": plain(paths)}, ensure_ascii=False, indent=1
            )
        )
        return
    if topology_shown.fabric:
        echo(f"the simulated machine {topology_shown.fabric} (sim)")
    if pair:
        echo(explain_pair(topology_shown.devices, paths[0]))
    else:
        echo(render_topology(topology_shown.devices, paths), end="")
