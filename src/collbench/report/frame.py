"""The page of a run: the top and bottom of every command's page: origin of the figures, what failed, health, notes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.text import Text

from collbench import annexes
from collbench.judge import physics
from collbench.judge.outcome import TroubleKind, outcome, timed_pairs, timed_points, without_idle
from collbench.judge.physics import NVLS_VARIABLE, Nvls
from collbench.machine import variables
from collbench.machine.health import GOOD_C, TEMPERATURE_RULE, holds_back
from collbench.machine.labels import is_pcie
from collbench.model.operations import Registration, Variant, Work
from collbench.model.run import (
    CommandKind,
    Device,
    Flag,
    FlagKind,
    Run,
    SkipKind,
    StopReason,
    at_the_ends,
    capabilities,
    device_sets,
    new_errors,
    tags,
)
from collbench.model.units import abridged, amount, capped, counted, format_size, grouped, size_span, span
from collbench.report import sentences
from collbench.report.layout import Block, Lines, Page, short, whole
from collbench.report.views import view

if TYPE_CHECKING:
    from collbench.judge.diagnose import Diagnosis


def sim(run: Run, mark: str = "sim ") -> str:
    """Return the mark of simulated figures, which each of them has; "" for a run that was measured."""
    return mark if capabilities(run.backend).simulated else ""


# Whether NCCL may reduce in the NVSwitch (NVLS), which decides what an all-reduce can achieve.


def nvls(run: Run) -> str:
    """Return the state of NVLS: off, not supported or possible; "" without NCCL or if unknown."""
    setting = run.settings.environment.get(NVLS_VARIABLE)
    if not run.machine.nccl:
        return ""
    state = physics.nvls(run)
    if state is Nvls.OFF and setting == "0":
        return f"NVLS off ({NVLS_VARIABLE}=0)"
    if state is Nvls.OFF:
        return "NVLS not supported by these GPUs"
    if state is Nvls.UNKNOWN:
        return f"{NVLS_VARIABLE}={setting}" if setting else ""
    asked = f" ({NVLS_VARIABLE}={setting})" if setting else ""
    return f"NVLS possible{asked}: the GPUs support multicast, NCCL decides"


# The first lines of every page: where the figures come from.


def header(run: Run) -> str:
    """Return the lines of `provenance`."""
    return "\n".join(f"{name:<9} {text}" for name, text in provenance(run))


def origin(run: Run) -> str:
    """Return the lines of `provenance` that a short page has: machine, environment, date."""
    kind = capabilities(run.backend)
    kept = ("machine", "NVLS", "settings", "measured", *(["backend"] if kind.cores else []))
    lines = (f"{name:<9} {text}" for name, text in provenance(run) if kind.simulated or name in kept)
    return "\n".join(lines)


def provenance(run: Run) -> Iterator[tuple[str, str]]:
    """Yield (name, text): backend, machine, devices, versions, sizes and date.

    Each line of a simulated machine says so, because none of its figures may pass for a measured one.
    """
    machine, kind = run.machine, capabilities(run.backend)
    devices, mark = counted(device.name for device in run.devices), sim(run, " (simulated)")
    devices += f" of its {machine.gpus} GPUs" if machine.gpus > len(run.devices) else ""
    if kind.simulated:
        yield "backend", f"sim: SIMULATED machine '{machine.fabric}', nothing here was measured on a GPU"
        yield "machine", f"{devices}, all simulated"
    else:
        note = ": copies by the driver API, collectives by NCCL" if kind.nccl else ""
        note = ": memory copies between CPU cores and gloo collectives, no GPU" if kind.cores else note
        yield "backend", f"{run.backend}{note}"
        yield "machine", f"{machine.hostname}: {devices}; {machine.system}"
    if machine.virtualization not in ("", "none"):
        yield "virtual", f"GPU {machine.virtualization} to a virtual machine{mark}"
    if not kind.simulated:
        if machine.driver:
            yield "driver", f"{machine.driver}, CUDA {machine.cuda}, kernels from {machine.kernel_image or 'none'}"
        if machine.nccl:
            yield "NCCL", f"{machine.nccl}, {machine.nccl_path}"
        if reductions := nvls(run):
            yield "NVLS", reductions.removeprefix("NVLS ")
        if run.settings.processes > 1:
            hosts = ", ".join(dict.fromkeys(device.host for device in run.devices if device.host))
            where = f"; hosts {hosts}" if hosts else ""
            yield "processes", f"{run.settings.processes} ({run.settings.launcher}), one for each device{where}"
    if changed := settings(run.settings.environment):
        yield "settings", f"{changed}{mark}"
    sizes = f", {size_span(run.settings.sizes)}, seed {run.settings.seed}" if run.settings.sizes else ""
    took = f", {run.seconds:.1f} s of simulated time" if kind.simulated else f" in {run.seconds:.1f} s"
    ended = "" if run.complete else f" ({sentences.ending(run)})"
    yield "simulated" if kind.simulated else "measured", f"{run.started}{took}{sizes}{ended}"


def settings(environment: Mapping[str, str]) -> str:
    """Return the variables that change what NCCL does, as NAME=VALUE, and which one a name that none reads may mean.

    NCCL_VERSION is left out: NVIDIA's container images set it, and the loaded library's version may differ.
    """

    def said(name: str) -> str:
        near = "" if not name.startswith("NCCL_") or variables.reader(name) else variables.meant(name)
        return f"{name}={environment[name]}{f' (not read; did you mean {near}?)' if near else ''}"

    return ", ".join(map(said, sorted(environment.keys() - {"NCCL_VERSION"})))


# Health of the devices and of the network's ports during the measurement.

_COUNTERS = (("NVLink errors", "nvlink_errors"), ("ECC errors", "ecc_errors"), ("NVLink replays", "nvlink_replays"))
_ERRORS = dict(_COUNTERS[:2])
_PORTS, _CONGESTION = "ports", "congestion"


def health_lines(run: Run) -> list[str]:
    """Return a line of temperatures in °C and of what was fine, then a line for each problem; empty for CPU cores."""
    if not run.health_before:
        return network_lines(run)
    states, events = (*run.health_before, *run.health_after), [*_events(run)]
    kinds, good = {kind for kind, _ in events}, []
    flags = {flag.kind for measurement in run.measurements for sample in measurement.samples for flag in sample.flags}
    if seen := [state.temperature for state in states if state.temperature is not None]:
        rule = f" ({TEMPERATURE_RULE})" if max(seen) >= GOOD_C else ""
        good.append(f"{span(seen, str, '–')} °C{rule}")
    # Devices that report no clock report no throttling either.
    clocked = any(state.sm_clock is not None for state in run.health_before)
    if clocked and FlagKind.THROTTLED not in kinds | flags:
        good.append("no throttling")
    # The counters that this machine has and that did not change; unknown without both readings.
    known = [name for name, field in _ERRORS.items() if any(getattr(state, field) is not None for state in states)]
    if known and run.health_after and not kinds & {*_ERRORS}:
        good.append(f"no new {' or '.join(name.removesuffix(' errors') for name in known)} errors")
    lines = [line for _, line in events]
    if not run.health_after:
        lines.append(f"unknown after the run: NVML did not answer, or the run was {sentences.ending(run)}")
    return [", ".join(good), *lines] if good else lines or ["NVML reports no health on this machine"]


def unhealthy_lines(run: Run) -> list[str]:
    """Return a line for each problem of devices: flagged, throttled, shared, or with new errors."""
    return [line for kind, line in _events(run) if kind not in (_COUNTERS[2][0], _CONGESTION)]


def network_lines(run: Run) -> list[str]:
    """Return what changed on ports of network cards: state and rate, errors, then congestion by counter."""
    return [line for kind, line in _events(run) if kind in (_PORTS, _CONGESTION)]


def _events(run: Run) -> Iterator[tuple[str, str]]:
    """Yield (kind, line): flags of trials, throttling, new errors, other processes, changes of network ports."""
    run = without_idle(run)
    samples, devices = [sample for measurement in run.measurements for sample in measurement.samples], run.devices
    flags = [flag for sample in samples for flag in set(sample.flags)]
    # Each flag with the number of trials that have it; of a GPU's temperatures the highest.
    alike = grouped((replace(flag, figure=None) if flag.kind is FlagKind.HOT else flag, flag) for flag in flags)
    worst = ((max(same, key=lambda flag: flag.figure or 0), len(same)) for same in alike.values())
    lines = sorted(f"{sentences.flag(flag, devices)} in {count} of {len(samples)} trials" for flag, count in worst)
    yield from (("flagged", line) for line in lines)
    # Throttling or other processes before and after measuring, unless a trial has the same flag.
    shared = {index for flag in flags if flag.kind is FlagKind.SHARED for index in flag.devices}
    found = []
    for when, index, state in at_the_ends(run):
        ends = [Flag(FlagKind.THROTTLED, (index,), reason=reason) for reason in filter(holds_back, state.throttle)]
        ends += [Flag(FlagKind.SHARED, (index,), state.processes)] if state.processes and index not in shared else []
        found += [(end.kind, f"{sentences.flag(end, devices)} {when} measuring") for end in ends if end not in flags]
    yield from (event for event in found if event[0] is FlagKind.THROTTLED)
    for name, field in _COUNTERS:
        for index, (first, last) in new_errors(run, field).items():
            since = f"({first} → {last} since the driver was loaded)"
            yield name, f"{last - first} new {name} on {devices[index].tag} {since}"
    yield from (event for event in found if event[0] is FlagKind.SHARED)
    # Older files lack `ports_after_read`: no ports afterwards may mean that they were not read.
    if run.ports_before and (run.ports_after_read or run.ports_after):
        several_hosts = annexes.hook("network ports")
        lack = _PORTS, "unknown of network ports: this collbench lacks the part that compares them"
        yield from several_hosts.events(run) if several_hosts else (lack,)


# The notes below every page's figures: how they were measured, what is missing, what not to trust.

_STOPS = {
    StopReason.PRECISION: "converged",
    StopReason.NOISE: "noise floor reached",
    StopReason.BUDGET: "time budget reached",
    StopReason.INTERRUPTED: "interrupted",
    StopReason.FAILED: "failed",
}
_MAX_FAILURES = 8  # lines; the file has all failures
_FEW_LINES = 3  # of failures, of health: on the short page
_MAX_NAMES = 4  # of what was skipped for one reason, of works


def notes(run: Run) -> list[str]:
    """Return the lines of all notes, without repeats."""
    lines = *_stopped(run), *_verified(run), *failures(run), *_interference(run), *nccl_notes(run), *_skipped(run)
    return list(dict.fromkeys(lines))


def ending(run: Run, *more: str) -> Iterator[Block]:
    """Yield the last blocks of a measuring command's page: notes and health, on the short page trouble and origin."""
    lines = [*notes(run), *more]
    if lines:
        yield from whole("notes", Lines("\n" + "\n".join(lines)))
    if health := health_lines(run):
        yield from whole("health", Lines("\n".join(f"health    {line}" for line in health)))
    # Sizes that the user asked for, and links that ought to work.
    lacks = _skipped(run, {SkipKind.ROOM, SkipKind.CONCURRENT_ROOM, SkipKind.PEERS_REFUSED, SkipKind.OLD_NCCL})
    yield from short(Lines("\n" + "\n".join([*troubled(run), *lacks, *nccl_notes(run), origin(run)])))


