"""`collbench check`: where the labels, the tools and the measurement disagree, and why."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from collbench import runfile, wholefile
from collbench.cli import gate, options
from collbench.cli.confirming import confirm
from collbench.cli.measuring import measure_and_show
from collbench.cli.showing import Showing
from collbench.cli.terminal import echo, prose_width, say, show_page
from collbench.errors import BackendError, DataCorruption, ExitStatus, UsageError
from collbench.machine import nvidia_smi
from collbench.machine.live_tools import with_words
from collbench.model import Run
from collbench.operations import Operation, Variant, Work
from collbench.planning import Request

# One size that decides: a message of 64 MiB shows bandwidth on all links that we know, and staged copies of more take
# long on old ones. Cores show it at a quarter of that.
_SIZE, _SIZE_OF_CORES = 64 * 2**20, 16 * 2**20
# Pairs and links as `pairs` has them; staged copies and host memory tell what PCIe carries.
_COPIES = (Variant.PLAIN, Variant.STAGED, Variant.HOST)
_COLLECTIVES = (Work(Operation.ALLREDUCE), Work(Operation.BROADCAST))
# What --quick times: it decides all but what host memory tells of PCIe, and of 4 × H200 takes seconds.
_QUICK_COPIES, _QUICK_COLLECTIVES = (Variant.PLAIN,), (Work(Operation.ALLREDUCE),)

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
    texts = _Texts.read(given.pop("topology"), given.pop("p2p"))
    as_json, run_file, expected = given.pop("as_json"), given.pop("run_file"), given.pop("expect")
    if run_file is not None:
        _refuse_measuring_options(run_file)
        run = runfile.load(run_file)
    else:
        run = _measured(given)
    _show(texts.applied(run), gate.shortfall(run, expected, quick=given["quick"]), as_json=as_json)


@dataclass(frozen=True, slots=True)
class _Texts:
    """Texts of nvidia-smi that stand for the run's own, None where they do not."""

    topology: nvidia_smi.Topology | None
    peers: nvidia_smi.PeerAccess | None

    @classmethod
    def read(cls, topology: str | None, peers: str | None) -> _Texts:
        """Read the files. Raises UsageError: what cannot be read, in which line."""
        return cls(
            None if topology is None else nvidia_smi.read_topology(topology),
            None if peers is None else nvidia_smi.read_p2p(peers),
        )

    def applied(self, run: Run) -> Run:
        """Return the run with these words. Raises UsageError where they are of another machine."""
        for text in (self.topology, self.peers):
            absent = [device.tag for device in run.devices if text is not None and device.tag not in text.gpus]
            if text is not None and absent:
                raise UsageError(
                    f"the text of nvidia-smi has {', '.join(text.gpus)}, and the run {', '.join(absent)} as well: "
                    "save the text on the run's machine"
                )
        told = with_words(run.devices, run.paths, self.topology, self.peers)
        paths = tuple(
            replace(
                old,
                tool_label=new.tool_label if self.topology else old.tool_label,
                tool_peer_access=new.tool_peer_access if self.peers else old.tool_peer_access,
            )
            for old, new in zip(run.paths, told, strict=True)
        )
        return replace(run, paths=paths)


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
    ours = {"run_file", "topology", "p2p", "expect", "as_json"}
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
        gate.refuse_cores(given["backend"])
    request, path = options.make_request("check", given)
    request = _planned(request)
    shown = _Silently()
    try:
        path = measure_and_show(request, path, shown)
    except (DataCorruption, BackendError) as error:
        found = [runfile.again(run) for run in shown.runs]
        if not found or not _fails(found[0]):
            raise
        say(str(error))
        return found[0]
    run = runfile.again(shown.runs[0])
    return run if request.quick else _confirmed(request, run, path)


def _planned(request: Request) -> Request:
    """Return the request with what a check times. --quick confirms nothing afterwards: all of it runs alone."""
    sizes = request.sizes or (_SIZE_OF_CORES if request.backend == "host" else _SIZE,)
    if request.quick:
        copies, collectives = _QUICK_COPIES, _QUICK_COLLECTIVES
        return replace(request, sizes=sizes, copies=copies, collectives=collectives, pairs=True, alone=True)
    return replace(request, sizes=sizes, copies=_COPIES, collectives=_COLLECTIVES, pairs=True)


def _confirmed(request: Request, run: Run, path: Path | None) -> Run:
    if confirm(request, run, say) and path is not None and not wholefile.is_stream(path):
        runfile.save(run, path, replace=True)
    return run


def _fails(run: Run) -> bool:
    """Return whether the run shows by itself why it was ended."""
    from collbench.affinity.verdicts import judge
    from collbench.report import verdicts

    return verdicts.status(run, judge(run)) is ExitStatus.UNTRUSTED


def _show(run: Run, shortfall: str, *, as_json: bool) -> None:
    """Print the verdicts, and leave with their status; a shortfall is a failure, too."""
    from collbench.affinity.verdicts import judge  # late: numpy
    from collbench.report import verdicts

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
