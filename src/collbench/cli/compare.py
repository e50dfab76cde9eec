"""`collbench compare`: a run against others, or against figures of healthy machines; `collbench reference`: these."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from collbench.api.runs import NamedRun, load_named
from collbench.cli import options
from collbench.cli.options import option
from collbench.cli.terminal import echo, echo_sentence, is_json, json_option, leaving, show_answer, verbose_option
from collbench.judge.outcome import outcome
from collbench.model.errors import ExitStatus, NotTrusted, UsageError
from collbench.model.operations import Operation
from collbench.model.units import amount, format_size, grouped, parse_share, parse_size
from collbench.model.values import one_line

if TYPE_CHECKING:
    from collbench.judge.references import Figure, Reference


def _parse_share(text: str) -> float:
    """Return the ratio that `text` names: "5%" or "0.05". Raises UsageError."""
    ratio = parse_share(text)
    if ratio is None or ratio >= 1:
        raise UsageError(f"--fail-below '{text}' is not a share from 0 to below 100%: write 5%, 2.5% or 0.05")
    return ratio


@click.command(cls=options.CheckedCommand)
@click.argument("files", metavar="BASE.JSON NEW.JSON", nargs=-1, type=options.RUN)
@option(
    "--fail-below SHARE",
    "Exit with 3 if something is slower than the base by significantly more than this.",
    _parse_share,
    default="5%",
)
@option(
    "--history FILE",
    "Another run on the base's GPUs: it shows how much runs vary. Give it twice or more.",
    options.RUN,
    multiple=True,
)
@options.operation
@option("--reference", "Compare one run with published figures for its kind of machine.")
@json_option("Print JSON instead of the page (docs/compare.md).")
@verbose_option
def compare(
    files: tuple[Path, ...],
    fail_below: float,
    history: tuple[Path, ...],
    operation: Operation | None,
    reference: bool,
) -> None:
    """Show what became faster or slower from one run to another.

    The page first lists other differences between the runs: NCCL, driver, variables. Then it lists the changes that are
    statistically significant, then counts. --reference says whether one run is normal for its kind of machine. Exit
    status: 0; 3 for a regression; 1 if nothing could be judged or data points are missing; 1 or 4 if the new run
    failed.

    \b
    Examples:
      collbench compare base.json new.json
      collbench compare base.json new.json --fail-below 3% --operation allreduce
      collbench compare base.json new.json --history old.json --history older.json
      collbench compare run.json --reference
    """
    run_files = options.all_named_or_newest(files, of_links=True) if reference else files
    _check_count(run_files, history, reference=reference)
    runs, earlier = load_named(run_files), load_named(history)
    if reference:
        _reference(runs[0], operation)
    else:
        _changes(runs, earlier, fail_below, operation)


def _check_count(paths: Sequence[Path], history: Sequence[Path], *, reference: bool) -> None:
    """Raise UsageError for runs that there is nothing to compare with."""
    if reference and len(paths) > 1:
        raise UsageError(f"--reference judges one run, {len(paths)} were given: keep only one")
    if not paths:
        raise UsageError("name the base and the new run, or judge one with --reference; 'collbench runs' lists them")
    if not reference and len(paths) == 1:
        raise UsageError(f"{paths[0]} is one run: name a second run to compare it with, or add --reference")
    if len(paths) > 2:
        raise UsageError(
            f"{len(paths)} runs were given: name a base and a new run, and other runs of the base's GPUs by --history"
        )
    seen: dict[Path, Path] = {}
    for path in (*paths, *history):
        first = seen.setdefault(path.resolve(), path)
        if first is not path:
            raise UsageError(f"{path} and {first} are the same file: name each run once")


def _changes(runs: Sequence[NamedRun], history: Sequence[NamedRun], limit: float, wanted: Operation | None) -> None:
    """Print what changed from the first run to the second; leave with the status."""
    # Late: numpy takes as long to load as the rest of the program.
    from collbench.judge.compare import check_history
    from collbench.judge.compare import compare as compared
    from collbench.report import comparison

    (base_name, base), (new_name, new) = runs
    for name, run in history:
        check_history(base, run, name)
    found = compared(base, new, limit, wanted, [run for _, run in history])
    if not found.changes:
        _nothing(runs, wanted)
    with leaving(found.status):
        show_answer(comparison.page(found, (base_name, new_name)), lambda: comparison.as_json(found))


def _nothing(runs: Sequence[NamedRun], wanted: Operation | None) -> None:
    """Raise NotTrusted where failures left nothing to compare, UsageError if the runs are of different things."""
    of = f" of {wanted}" if wanted else ""
    from collbench.report.frame import headline  # late: numpy

    (base_name, _), (new_name, new) = runs
    if failed := [f"{name} {headline(run)}" for name, run in runs if outcome(run).troubles]:
        raise NotTrusted(
            f"no data point{of} was measured in both runs: {'; '.join(failed)}",
            max(ExitStatus.FAILED, outcome(new).status),
        )
    raise UsageError(
        f"{base_name} and {new_name} have no data point{of} in common: measure both with the same command and sizes"
    )


def _reference(named_run: NamedRun, wanted: Operation | None) -> None:
    from collbench.judge.references import judge, load
    from collbench.report import reference

    name, run = named_run
    answers = judge(run, load(), wanted)
    with leaving(answers.status):
        show_answer(reference.page(answers, shlex.quote(name)), lambda: reference.dumps(answers, answers.status))


# Which published figures there are, and whether one number is normal.

_COUNTED_LAST = re.compile(r"\s*(.*[\d\s])[x×*]\s*(\d{1,3})\s*", re.IGNORECASE)  # "H100 x 8", but not "RTX 50"
_COUNTED = re.compile(r"\s*(\d{1,3})(?:\s*[x×*]\s*|\s+)(.+)", re.IGNORECASE)  # "8 x H100", "8 H100"


def _parse_rate(text: str) -> float:
    """Return a rate in GB/s: "480", "480 GB/s". Raises UsageError."""
    try:
        rate = float(text.strip().removesuffix("GB/s"))
    except ValueError:
        rate = math.nan
    if not 0 < rate < math.inf:
        raise UsageError(f"--busbw '{text}' is no rate: write it in GB/s, as 480")
    return rate


def _parse_operation(text: str) -> Operation:
    """Return an operation by its name, also that of nccl-tests' program: "all_reduce_perf". Raises UsageError."""
    try:
        return options.parse_operation(text.removesuffix("_perf"), "OPERATION")
    except UsageError as error:
        if not re.search(r"^x$|\d", text):
            raise
        raise UsageError(f'{error}; a GPU of several words takes quotes, as "8 x H100"') from None