def troubled(run: Run) -> Iterator[str]:
    """Yield the first lines on failures and on problems of devices."""
    yield from failures(run, _FEW_LINES)
    unhealthy = [f"health    {line}" for line in unhealthy_lines(run)]
    yield from capped(unhealthy, _FEW_LINES, "health    and {} more")


def device_names(devices: tuple[Device, ...], work: Work, positions: tuple[int, ...]) -> str:
    """Return the devices of a data point: "GPU0 → GPU1", "GPU0 → all others", "GPU0, GPU1"."""
    tags = [devices[position].tag for position in positions]
    if work.variant is Variant.ONE_TO_ALL:
        return f"{tags[0]} → all others"
    if work.variant is Variant.ALL_TO_ONE:
        return f"all others → {tags[0]}"
    if work.variant.at_once:
        return f"{tags[0]} with all others"
    if work.variant is Variant.BOTH_WAYS:
        return " ↔ ".join(tags)
    return (", " if work.operation.is_collective else " → ").join(tags)


def _stopped(run: Run) -> Iterator[str]:
    counts = Counter(measurement.stop for measurement in run.measurements)
    parts = [f"{counts[reason]} {label}" for reason, label in _STOPS.items() if counts[reason]]
    if parts:
        yield f"points    {amount(len(run.measurements), 'data point')}: {', '.join(parts)}"


