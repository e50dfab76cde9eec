"""Options that several commands share: click parses them, and a command gets them as one typed value."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from collbench import annexes
from collbench.api.keywords import MAX_COUNT, named, new_seed
from collbench.cli.terminal import NOTICES, json_option, verbose_option
from collbench.model.errors import UsageError
from collbench.model.operations import Operation
from collbench.model.run import BACKENDS, capabilities
from collbench.model.units import DTYPE_BYTES, REDOPS, parse_dtype, parse_duration, parse_sizes

Value = TypeVar("Value")


def parsed(parse: Callable[[Any], Value]) -> Callable[[click.Context, click.Parameter, Any], Value | None]:
    """Return a callback for an option whose value this function reads."""
    return lambda _context, _option, value: None if value is None else parse(value)


def option(
    words: str,
    text: str,
    read: click.ParamType[Any] | Callable[[Any], object] | None = None,
    *,
    name: str = "",
    **settings: Any,
) -> Command:
    """Return an option by its words and its value as help shows them, "-o, --output FILE", its help, and what reads it.

    Without a value or a reader it is a flag. A default is shown, unless it is drawn. `name` is the parameter's where
    the first long word is not; further settings are click's.
    """
    *names, last = words.split(", ")
    last, _, metavar = last.partition(" ")
    if isinstance(read, click.ParamType):
        settings["type"] = read
    elif read is not None:
        settings["callback"] = parsed(read)
    elif not metavar:
        settings["is_flag"] = True
    default = settings.get("default")
    settings.setdefault("show_default", not (default is None or isinstance(default, bool) or callable(default)))
    return click.option(*names, last, *filter(None, [name]), metavar=metavar or None, help=text, **settings)


def parse_operation(text: str, option_name: str = "--operation") -> Operation:
    """Return the operation that a word names. Raises UsageError, which says where the word was written."""
    return named(option_name, text, Operation)


def _checked_seed(seed_given: int) -> int:
    """Return the seed. Raises UsageError."""
    if seed_given < 0:
        raise UsageError(f"--seed {seed_given} is negative: write a whole number from 0")
    return seed_given


class _File(click.Path):
    """The path of a file. An empty one, of a shell's variable that is not set, would be this folder.

    "-" is no name for a file to write, as other tools write to standard output then: None, or, with `page`, an error.
    """

    def __init__(self, *, written: bool = False, page: bool = False) -> None:
        super().__init__(path_type=Path)
        self._written, self._page = written, page

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path, None for standard output. Raises UsageError."""
        if value == "":
            name = param.opts[0] if isinstance(param, click.Option) else "a file name"
            raise UsageError(f"{name} is empty: write the name of a file")
        if value != "-" or not self._written:
            return super().convert(value, param, ctx)
        if self._page:
            raise UsageError("--output - names no file, and standard output has the page: name a file, or write ./-")
        return None


class _Run(_File):
    """The path of a run file, or the number that `collbench runs` lists it with; a file of that name comes first."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path. Raises UsageError."""
        if isinstance(value, str) and _NUMBER.fullmatch(value) and not Path(value).exists():
            from collbench.runfile import run_file  # late: few commands read a saved run

            value = run_file.numbered(int(value), run_file.saved_runs())
            NOTICES.say(f"the saved run {value}")
        return super().convert(value, param, ctx)


_NUMBER = re.compile(r"\d{1,6}", re.ASCII)
FILE, OUTPUT, EXPORTED = _File(), _File(written=True, page=True), _File(written=True)
RUN = _Run()
# The name of a file that the command does not open itself; by this type shells complete it.
FILE_NAME = click.Path(readable=False)


