"""The options of commands that measure; a request measured, its page printed, its file reported, whatever ends it."""

from __future__ import annotations

import functools
import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from collbench.api import SILENT, Notices
from collbench.api.measuring import OpenSession, RequestSession, request_of
from collbench.cli import options
from collbench.cli.options import NCCL_TESTS, TABLE, option
from collbench.cli.program import launched, unwritten
from collbench.cli.terminal import NOTICES, echo, is_json, leaving, say, show_page, verbose_option
from collbench.judge.outcome import timed_points
from collbench.machine.launchers import find_launch
from collbench.measurement.plan import Request
from collbench.model.errors import BackendError, CollbenchError, DataCorruption, ExitStatus, Interrupted
from collbench.model.run import CommandKind
from collbench.model.units import amount, parse_budget, parse_precision, verb
from collbench.model.values import one_line
from collbench.runfile import run_file

if TYPE_CHECKING:
    from collbench.judge.diagnose import Diagnosis

# How long to measure.
_stopping = (
    option(
        "--precision SHARE",
        "Repeat each data point until half its 95% interval is this share of its median, for at most 60 s or "
        "--budget.  [default: 1% from 1M on, 3% below]",
        parse_precision,
    ),
    option("--budget TIME", "Stop repeating after this time: 10s, 500ms.  [default: 2.3s; host: 8s]", parse_budget),
    option("--quick", "Measure roughly, in a few seconds."),
)

# Adds what a command times to the request of its options, which it gets by name, too.
RequestBuilder = Callable[..., Request]


