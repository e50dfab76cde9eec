"""The command lines of `train` and `ablate`, split into collbench's options, torchrun's, and the program's."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from collbench.launch.ablation import PRECISION
from collbench.model import capabilities
from collbench.model.errors import UsageError
from collbench.model.units import parse_budget, parse_duration, parse_precision

BACKENDS = ("auto", *(name for name in capabilities.BACKENDS if not capabilities.is_simulated(name)))
DEFAULT_MAX_AGE = timedelta(days=7)
DEFAULT_BUDGET_S = 180.0


def _backend(name: str) -> str:
    """Return a backend that has devices on this machine. Raises UsageError."""
    if capabilities.is_simulated(name):
        raise UsageError(
            f"--backend {name} has no devices to train on: 'collbench select K --backend {name} --fabric NAME' says "
            "what would be chosen on a simulated machine"
        )
    if name not in BACKENDS:
        raise UsageError(f"backend '{name}' does not exist: write one of {', '.join(BACKENDS)}")
    return name


def _count(text: str) -> int:
    try:
        count = int(text)
    except ValueError:
        raise UsageError(f"--auto-select '{text}' is not a number of GPUs: write --auto-select 2") from None
    if count < 1:
        raise UsageError(f"--auto-select {count} leaves no GPU to train on: use 1 or more")
    return count


def whole_option(own_options: Mapping[str, str], name: str, *, least: int = 0, why: str = "") -> int | None:
    """Return a whole number from `least` on, with six digits at most; None if the option was not given."""
    text = own_options.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 6):
        raise UsageError(f"{name} '{text}' is not a whole number from {least}: write {name} {max(least, 3)}")
    if int(text) < least:
        raise UsageError(f"{name} {text}: {why}: write {least} or more")
    return int(text)


# The options that may stand before the script of `collbench train`: its own and torchrun's.
#
# Where the script begins depends on which options take a value. The table of torchrun's is kept by hand because asking
# its parser means importing torch (2-4 s); a test compares it with that parser.

# By an option's name, the field that it sets, and what reads its value; of a flag, what it sets the field to.
_Values = Mapping[str, tuple[str, Callable[[str], object]]]
_Flags = Mapping[str, tuple[str, bool]]
_TRAIN_VALUES: _Values = {
    "--auto-select": ("auto_select", _count),
    "--devices": ("devices", str),
    "--exclude": ("exclude", str),
    "--run-file": ("run", str),
    "--max-age": ("max_age", parse_duration),
    "--backend": ("backend", _backend),
    "--nccl": ("nccl", str),
    "--job": ("job", str),
}
_TRAIN_FLAGS: _Flags = {
    "--allow-busy": ("allow_busy", True),
    "--fresh": ("fresh", True),
    "--dry-run": ("dry_run", True),
}
_ABLATE_VALUES: _Values = {
    "--against": ("against", str),
    "--precision": ("precision", parse_precision),
    "--budget": ("budget_seconds", parse_budget),
    "--step-pattern": ("step_pattern", str),
    "--output": ("output", str),
}
_ABLATE_FLAGS: _Flags = {
    "--no-allreduce": ("allreduce", False),
    "--json": ("json", True),
    "--verbose": ("verbose", True),
    "--force": ("force", True),
}
TRAIN_VALUES, TRAIN_FLAGS = frozenset(_TRAIN_VALUES), frozenset({*_TRAIN_FLAGS, "--help"})
ABLATE_VALUES = frozenset({*_ABLATE_VALUES, "--without", "--repeats", "--skip", "--seed"})
ABLATE_FLAGS = frozenset(_ABLATE_FLAGS)


def _fields(own_options: Mapping[str, str], values: _Values, flags: _Flags) -> dict[str, Any]:
    """Return the fields that options set. Raises UsageError for a value that cannot be read."""
    read = {field: reader(own_options[name]) for name, (field, reader) in values.items() if name in own_options}
    return read | {field: value for name, (field, value) in flags.items() if name in own_options}


# [torch 2.13, torch/distributed/run.py, get_args_parser]
TORCHRUN_FLAGS = frozenset({"--standalone", "--module", "--no-python", "--run-path", "--virtual-local-rank"})
RENDEZVOUS = frozenset(
    {
        *("--nnodes", "--node-rank", "--master-addr", "--master-port", "--local-addr"),
        *("--rdzv-backend", "--rdzv-endpoint", "--rdzv-id", "--rdzv-conf"),
    }
)
TORCHRUN_VALUES = RENDEZVOUS | {
    *("--nproc-per-node", "--max-restarts", "--monitor-interval", "--start-method", "--role"),
    *("--log-dir", "--redirects", "--tee", "--local-ranks-filter", "--logs-specs", "--event-log-handler"),
    *("--duplicate-stdout-filters", "--duplicate-stderr-filters"),
    *("--numa-binding", "--signals-to-handle", "--shutdown-timeout"),
}
SHORT = {"-h": "--help", "-m": "--module", "-r": "--redirects", "-t": "--tee"}

# argparse takes "-1" for a value and "-x" for an option; so does torchrun, and so do we.
_NEGATIVE_NUMBER = re.compile(r"-\d+|-\d*\.\d+")


@dataclass(frozen=True, slots=True)
class Option:
    """One option as the user wrote it (`tokens`), by its long name; `value` is None for a flag."""

    name: str
    value: str | None
    tokens: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Known:
    """The options that a command line may have before its script, by long names, and the short ones."""

    values: frozenset[str]
    flags: frozenset[str]
    short: Mapping[str, str]


TRAIN = Known(TRAIN_VALUES | TORCHRUN_VALUES, TRAIN_FLAGS | TORCHRUN_FLAGS, SHORT)
ABLATE = Known(TRAIN.values | ABLATE_VALUES, TRAIN.flags | ABLATE_FLAGS, {**SHORT, "-o": "--output"})


def read(arguments: Sequence[str], known_options: Known = TRAIN) -> Option:
    """Parse the option at the start of `arguments`. Raises UsageError if it is unknown or its value is wrong."""
    name, attached = _name_and_attached(arguments[0], known_options.short)
    if name in known_options.flags:
        if attached is not None:
            raise UsageError(f"option '{arguments[0]}' takes no value: write {arguments[0].partition('=')[0]}")
        return Option(name, None, (arguments[0],))
    if name not in known_options.values:
        raise _unknown(arguments[0], known_options)
    if attached is not None:
        return Option(name, attached, (arguments[0],))
    if len(arguments) < 2 or arguments[1] == "--" or not (name in ABLATE_VALUES or _is_value(arguments[1])):
        raise UsageError(f"option '{arguments[0]}' needs a value: write {name} VALUE, before the script")
    return Option(name, arguments[1], (arguments[0], arguments[1]))


def _name_and_attached(argument: str, short: Mapping[str, str]) -> tuple[str, str | None]:
    """Return the long name and what is glued to it: "--tee=3", "-t=3" and "-t3" are all ("--tee", "3")."""
    if not argument.startswith("--") and argument[:2] in short:
        return short[argument[:2]], argument[2:].removeprefix("=") if len(argument) > 2 else None
    name, equals, value = argument.partition("=")
    return _dashed(name), value if equals else None


def _dashed(name: str) -> str:
    """Return torchrun's `--log_dir` as `--log-dir`; torchrun refuses a mixture, and collbench has dashes only."""
    dashed = "--" + name[2:].replace("_", "-")
    is_torchrun = dashed in TORCHRUN_FLAGS or dashed in TORCHRUN_VALUES
    return dashed if is_torchrun and "-" not in name[2:] else name


