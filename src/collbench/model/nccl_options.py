"""What a measurement asks of NCCL beyond its defaults: registered memory, and the fields of ncclConfig_t."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from collbench.model.errors import UsageError
from collbench.model.operations import Registration

# By nccl.h's name, the oldest NCCL whose ncclConfig_t has the field; csrc/nccl.cpp writes them. Not here:
# `blocking`, which NCCL_COMM_BLOCKING sets, names (text), and what only ncclCommShrink reads.
NCCL_CONFIG_FIELDS = {
    "cgaClusterSize": 21800,
    "minCTAs": 21800,
    "maxCTAs": 21800,
    "splitShare": 21800,
    "trafficClass": 22600,
    "collnetEnable": 22700,
    "CTAPolicy": 22700,
    "nvlsCTAs": 22700,
    "nChannelsPerNetPeer": 22800,
    "nvlinkCentricSched": 22800,
    "graphUsageMode": 22900,
    "numRmaCtx": 22900,
    "maxP2pPeers": 23000,
    "graphStreamOrdering": 23005,
}
# NCCL_CTA_POLICY_ZERO, collectives by copy engine, which older libraries would take for no policy [nccl.h 2.28.3].
_CTA_POLICY_ZERO, _OLDEST_ZERO = 2, 22800
_LARGEST = 2**31 - 1


@dataclass(frozen=True, slots=True)
class NcclOptions:
    """Kinds of registered memory that collectives need, and the communicators' config, by nccl.h's names.

    Kinds that are not `required` are left out where NCCL lacks them.
    """

    registrations: tuple[Registration, ...] = ()
    required: bool = True
    config: dict[str, int] = field(default_factory=dict, hash=False)

    def check(self, version: int) -> None:
        """Raise UsageError where an NCCL of this version, as NCCL numbers it, is too old."""
        for registration in self.registrations if self.required else ():
            _refuse(f"--registration {registration}", registration.oldest_nccl, version)
        for name, value in self.config.items():
            zero = name == "CTAPolicy" and value == _CTA_POLICY_ZERO
            _refuse(f"--nccl-config {name}={value}", _OLDEST_ZERO if zero else NCCL_CONFIG_FIELDS[name], version)


def _refuse(option: str, oldest: int, version: int) -> None:
    if needs := _needs(oldest, version):
        raise UsageError(f"{option} {needs}: leave it out, or name a newer library with --nccl PATH")


def _needs(oldest: int, version: int) -> str:
    """Return "needs NCCL 2.27, and this is 2.26.2", "" if this version is new enough."""
    if version >= oldest:
        return ""
    return f"needs NCCL {format_version(oldest).removesuffix('.0')}, and this is {format_version(version)}"


def checked_config(config: Mapping[str, int]) -> dict[str, int]:
    """Return the fields of ncclConfig_t. Raises UsageError for one that is unknown, or no number that NCCL takes."""
    for name, value in config.items():
        if name not in NCCL_CONFIG_FIELDS:
            raise UsageError(f"--nccl-config {name}: no such field; choose from {', '.join(NCCL_CONFIG_FIELDS)}")
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _LARGEST:
            raise UsageError(f"--nccl-config {name}={value} is not a whole number from 0: use {name}=1, for example")
    # NCCL compares both, and takes a maximum that is not set for the smallest number [2.28.9: init.cc, parseCommConfig]
    if "minCTAs" in config and config["minCTAs"] > config.get("maxCTAs", -1):
        raise UsageError("--nccl-config minCTAs also needs maxCTAs, at least as large: NCCL refuses minCTAs alone")
    # NCCL does not support it with 2, the default, and does not check it [2.30.7, docs: ncclConfig_t].
    if config.get("graphStreamOrdering") == 0 and config.get("graphUsageMode", 2) > 1:
        raise UsageError("--nccl-config graphStreamOrdering=0 also needs graphUsageMode=0 or 1: add one of them")
    return dict(config)


def parse_config(text: str) -> dict[str, int]:
    """Return the fields that "maxCTAs=8,CTAPolicy=2" names. Raises UsageError."""
    fields: dict[str, int] = {}
    for word in text.split(","):
        name, _, value = (part.strip() for part in word.partition("="))
        if not re.fullmatch(r"[0-9]{1,10}", value):
            raise UsageError(f"--nccl-config '{word}' is not a field and a number: write maxCTAs=8,CTAPolicy=2")
        if name in fields:
            raise UsageError(f"--nccl-config names {name} twice: use it once")
        fields[name] = int(value)
    return checked_config(fields)


def format_version(version: int) -> str:
    """Return NCCL's number of a version as people write it: 22809 is "2.28.9"."""
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"


def lacking(registration: Registration, version: str) -> str:
    """Return which NCCL a kind of memory needs, as a clause, if this version ("2.26.2") lacks it; else ""."""
    major, minor, patch = map(int, version.split("."))
    needs = _needs(registration.oldest_nccl, major * 10000 + minor * 100 + patch)
    return f"it {needs}" if needs else ""
