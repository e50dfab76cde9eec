"""Findings on NCCL's variables: typos, names of other programs, values that cost or that NCCL reads differently."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from collbench.machine.doctor.findings import Level
from collbench.machine.variables import NCCL_NAMES, OTHERS_NAMES, cost, meant, reader
from tests.machine.doctor.described import machine, named

ROOT = Path(__file__).parents[2]


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


def test_variables_between_hosts_say_so() -> None:
    assert reader("NCCL_IB_HCA") == "read by NCCL between hosts only"
    assert reader("NCCL_P2P_LEVEL") == "read by NCCL"


def test_no_value_is_reported_whole_that_is_longer_than_a_line() -> None:
    reported = named(machine(environment={"NCCL_DEBUG_FILE": "x" * 5000}), "NCCL_DEBUG_FILE").text
    assert "x…:" in reported
    assert len(reported) < 200


def test_what_a_file_sets_is_reported_with_its_file() -> None:
    facts = machine(configured=(("/etc/nccl.conf", "NCCL_P2P_DISABLE", "1"),))
    finding = named(facts, "NCCL_P2P_DISABLE")
    assert "1 (set in /etc/nccl.conf)" in finding.text
    assert "that file" in finding.fix


@pytest.mark.parametrize("name", ["NCCL_VERSION", "NCCL_ROOT", "NCCL_ASYNC_ERROR_HANDLING"])
def test_names_that_others_read_are_no_typos(name: str) -> None:
    assert name in OTHERS_NAMES
    assert "read not by NCCL" in reader(name)


def test_no_text_of_ours_names_a_variable_that_looks_like_a_typo() -> None:
    texts = [*(ROOT / "docs").glob("*.md"), *ROOT.glob("*.md")]
    used = {name for text in texts for name in re.findall(r"\bNCCL_[A-Z0-9_]*[A-Z0-9]\b", text.read_text("utf-8"))}
    assert {"NCCL_NVLS_ENABLE", "NCCL_P2P_DISABLE"} <= used & NCCL_NAMES
    typos = {name for name in used if not reader(name) and meant(name)}
    assert typos <= {"NCCL_P2P_DISABLED"}  # docs/doctor.md's example
