"""The command line of `collbench train`, split into collbench's options, torchrun's, and the program's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from collbench.errors import UsageError
from collbench.launch import options
from collbench.launch.options import Option

BACKENDS = ("auto", "cuda", "host")
DEFAULT_MAX_AGE = "7d"


@dataclass(frozen=True, slots=True)
class TrainArguments:
    """What `collbench train` was asked. Own options are raw text; `program` is the script and all that follows it.

    Exactly one of `auto_select` and `devices` is set, and `program` is not empty, unless `help` is True.
    """

    auto_select: int | None = None
    devices: str | None = None
    exclude: str | None = None
    allow_busy: bool = False
    run: str | None = None
    max_age: str = DEFAULT_MAX_AGE
    fresh: bool = False
    backend: str = "auto"
    dry_run: bool = False
    nccl: str | None = None
    container: str | None = None
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
    """Return the words after `collbench train`, sorted by whom they are for. Raises UsageError.

    Reading stops at the script (or `--`): nothing from there on is looked at. `--help` stops it too.
    """
    own: dict[str, str] = {}
    torchrun: list[Option] = []
    rest = tuple(argv)
    while rest and rest[0].startswith("-") and rest[0] not in ("-", "--"):
        option = options.read(rest)
        if option.name == "--help":
            return TrainArguments(help=True)
        if option.name in options.OWN_VALUES or option.name in options.OWN_FLAGS:
            own[option.name] = option.value or ""
        else:
            torchrun.append(option)
        rest = rest[len(option.tokens) :]
    return _checked(_own(own, tuple(torchrun), rest[1:] if rest[:1] == ("--",) else rest))


def _own(own: dict[str, str], torchrun: tuple[Option, ...], program: tuple[str, ...]) -> TrainArguments:
    return TrainArguments(
        auto_select=_count(own["--auto-select"]) if "--auto-select" in own else None,
        devices=own.get("--devices"),
        exclude=own.get("--exclude"),
        allow_busy="--allow-busy" in own,
        run=own.get("--run"),
        max_age=own.get("--max-age", DEFAULT_MAX_AGE),
        fresh="--fresh" in own,
        backend=own.get("--backend", "auto"),
        dry_run="--dry-run" in own,
        nccl=own.get("--nccl"),
        container=own.get("--container"),
        torchrun_options=torchrun,
        program=program,
    )


def check_backend(name: str) -> None:
    """Raise UsageError for a backend that has no devices on this machine."""
    if name == "sim":
        raise UsageError(
            "--backend sim has no devices to use here: measure it, 'collbench pairs --backend sim --fabric NAME -o "
            "RUN', and choose by 'collbench select K --from RUN --elsewhere'"
        )
    if name not in BACKENDS:
        raise UsageError(f"backend '{name}' does not exist: write one of {', '.join(BACKENDS)}")


def _count(text: str) -> int:
    try:
        count = int(text)
    except ValueError:
        raise UsageError(f"--auto-select '{text}' is not a number of GPUs: write --auto-select 2") from None
    if count < 1:
        raise UsageError(f"--auto-select {count} leaves no GPU to train on: it must be 1 or more")
    return count


def _checked(arguments: TrainArguments) -> TrainArguments:
    if not arguments.program:
        raise UsageError("no script to train: write collbench train --auto-select 2 train.py")
    if arguments.auto_select is None and arguments.devices is None:
        raise UsageError("no GPUs asked for: write --auto-select K, or --devices 0,3, before the script")
    if arguments.auto_select is not None and arguments.devices is not None:
        raise UsageError("--auto-select and --devices both say which GPUs to use: leave one out")
    if arguments.devices is not None and (arguments.exclude is not None or arguments.allow_busy):
        raise UsageError("--devices says which GPUs to use, --exclude and --allow-busy help to choose: leave one out")
    if arguments.run is not None and arguments.fresh:
        raise UsageError("--run reads a saved run and --fresh ignores it: leave one out")
    check_backend(arguments.backend)
    if arguments.has("--module") and arguments.has("--no-python", "--run-path"):
        raise UsageError("--module starts a Python module, --no-python and --run-path a file: leave one out")
    return arguments
