"""The map of P2P on real GPUs: healthy links work, in a few seconds, and NCCL's log names a transport for each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from tests.gpu.machine import need_gpus, need_nccl

need_gpus(2)
need_nccl()


def _mapped(**variables: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "collbench", "check", "--map-p2p", "--backend", "cuda", "--json"]
    done = subprocess.run(
        command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=100, check=False
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    assert answer["exit_status"] == done.returncode
    return answer


def test_every_link_of_a_healthy_machine_has_an_answer_and_no_failure() -> None:
    answer = _mapped()
    assert {link["state"] for link in answer["links"]} <= {"works", "no P2P"}
    assert answer["nccl_failure"] == ""
    assert all(link["nccl"] for link in answer["links"])
    assert all(link["nvml"] for link in answer["links"])


def test_nccl_told_not_to_use_p2p_is_named_where_p2p_works() -> None:
    answer = _mapped(NCCL_P2P_DISABLE="1")
    working = [link for link in answer["links"] if link["state"] == "works"]
    assert not [link["nccl"] for link in working if link["nccl"].startswith("P2P/")]
    assert bool(working) is any(cause["name"] == "NCCL variable" for cause in answer["causes"])