def _verified(run: Run) -> Iterator[str]:
    """Yield the share of the bytes that were verified, and the work with the lowest share."""
    bytes_of: dict[tuple[Work, int], tuple[int, int]] = {}  # verified, moved
    for measurement in run.measurements:
        for sample in measurement.samples:
            if sample.moved_bytes and sample.verified_bytes is not None:
                key = (measurement.point.work, measurement.point.size_bytes)
                verified, moved = bytes_of.get(key, (0, 0))
                bytes_of[key] = (verified + sample.verified_bytes, moved + sample.moved_bytes)
    if not bytes_of:
        return
    verified, moved = (sum(column) for column in zip(*bytes_of.values(), strict=True))
    work, size = min(bytes_of, key=lambda key: bytes_of[key][0] / bytes_of[key][1])
    least = _share(*bytes_of[work, size])
    more = f"; of {work} at {format_size(size)} {least}" if verified < moved and len(bytes_of) > 1 else ""
    yield f"verified  {_share(verified, moved)} of the bytes moved{more}"


def _share(part: int, whole: int) -> str:
    """Return the percentage rounded down, so that only all bytes are 100%."""
    tenths = part * 1000 // whole
    return "all" if part == whole else "none" if part == 0 else f"{tenths / 10:.1f}%" if tenths else "less than 0.1%"


