"""`collbench select`: the best K devices, in the words of what will use them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from collbench.analysis import freshness
from collbench.analysis.outcome import outcome
from collbench.backends import factory
from collbench.cli import evidence, options
from collbench.cli.evidence import Evidence, Wanted
from collbench.cli.terminal import echo, is_verbose, prose_width, verbose_option
from collbench.launch import formats, torchrun
from collbench.machine import nvidia_smi, visible_devices
from collbench.model.capabilities import HOST, capabilities
from collbench.model.errors import ExitStatus, MachineError, NotTrusted, UsageError
from collbench.model.run import Device, Run
from collbench.model.units import parse_size
from collbench.runfile.codec import plain

if TYPE_CHECKING:
    from collbench.analysis.choice import Choice
    from collbench.analysis.select import Origin, Selection

_TEXT, _JSON = "text", "json"
_LAYOUTS = (_TEXT, _JSON, formats.LIST, *formats.ACTING)
_ADVICE = "measure again, or add --elsewhere to judge it as another machine's"
# The JSON's version: raised when a field changes its meaning or goes.
_VERSION = 1


class _Select(click.Command):
    """A command that with --format env also fails in a shell's words, whatever goes wrong.

    `eval "$(collbench select …)"` does not see our exit status, and training would go on on all GPUs.
    """

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Read the words."""
        with _failing(in_shell="--format=env" in args or ("--format", "env") in pairwise(args)):
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        with _failing(in_shell=ctx.params["layout"] == "env"):
            return super().invoke(ctx)


@contextmanager
def _failing(*, in_shell: bool) -> Iterator[None]:
    try:
        yield
    except click.exceptions.Exit:  # --help
        raise
    except BaseException:
        if in_shell:
            with suppress(OSError):  # nobody reads it
                click.echo("false")
        raise


_own_options = options.apply(
    click.option("--from", "file", metavar="RUN", help="Choose from this run file, not from the newest that fits."),
    click.option("--elsewhere", is_flag=True, help="With --from: take a run of another machine or of the simulator."),
    click.option("--topology", metavar="FILE", help="Estimate from saved 'nvidia-smi topo -m' text alone."),
    click.option("--exclude", metavar="LIST", help="Leave these out: nvidia-smi indices or UUIDs."),
    click.option("--allow-busy", is_flag=True, help="Do not leave busy, throttled or faulty GPUs out."),
    click.option(
        "--verify/--no-verify",
        default=None,
        help="Measure the best sets and the first K before one is taken.  [default: where the choice matters]",
    ),
    click.option(
        "--size",
        metavar="SIZE",
        default=evidence.DEFAULT_SIZE,
        show_default=True,
        help="All-reduce size to measure them at: your job's.",
    ),
    click.option(
        "--format",
        "layout",
        metavar="FORMAT",
        type=click.Choice(_LAYOUTS),
        default=_TEXT,
        show_default=True,
        help=f"What to print: {', '.join(_LAYOUTS)}.",
    ),
    click.option("--max-age", metavar="AGE", default="7d", show_default=True, help="Oldest saved run to believe."),
    click.option("--fresh", is_flag=True, help="Measure now, whatever is saved."),
    options.backend_of_this_machine,
    options.nccl,
    verbose_option,
)


@click.command(cls=_Select, short_help="Choose the best K GPUs, for a shell, a container or Slurm.")
@click.argument("count", metavar="K", type=click.IntRange(min=1))
@_own_options
def select(**given: Any) -> None:
    """Choose the best K devices of this machine and say why.

    Chooses from a saved run of this very machine, else from a probe of a few seconds. Busy, throttled and faulty GPUs
    are left out, as of now. Where the choice matters, real all-reduces on the best sets decide. The format text prints
    the reasons; any other prints its answer alone, and the reasons on stderr.

    \b
    Examples:
      collbench select 2
      eval "$(collbench select 2 --format env)" && python train.py
      eval "docker run $(collbench select 2 --format docker) IMAGE"
      srun $(collbench select 2 --format slurm) python train.py
      collbench select 4 --topology topo.txt
    """
    _check(given)
    if given["topology"] is not None:
        answer, status = _by_labels(given), ExitStatus.DONE
    elif given["elsewhere"]:
        answer, status = _by_a_run_of_elsewhere(given)
    else:
        answer, status = _by_measurement(given)
    if status and given["layout"] not in (_TEXT, _JSON):  # nobody who acts on the answer would see more than it
        failed = "; ".join(answer.failed)
        advice = "leave them out with --exclude, or see the reasons with --format text"
        raise NotTrusted(f"every set of {given['count']} includes what failed ({failed}): {advice}", status)
    _print(answer, given["layout"])
    if status:
        sys.stdout.flush()  # a full disk is told before the status
        raise click.exceptions.Exit(status)


