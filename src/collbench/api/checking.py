"""What `collbench check` does apart from judging: plan, re-measure, test coverage, and replace labels by saved text."""

from __future__ import annotations

from dataclasses import dataclass, replace

from collbench.machine import nvidia_smi
from collbench.machine.nvidia_smi import with_reported
from collbench.measurement.backends import factory
from collbench.model.errors import MachineError, UsageError
from collbench.model.run import Run, device_sets

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
    from collbench.judge.diagnose import coverage  # late: numpy
    from collbench.report import sentences

    covered = coverage(run)
    if not (quick or expected is not None) or not covered.lacking:
        return ""
    first, absence = next(iter(covered.lacking.items()))
    share = f"{len(covered.judged)} of {covered.pairs} pairs were judged"
    pair = device_sets([first], run.devices)
    return f"cannot vouch for {pair}: {sentences.absence(absence, run)}; {share}"


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
