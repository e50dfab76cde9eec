"""What `collbench check` does apart from judging: plan, re-measure, test coverage, and replace labels by saved text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from collbench.api.notices import Notices
from collbench.api.sessions import Measured
from collbench.backends import factory
from collbench.bench.plan import Request
from collbench.machine import nvidia_smi
from collbench.machine.nvidia_smi import with_reported
from collbench.model.capabilities import capabilities
from collbench.model.errors import BackendError, MachineError, UsageError
from collbench.model.operations import Operation, Variant, Work
from collbench.model.run import Run
from collbench.runfile import atomic_write, run_file

if TYPE_CHECKING:
    from collbench.analysis.diagnose import Verdict


# One size decides: a message of 64 MiB shows the bandwidth of all known links, and larger staged copies take
# long on old ones. Cores show it at a quarter of that.
_SIZE, _SIZE_OF_CORES = 64 * 2**20, 16 * 2**20
# Pairs and links as in `pairs`; staged copies and host memory show what PCIe achieves.
_COPIES = (Variant.PLAIN, Variant.STAGED, Variant.HOST)
_COLLECTIVES = (Work(Operation.ALLREDUCE), Work(Operation.BROADCAST))
# What --quick times: enough for all verdicts but those on PCIe from host memory. It takes seconds on 4 × H200.
_QUICK_COPIES, _QUICK_COLLECTIVES = (Variant.PLAIN,), (Work(Operation.ALLREDUCE),)


def planned(request: Request) -> Request:
    """Return the request with the sizes and patterns of a check. With --quick everything is isolated at once.

    A resumed request is returned unchanged.
    """
    if request.resume:
        return request
    sizes = request.sizes or (_SIZE_OF_CORES if capabilities(request.backend).cores else _SIZE,)
    if request.quick:
        copies, collectives = _QUICK_COPIES, _QUICK_COLLECTIVES
        return replace(request, sizes=sizes, copies=copies, collectives=collectives, pairs=True, isolated=True)
    return replace(request, sizes=sizes, copies=_COPIES, collectives=_COLLECTIVES, pairs=True)


# As a health check for prologs and timers, `collbench check` fails if anything could not be measured.


def refuse_cores(backend: str) -> None:
    """Raise MachineError if "auto" finds no GPU: a node that lost its driver must not pass with its CPU cores."""
    _, reason = factory.resolve(backend)
    if reason is not None:
        raise MachineError(f"no GPU to check: {reason}; write --backend host to check CPU cores")


def shortfall(run: Run, expected: int | None, *, quick: bool) -> str:
    """Return what a health check could not verify; "" if every pair of the expected devices was judged.

    A GPU that fell off the bus is missing, not slow. A pair that the method does not measure is not counted against the
    run.
    """
    if expected is not None and len(run.devices) != expected:
        tags = ", ".join(device.tag for device in run.devices)
        return f"{len(run.devices)} devices were checked ({tags}), --expect requires {expected}"
    from collbench.analysis.diagnose import coverage  # late: numpy
    from collbench.output import sentences

    covered = coverage(run)
    if not (quick or expected is not None) or not covered.lacking:
        return ""
    first = covered.lacking[0]
    share = f"{len(covered.judged)} of {covered.pairs} pairs were judged"
    pair = sentences.device_sets([first.pair], run.devices)
    return f"cannot vouch for {pair}: {sentences.absence(first.absence, run)}; {share}"


# Measure suspicious links again: a verdict needs an isolated measurement that confirms it (docs/method.md 10.1).


# Each pair is a separate sweep of about 3 s, including the driver's start: more pairs would take longer than the check.
_MOST_PAIRS = 3
_BUDGET_S = 0.5
Pair = tuple[int, int]


def confirmed(request: Request, measured: Measured, notices: Notices) -> Run:
    """Return a check's run as saved, with its suspicious pairs measured again; the file gets these samples too."""
    run = run_file.again(measured.run)
    if request.quick or not confirm(request, run, notices.say):
        return run
    if measured.path is not None and not atomic_write.is_stream(measured.path):
        run_file.save(run, measured.path, replace=True)
    return run