@click.command()
@click.argument("machine", metavar="[GPU]", required=False)
@click.argument("operation", metavar="[OPERATION]", required=False, callback=options.parsed(_parse_operation))
@option("--size SIZE", "What is normal at this message size, as 1G.", parse_size)
@option("--busbw GB/S", "Is this rate normal?", _parse_rate)
@json_option("Print JSON instead of the table (docs/compare.md).")
def reference(
    machine: str | None,
    operation: Operation | None,
    size: int | None,
    busbw: float | None,
) -> None:
    """List the published figures by which runs are judged, or say whether one number is normal.

    For each machine a line for each operation, number of GPUs and kind of link: the sizes, the number of independent
    sources and whether they disagree at some size, from which size a rate is judged (below it the figures are only a
    guide), and what is normal at the largest size, in GB/s. GPU is nvidia-smi's or a product's name, with the number of
    GPUs as "8 x H100".

    With OPERATION and --size: what is normal there, or required by acceptance tests. Exit status with --busbw: 0; 3 if
    it is below, or above what the links carry; 1 if there is nothing to compare it with, or if it depends on NVLS.

    \b
    Examples:
      collbench reference
      collbench reference H100
      collbench reference "RTX PRO 6000" --json
      collbench reference "8 x H100" allreduce --size 1G --busbw 311
    """
    from collbench.judge.references import by_kind, load, named, unknown_gpu  # late: numpy
    from collbench.report import reference as page

    if size is not None and operation is None:
        raise UsageError("--size asks about one operation: name it, as 'collbench reference \"8 x H100\" allreduce'")
    if busbw is not None and size is None:
        raise UsageError("--busbw needs the message size of the rate: add --size")
    count, name = _count_and_name(machine or "")
    of_gpu = by_kind(named(load(), name) if name else load()) or _of_words(by_kind(load()), name)
    if not of_gpu:
        if Path(machine or "").is_file():
            raise UsageError(f"{machine} is no GPU: a run is judged by 'collbench compare {machine} --reference'")
        raise UsageError(unknown_gpu(one_line(name)))
    of_operation = [kind for kind in of_gpu if operation in (None, kind[0].operation)]
    kinds = [kind for kind in of_operation if count in (None, kind[0].ranks)]
    what = " on ".join(filter(None, (operation and str(operation), f"'{machine}'")))
    there = _there(of_gpu, of_operation)
    if size is not None:
        _answer(kinds, f"{operation} at {format_size(size)} on '{machine}'", size, busbw, there)
        return
    status = ExitStatus.DONE if kinds else ExitStatus.FAILED
    with leaving(status):
        if kinds or is_json():
            show_answer(page.coverage(kinds), lambda: page.coverage_json(kinds, status))
        else:
            echo_sentence(f"there is no published figure for {what}: there are figures {there}")