def _is_value(argument: str) -> bool:
    return not argument.startswith("-") or argument == "-" or _NEGATIVE_NUMBER.fullmatch(argument) is not None


def _unknown(argument: str, known_options: Known) -> UsageError:
    name, names = argument.partition("=")[0], sorted(known_options.flags | known_options.values)
    near = [option for option in names if option.startswith(name)]
    near = near or difflib.get_close_matches(name, names, n=1, cutoff=0.8)  # at 0.6, --lr would be --run-file
    meant = f"write {' or '.join(near)} in full, or " if near else ""
    return UsageError(
        f"option '{name}' is neither collbench's nor torchrun's (as of torch 2.13): "
        f"{meant}put the script's own options after the script"
    )


# Collbench's own options that training scripts hardly ever have; many have a --backend or --devices.
_RARELY_A_SCRIPTS = ("--auto-select", "--allow-busy", "--exclude", "--max-age", "--run-file")


def passed_on(program: Sequence[str]) -> str:
    """Return the line on options of collbench that stand after the script, and so are the script's; "" without any."""
    names = {word.partition("=")[0] for word in program[1:]}
    misplaced = [name for name in _RARELY_A_SCRIPTS if name in names]
    if not misplaced:
        return ""
    them = "it" if len(misplaced) == 1 else "them"
    return (
        f"{', '.join(misplaced)} passed to {program[0]}: put {them} before the script if collbench should read {them}"
    )


