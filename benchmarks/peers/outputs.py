"""Parses what the peers print: nccl-tests' text and nvbandwidth's JSON."""

from __future__ import annotations

import json
import re

# nvbandwidth's case for each of collbench's copies (method/measuring.md 2): "write" is issued by the source, "read" by
# the destination. nvbandwidth's names mean the same [testcases_ce.cpp:90-138, testcases_sm.cpp:94-167 of v0.8].
LINK_CASES = {
    "ce-write": "device_to_device_memcpy_write_ce",
    "ce-read": "device_to_device_memcpy_read_ce",
    "sm-write": "device_to_device_memcpy_write_sm",
    "sm-read": "device_to_device_memcpy_read_sm",
}
# A figure of these is one GPU's rate in one direction, while the other GPUs and the opposite direction are busy for
# longer than the timed region [testcase.cpp, allHostHelper, allHostBidirHelper; memcpy.cpp, USE_FIRST_BW]; so is
# collbench's.
HOST_CASES = {
    "h2d-ce": "host_to_device_memcpy_ce",
    "d2h-ce": "device_to_host_memcpy_ce",
    "h2d-sm": "host_to_device_memcpy_sm",
    "d2h-sm": "device_to_host_memcpy_sm",
    "h2d-ce host-both-ways": "host_to_device_bidirectional_memcpy_ce",
    "d2h-ce host-both-ways": "device_to_host_bidirectional_memcpy_ce",
    "h2d-sm host-both-ways": "host_to_device_bidirectional_memcpy_sm",
    "d2h-sm host-both-ways": "device_to_host_bidirectional_memcpy_sm",
    "h2d-ce host-all": "host_to_all_memcpy_ce",
    "d2h-ce host-all": "all_to_host_memcpy_ce",
    "h2d-sm host-all": "host_to_all_memcpy_sm",
    "d2h-sm host-all": "all_to_host_memcpy_sm",
    "h2d-ce host-all-both-ways": "host_to_all_bidirectional_memcpy_ce",
    "d2h-ce host-all-both-ways": "all_to_host_bidirectional_memcpy_ce",
    "h2d-sm host-all-both-ways": "host_to_all_bidirectional_memcpy_sm",
    "d2h-sm host-all-both-ways": "all_to_host_bidirectional_memcpy_sm",
    "ce-write local": "device_local_copy",
}
_COLUMNS = 13  # size count type redop root, then time algbw busbw #wrong out of place, and the same in place

Members = tuple[int, ...]


class PeerOutputError(ValueError):
    """A peer's output that has no figures, or says that data was wrong."""


def nccl_tests(text: str) -> dict[int, float]:
    """Return the out-of-place time in seconds by message size in bytes, from nccl-tests' table.

    Raises PeerOutputError for output without rows, with a row of another layout, or with wrong elements.
    """
    times: dict[int, float] = {}
    for line in text.splitlines():
        fields = line.split()
        if not fields or not fields[0].isdigit():
            continue
        if len(fields) != _COLUMNS:
            raise PeerOutputError(f"a row of {len(fields)} columns instead of {_COLUMNS}: {line.strip()}")
        if any(wrong_elements not in ("0", "N/A") for wrong_elements in (fields[8], fields[12])):
            raise PeerOutputError(f"nccl-tests found wrong elements: {line.strip()}")
        if int(fields[0]) > 0:  # fewer elements than ranks: nothing was sent
            times[int(fields[0])] = float(fields[5]) * 1e-6
    if not times:
        raise PeerOutputError("no rows of nccl-tests")
    return times


def nccl_version(text: str) -> str:
    """Return the version of the NCCL library that nccl-tests ran with, "2.28.9"; empty where it is not printed."""
    match = re.search(r"nccl-library=(\d+)", text)
    if match is None:
        return ""
    code = int(match[1])  # 22809: major × 10000 + minor × 100 + patch [nccl.h, NCCL_VERSION]
    return f"{code // 10000}.{code // 100 % 100}.{code % 100}"


def nvbandwidth(text: str) -> dict[str, dict[Members, float]]:
    """Return GB/s by case and by (src, dst), or by (gpu,) for copies from and to the host, and local ones.

    Row and column follow the code, not the arrows that nvbandwidth prints: a row's GPU issues the copy, so a "read"
    cell is the link column → row and a "write" cell row → column. Raises PeerOutputError for a case that did not pass.
    """
    try:
        cases = json.loads(text)["nvbandwidth"]["testcases"]
    except (ValueError, KeyError, TypeError) as error:
        raise PeerOutputError(f"no JSON of nvbandwidth: {error}") from error
    rates: dict[str, dict[Members, float]] = {}
    for case in cases:
        if case["status"] != "Passed":
            raise PeerOutputError(f"nvbandwidth's {case['name']} says {case['status']}")
        rates[case["name"]] = {
            _members(case["name"], row, column): float(value)
            for row, values in enumerate(case["bandwidth_matrix"])
            for column, value in enumerate(values)
            if value != "N/A"
        }
    return rates


def _members(case: str, row: int, column: int) -> Members:
    if "host" in case or "local" in case:
        return (column,)
    return (column, row) if "_read_" in case else (row, column)