def failures(run: Run, most: int = _MAX_FAILURES) -> Iterator[str]:
    """Yield a line for each set of devices and kind of failure: its data points, and the first reason."""
    failed = grouped(
        ((tuple(sorted(measurement.point.members)), measurement.failure.kind), measurement)
        for measurement in run.measurements
        if measurement.failure
    )
    for (devices, _), points in list(failed.items())[:most]:
        why = sentences.failure(points[0].failure, run.devices) if points[0].failure else ""
        works = ", ".join(sorted({str(measurement.point.work) for measurement in points}))
        sizes = size_span([measurement.point.size_bytes for measurement in points])
        alone = len(points) == 1
        what = f"{works} at {sizes}" if alone else f"{len(points)} data points ({works}; {sizes}), the first"
        yield f"failed    {device_sets([devices], run.devices)}: {what}: {why}"
    if len(failed) > most:
        yield f"failed    and {len(failed) - most} more: the run file lists them"


def _skipped(run: Run, kinds: AbstractSet[SkipKind] | None = None) -> Iterator[str]:
    """Yield a line for each reason of these kinds (None: all kinds), with some of what was skipped for it."""
    shown = [skip for skip in run.skipped if kinds is None or skip.kind in kinds]
    for group in grouped((replace(skip, work=None, members=(), sizes=()), skip) for skip in shown).values():
        what = list(dict.fromkeys(filter(None, (sentences.skipped_what(skip, run) for skip in group))))
        names = f"{abridged(what, _MAX_NAMES)}: " if what else ""
        yield f"skipped   {names}{sentences.skipped_reason(group[0], run)}"


def _interference(run: Run) -> Iterator[str]:
    """Yield whether pairs keep their rates while other pairs are busy, by the interference check."""
    trusted = [check for check in run.interference_checks if check.trusted]
    disagreeing = grouped((check.label, check) for check in run.interference_checks if not check.trusted)
    if trusted:
        within = f"{max(abs(1 - check.ratio) for check in trusted):.1%}"
        count = f"{len(trusted)} of " if disagreeing else ""
        count += amount(len(run.interference_checks), "comparison")
        yield f"checked   interference: a pair keeps its isolated rate within {within} while others are busy ({count})"
    for label, checks in disagreeing.items():
        works = abridged([*dict.fromkeys(str(Work(check.operation, check.variant)) for check in checks)], _MAX_NAMES)
        sizes = [check.size_bytes for check in checks if check.size_bytes is not None]
        at = f" at {size_span(sizes)}" if sizes else ""
        members = dict.fromkeys(tuple(sorted(check.members)) for check in checks)
        pairs = abridged([tags(pair, run.devices, "-") for pair in members], _MAX_NAMES)
        share = span([check.ratio for check in checks], "{:.0%}".format)
        noise = f"{max(check.delta for check in checks):.1%}"
        yield (
            f"isolated  {works}{at} on {pairs}: {share} of the isolated rate while other pairs are busy, which is more "
            f"than noise (±{noise}): {label} pairs are measured one at a time"
        )
    if any(map(is_pcie, disagreeing)):
        yield "isolated  all pairs on PCIe: their paths share links"


# The first line of a page if something failed or nothing was judged.

_MAX_SETS = 3  # of devices; the notes and the run file have the others
ALARM = "bold red"


def headline(run: Run) -> str:
    """Return what failed and where, the worst first: "FAILED: GPU2→GPU3: 140 data points, hang"; "" if nothing did."""
    troubles = outcome(run).troubles
    if not troubles:
        return ""
    head = "IMPOSSIBLE" if troubles[0].kind is TroubleKind.IMPOSSIBLE else "FAILED"
    return f"{head}: {worst_troubles(run)}"