def _count_and_name(machine: str) -> tuple[int | None, str]:
    """Return the number of GPUs that a machine's text begins or ends with, None for none, and the rest of it."""
    if last := _COUNTED_LAST.fullmatch(machine):
        return int(last[2]), last[1].strip()
    counted = _COUNTED.fullmatch(machine)
    return (int(counted[1]), counted[2].strip()) if counted else (None, machine.strip())


def _of_words(kinds: Sequence[tuple[Figure, ...]], words: str) -> list[tuple[Figure, ...]]:
    """Return the kinds whose machine has these words, none of which has a number: "RTX", "with bridges"."""
    if any(map(str.isdigit, words)):
        return []
    return [kind for kind in kinds if words.casefold() in kind[0].machine.casefold()]


def _there(of_gpu: Sequence[tuple[Figure, ...]], of_operation: Sequence[tuple[Figure, ...]]) -> str:
    """Return of which numbers of GPUs there are figures of the operation, or of which operations there are any."""
    if not of_operation:
        return "of " + ", ".join(dict.fromkeys(str(kind[0].operation) for kind in of_gpu))
    ranks = sorted({kind[0].ranks for kind in of_operation})
    return f"of {', '.join([*map(str, ranks[:-1]), amount(ranks[-1], 'GPU')])}"


