"""Findings on NCCL's variables: typos, names that nobody knows, what a file sets."""

from __future__ import annotations

import pytest

from collbench.preflight.findings import Level
from collbench.preflight.judge import cost
from tests.preflight.described import machine, named


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("NCCL_P2P_DISABLED", "NCCL_P2P_DISABLE"),
        ("NCCL_P2P_DISABEL", "NCCL_P2P_DISABLE"),
        ("NCCL_NVLS_ENABLED", "NCCL_NVLS_ENABLE"),
        ("NCCL_SOCKET_IFNAMES", "NCCL_SOCKET_IFNAME"),
        ("NCCL_DEBUG_SUBSYSTEM", "NCCL_DEBUG_SUBSYS"),
        ("NCCL_IB_HCAS", "NCCL_IB_HCA"),
    ],
)
def test_a_typo_warns_and_names_what_was_meant(name: str, right: str) -> None:
    finding = named(machine(environment={name: "1"}), name)
    assert (finding.level, finding.fix) == (Level.WARN, f"did you mean {right}?")


def test_a_name_like_no_other_is_unknown_and_no_fault() -> None:
    finding = named(machine(environment={"NCCL_FASTRAK_LLCM_DEVICE": "x"}), "NCCL_FASTRAK_LLCM_DEVICE")
    assert (finding.level, finding.fix) == (Level.UNKNOWN, "")


def test_no_value_is_reported_whole_that_is_longer_than_a_line() -> None:
    reported = named(machine(environment={"NCCL_DEBUG_FILE": "x" * 5000}), "NCCL_DEBUG_FILE").text
    assert "x…:" in reported
    assert len(reported) < 200


def test_what_a_file_sets_is_reported_with_its_file() -> None:
    facts = machine(configured=(("/etc/nccl.conf", "NCCL_P2P_DISABLE", "1"),))
    finding = named(facts, "NCCL_P2P_DISABLE")
    assert "1 (set in /etc/nccl.conf)" in finding.text
    assert "that file" in finding.fix


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("NCCL_P2P_DISABLE", "1", "host memory"),
        ("NCCL_P2P_DISABLE", "0", ""),
        ("NCCL_P2P_DISABLE", "true", "reads this text as 0"),
        ("NCCL_P2P_LEVEL", "LOC", "host memory"),
        ("NCCL_P2P_LEVEL", "NVL", ""),
        ("NCCL_NVLS_ENABLE", "0", ""),  # a choice that hosts which share a switch must make
        ("NCCL_NVLS_ENABLE", "off", "reads this text as 0"),
        ("NCCL_MAX_NCHANNELS", "0x8", "fewer channels"),
        ("NCCL_BUFFSIZE", "0xA00000", "smaller buffers"),
        ("NCCL_COMM_BLOCKING", "-1", ""),
        ("NCCL_DEBUG", "trace", "every call"),
        ("NCCL_DEBUG", "INFO", ""),
        ("NCCL_ALGO", "Ring", "best"),
        ("NCCL_LOCAL_REGISTER", "", ""),  # an empty value is none to NCCL
    ],
)
def test_a_value_states_its_cost(name: str, value: str, words: str) -> None:
    assert words in cost(name, value)
    assert bool(cost(name, value)) == bool(words)
