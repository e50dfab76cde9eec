"""What `collbench check` does apart from judging: plan, re-measure, test coverage, and replace labels by saved text."""

from __future__ import annotations

from dataclasses import replace

from collbench.machine import nvidia_smi
from collbench.machine.nvidia_smi import with_reported
from collbench.measurement.backends import factory
from collbench.model.errors import MachineError, UsageError
from collbench.model.run import Run, device_sets
from collbench.model.units import amount, verb

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
    count = len(run.devices)
    if expected is not None and count != expected:
        tags = ", ".join(device.tag for device in run.devices)
        return f"{amount(count, 'device')} {verb(count, 'was', 'were')} checked ({tags}), --expect requires {expected}"
    from collbench.judge.diagnose import coverage  # late: numpy
    from collbench.report import sentences

    covered = coverage(run)
    if not (quick or expected is not None) or not covered.lacking:
        return ""
    first, absence = next(iter(covered.lacking.items()))
    share = sentences.judged(len(covered.judged), covered.pairs)
    pair = device_sets([first], run.devices)
    return f"cannot vouch for {pair}: {sentences.absence(absence, run)}; {share}"


# Saved output of nvidia-smi instead of the run's own.


def with_texts(run: Run, labels: nvidia_smi.Topology | None, access: nvidia_smi.PeerAccess | None) -> Run:
    """Return the run with what saved output of nvidia-smi reports instead; None keeps its own.

    Raises UsageError if a text comes from another machine.
    """
    for gpus in [text.gpus for text in (labels, access) if text]:
        if absent := [device.tag for device in run.devices if device.tag not in gpus]:
            raise UsageError(
                f"the text of nvidia-smi has {', '.join(gpus)}, and the run {', '.join(absent)} as well: "
                "save the text on the run's machine"
            )
    reported = with_reported(run.devices, run.paths, labels, access)
    paths = tuple(
        replace(
            old,
            tool_label=new.tool_label if labels else old.tool_label,
            tool_peer_access=new.tool_peer_access if access else old.tool_peer_access,
        )
        for old, new in zip(run.paths, reported, strict=True)
    )
    return replace(run, paths=paths)