def _answer(kinds: Sequence[tuple[Figure, ...]], what: str, size: int, busbw: float | None, there: str) -> None:
    """Print what is normal at a size, a line for each kind of machine and NVLS setting, and leave with the status.

    `there` says of what else there are figures.
    """
    from collbench.judge.references import ReferenceVerdict, place, place_among, reference_at
    from collbench.report.reference import nowhere, placed, placed_json, usual

    found = [published for kind in kinds if (published := reference_at(kind, size))]
    if not found:
        with leaving(ExitStatus.FAILED):
            why = nowhere(kinds, size) if kinds else f"nothing to compare with; there are figures {there}"
            nothing = f"{what}: {why}\n"
            echo(placed_json({}, busbw, ExitStatus.FAILED) if is_json() else nothing, end="")
        return
    counts = sorted({published.figure.ranks for published in found})
    if busbw is not None and len(counts) > 1:
        listed = ", ".join(map(str, counts))
        raise UsageError(
            'what is normal depends on the number of GPUs, which comes first, as in "2 x H200": '
            f"there are figures of {listed}"
        )
    machines = [
        sorted(references, key=lambda reference: not reference.sources)
        for references in grouped((_machine(published), published) for published in found).values()
    ]
    standings = {place_among(references, busbw) for references in machines} if busbw is not None else set()
    others = dict(_of_other_nvls(kinds, found, size)) if ReferenceVerdict.BELOW in standings else {}
    possible = {
        published: growth
        for published, growth in others.items()
        if busbw is not None and place(published, busbw * (growth or 1.0)) is not ReferenceVerdict.BELOW
    }
    # Where figures of several machines fit the name, a rate is below or impossible if it is by all that judge it.
    judged = standings - {ReferenceVerdict.NOT_JUDGED}
    wrong = judged and judged <= {ReferenceVerdict.BELOW, ReferenceVerdict.IMPOSSIBLE}
    # A rate that one NVLS setting is faster than may have been measured with the other, which no figure judges.
    settings = {published.figure.nvls for published in (*found, *others)}
    unknown = judged == {ReferenceVerdict.BELOW} and (possible or settings in ({"on"}, {"off"}))
    # Below one and above another it is normal nowhere, and which of them the machine is was not said.
    between = judged == {ReferenceVerdict.BELOW, ReferenceVerdict.ABOVE}
    depends = ReferenceVerdict.BELOW in judged and len(judged) > 1 and settings == {"on", "off"}
    status = ExitStatus.CONTRADICTION if wrong and not unknown else ExitStatus.DONE
    nowhere_judged = standings == {ReferenceVerdict.NOT_JUDGED}
    status = ExitStatus.FAILED if unknown or between or depends or nowhere_judged else status
    with leaving(status):
        if is_json():
            echo(placed_json(dict.fromkeys(found, busbw) | dict.fromkeys(possible), busbw, status), end="")
            return
        for references in machines:
            echo_sentence(placed(references, busbw))
        for published, growth in possible.items():
            echo_sentence(usual(published, busbw or 0.0, size, growth))
        if unknown or depends:
            echo_sentence("next      run the job with NCCL_DEBUG=INFO: its log says whether NVLS is on")
        elif judged == {ReferenceVerdict.BELOW}:
            echo("next      'collbench check' on that machine: what is slow, and why")
        elif ReferenceVerdict.UNDECIDED in judged and status is ExitStatus.DONE:
            echo("next      'collbench check' on that machine: near the band's end, measure it")


def _machine(published: Reference) -> tuple[object, ...]:
    figure = published.figure
    return figure.gpus, figure.machine, figure.links, figure.variant, figure.ranks, figure.nvls


def _of_other_nvls(
    kinds: Sequence[tuple[Figure, ...]], found: Sequence[Reference], size: int
) -> Iterator[tuple[Reference, float | None]]:
    """Yield, at the nearest size, what is normal with an NVLS setting of which nothing is known at this size.

    Each has how many times as fast that size is as this one, by the machine's figures with the known setting; None if
    they do not say it.
    """
    from collbench.judge.references import reference_at, sizes_of

    curves = {(kind[0].machine, kind[0].nvls): kind for kind in kinds if kind[0].nvls and kind[0].at_least is None}
    known = {(published.figure.machine, published.figure.nvls) for published in found}
    here = {
        published.figure.machine: (nvls, published)
        for published in found
        if published.sources and (nvls := published.figure.nvls)
    }
    for (machine, nvls), kind in curves.items():
        if machine not in here or (machine, nvls) in known:
            continue
        setting, published = here[machine]
        nearest = min(sizes_of(kind), key=lambda measured: abs(measured - size))
        there = reference_at(kind, nearest)
        same = reference_at(curves.get((machine, setting), ()), nearest)
        if there is not None and there.sources:
            yield there, same.band[0] / published.band[0] if same else None
