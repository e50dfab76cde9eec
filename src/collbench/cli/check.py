"""`collbench check`: where labels, tools and measurement disagree; suspicious links are measured once more."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from collbench.api.checking import ToolTexts, confirm, planned, refuse_cores, shortfall
from collbench.bench.plan import Request
from collbench.cli import options
from collbench.cli.measuring import Showing, measure_and_show
from collbench.cli.terminal import echo, prose_width, say, show_page
from collbench.model.errors import BackendError, DataCorruption, ExitStatus, UsageError
from collbench.model.run import Run
from collbench.runfile import atomic_write
from collbench.runfile import run_file as runfile_run_file

# `collbench check`: where the labels, the tools and the measurement disagree, and why.


_file = click.argument("run_file", metavar="[RUN.JSON]", required=False, type=click.Path(path_type=Path))
_topology = click.option(
    "--topology", metavar="FILE", help="Judge this 'nvidia-smi topo -m' text instead of the run's."
)
_p2p = click.option("--p2p", metavar="FILE", help="Judge this 'nvidia-smi topo -p2p r' text instead of the run's.")
_expect = click.option("--expect", metavar="N", type=click.IntRange(min=2), help="Fail unless N devices were checked.")
_json = click.option("--json", "as_json", is_flag=True, help="Print the verdicts as JSON (docs/check.md).")


@click.command(short_help="Say where labels and measurement disagree.")
@_file
@options.measuring(_topology, _p2p, _expect, _json, sized=options.sizes_option("64M; host: 16M"))
def check(**given: Any) -> None:
    """Say where a machine's labels, its tools and the measurement disagree, with the cause and how to check it.

    Judges a saved run, of any machine. Without RUN.JSON it measures this one first: every link and pair at 64M, staged
    copies and host memory too, and what looks suspicious once more alone. With --quick, for a prolog: every link and
    pair alone, nothing else, and GPUs that could not be checked fail. Exit status: 0 they agree, 3 a contradiction,
    4 wrong data or a hang.

    \b
    Examples:
      collbench check
      collbench check --quick --expect 8
      collbench check run.json --json
      collbench check run.json --topology topo.txt
    """
    texts = ToolTexts.read(given.pop("topology"), given.pop("p2p"))
    as_json, run_file, expected = given.pop("as_json"), given.pop("run_file"), given.pop("expect")
    if run_file is not None:
        _refuse_measuring_options(run_file)
        run = runfile_run_file.load(run_file)
    else:
        run = _measured(given)
    _show(texts.applied(run), shortfall(run, expected, quick=run_file is None and run.settings.quick), as_json=as_json)


@dataclass(frozen=True, slots=True)
class _Silently(Showing):
    """Shows nothing: the run is judged first. `runs` are what was begun."""

    runs: list[Run] = field(default_factory=list)

    def begun(self, run: Run) -> None:
        """Keep the run."""
        self.runs.append(run)

    def show(self, run: Run) -> None:
        """Do nothing."""

    def status(self, run: Run) -> ExitStatus:
        """Return that measuring is done: what failed is judged, too."""
        return ExitStatus.DONE

    def saved(self, path: Path) -> None:
        """Say on stderr where the run is: stdout may be a parser's."""
        say(f"saved {path}")


def _refuse_measuring_options(run_file: Path) -> None:
    """Raise UsageError for an option that says how to measure, where there is nothing to measure."""
    context = click.get_current_context()
    ours = {"run_file", "verbose", "topology", "p2p", "expect", "as_json"}
    others = [
        param.opts[-1]
        for param in context.command.params
        if param.name not in ours and context.get_parameter_source(param.name or "") is ParameterSource.COMMANDLINE
    ]
    if others:
        raise UsageError(f"{run_file} is measured already: leave out {', '.join(others)}, or the file to measure anew")


def _measured(given: dict[str, Any]) -> Run:
    """Measure this machine and return the run; of one that wrong data or a hang ended, what there is of it."""
    if given["quick"]:
        refuse_cores(given["backend"])
    request, path = options.make_request("check", given)
    request = planned(request)
    shown = _Silently()
    try:
        path = measure_and_show(request, path, shown)
    except (DataCorruption, BackendError) as error:
        found = [runfile_run_file.again(run) for run in shown.runs]
        if not found or not _fails(found[0]):
            raise
        say(str(error))
        return found[0]
    run = runfile_run_file.again(shown.runs[0])
    return run if request.quick else _confirmed(request, run, path)


def _confirmed(request: Request, run: Run, path: Path | None) -> Run:
    if confirm(request, run, say) and path is not None and not atomic_write.is_stream(path):
        runfile_run_file.save(run, path, replace=True)
    return run


def _fails(run: Run) -> bool:
    """Return whether the run shows by itself why it was ended."""
    from collbench.analysis.diagnose import judge
    from collbench.output.text import verdicts

    return verdicts.status(run, judge(run)) is ExitStatus.UNTRUSTED


def _show(run: Run, shortfall: str, *, as_json: bool) -> None:
    """Print the verdicts, and leave with their status; a shortfall is a failure, too."""
    from collbench.analysis.diagnose import judge  # late: numpy
    from collbench.output.text import verdicts

    found = judge(run)
    status = max(verdicts.status(run, found), ExitStatus.FAILED if shortfall else ExitStatus.DONE)
    if as_json:
        echo(verdicts.dumps(run, found, status), end="")
    else:
        show_page(verdicts.page(run, found, prose_width()))
    sys.stdout.flush()  # a full disk is told before the status
    if shortfall:
        say(shortfall)
    if status:
        raise click.exceptions.Exit(status)
