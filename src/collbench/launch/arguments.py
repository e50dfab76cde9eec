"""What `train` and `ablate` start: the script, torchrun's options before it, and how an ablation repeats it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

DEFAULT_BUDGET_S = 180.0

# Torchrun's options: where the script begins depends on which of them take a value. The table is kept by hand because
# asking its parser means importing torch (2-4 s); a test compares it with that parser.

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
SHORT = {"--module": "-m", "--redirects": "-r", "--tee": "-t"}


@dataclass(frozen=True, slots=True)
class Script:
    """A script with all that follows it, and torchrun's options by long name with dashes; None is a flag's value."""

    program: tuple[str, ...]
    torchrun: Mapping[str, str | None] = field(default_factory=dict)

    def has(self, *names: str) -> bool:
        """Return whether one of these options was given."""
        return not self.torchrun.keys().isdisjoint(names)

    @property
    def options(self) -> tuple[str, ...]:
        """The options as torchrun reads them."""
        return tuple(word for name, value in self.torchrun.items() for word in (name, value) if word is not None)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class AblateOptions:
    """How `collbench ablate` compares, besides the choice of devices.

    `without` and `against` are raw text. `repeats` None: until the ratio is known to ± `precision`, a share, or
    `budget` seconds are spent.
    """

    without: tuple[str, ...] = ()
    against: str | None = None
    repeats: int | None = None
    precision: float | None = None
    budget: float | None = None
    skip: int | None = None
    step_pattern: str | None = None
    seed: int | None = None
    output: Path | None = None
    allreduce: bool = True
    force: bool = False
