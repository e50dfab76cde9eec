"""NCCL's variables: typos, and names of other programs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from collbench.machine.variables import NCCL_NAMES, OTHERS_NAMES, meant, reader

ROOT = Path(__file__).parents[2]


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