def worst_troubles(run: Run) -> str:
    """Return the headline without "FAILED", which parsers of nccl-tests' text search for."""
    troubles = outcome(run).troubles
    measured_by = view(run)
    if measured_by is not None and (lost := measured_by.failed(run)):
        return f"{lost}{sim(run, ' (sim)')}"
    clauses = []
    for trouble in troubles:
        where = tags(trouble.link, run.devices, "→") or device_sets([trouble.devices], run.devices)
        how = f"{trouble.figure:.0f} GB/s" if trouble.figure is not None else trouble.kind.value
        clauses.append(f"{where}: {amount(trouble.count, 'data point')}, {how}")
    return f"{'; '.join(capped(clauses, _MAX_SETS, 'and {} more'))}{sim(run, ' (sim)')}"


def alarm(run: Run) -> Iterator[Text]:
    """Yield the headline as a page's first block; nothing if nothing failed."""
    if failed := headline(run):
        yield Lines(failed, style=ALARM)


def interrupted(run: Run) -> str:
    """Return how much of an interrupted run was measured: "INTERRUPTED: 9 of 28 pairs, 90 data points measured"."""
    _, points = timed_points(run)
    pairs, timed = timed_pairs(run)
    of_pairs = f"{timed} of {pairs} pairs, " if 0 < timed < pairs else ""
    return f"INTERRUPTED: {of_pairs}{amount(points, 'data point')} measured"


def not_judged(why: str) -> Text:
    """Return the first block of a page without a judgment; `why` ends with the command to run."""
    return Lines(f"not judged: {why}", style=ALARM)


# The variable by which NCCL registers buffers for NVLS although ranks share a process [2.28.3, init.cc].
_IN_ONE_PROCESS = "NCCL_SINGLE_PROC_MEM_REG_ENABLE"


def nccl_notes(run: Run) -> Iterator[str]:
    """Yield a note that in a job's processes NVLS could use registered buffers (docs/method/collectives.md 1)."""
    works = [
        work for work in dict.fromkeys(timed.point.work for timed in run.measurements) if work.operation.is_collective
    ]
    kinds = dict.fromkeys(work.registration for work in works if work.registration is not Registration.NONE)
    environment = run.settings.environment
    possible = run.machine.multicast is True and environment.get(NVLS_VARIABLE) != "0"
    if not kinds or not possible or run.settings.processes > 1 or environment.get(_IN_ONE_PROCESS) == "1":
        return
    command = run.settings.command_name
    if run.settings.kind == CommandKind.PAIRS:
        command += f" --operations {','.join(dict.fromkeys(work.operation for work in works))}"
    registration = next(iter(kinds)) if len(kinds) == 1 else "all"
    command += " --collectives" if run.settings.layers else f" --registration {registration}"
    visible = f"CUDA_VISIBLE_DEVICES={','.join(device.uuid for device in run.devices)} " if run.settings.devices else ""
    yield (
        "process   one process has all ranks, so NCCL registers no buffer for NVLS, as it does in a job; measure with "
        f"{visible}torchrun --nproc-per-node {len(run.devices)} -m collbench {command}"
    )


# The page of a run, as the command that measured it printed it.


def run_page(diagnosis: Diagnosis, name: str = "RUN.JSON") -> Page:
    """Yield the page's blocks, top to bottom; `name` is the run's in a command line."""
    run = diagnosis.run
    yield from alarm(run)
    if not run.complete and not headline(run):
        yield Lines(interrupted(run), style=ALARM)
    if run.settings.kind in {*CommandKind}:  # an annex's command has verdicts of its own
        from collbench.report.verdicts import contradicted  # late: the judge

        yield from contradicted(diagnosis, name)
    yield from _of_command(diagnosis)


def _of_command(diagnosis: Diagnosis) -> Page:
    """Return the page of the command that measured a run, and load only this one."""
    run = diagnosis.run
    kind, measured_by = run.settings.kind, view(run)
    if len(run.devices) == 1 and kind != CommandKind.LATENCY:
        kind = CommandKind.COPIES  # a check of one GPU copies with host memory
    if run.settings.layers:
        from collbench.report.collectives import small_allreduces_page

        return small_allreduces_page(run)
    if measured_by:
        return measured_by.page(run)
    if kind == CommandKind.COPIES:
        from collbench.report.copies import copies_page

        return copies_page(diagnosis)
    if kind == CommandKind.LATENCY:
        from collbench.report.copies import latency_page

        return latency_page(run)
    # No collective command measures copies, but a file may hold both.
    if kind in (CommandKind.PAIRS, CommandKind.CHECK) or not all(
        measurement.point.operation.is_collective for measurement in run.measurements
    ):
        from collbench.report.ranking import pairs_page

        return pairs_page(diagnosis)
    from collbench.report.collectives import collectives_page

    return collectives_page(diagnosis)
