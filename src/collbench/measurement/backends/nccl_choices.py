"""Which algorithm, protocol and channels NCCL chose, from the debug log of a separate process.

Only that process has NCCL_DEBUG=INFO. The timed processes run with the user's settings.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from collbench.measurement.backends.isolated import IsolatedBackend
from collbench.measurement.backends.protocol import Backend, Step
from collbench.model.errors import StepFailed
from collbench.model.nccl_options import NcclOptions
from collbench.model.operations import Operation, Registration, Variant
from collbench.model.run import Chosen, Device

# By number until 2.23 [nccl_common.h].
_ALGORITHMS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
_PROTOCOLS = ("LL", "LL128", "SIMPLE")

# Rank 0 logs a line for each launch or capture. Before 2.20 nothing is reported.
_WORDS = re.compile(  # 2.24 and later [enqueue.cc]
    r"NCCL INFO (?P<name>\w+): (?P<bytes>\d+) Bytes -> Algo (?P<algorithm>\w+) proto (?P<protocol>\w+) "
    r"channel\{Lo\.\.Hi\}=\{(?P<low>\d+)\.\.(?P<high>\d+)\}"
)
_NUMBERS = re.compile(  # 2.20 to 2.22, since 2.23 with a name [enqueue.cc]
    r"NCCL INFO (?:(?P<name>\w+): )?(?P<bytes>\d+) Bytes -> Algo (?P<algorithm>\d+) proto (?P<protocol>\d+) time "
)
_SYMMETRIC = re.compile(  # since 2.27, on registered symmetric memory [enqueue.cc, symmetric_sched.cc]
    r"NCCL INFO (?P<name>\w+) \[Symmetric\]: (?P<bytes>\d+) Bytes -> Kernel (?P<kernel>\S+) nchannels (?P<channels>\d+)"
)
_COPY_ENGINE = re.compile(  # since 2.29, with CTAPolicy=2 on symmetric memory [enqueue.cc, ce_coll.cc]
    r"NCCL INFO (?P<name>\w+) \[(?:Copy Engine|Hierarchical CE)\]: (?P<bytes>\d+) Bytes -> (?P<how>[^;\n]+)"
)


def ask(open_probe: Callable[[Mapping[str, str]], Backend], steps: Sequence[Step]) -> list[Chosen]:
    """Return what NCCL chose for each step's first group, if it reported that; a failing step is left out.

    `open_probe` starts a process with these variables in addition to the user's and returns a backend that runs in it,
    with NCCL open. The GPUs must have room for it. Raises what opening raises.
    """
    if not steps:
        return []
    with tempfile.TemporaryDirectory(prefix="collbench-nccl-") as name:
        folder = Path(name)
        probe = open_probe(logging_to(folder, "TUNING"))
        try:
            probe.reserve(max(step.size_bytes for step in steps))
            return list(_answers(probe, steps, folder))
        finally:
            probe.close()


def questions(steps: Iterable[Step]) -> list[Step]:
    """Return one unverified step per collective, registration, number of ranks and size.

    The first group with a number of ranks stands for all that have as many.
    """
    step_of: dict[tuple[Operation, Registration, int, int], Step] = {}
    for step in steps:
        if step.work.operation.is_collective:
            kind = step.work.operation, step.work.registration
            step_of.setdefault((*kind, len(step.groups[0]), step.size_bytes), step)
    return [
        replace(
            step,
            groups=step.groups[:1],
            work=replace(step.work, variant=Variant.PLAIN),
            verify=False,
            iterations=1,
            batches=1,
            warmup=0,
            launches=0,
        )
        for step in step_of.values()
    ]


def probe(
    devices: tuple[Device, ...], nccl_path: str | None, options: NcclOptions, variables: Mapping[str, str]
) -> Backend:
    """Return a backend on these GPUs in a process with these variables and ours. Raises MachineError."""
    backend = IsolatedBackend(extra=variables)
    backend.start()
    backend.open(devices, nccl_path, collectives=True, options=options)
    return backend


def choice(log: str, operation: Operation, ranks: int, size_bytes: int) -> Chosen | None:
    """Return what NCCL's log reports for a message, None if nothing. `size_bytes` as in a data point.

    Depending on its version NCCL gives all-gather's and reduce-scatter's bytes in all or for one rank.
    """
    fitting = {size_bytes, size_bytes // ranks} if operation.shares else {size_bytes}
    chosen = None
    for line in log.splitlines():
        matches = (form.search(line) for form in (_WORDS, _NUMBERS, _SYMMETRIC, _COPY_ENGINE))
        match = next(filter(None, matches), None)
        if match and match["name"] in (None, operation.collective.nccl) and int(match["bytes"]) in fitting:
            chosen = Chosen(operation, ranks, size_bytes, *_decision(match))
    return chosen


def logging_to(folder: Path, parts: str) -> dict[str, str]:
    """Return the variables under which a process's NCCL logs these parts of itself to files in a folder."""
    # %p is the process id: a process that replaces one that died begins a file of its own.
    return {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": parts, "NCCL_DEBUG_FILE": str(folder / "nccl.%p")}


def _answers(probe: Backend, steps: Iterable[Step], folder: Path) -> Iterator[Chosen]:
    read: dict[Path, int] = {}
    for step in steps:
        try:
            probe.time(step)
        except StepFailed:
            continue
        chosen = choice(_news(folder, read), step.work.operation, len(step.groups[0]), step.size_bytes)
        if chosen is not None:
            yield replace(chosen, registration=step.work.registration)


def _news(folder: Path, read: dict[Path, int]) -> str:
    """Return what was written to the folder's files since `read`, the characters of each that were returned before."""
    news = []
    for path in sorted(folder.iterdir()):
        text = path.read_text(encoding="utf-8", errors="replace")
        news.append(text[read.get(path, 0) :])
        read[path] = len(text)
    return "".join(news)


def _decision(match: re.Match[str]) -> tuple[str, str, int]:
    """Return algorithm, protocol and channels in NCCL's words; 0 channels where it does not report it."""
    if match.re is _SYMMETRIC:
        return match["kernel"], "SYMMETRIC", int(match["channels"])
    if match.re is _COPY_ENGINE:
        return match["how"].strip(), "COPY ENGINE", 0
    if match.re is _NUMBERS:
        return _word(_ALGORITHMS, match["algorithm"]), _word(_PROTOCOLS, match["protocol"]), 0
    return match["algorithm"], match["protocol"], int(match["high"]) - int(match["low"]) + 1


def _word(names: Sequence[str], number: str) -> str:
    return names[int(number)] if int(number) < len(names) else number