def _check(given: dict[str, Any]) -> None:
    """Raise UsageError for options that contradict each other, before anything is measured."""
    file, topology, layout = given["file"], given["topology"], given["layout"]
    if topology is not None and (file is not None or given["fresh"] or given["elsewhere"]):
        raise UsageError("--topology reads labels alone, --from, --fresh and --elsewhere are about runs: leave one out")
    if file is not None and given["fresh"]:
        raise UsageError("--from reads a saved run and --fresh ignores them: leave one out")
    if given["elsewhere"] and file is None:
        raise UsageError("--elsewhere needs the run of the other machine: add --from RUN")
    if given["verify"] and (topology is not None or given["elsewhere"]):
        raise UsageError("--verify measures this machine, --topology and --elsewhere speak of others: leave one out")
    if given["verify"] and given["count"] == 1:
        raise UsageError("--verify measures all-reduces, and one device alone has none: leave it out")
    if given["backend"] == HOST.name and layout in formats.ACTING:
        raise UsageError(f"--format {layout} is for GPUs, and --backend host chooses CPU cores: write --format list")
    if topology is not None and layout in formats.ACTING and "CUDA_VISIBLE_DEVICES" in os.environ:
        raise UsageError(
            f"--topology counts all GPUs, and CUDA_VISIBLE_DEVICES may hide some: unset it for --format {layout}"
        )
    parse_size(given["size"])
    freshness.parse_duration(given["max_age"])


def _by_labels(given: dict[str, Any]) -> Selection:
    devices, paths = nvidia_smi.facts(nvidia_smi.read_topology(Path(given["topology"])))
    excluded = _excluded(given, devices)
    from collbench.analysis.select import (
        LABELS,
        Origin,
        choose_by_labels,  # late: numpy, scipy
    )

    choice = choose_by_labels(devices, paths, given["count"], exclude=excluded)
    return _named(choice, devices, Origin(LABELS, f"labels in {given['topology']}"))


def _by_a_run_of_elsewhere(given: dict[str, Any]) -> tuple[Selection, ExitStatus]:
    """Choose from a run as it stands. Raises UsageError where its answer should act although nothing has such GPUs."""
    from collbench.runfile import run_file

    run = run_file.load(Path(given["file"]))
    if not capabilities(run.backend).visible and given["layout"] in formats.ACTING:
        raise UsageError(
            f"{given['file']} was measured on the {run.backend} backend, which has no GPUs to use: "
            "write --format text, list or json"
        )
    from collbench.analysis.select import Origin, choose

    excluded, count = _excluded(given, run.devices), given["count"]
    choice = choose(run, count, exclude=excluded, allow_busy=given["allow_busy"])
    words = f"{'sim ' if capabilities(run.backend).simulated else ''}{torchrun.saved_run(run.started, given['file'])}"
    origin = Origin(run.backend, words, run.machine.hostname, run.machine.fabric)
    return _named(choice, run.devices, origin, _binding(run, choice)), _status(run, choice)


def _by_measurement(given: dict[str, Any]) -> tuple[Selection, ExitStatus]:
    backend, count = _backend(given), given["count"]
    found = _evidence(given, backend)
    from collbench.analysis.select import Origin, choose

    run = found.as_now()
    if given["allow_busy"] and run.measurements and not found.probed and evidence.someone_is_busy(run):
        found = evidence.measured_now(_wanted(given, backend), "what others leave is not in a saved run: ")
        run = found.as_now()
    choice = choose(run, count, exclude=_excluded(given, run.devices), allow_busy=given["allow_busy"])
    origin = Origin(backend, found.source, run.machine.hostname)
    if _worth_measuring(given, choice, backend):
        return _verified(given, run, choice, origin)
    return _named(choice, run.devices, origin, _binding(run, choice)), _status(run, choice)


