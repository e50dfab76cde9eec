"""NCCL's numbers of its versions, and which version brought a kind of registered memory."""

from __future__ import annotations

from collbench.model.operations import Registration


def format_version(version: int) -> str:
    """Return NCCL's number of a version as people write it: 22809 is "2.28.9"."""
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"


def lacking(registration: Registration, version: str) -> str:
    """Return which NCCL a kind of memory needs, as a clause, if this version ("2.26.2") lacks it; else ""."""
    major, minor, patch = map(int, version.split("."))
    if major * 10000 + minor * 100 + patch >= registration.oldest_nccl:
        return ""
    return f"needs NCCL {format_version(registration.oldest_nccl).removesuffix('.0')}, and this is {version}"
