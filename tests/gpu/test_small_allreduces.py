"""`collbench latency --collectives` on real GPUs: all kinds of memory that this NCCL has, in under a minute."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from collbench.model.operations import Registration
from tests.gpu.machine import need_gpus, need_nccl

need_gpus(2)
NCCL = need_nccl()


def test_small_allreduces_take_microseconds_and_show_each_kind_of_memory(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "collbench", "latency", "--collectives", "--nccl", NCCL.path]
    began = time.monotonic()
    done = subprocess.run(
        [*command, "--json", "-o", "run.json"], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    took = time.monotonic() - began
    assert done.returncode == 0, done.stderr
    assert took < 60
    answers = json.loads(done.stdout)["answer"]["small_allreduces"]
    count = len(json.loads(done.stdout)["devices"])
    assert [answer["ranks"] for answer in answers] == sorted({*(2**n for n in range(1, count.bit_length())), count})
    answer = answers[0]
    kinds = {kind.value for kind in Registration if NCCL.version >= kind.oldest_nccl}
    assert {one["registration"] for one in answer["times"]} == kinds
    assert len(answer["times"]) == 14 * len(kinds)  # 128 B to 1 MiB
    (smallest,) = (one for one in answer["times"] if (one["size_bytes"], one["registration"]) == (128, "none"))
    assert 2e-6 < smallest["seconds"] < 40e-6
    for one in answer["times"]:
        assert one["launch_p99_seconds"] >= one["launch_p50_seconds"] > 1e-6
    assert answer["token"]["seconds"].keys() == kinds
    shown = subprocess.run(
        [sys.executable, "-m", "collbench", "show", "run.json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout.startswith("allreduce of 16K, fastest memory, µs: 2 ranks ")
    print(shown.stdout)
