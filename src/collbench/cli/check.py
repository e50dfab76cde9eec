"""`collbench check`: where labels, tools and measurement disagree; suspicious links are measured again.

As a health check for prologs and timers it fails if anything could not be measured.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from collbench import annexes
from collbench.api.keywords import check_fabric
from collbench.api.measuring import OpenSession
from collbench.cli import options
from collbench.cli.measuring import (
    NOTHING,
    MeasuringCommand,
    measured_and_shown,
    measuring_options,
    note_what_is_saved,
    report_file,
    reporting_what_is_saved,
)
from collbench.cli.options import option
from collbench.cli.terminal import NOTICES, is_json, json_option, leaving, say, show_answer
from collbench.measurement.backends import factory
from collbench.measurement.plan import Request
from collbench.model.errors import BackendError, CollbenchError, DataCorruption, ExitStatus, MachineError, UsageError
from collbench.model.operations import Operation, Variant, Work
from collbench.model.run import Run, capabilities, device_sets
from collbench.model.units import amount, verb
from collbench.runfile import run_file as runfile_run_file
from collbench.runfile.codec import document

if TYPE_CHECKING:
    from collbench.judge.diagnose import Diagnosis
    from collbench.report.layout import Page
    from collbench.report.views import PeerAccess

_file = click.argument("run_file", metavar="[RUN.JSON]", required=False, type=options.RUN)
_map_p2p = option("--map-p2p", "Try P2P on every link of the GPUs by itself, and name causes and fixes (docs/p2p.md).")
_OF_MAP = ("map_p2p", "devices", "backend", "fabric", "nccl", "seed", "as_json", "verbose")
_expect = option("--expect N", "Fail unless N devices were checked.", click.IntRange(min=1))
_strict = option("--strict", "Exit with 3 also for what is slow without a contradiction: docs/guard.md.")
_json = json_option("Print the verdicts as JSON (docs/check.md).")


# One size decides: a message of 64 MiB shows the bandwidth of all known links, and larger staged copies take
# long on old ones. Cores show it at a quarter of that.
_SIZE, _SIZE_OF_CORES = 64 * 2**20, 16 * 2**20
# Pairs and links as in `pairs`; staged copies and host memory show what PCIe achieves.
_COPIES = (Variant.PLAIN, Variant.STAGED, Variant.HOST)
_COLLECTIVES = (Work(Operation.ALLREDUCE), Work(Operation.BROADCAST))
# What --quick times: enough for all verdicts except those on PCIe from host memory. It takes seconds on 4 × H200.
_QUICK_COPIES, _QUICK_COLLECTIVES = (Variant.PLAIN,), (Work(Operation.ALLREDUCE),)


def _with_checks(request: Request, **_options: Any) -> Request:
    """Return the request with the sizes and patterns of a check. With --quick everything is isolated at once."""
    sizes = request.sizes or (_SIZE_OF_CORES if capabilities(request.backend).cores else _SIZE,)
    copies, collectives = (_QUICK_COPIES, _QUICK_COLLECTIVES) if request.quick else (_COPIES, _COLLECTIVES)
    return replace(request, sizes=sizes, copies=copies, collectives=collectives, pairs=True, isolated=request.quick)


@click.command(cls=MeasuringCommand, build=_with_checks)
@_file
@measuring_options(
    _map_p2p,
    _expect,
    _strict,
    _json,
    sized=options.sizes_option("64M; host: 16M"),
    backend=options.backend_of_a_machine,
)
def check(
    *,
    run_file: Path | None,
    map_p2p: bool,
    expect: int | None,
    strict: bool,
    **values: Any,
) -> None:
    """Find where a machine's labels, its tools and the measurement disagree, with the cause and how to check it.

    RUN.JSON may be a run of any machine. Without it, check first measures this machine: every link and pair at 64M,
    staged copies, and host memory. It then measures suspect pairs again, isolated, and asks NCCL and the tools what
    they do with P2P. --quick is a health check for a prolog: it measures only links and pairs, isolated, and fails if a
    GPU could not be checked. Exit status: 0 they agree, 3 a contradiction, 4 wrong data or a hang; 1 a measurement
    failed or nothing was judged.

    --map-p2p answers only whether P2P works here, in seconds, also for small messages. It saves no run.

    \b
    Examples:
      collbench check
      collbench check --quick --expect 8
      collbench check run.json --json
      collbench check --map-p2p
    """
    if map_p2p and run_file is not None:
        raise UsageError(f"--map-p2p examines this machine, not {run_file}: leave out one of them")
    if map_p2p:
        if (p2p := annexes.hook("p2p")) is None:
            raise UsageError("this collbench has no map of P2P: leave out --map-p2p")
        if others := options.typed_besides(_OF_MAP):
            raise UsageError(f"--map-p2p measures no run: leave out {', '.join(others)}")
        backend, reason = factory.resolve(values["backend"])
        if reason is not None:
            raise MachineError(f"no GPU to examine: {reason}; --backend sim simulates some")
        links = p2p.examine(values["devices"], backend, values["fabric"], values["nccl"], values["seed"])
        with leaving(links.status):
            show_answer(links.page, lambda: document("p2p", links.json))
        return
    begun: list[OpenSession] = []
    if run_file is None:
        diagnosis = _measured(values, begun)
    elif others := options.typed_besides(("run_file", "verbose", "expect", "strict", "as_json")):
        advice = f"leave out {', '.join(others)}, or the file to measure again"
        raise UsageError(f"{run_file} is measured already: {advice}")
    else:
        diagnosis = _diagnosis_of(runfile_run_file.load(run_file))
    with reporting_what_is_saved(begun):
        examined, unexamined = (None, "") if run_file else _peers_of(diagnosis.run, values)
    quick = run_file is None and diagnosis.run.settings.quick
    lacking = _shortfall(diagnosis, expect, quick=quick) or unexamined
    _show(diagnosis, lacking, examined, begun, strict=strict)


def _measured(values: Mapping[str, Any], begun: list[OpenSession]) -> Diagnosis:
    """Measure this machine and return what the run means; after wrong data or a hang, the run so far.

    `begun` gets the session once it is open. Raises MachineError if "auto" finds no GPU: a node that lost its driver
    must not pass with its CPU cores.
    """
    backend, reason = factory.resolve(values["backend"])
    if reason is not None:
        check_fabric(backend, values["fabric"])  # whoever names one has no GPU in mind
        raise MachineError(f"no GPU to check: {reason}; write --backend host to check CPU cores")
    request = check.request(values, options.command_line("check"), NOTICES)
    try:
        run = measured_and_shown(request, values["output"], NOTHING, begun).run
    except (DataCorruption, BackendError) as error:
        if not begun:
            raise
        diagnosis = _diagnosis_of(runfile_run_file.again(begun[0].run))
        if diagnosis.status is not ExitStatus.UNTRUSTED:  # the run does not show why it was ended
            raise
        _say_apart(str(error))
        return diagnosis
    return _diagnosis_of(runfile_run_file.again(run))


def _diagnosis_of(run: Run) -> Diagnosis:
    from collbench.judge.diagnose import Diagnosis  # late: numpy

    return Diagnosis(run)


def _peers_of(run: Run, values: Mapping[str, Any]) -> tuple[PeerAccess | None, str]:
    """Return what P2P does on the devices of the run measured just now, or why that is not known."""
    row = capabilities(run.backend)
    if run.settings.quick or row.cores or (row.simulated and len(run.devices) < 2):
        return None, ""
    if (p2p := annexes.hook("p2p")) is None:
        return None, ""
    devices = ",".join(str(device.index) for device in run.devices)
    of_run = (devices, run.backend, run.settings.fabric or None, values["nccl"], run.settings.seed)
    try:
        return p2p.examine(*of_run, measured=run), ""
    except CollbenchError as error:
        return None, f"P2P could not be examined: {error}"


def _shortfall(diagnosis: Diagnosis, expected: int | None, *, quick: bool) -> str:
    """Return what a health check could not verify; "" if every pair of the expected devices was judged.

    A GPU that fell off the bus is missing, not slow. A pair that the method does not measure is not counted against the
    run.
    """
    run, count = diagnosis.run, len(diagnosis.run.devices)
    if expected is not None and count != expected:
        tags = ", ".join(device.tag for device in run.devices)
        return f"{amount(count, 'device')} {verb(count, 'was', 'were')} checked ({tags}), --expect requires {expected}"
    from collbench.report import sentences  # late: numpy
    from collbench.report.verdicts import pairs_judged

    covered = diagnosis.coverage
    if not (quick or expected is not None) or not covered.lacking:
        return ""
    first, absence = next(iter(covered.lacking.items()))
    share = pairs_judged(len(covered.judged), covered.pairs)
    pair = device_sets([first], run.devices)
    return f"{pair} was not judged: {sentences.absence(absence, run)}; {share}"


def _show(
    diagnosis: Diagnosis, lacking: str, examined: PeerAccess | None, begun: Sequence[OpenSession], *, strict: bool
) -> None:
    """Print the verdicts and the map of P2P, what is worse first, where the run is saved, and leave with the worst.

    A shortfall is a failure, too; if `strict`, what is slow without a verdict is a contradiction.
    """
    from collbench.report import verdicts  # late: numpy

    doubted = ExitStatus.CONTRADICTION if strict and diagnosis.doubtful else ExitStatus.DONE
    judged = max(diagnosis.status, doubted, ExitStatus.FAILED if lacking else ExitStatus.DONE)
    of_peers = examined.status if examined else ExitStatus.DONE
    status = max(judged, of_peers)

    def page() -> Page:
        saved = [] if begun else [*verdicts.by_peer_access(diagnosis)]
        mapped = [*examined.part] if examined else saved
        first, further = ([*mapped, Text()], []) if of_peers > judged else ([], mapped)
        yield from (*first, *verdicts.page(diagnosis, lacking, further))

    def as_json() -> str:
        return verdicts.dumps(diagnosis, status, lacking, examined.json if examined else None)

    with leaving(status):
        try:
            show_answer(page(), as_json)
        except OSError as error:
            note_what_is_saved(error, begun)
            raise
        for session in begun:
            report_file(session.path)
        if lacking:
            sys.stdout.flush()  # a full disk is reported first
            _say_apart(lacking)


def _say_apart(line: str) -> None:
    """Say what the page begins with, unless stdout and stderr are read together."""
    if is_json() or not _read_together():
        say(line)


def _read_together() -> bool:
    """Return whether stdout and stderr go to one place, as to a terminal, or with 2>&1 to a log."""
    try:
        return os.path.sameopenfile(sys.stdout.fileno(), sys.stderr.fileno())
    except (OSError, ValueError):  # one of them has no file
        return False
