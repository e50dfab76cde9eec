"""Findings on NCCL's variables: typos, names of other programs, values that cost or that NCCL reads differently."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from collbench.machine.variables import NCCL_NAMES, OTHERS_NAMES, cost, meant, reader

ROOT = Path(__file__).parents[2]


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
