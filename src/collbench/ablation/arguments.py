"""The command line of `collbench ablate`, split into its own options and what is for `collbench train`."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from collbench.errors import UsageError
from collbench.launch import arguments, options
from collbench.launch.arguments import TrainArguments
from collbench.launch.options import Option

VALUES = frozenset({"--without", "--against", "--repeats", "--skip", "--step-pattern", "--seed", "--output"})
FLAGS = frozenset({"--no-allreduce", "--json", "--verbose", "--force"})
# These choose, once, before anything trains: `train` gets the devices that came of it.
CHOOSING = frozenset({"--auto-select", "--devices", "--run", "--max-age", "--fresh", "--backend", "--nccl"})
CHOOSING |= {"--exclude", "--allow-busy", "--dry-run", "--help"}
_SHORT = {"-o": "--output"}
DEFAULT_REPEATS = 3


@dataclass(frozen=True, slots=True)
class AblateArguments:
    """What `collbench ablate` was asked.

    `train` are the words as `collbench train` reads them, `passed` those among them, before the script, that reach it
    as they are; `choosing` the others among them; `without` and `against` raw text.
    """

    train: TrainArguments
    passed: tuple[str, ...] = ()
    choosing: tuple[tuple[str, str | None], ...] = ()
    without: tuple[str, ...] = ()
    against: str | None = None
    repeats: int = DEFAULT_REPEATS
    skip: int | None = None
    step_pattern: str | None = None
    seed: int | None = None
    output: str | None = None
    allreduce: bool = True
    json: bool = False
    verbose: bool = False
    force: bool = False


def split(argv: Sequence[str]) -> AblateArguments:
    """Return the words after `collbench ablate`, sorted by whom they are for. Raises UsageError.

    Reading stops at the script (or `--`), and at `--help`, whose answer is then all that counts.
    """
    own: dict[str, str] = {}
    without: list[str] = []
    theirs: list[Option] = []
    rest = tuple(argv)
    while rest and rest[0].startswith("-") and rest[0] not in ("-", "--"):
        option = _read_own(rest)
        if option is None:
            option = _read_theirs(rest)
            theirs.append(option)
        elif option.name == "--without":
            without.append(option.value or "")
        else:
            own[option.name] = option.value or ""
        if option.name == "--help":
            return AblateArguments(TrainArguments(help=True))
        rest = rest[len(option.tokens) :]
    program = rest[1:] if rest[:1] == ("--",) else rest
    return _checked(own, tuple(without), theirs, program)


def _read_own(words: Sequence[str]) -> Option | None:
    """Return the option of ablate's that `words` begins with; None for any other. Raises UsageError."""
    short = _SHORT.get(words[0][:2]) if not words[0].startswith("--") else None
    name, equals, value = words[0].partition("=")
    if short is not None:
        name, equals, value = short, words[0][2:], words[0][2:].removeprefix("=")
    if name in FLAGS:
        if equals:
            raise UsageError(f"option '{words[0]}' takes no value: write {name}")
        return Option(name, None, (words[0],))
    if name not in VALUES:
        return None
    if equals:
        return Option(name, value, (words[0],))
    if len(words) < 2 or words[1] == "--":
        raise UsageError(f"option '{words[0]}' needs a value: write {name} VALUE, before the script")
    return Option(name, words[1], (words[0], words[1]))


def _read_theirs(words: Sequence[str]) -> Option:
    try:
        return options.read(words)
    except UsageError:
        name = words[0].partition("=")[0]
        ours = sorted(VALUES | FLAGS)
        near = [one for one in ours if one.startswith(name)] or difflib.get_close_matches(name, ours, n=1, cutoff=0.8)
        if not near:
            raise
        raise UsageError(f"option '{name}' does not exist: did you mean {' or '.join(near)}?") from None


def _checked(
    own: Mapping[str, str], without: tuple[str, ...], theirs: Sequence[Option], program: Sequence[str]
) -> AblateArguments:
    example = "collbench ablate --auto-select 2 --without p2p -- train.py"
    if not program:
        raise UsageError(f"no script to train: write {example}")
    if not without and "--against" not in own:
        raise UsageError(f"nothing to compare with: write --without p2p, or --against 2,3, as in {example}")
    if without and "--against" in own:
        raise UsageError(
            "--without changes what NCCL may use, --against the devices: one thing at a time, leave one out"
        )
    words = [token for option in theirs for token in option.tokens]
    return AblateArguments(
        arguments.split([*words, "--", *program]),
        passed=tuple(token for option in theirs if option.name not in CHOOSING for token in option.tokens),
        choosing=tuple((option.name, option.value) for option in theirs if option.name in CHOOSING),
        without=without,
        against=own.get("--against"),
        repeats=_whole(own, "--repeats", DEFAULT_REPEATS, least=2, why="one run of each gives no interval") or 0,
        skip=_whole(own, "--skip", None),
        step_pattern=own.get("--step-pattern"),
        seed=_whole(own, "--seed", None),
        output=own.get("--output"),
        allreduce="--no-allreduce" not in own,
        json="--json" in own,
        verbose="--verbose" in own,
        force="--force" in own,
    )


def _whole(own: Mapping[str, str], name: str, default: int | None, least: int = 0, why: str = "") -> int | None:
    """Return a whole number from `least` on; at most six digits, for more are a slip of the hand."""
    text = own.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) <= 6):
        raise UsageError(f"{name} '{text}' is not a whole number from {least}: write {name} {max(least, 3)}")
    if int(text) < least:
        raise UsageError(f"{name} {text}: {why}: write {least} or more")
    return int(text)