def _status(run: Run, choice: Choice) -> ExitStatus:
    """Return how the command ends: a set that includes what failed is an answer, but no good one."""
    return outcome(run).status if choice.failed else ExitStatus.DONE


def _evidence(given: dict[str, Any], backend: str) -> Evidence:
    """Return what to choose from. Raises UsageError for more devices than there are, MachineError for none."""
    present, count = factory.present_devices(backend), given["count"]
    if not present:
        raise MachineError("no GPU to choose: CUDA shows none to this process; see nvidia-smi and CUDA_VISIBLE_DEVICES")
    excluded = _excluded(given, present)
    left = tuple(device for place, device in enumerate(present) if place not in excluded)
    if count > len(left):
        tags = ", ".join(device.tag for device in left) or "none"
        raise UsageError(f"{count} is more than the {len(left)} that may be chosen here ({tags}): ask for fewer")
    if count == len(present) and given["file"] is None:
        return evidence.nothing_to_compare(backend, present)
    return evidence.find(_wanted(given, backend), present)


def _wanted(given: dict[str, Any], backend: str) -> Wanted:
    max_age = freshness.parse_duration(given["max_age"])
    return Wanted(
        backend, given["file"], max_age, given["fresh"], given["nccl"], undone="nothing was chosen", advice=_ADVICE
    )


def _backend(given: dict[str, Any]) -> str:
    name, why = factory.resolve(given["backend"])
    if why is not None:
        raise MachineError(
            f"no GPU to choose: {why}; write --from RUN --elsewhere or --topology FILE to judge another machine, or "
            "--backend host for CPU cores"
        )
    return name


def _excluded(given: dict[str, Any], devices: Sequence[Device]) -> tuple[int, ...]:
    """Return the positions that --exclude names. Raises UsageError."""
    if given["exclude"] is None:
        return ()
    return tuple(devices.index(device) for device in visible_devices.select(devices, given["exclude"]))


def _worth_measuring(given: dict[str, Any], choice: Choice, backend: str) -> bool:
    if given["verify"] is not None:
        return bool(given["verify"]) and bool(choice.finalists)
    return capabilities(backend).visible and given["count"] > 1 and not choice.tied and len(choice.finalists) > 1


def _verified(given: dict[str, Any], run: Run, choice: Choice, origin: Origin) -> tuple[Selection, ExitStatus]:
    from dataclasses import replace

    from collbench.analysis.select import settle

    size = parse_size(given["size"])
    sets = tuple(one.members for one in choice.finalists)
    found, path = evidence.measure(evidence.FinalistRequest(run.backend, run.devices, sets, size, given["nccl"]))
    measured = replace(origin, verification=str(path or ""), size_bytes=size)
    settled = settle(choice, found)
    return _named(settled, run.devices, measured, _binding(run, settled)), _status(run, settled)


def _binding(run: Run, choice: Choice) -> str:
    from collbench.output.text import selection

    return selection.line(run, choice.members)


def _named(choice: Choice, devices: Sequence[Device], origin: Origin, binding: str = "") -> Selection:
    from collbench.analysis.select import selection_by_name

    chosen = [devices[member] for member in choice.members]
    return selection_by_name(choice, devices, formats.variables(chosen) if origin.acts else {}, origin, binding)


def _print(answer: Selection, layout: str) -> None:
    """Print the answer on stdout; the reasons there, too, or on stderr where the answer is not for people."""
    from collbench.output.text.selection import explanation

    if layout == _TEXT:
        echo(explanation(answer, prose_width() if sys.stdout.isatty() else None, verbose=is_verbose()))
        return
    line = _json(answer) if layout == _JSON else formats.answer(layout, answer.devices)
    echo(explanation(answer, verbose=is_verbose()), err=True)
    echo(line)


def _json(answer: Selection) -> str:
    """Return the selection as one JSON object, for docs/python.md describes its fields."""
    head = {"format": "collbench-selection", "format_version": _VERSION}
    return json.dumps({**head, **plain(answer)}, ensure_ascii=False, indent=2)
