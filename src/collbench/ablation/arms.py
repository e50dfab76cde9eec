"""The two arms: what --without changes, what they are called, and in which order they run."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from collbench.errors import UsageError

# The user asks for exactly these by name, and they reach the children of one arm alone. NCCL gives control over P2P as
# a whole: over which wire it runs is CUDA's to say, so NVLink alone cannot be turned off [nccl-tests#250, nccl#1358].
SWITCHES: dict[str, dict[str, str]] = {
    "p2p": {"NCCL_P2P_DISABLE": "1"},
    "nvlink": {"NCCL_P2P_DISABLE": "1"},
    "shm": {"NCCL_SHM_DISABLE": "1"},
    "ib": {"NCCL_IB_DISABLE": "1"},
}
NVLINK_NOTE = (
    "NCCL has no switch for NVLink alone: without nvlink is NCCL_P2P_DISABLE=1, which turns P2P over PCIe off as well"
)
_GIVEN = re.compile(r"(NCCL_[A-Z0-9_]+)=(.*)", re.DOTALL)
# NVLink multicast: on shared hosts a mistake with it stops every GPU, so its switches are the user's own to set.
_NEVER = frozenset({"NCCL_NVLS_ENABLE"})


@dataclass(frozen=True, slots=True)
class Change:
    """What the second arm changes: switches by their words, and given variables; both as `environment`."""

    words: tuple[str, ...] = ()
    given: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def without(self) -> tuple[str, ...]:
        """What the second arm lacks, where that is all that it changes."""
        return () if self.given else self.words

    @property
    def names(self) -> tuple[str, str]:
        """What the two arms are called."""
        if not self.given:
            what = " and ".join(self.words)
            return f"with {what}", f"without {what}"
        without = [f"without {word}" for word in self.words]
        return "as is", " and ".join([*without, *(f"with {one}" for one in self.given)])


def parse_change(texts: Sequence[str]) -> Change:
    """Return what every --without asks for: words with commas between, and at the end NCCL_NAME=VALUE.

    A value may hold commas, as NCCL_PROTO=LL,LL128 does: it reaches to the end of its --without. Raises UsageError.
    """
    words: dict[str, None] = {}
    given: dict[str, str] = {}
    for text in texts:
        listed, variable = _divided(text)
        words |= dict.fromkeys(listed)
        given |= [variable] if variable else []
    environment = {name: value for word in words for name, value in SWITCHES[word].items()}
    for name, value in given.items():
        if environment.get(name, value) != value:
            raise UsageError(f"--without sets {name} twice, to {environment[name]} and to {value}: leave one out")
    return Change(tuple(words), tuple(f"{name}={value}" for name, value in given.items()), environment | given)


def _divided(text: str) -> tuple[list[str], tuple[str, str] | None]:
    """Return the words of one --without, and its variable with its value."""
    start = re.search(r"(?:^|,)\s*(?=NCCL_)", text)
    listed = text[: start.start()] if start else text
    words = [word.strip().lower() for word in listed.split(",")] if listed or not start else []
    for word in words:
        if word not in SWITCHES:
            raise _unknown(word)
    return words, _variable(text[start.end() :]) if start else None


def _variable(text: str) -> tuple[str, str]:
    found = _GIVEN.fullmatch(text)
    if found is None:
        raise UsageError(f"--without '{text}' sets no variable to a value: write it like --without NCCL_ALGO=Ring")
    name, value = found[1], found[2]
    if name in _NEVER:
        raise UsageError(
            f"--without {name}={value}: collbench never sets what switches NVLink multicast; to compare, train once "
            f"with {name} exported in your shell and once without"
        )
    if "\0" in value:
        raise UsageError(f"--without {name}: its value holds a zero byte, which no variable can")
    return name, value


def _unknown(word: str) -> UsageError:
    near = difflib.get_close_matches(word, SWITCHES, n=1, cutoff=0.5)
    meant = f"; did you mean {near[0]}?" if near else ""
    return UsageError(f"--without '{word}' is none of {', '.join(SWITCHES)}, and no variable NCCL_NAME=VALUE{meant}")


def refuse_alike(change: Change, inherited: Mapping[str, str]) -> None:
    """Raise UsageError where a variable already has the second arm's value: both arms would train alike."""
    for name, value in change.environment.items():
        if inherited.get(name, "").strip() == value and name in inherited:
            raise UsageError(
                f"{name}={value} is set already, so that both arms would train alike: unset it, or leave it out of "
                "--without"
            )


def sequence(repeats: int, seed: int) -> tuple[tuple[int, int], ...]:
    """Return (repeat, arm) in the order of the runs: each repeat has both, and who begins alternates from the seed on.

    So a drift of the machine, as it warms up say, reaches both arms alike.
    """
    order = []
    for repeat in range(repeats):
        first = (seed + repeat) % 2
        order += [(repeat, first), (repeat, 1 - first)]
    return tuple(order)