def confirm(request: Request, run: Run, say: Callable[[str], None]) -> bool:
    """Measure the suspicious pairs of a run again, each isolated, and add the samples; return whether there are any.

    A pair that can no longer be measured keeps the samples it has.
    """
    from collbench.analysis.diagnose import judge  # late: numpy

    pairs = list(dict.fromkeys(pair for verdict in judge(run) for pair in _suspicious(run, verdict)))[:_MOST_PAIRS]
    added = False
    for pair in pairs:
        tags = "-".join(run.devices[position].tag for position in pair)
        say(f"measuring {tags} once more, isolated")
        try:
            _add(run, _isolated(request, run, pair), pair)
            added = True
        except BackendError as error:
            say(f"{tags} was not confirmed: {error}")
    return added


def _suspicious(run: Run, verdict: Verdict) -> Iterator[Pair]:
    """Yield the pair that a verdict's figures rest on, if it was only measured concurrently."""
    if verdict.measured is None:
        return
    first = verdict.members[0]
    other = verdict.members[1] if len(verdict.members) > 1 else _neighbour(run, first, verdict.label)
    if other is None:
        return
    pair = (min(first, other), max(first, other))
    samples = [
        s for measurement in run.measured() if set(measurement.point.members) == set(pair) for s in measurement.samples
    ]
    if any(sample.concurrent for sample in samples):
        yield pair


def _neighbour(run: Run, device: int, label: str) -> int | None:
    """Return a device on a path of this label."""
    for path in run.paths:
        if device in path.devices and path.label == label:
            return next(other for other in path.devices if other != device)
    return None


def _isolated(request: Request, run: Run, pair: Pair) -> Run:
    from collbench.bench.session import Session  # late: numpy

    pair_request = replace(
        request,
        devices=",".join(str(run.devices[position].index) for position in pair),
        copies=(Variant.PLAIN,),
        budget_seconds=_BUDGET_S,
        seed=request.seed + 1,  # a simulated machine would draw the same noise again
        resume=False,
        force=False,
    )
    with Session(pair_request, None, lambda _text: None) as session:
        session.measure(lambda _done, _total: None)
    return session.run


def _add(run: Run, isolated: Run, pair: Pair) -> None:
    """Add the samples of a run of this isolated pair to the data points of the whole run."""
    points = {measurement.point: measurement for measurement in run.measurements}
    for measurement in isolated.measurements:
        members = tuple(pair[position] for position in measurement.point.members)
        for point in (replace(measurement.point, members=members), replace(measurement.point, members=members[::-1])):
            if point in points and (point.members == members or point.operation.is_collective):
                points[point].samples += measurement.samples
                if measurement.failure:
                    points[point].stop, points[point].failure = measurement.stop, measurement.failure
                break


# Saved output of nvidia-smi instead of the run's own.


@dataclass(frozen=True, slots=True)
class ToolTexts:
    """Saved output of nvidia-smi that replaces the run's own; None if it does not."""

    topology: nvidia_smi.Topology | None
    peers: nvidia_smi.PeerAccess | None

    @classmethod
    def read(cls, topology: str | None, peers: str | None) -> ToolTexts:
        """Read the files. Raises UsageError, which names the line that cannot be parsed."""
        return cls(
            None if topology is None else nvidia_smi.read_topology(topology),
            None if peers is None else nvidia_smi.read_p2p(peers),
        )

    def applied(self, run: Run) -> Run:
        """Return the run with these texts. Raises UsageError if they come from another machine."""
        for text in (self.topology, self.peers):
            absent = [device.tag for device in run.devices if text is not None and device.tag not in text.gpus]
            if text is not None and absent:
                raise UsageError(
                    f"the text of nvidia-smi has {', '.join(text.gpus)}, and the run {', '.join(absent)} as well: "
                    "save the text on the run's machine"
                )
        reported = with_reported(run.devices, run.paths, self.topology, self.peers)
        paths = tuple(
            replace(
                old,
                tool_label=new.tool_label if self.topology else old.tool_label,
                tool_peer_access=new.tool_peer_access if self.peers else old.tool_peer_access,
            )
            for old, new in zip(run.paths, reported, strict=True)
        )
        return replace(run, paths=paths)