def _fabrics(context: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    """Return the names of the shipped fabrics that begin so, else that files follow: shells complete both."""
    from collbench.sim import fabrics

    begun = [name for name in fabrics.names() if name.startswith(incomplete)]
    return begun or FILE_NAME.shell_complete(context, param, incomplete)


# Saved runs, by file or by number; if none is named, the newest is taken.
run_file = click.argument("file", metavar="[RUN.JSON]", required=False, type=RUN)
run_files = click.argument("files", metavar="[RUN.JSON]...", nargs=-1, type=RUN)


def named_or_newest(file: Path | None, *, of_links: bool = False) -> Path:
    """Return the file that was named, else the newest saved run's. Raises UsageError if none is saved."""
    return all_named_or_newest(() if file is None else (file,), of_links=of_links)[0]


def all_named_or_newest(files: tuple[Path, ...], *, of_links: bool = False) -> tuple[Path, ...]:
    """Return the files that were named, else the newest saved run's. Raises UsageError if none is saved."""
    if files:
        return files
    from collbench.api.runs import saved_files  # late: few commands read a saved run

    path = saved_files(NOTICES, of_links=of_links)[0]
    NOTICES.say(f"the newest saved run, {path}")
    return (path,)


operation = option("--operation OP", "Only this operation: allreduce, ce-write, …  [default: all]", parse_operation)


def typed(context: click.Context) -> dict[str, str]:
    """Return the options that were typed, by their parameters' names; of an argument its value."""
    return {
        name: param.opts[-1] if isinstance(param, click.Option) else str(context.params[name])
        for param in context.command.params
        for name in [param.name or ""]
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }


# Options that contradict each other in any command: one, others, and why; "{}" is what was typed of the two.
_ANOTHER = "describe another machine"
_EXCLUSIVE = (
    ("quick", ("precision", "budget"), "{} and {} both say how long to measure"),
    ("sizes", ("minbytes", "maxbytes", "stepfactor"), "{} and {} both say which sizes to measure"),
    ("devices", ("ngpus",), "{} and {} both say which devices to measure"),
    ("pairs", ("split",), "{} and {} both say which sets to time"),
    ("as_json", ("output_format",), "{} and {} both say what to print"),
    ("reference", ("history",), "{} judges one run, {} belongs to a comparison of runs"),
    ("auto_select", ("devices",), "{} and {} both say which GPUs to use"),
    ("devices", ("exclude", "allow_busy"), "{} names the GPUs, {} affects an automatic choice"),
    ("fabric", ("file", "topology"), "{} simulates a measurement; a run file or --topology replaces it"),
    ("topology", ("file", "fresh", "any_machine"), "{} uses only labels, {} uses runs"),
    ("run_file", ("fresh",), "{} reads a saved run, and {} ignores saved runs"),
    ("file", ("fresh",), "{} reads a saved run, and {} ignores saved runs"),
    ("verify", ("topology", "any_machine"), f"{{}} measures this machine, --topology and --any-machine {_ANOTHER}"),
    ("module", ("no_python", "run_path"), "{} starts a Python module, {} a file"),
    *annexes.EXCLUSIVE,
)
# Options that mean something only beside another one: what is wrong without it.
_NEEDS = (
    ("layers", "of_inference", "--layers is for --collectives: add it, or leave out --layers"),
    ("gpu", "topology", "--gpu names the GPUs of a --topology FILE, as in --gpu H100"),
    ("p2p", "topology", "--p2p has the P2P states of the GPUs of a --topology FILE: name that, too"),
    (
        "any_machine",
        "file",
        "--any-machine needs the run of the other machine: write select K RUN.JSON --any-machine",
    ),
)


def check_together(context: click.Context) -> None:
    """Raise UsageError for options that exclude each other, or lack another. Variables count as options."""
    given = {
        name: word for name, word in typed(context).items() if context.params.get(name) is not False
    }  # --no-verify
    for name, others, why in _EXCLUSIVE:
        for other in others:
            from_outside = context.get_parameter_source(other) is ParameterSource.ENVIRONMENT
            if name in given and (other in given or from_outside):
                raise UsageError(f"{why.format(given[name], given.get(other))}: use only one")
    for name, needed, wrong in _NEEDS:
        if name in given and needed not in given:
            raise UsageError(wrong)
    backend = context.params.get("backend")
    if "nccl" in given and backend in BACKENDS and not capabilities(backend).nccl:
        raise UsageError(f"--nccl: the {backend} backend loads no NCCL: leave it out")


class CheckedCommand(click.Command):
    """A command that takes no options that exclude each other, and none that lacks another."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the options. Raises UsageError."""
        rest = super().parse_args(ctx, args)
        if not ctx.resilient_parsing:  # a shell completes the line
            check_together(ctx)
        return rest


def typed_besides(allowed: Collection[str]) -> list[str]:
    """Return the options of this command that were typed, of all but those with these parameters' names."""
    return [word for name, word in typed(click.get_current_context()).items() if name not in allowed]


COUNT = click.IntRange(1, MAX_COUNT)
Command = Callable[..., Any]

devices = option("--devices LIST", "Measure only these GPUs: nvidia-smi indices or UUIDs.  [default: all]")


def sizes_option(default: str) -> Command:
    """Return the option --sizes with its default in words."""
    what = "Message sizes: MIN:MAX (doubling), MIN:MAX:FACTOR, one size, or a list of these."
    return option("--sizes SIZES", f"{what}  [default: {default}]", parse_sizes)


sizes = sizes_option("8:1G; host: 8:64M")
# Every link of a machine has many data points: a curve in steps of four, so that they take seconds.
survey_sizes = sizes_option("8,64:1G:4; host: 8,64:64M:4")
BACKEND_NAMES = ("auto", *BACKENDS)  # auto never takes sim


def _backend_option(auto: str) -> Command:
    """Return the option --backend with what "auto" takes, in words."""
    return option(
        "--backend NAME",
        f"cuda (GPUs), host (CPU cores), sim (simulated), or auto: {auto}.",
        click.Choice(BACKEND_NAMES),
        default="auto",
    )


backend = _backend_option("cuda if there is a GPU, else host")
# CPU cores are taken only by name: they are no substitute for GPUs.
backend_of_a_machine = _backend_option("GPUs, never CPU cores")
fabric = option(
    "--fabric NAME|FILE",
    "The machine to simulate (docs/fabric-file.md).  [default: dgx-1v]",
    FILE_NAME,
    shell_complete=_fabrics,
)
_SAVE = "Save the run in this file.  [default: a new file in $XDG_STATE_HOME/collbench/runs]"
output = option("-o, --output FILE", _SAVE, OUTPUT)
force = option("--force", "Replace a file that exists.")


def nccl_option(text: str) -> Command:
    """Return the option --nccl with its help."""
    return option("--nccl PATH", text, FILE_NAME, envvar="COLLBENCH_NCCL", show_envvar=True)


nccl = nccl_option("Time this libnccl.so.2 instead of torch's or the system's.")
seed = option(
    "--seed N", "Seed of the random order.  [default: random, printed]", _checked_seed, type=int, default=new_seed
)
dtype = option(
    "--dtype TYPE", f"Element type of collectives: {', '.join(DTYPE_BYTES)}.", parse_dtype, default="float32"
)
redop = option("--op OP", f"Reduction: {', '.join(REDOPS)}.", click.Choice(REDOPS), name="redop", default="sum")
# What a choice of devices rests on.
allow_busy = option("--allow-busy", "Do not exclude busy or throttled GPUs; exclude only faulty ones.")
exclude = option("--exclude LIST", "Never choose these: nvidia-smi indices or UUIDs.")
max_age = option(
    "--max-age AGE", "Ignore saved runs that are older: 7d, 12h, 30m or 90s.", parse_duration, default="7d"
)
fresh = option("--fresh", "Measure now, even if a saved run fits.")
TABLE, NCCL_TESTS = "table", "nccl-tests"
output_format = option(
    "--format",
    "nccl-tests: print the text of nccl-tests, in and out of place.",
    click.Choice((TABLE, NCCL_TESTS)),
    name="output_format",
    default=TABLE,
)
json = json_option("Print the answer and the run as JSON.")
# The last options of the commands that measure with torch.
of_workers = (backend, fabric, output, force, seed, json, verbose_option)


def apply(*options: Command) -> Callable[[Command], Command]:
    """Return a decorator that adds these options, in this order, to a command's help."""

    def decorate(function: Command) -> Command:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def command_line(command: str) -> tuple[str, ...]:
    """Return the words that were typed, with the command's own name, to be kept in the run."""
    words = sys.argv[1:]
    return (command, *words[2 if words[:1] == ["--"] else 1 :])
