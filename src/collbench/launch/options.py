"""The options that may stand before the script of `collbench train`: its own and torchrun's.

Where the script begins depends on which options take a value. The table is kept by hand because asking
torchrun's parser means importing torch (2-4 s); a test compares it with that parser.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from collbench.errors import UsageError

OWN_VALUES = frozenset(
    {"--auto-select", "--devices", "--exclude", "--run", "--max-age", "--backend", "--nccl", "--container"}
)
OWN_FLAGS = frozenset({"--allow-busy", "--fresh", "--dry-run", "--help"})

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

_FLAGS = OWN_FLAGS | TORCHRUN_FLAGS
_VALUES = OWN_VALUES | TORCHRUN_VALUES
# argparse takes "-1" for a value and "-x" for an option; so does torchrun, and so do we.
_NEGATIVE_NUMBER = re.compile(r"-\d+|-\d*\.\d+")


@dataclass(frozen=True, slots=True)
class Option:
    """One option as the user wrote it (`tokens`), by its long name; `value` is None for a flag."""

    name: str
    value: str | None
    tokens: tuple[str, ...]


def read(words: Sequence[str]) -> Option:
    """Return the option that `words` begins with. Raises UsageError if unknown or its value is amiss."""
    name, attached = _name_and_attached(words[0])
    if name in _FLAGS:
        if attached is not None:
            raise UsageError(f"option '{words[0]}' takes no value: write {words[0].partition('=')[0]}")
        return Option(name, None, (words[0],))
    if name not in _VALUES:
        raise _unknown(words[0])
    if attached is not None:
        return Option(name, attached, (words[0],))
    if len(words) < 2 or not _is_value(words[1]):
        raise UsageError(f"option '{words[0]}' needs a value: write {name} VALUE, before the script")
    return Option(name, words[1], (words[0], words[1]))


def _name_and_attached(word: str) -> tuple[str, str | None]:
    """Return the long name and what is glued to it: "--tee=3", "-t=3" and "-t3" are all ("--tee", "3")."""
    if not word.startswith("--") and word[:2] in SHORT:
        return SHORT[word[:2]], word[2:].removeprefix("=") if len(word) > 2 else None
    name, equals, value = word.partition("=")
    return _dashed(name), value if equals else None


def _dashed(name: str) -> str:
    """Return torchrun's `--log_dir` as `--log-dir`; torchrun refuses a mixture, and collbench has dashes only."""
    dashed = "--" + name[2:].replace("_", "-")
    is_torchrun = dashed in TORCHRUN_FLAGS or dashed in TORCHRUN_VALUES
    return dashed if is_torchrun and "-" not in name[2:] else name


def _is_value(word: str) -> bool:
    return not word.startswith("-") or word == "-" or _NEGATIVE_NUMBER.fullmatch(word) is not None


def _unknown(word: str) -> UsageError:
    name = word.partition("=")[0]
    known = sorted(_FLAGS | _VALUES)
    near = [option for option in known if option.startswith(name)]
    near = near or difflib.get_close_matches(name, known, n=1, cutoff=0.8)  # at 0.6, --lr would be --run
    meant = f"write {' or '.join(near)} in full, or " if near else ""
    return UsageError(
        f"option '{name}' is neither collbench's nor torchrun's (as of torch 2.13): "
        f"{meant}put the script's own options after the script"
    )