class MeasuringCommand(options.CheckedCommand):
    """A command that measures what `build` makes of the request of the shared options."""

    def __init__(self, *arguments: Any, build: RequestBuilder, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.build = build

    def request(self, values: Mapping[str, Any], command_line: Sequence[str], notices: Notices = SILENT) -> Request:
        """Return what options, by name, ask for. Raises UsageError, RunFileError."""
        return self.build(request_of(self.name or "", values, command_line, notices), **values)


def measuring_options(
    *own: options.Command,
    sized: options.Command | None = options.sizes,
    backend: options.Command = options.backend,
) -> Callable[[options.Command], options.Command]:
    """Return the options of every command that measures, with the command's own after the sizes."""
    first = (options.devices,) if sized is None else (options.devices, sized)
    run = (backend, options.fabric, options.output, options.force, options.nccl, options.seed)
    return options.apply(*first, *own, *_stopping, *run, verbose_option)


def measuring_command(
    *own: options.Command,
    sized: options.Command | None = options.sizes,
    name: str | None = None,
    text: str | None = None,
    cls: type[MeasuringCommand] = MeasuringCommand,
) -> Callable[[RequestBuilder], MeasuringCommand]:
    """Return a decorator: a builder becomes the command that measures it, prints the run, and leaves with its status.

    The command's name and help are the builder's, or `name` and `text`.
    """

    def decorate(build: RequestBuilder) -> MeasuringCommand:
        command_name = name or build.__name__

        @measuring_options(*own, options.json, sized=sized)
        def command(**values: Any) -> None:
            request = made.request(values, options.command_line(command_name), NOTICES)
            leave_with(measured_and_shown(request, values["output"], values.get("output_format", TABLE), []))

        made = click.command(command_name, cls=cls, build=build, help=text or build.__doc__)(command)
        return made

    return decorate


NOTHING = "nothing"  # besides the values of --format: the caller prints something else of the run, and its file


def show_run(diagnosis: Diagnosis, output_format: str = TABLE, file: Path | None = None) -> None:
    """Print a run: as a page, nccl-tests' text, JSON, or not at all. Raises UsageError if the format does not suit it.

    `file` is what names the run in a command that the page advises: its file, or "1" for the newest one.
    """
    # All late: numpy need not be there before something was measured.
    if output_format == NCCL_TESTS:
        from collbench.report import nccl_tests

        for line in nccl_tests.lines(diagnosis.run):
            echo(line)
    elif output_format == TABLE and is_json():
        from collbench.report import answer

        echo(run_file.dumps(diagnosis.run, answer.as_json(diagnosis)), end="")
    elif output_format == TABLE:
        from collbench.report.frame import run_page

        show_page(run_page(diagnosis, shlex.quote(str(file)) if file else "RUN.JSON"))


def report_file(path: Path | None, output_format: str = TABLE) -> None:
    """Report the run's file: on stderr if stdout is parsed, where a notice has said already that there is none."""
    if output_format == TABLE and not is_json():
        echo(f"\nsaved     {one_line(str(path)) if path else 'nowhere: no file could be made for it'}")
    elif path:
        say(f"saved {path}")


def new_file(command: str, backend: str) -> Path | None:
    """Return a new file for a run that the user did not name; None, and a notice says why, if none can be written."""
    return run_file.new_run(command, backend, say, advice=", or name a file with --output FILE")


def measure_with_workers(open_session: Callable[[], OpenSession]) -> None:
    """Measure a session on workers with torch to its end, print its run, and leave with its status."""
    leave_with(_measured_in(open_session, TABLE, None, []))


def measured_and_shown(request: Request, path: Path | None, output_format: str, begun: list[OpenSession]) -> Diagnosis:
    """Measure to the end, print the run, and return what it means: saved in the named file, else in a new one.

    Where no file can be made it is printed anyway; a named one that cannot be written is refused before anything is
    measured. `begun` gets the session once it is open.
    """
    ranks, launch = None, find_launch(os.environ)
    if launch is not None:
        if launch.rank > 0:
            launched().serve_rank_0(launch, request)
        ranks = functools.partial(launched().open_ranks, launch)
    named, path = path, path or new_file(request.command_name, request.backend)
    file = named or (Path("1") if path else None)
    title = f"measuring {request.command_name}"
    open_session = functools.partial(RequestSession, request, path, NOTICES, title, ranks=ranks)
    return _measured_in(open_session, output_format, file, begun)


def _measured_in(
    open_session: Callable[[], OpenSession], output_format: str, file: Path | None, begun: list[OpenSession]
) -> Diagnosis:
    """Measure a session to its end, print its run, say where it is saved, and return what it means.

    If something interrupts it, what was measured is saved, and the error says where; wrong data and a hang are printed,
    too, as the run's failure, but not in nccl-tests' text, which has no rows of such a run. `begun` gets the session
    once it is open.
    """
    with reporting_what_is_saved(begun), open_session() as session:
        begun.append(session)
        from collbench.judge.diagnose import Diagnosis  # late: numpy

        try:
            session.measure()
        except (DataCorruption, BackendError) as error:
            from collbench.report.frame import headline

            if headline(ended := run_file.again(session.run)):
                if output_format == TABLE:
                    show_run(Diagnosis(ended), output_format, file)
                if session.failure is None and isinstance(error, DataCorruption):  # of others the error has the file
                    report_file(session.path, output_format)
            raise
        diagnosis = Diagnosis(session.run)
        show_run(diagnosis, output_format, file)
    if session.failure is not None:
        if not run_file.is_ours(session.path):
            raise session.failure
        lost = f"nowhere: {one_line(str(session.failure))}"  # no name was asked for: the measurement is done
        if output_format == TABLE and not is_json():
            echo(f"\nsaved     {lost}")
        else:
            say(f"the run is saved {lost}")
    elif output_format != NOTHING:
        report_file(session.path, output_format)
    return diagnosis


@contextmanager
def reporting_what_is_saved(begun: Sequence[OpenSession]) -> Iterator[None]:
    """Add to an error or interruption what was saved of the sessions that were open."""
    try:
        yield
    except OSError as error:  # of stdout: a full disk
        for session in begun:
            if session.failure is not None:
                raise session.failure from error
        note_what_is_saved(error, begun)
        from collbench.judge.diagnose import Diagnosis
        from collbench.report.verdicts import status_of

        judged = [status_of(Diagnosis(session.run)) for session in begun]
        raise click.exceptions.Exit(max([unwritten(error), *judged])) from error
    except KeyboardInterrupt as error:
        raise Interrupted(f"interrupted: {_saved(begun)}") from error
    except CollbenchError as error:
        if any(any(timed_points(session.run)) and session.failure is None for session in begun):
            raise error.reworded(f"{error}; {_saved(begun)}") from error
        raise


def note_what_is_saved(error: OSError, begun: Sequence[OpenSession]) -> None:
    """Add to an error of stdout where the runs are that it did not print."""
    for session in begun:
        if session.path is not None:
            error.add_note(f"the run is saved: 'collbench show {session.path}' prints it")


def leave_with(diagnosis: Diagnosis) -> None:
    """End the command with the run's exit status, and repeat its reason at the end of the output."""
    from collbench.report import verdicts  # late: numpy
    from collbench.report.frame import headline

    status, run = verdicts.status_of(diagnosis), diagnosis.run
    with leaving(status):
        if status is not ExitStatus.DONE:
            contradicting = verdicts.contradiction(diagnosis) if run.settings.kind == CommandKind.PAIRS else ""
            say("; ".join(filter(None, (headline(run), contradicting))))


def _saved(sessions: Sequence[OpenSession]) -> str:
    """Return what was saved, as a clause."""
    points, measured = timed_points(sessions[0].run) if sessions else (0, 0)
    if points == 0:
        return "nothing was measured or saved"
    counts = [f"{amount(measured, 'data point')} measured so far"] if measured else []
    counts += [f"{amount(points - measured, 'data point')} without a result"] if points > measured else []
    what, session = f"{' and '.join(counts)} {verb(points, 'is', 'are')}", sessions[0]
    if session.failure is not None:
        return f"{what} lost: {session.failure}"
    if session.path is None:
        return f"{what} lost: they could not be saved"
    return f"{what} saved as {session.path}: 'collbench show {session.path}' prints them"