# An option, those that it excludes, and why.
_EXCLUSIVE = (
    ("--auto-select", {"--devices"}, "--auto-select and --devices both say which GPUs to use"),
    (
        "--devices",
        {"--exclude", "--allow-busy"},
        "--devices names the GPUs, --exclude and --allow-busy affect an automatic choice",
    ),
    ("--devices", {"--job"}, "--devices says which GPUs to use, --job affects an automatic choice"),
    ("--job", {"--nccl"}, "--job replays with the NCCL of this Python's torch, --nccl has another one"),
    ("--run-file", {"--fresh"}, "--run-file reads a saved run and --fresh ignores it"),
    ("--module", {"--no-python", "--run-path"}, "--module starts a Python module, --no-python and --run-path a file"),
    (
        "--repeats",
        {"--precision", "--budget"},
        "--repeats says how often to train, --precision and --budget when to stop",
    ),
    ("--without", {"--against"}, "--without changes what NCCL may use, --against changes the devices"),
)


def _check_exclusive(given: Collection[str]) -> None:
    """Raise UsageError if one of the given options excludes another."""
    for name, others, why in _EXCLUSIVE:
        if name in given and not others.isdisjoint(given):
            raise UsageError(f"{why}: use only one")


# The command line of `collbench train`, split into collbench's options, torchrun's, and the program's.


@dataclass(frozen=True, slots=True)
class TrainArguments:
    """What `collbench train` was asked. Own options are raw text; `program` is the script and all that follows it.

    `job` is the file of a recorded job to choose for.

    Exactly one of `auto_select` and `devices` is set, and `program` is not empty, unless `help` is True.
    """

    auto_select: int | None = None
    devices: str | None = None
    exclude: str | None = None
    allow_busy: bool = False
    run: str | None = None
    max_age: timedelta = DEFAULT_MAX_AGE
    fresh: bool = False
    backend: str = "auto"
    dry_run: bool = False
    nccl: str | None = None
    job: str | None = None
    help: bool = False
    torchrun_options: tuple[Option, ...] = ()
    program: tuple[str, ...] = ()

    def has(self, *names: str) -> bool:
        """Return whether one of these torchrun options, by long name with dashes, was given."""
        return any(option.name in names for option in self.torchrun_options)

    def value(self, name: str) -> str | None:
        """Return the value of a torchrun option, by long name with dashes; of several the last, as torchrun does."""
        return next((option.value for option in reversed(self.torchrun_options) if option.name == name), None)


