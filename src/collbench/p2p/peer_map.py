"""What each link between GPUs does by peer access (P2P), examined alone: what was reported, and what arrived."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from collbench.model.errors import Failure, FailureKind, WrongData
from collbench.model.operations import Operation, Variant, Work
from collbench.model.run import Device, Path, PeerStatus, SkipKind, Skipped
from collbench.model.units import STAGED_FASTER

Link: TypeAlias = tuple[int, int]  # positions: source, destination

KERNEL_WRITE, KERNEL_READ = Work(Operation.SM_WRITE), Work(Operation.SM_READ)
COPY_ENGINE = Work(Operation.CE_WRITE)
THROUGH_HOST = Work(Operation.CE_WRITE, Variant.STAGED)
BY_PEER_ACCESS = (KERNEL_WRITE, KERNEL_READ, COPY_ENGINE)
WAYS = (*BY_PEER_ACCESS, THROUGH_HOST)
# What `nvidia-smi topo -p2p` takes: read, write, NVLink, atomics, PCIe; NVML numbers them so [nvml.h, r580].
CAPABILITIES = "rwnap"


class PeerState(StrEnum):
    """What a link does, from the worst to the best."""

    HANGS = "hangs"
    CORRUPTS = "wrong data"
    FAILS = "fails"
    UNKNOWN = "no answer"  # on a host so busy that this says nothing
    REFUSED = "refused"  # by the driver, which calls it possible
    SLOW = "slow"  # copies through host memory are faster
    NONE = "no P2P"  # the driver says so
    WORKS = "works"

    @property
    def is_broken(self) -> bool:
        """True for a link that the driver offers and that does not deliver."""
        return self in (PeerState.HANGS, PeerState.CORRUPTS, PeerState.FAILS)


_OF_FAILURE: dict[FailureKind | None, PeerState] = {
    FailureKind.HANG: PeerState.HANGS,
    FailureKind.BUSY: PeerState.UNKNOWN,
}


@dataclass(frozen=True, slots=True)
class Crossing:
    """Verified messages of one size over a link: their rate in GB/s, or why none arrived; `gbs` None is not timed."""

    work: Work
    size_bytes: int
    gbs: float | None = None
    refusal: Skipped | None = None
    failure: Failure | None = None
    wrong: WrongData | None = None

    @property
    def state(self) -> PeerState:
        """What these messages show."""
        if self.wrong:
            return PeerState.CORRUPTS
        if self.failure:
            return _OF_FAILURE.get(self.failure.kind, PeerState.FAILS)
        if self.refusal:
            return PeerState.NONE if self.refusal.kind is SkipKind.NO_PEERS else PeerState.REFUSED
        return PeerState.WORKS


@dataclass(frozen=True, slots=True)
class PeerLink:
    """One directed link. `nvml` and `tool` have the answers to CAPABILITIES; `nccl` is the transport that NCCL took.

    `without` has that which it took without the variable of this name, "" if it then failed.
    """

    devices: Link
    crossings: tuple[Crossing, ...]
    nvml: Mapping[str, PeerStatus] = field(default_factory=dict)
    tool: Mapping[str, PeerStatus] = field(default_factory=dict)
    nccl: str = ""
    without: Mapping[str, str] = field(default_factory=dict)

    def of(self, work: Work) -> Crossing | None:
        """Return the worst of what this work sent, else the largest message; None if it sent nothing."""
        return min(
            (crossing for crossing in self.crossings if crossing.work == work), key=_worst_then_largest, default=None
        )

    @property
    def state(self) -> PeerState:
        """The worst that peer access showed."""
        worst = min(
            (crossing for crossing in self.crossings if crossing.work in BY_PEER_ACCESS), key=_worst_then_largest
        ).state
        slow = worst is PeerState.WORKS and (self.staged_faster or 0) > STAGED_FASTER
        return PeerState.SLOW if slow else worst

    @property
    def copied(self) -> float | None:
        """The rate of the copy engine in GB/s; None if it is unknown."""
        direct = self.of(COPY_ENGINE)
        return direct.gbs if direct else None

    @property
    def staged_faster(self) -> float | None:
        """How many times the rate of the copy engine copies through host memory reach; None if one is unknown."""
        staged = self.of(THROUGH_HOST)
        return staged.gbs / self.copied if staged and staged.gbs and self.copied else None

    @property
    def cuda(self) -> bool:
        """Whether CUDA calls it possible that the source writes, and the destination reads."""
        return self.state is not PeerState.NONE


_ORDER = list(PeerState)


def _worst_then_largest(crossing: Crossing) -> tuple[int, int]:
    return _ORDER.index(crossing.state), -crossing.size_bytes


@dataclass(frozen=True, slots=True)
class PeerMap:
    """All links of a machine.

    `together`: why one process could not open all devices; then each link had a process of its own. `nccl_failure`:
    why NCCL's transports are unknown, or what NCCL did with them.
    """

    backend: str
    hostname: str
    devices: tuple[Device, ...]
    links: tuple[PeerLink, ...]
    paths: tuple[Path, ...] = ()
    fabric: str = ""
    together: Failure | None = None
    nccl_failure: Failure | WrongData | None = None
    seconds: float = 0.0

    def path(self, link: Link) -> Path | None:
        """Return what the tools report about a link's pair."""
        return next((path for path in self.paths if set(path.devices) == set(link)), None)
