"""`collbench check`: where labels, tools and measurement disagree; suspicious links are measured once more."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from collbench.analysis.outcome import named
from collbench.backends import factory
from collbench.bench.plan import Request
from collbench.cli import options
from collbench.cli.measuring import Showing, measure_and_show
from collbench.cli.terminal import echo, prose_width, say, show_page
from collbench.machine import nvidia_smi
from collbench.machine.nvidia_smi import with_words
from collbench.model.errors import BackendError, DataCorruption, ExitStatus, MachineError, UsageError
from collbench.model.operations import Operation, Variant, Work
from collbench.model.run import Run
from collbench.runfile import atomic_write
from collbench.runfile import run_file as runfile_run_file

if TYPE_CHECKING:
    from collbench.analysis.diagnose import Verdict


# What makes `collbench check` a gate, for prologs and timers: it fails closed, whatever could not be measured.


def refuse_cores(backend: str) -> None:
    """Raise MachineError where "auto" finds no GPU: a node that has lost its driver must not pass by its cores."""
    _, reason = factory.resolve(backend)
    if reason is not None:
        raise MachineError(f"no GPU to check: {reason}; write --backend host to check CPU cores")


def shortfall(run: Run, expected: int | None, *, quick: bool) -> str:
    """Return what a gate cannot vouch for, "" where every pair of the devices that it expects was judged.

    A GPU that fell off the bus is missing, not slow. A pair that there is no figure of by design is not held against
    the run.
    """
    if expected is not None and len(run.devices) != expected:
        tags = ", ".join(device.tag for device in run.devices)
        return f"{len(run.devices)} devices were checked ({tags}), and --expect says {expected}"
    from collbench.analysis.diagnose import coverage  # late: numpy

    covered = coverage(run)
    if not (quick or expected is not None) or not covered.lacking:
        return ""
    first = covered.lacking[0]
    share = f"{len(covered.judged)} of {covered.pairs} pairs were judged"
    return f"cannot vouch for {named(run, [first.pair])}: {first.absence.reason}; {share}"


# Suspicious links once more, alone: a verdict needs an isolated re-measurement that confirms (METHOD.md §5).


# Each pair is a sweep of its own, of about 3 s with the driver's start: more would take longer than the first one.
_MOST_PAIRS = 3
_BUDGET_S = 0.5
Pair = tuple[int, int]


def confirm(request: Request, run: Run, say: Callable[[str], None]) -> bool:
    """Measure the suspicious pairs of a run once more, each alone, and add the samples; return whether any came.

    A pair that cannot be measured any more keeps what it has.
    """
    from collbench.analysis.diagnose import judge  # late: numpy

    pairs = list(dict.fromkeys(pair for verdict in judge(run) for pair in _suspicious(run, verdict)))[:_MOST_PAIRS]
    added = False
    for pair in pairs:
        tags = "-".join(run.devices[member].tag for member in pair)
        say(f"measuring {tags} once more, alone")
        try:
            _add(run, _alone(request, run, pair), pair)
            added = True
        except BackendError as error:
            say(f"{tags} was not confirmed: {error}")
    return added


def _suspicious(run: Run, verdict: Verdict) -> Iterator[Pair]:
    """Yield the pair that a verdict's figures rest on, if it was measured beside others only."""
    if verdict.measured is None:
        return
    first = verdict.members[0]
    other = verdict.members[1] if len(verdict.members) > 1 else _neighbour(run, first, verdict.label)
    if other is None:
        return
    pair = (min(first, other), max(first, other))
    samples = [s for found in run.measured() if set(found.cell.members) == set(pair) for s in found.samples]
    if any(sample.concurrent for sample in samples):
        yield pair


def _neighbour(run: Run, device: int, label: str) -> int | None:
    """Return a device on a path of this label."""
    for path in run.paths:
        if device in path.devices and path.label == label:
            return next(member for member in path.devices if member != device)
    return None


def _alone(request: Request, run: Run, pair: Pair) -> Run:
    from collbench.bench.session import Session  # late: numpy

    asked = replace(
        request,
        devices=",".join(str(run.devices[member].index) for member in pair),
        copies=(Variant.PLAIN,),
        budget_seconds=_BUDGET_S,
        seed=request.seed + 1,  # a simulated machine would draw the same noise again
        resume=False,
        force=False,
    )
    with Session(asked, None, lambda _text: None) as session:
        session.measure(lambda _done, _total: None)
    return session.run


def _add(run: Run, alone: Run, pair: Pair) -> None:
    """Add the samples of a run of this pair alone to the cells of the whole run."""
    cells = {found.cell: found for found in run.measurements}
    for found in alone.measurements:
        members = tuple(pair[member] for member in found.cell.members)
        for cell in (replace(found.cell, members=members), replace(found.cell, members=members[::-1])):
            if cell in cells and (cell.members == members or cell.operation.is_collective):
                cells[cell].samples += found.samples
                if found.failure:
                    cells[cell].stop = found.stop
                    cells[cell].failure, cells[cell].failure_kind = found.failure, found.failure_kind
                break


# `collbench check`: where the labels, the tools and the measurement disagree, and why.


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
        run = runfile_run_file.load(run_file)
    else:
        run = _measured(given)
    _show(texts.applied(run), shortfall(run, expected, quick=run_file is None and run.settings.quick), as_json=as_json)


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
        refuse_cores(given["backend"])
    request, path = options.make_request("check", given)
    request = _planned(request)
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


def _planned(request: Request) -> Request:
    """Return the request with what a check times. --quick confirms nothing afterwards: all of it runs alone."""
    if request.resume:
        return request
    sizes = request.sizes or (_SIZE_OF_CORES if request.backend == "host" else _SIZE,)
    if request.quick:
        copies, collectives = _QUICK_COPIES, _QUICK_COLLECTIVES
        return replace(request, sizes=sizes, copies=copies, collectives=collectives, pairs=True, alone=True)
    return replace(request, sizes=sizes, copies=_COPIES, collectives=_COLLECTIVES, pairs=True)


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