def split(argv: Sequence[str]) -> TrainArguments:
    """Return the arguments of `collbench train`, sorted by receiver. Raises UsageError.

    Parsing stops at the script (or `--`). `--help` stops it too. A --dry-run after the script is refused, because a job
    that starts by mistake is costly; after `--` everything is the script's.
    """
    own_options: dict[str, str] = {}
    torchrun_options: list[Option] = []
    given: set[str] = set()
    rest = tuple(argv)
    while rest and rest[0].startswith("-") and rest[0] not in ("-", "--"):
        option = read(rest)
        if option.name == "--help":
            return TrainArguments(help=True)
        given.add(option.name)
        if option.name in TRAIN_VALUES or option.name in TRAIN_FLAGS:
            own_options[option.name] = option.value or ""
        else:
            torchrun_options.append(option)
        rest = rest[len(option.tokens) :]
    # First, because --auto-select may have taken the script for its number.
    fields = _fields(own_options, _TRAIN_VALUES, _TRAIN_FLAGS)
    program = rest[1:] if rest[:1] == ("--",) else rest
    if rest[:1] != ("--",) and "--dry-run" in program[1:]:
        raise UsageError(
            f"--dry-run after {program[0]} is the script's, and the job would start: put it before {program[0]}, or "
            f"write -- before {program[0]} to pass it on"
        )
    if not program:
        raise UsageError("no script to train: write collbench train --auto-select 2 train.py")
    if given.isdisjoint({"--auto-select", "--devices"}):
        raise UsageError("no GPUs asked for: write --auto-select K, or --devices 0,3, before the script")
    _check_exclusive(given)
    return TrainArguments(torchrun_options=tuple(torchrun_options), program=program, **fields)


# The command line of `collbench ablate`, split into its own options and what is for `collbench train`.


# These choose devices, or start nothing: that is done once, and each training gets the result.
_NOT_PASSED_ON = TRAIN_VALUES | TRAIN_FLAGS


@dataclass(frozen=True, slots=True)
class AblateArguments:
    """What `collbench ablate` was asked.

    `train` are the arguments as `collbench train` reads them, `passed` those before the script that each training gets
    unchanged; `without` and `against` are raw text. `repeats` None: until the ratio is known to ± `precision`, a share,
    or `budget_seconds` are spent.
    """

    train: TrainArguments
    passed: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    against: str | None = None
    repeats: int | None = None
    precision: float = PRECISION
    budget_seconds: float = DEFAULT_BUDGET_S
    skip: int | None = None
    step_pattern: str | None = None
    seed: int | None = None
    output: str | None = None
    allreduce: bool = True
    json: bool = False
    verbose: bool = False
    force: bool = False


def split_ablation(argv: Sequence[str]) -> AblateArguments:
    """Return the arguments of `collbench ablate`, sorted by receiver. Raises UsageError.

    Reading stops at the script (or `--`), and at `--help`, whose answer is then all that counts.
    """
    own_options: dict[str, str] = {}
    without: list[str] = []
    train_options: list[Option] = []
    given: set[str] = set()
    rest = tuple(argv)
    while rest and rest[0].startswith("-") and rest[0] not in ("-", "--"):
        option = read(rest, ABLATE)
        if option.name == "--help":
            return AblateArguments(TrainArguments(help=True))
        given.add(option.name)
        if option.name == "--without":
            without.append(option.value or "")
        elif option.name in ABLATE_VALUES | ABLATE_FLAGS:
            own_options[option.name] = option.value or ""
        else:
            train_options.append(option)
        rest = rest[len(option.tokens) :]
    if rest and rest[0].endswith(".json"):
        raise UsageError(f"{rest[0]} is no script: a recorded job is compared with collbench replay {rest[0]}")
    _check_exclusive(given)
    program = rest[1:] if rest[:1] == ("--",) else rest
    return _checked_ablation(own_options, tuple(without), train_options, program)


def _checked_ablation(
    own_options: Mapping[str, str], without: tuple[str, ...], train_options: Sequence[Option], program: Sequence[str]
) -> AblateArguments:
    example = "collbench ablate --auto-select 2 --without p2p -- train.py"
    if not program:
        raise UsageError(f"no script to train: write {example}")
    if not without and "--against" not in own_options:
        raise UsageError(f"nothing to compare with: write --without p2p, or --against 2,3, as in {example}")
    train_tokens = [token for option in train_options for token in option.tokens]
    return AblateArguments(
        split([*train_tokens, "--", *program]),
        passed=tuple(token for option in train_options if option.name not in _NOT_PASSED_ON for token in option.tokens),
        without=without,
        repeats=whole_option(own_options, "--repeats", least=2, why="one run of each arm gives no interval"),
        skip=whole_option(own_options, "--skip"),
        seed=whole_option(own_options, "--seed"),
        **_fields(own_options, _ABLATE_VALUES, _ABLATE_FLAGS),
    )
