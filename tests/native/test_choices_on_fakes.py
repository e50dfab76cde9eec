"""What a simulated NCCL logs that it chose, read from a separate process after the sweep."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.native.fakes import Fakes, Outcome

_MIB = 2**20


def _allreduce(
    fakes: Fakes,
    tmp_path: Path,
    *options: str,
    command: str = "allreduce",
    nccl: int = 22809,
    variables: dict[str, str] | None = None,
) -> tuple[Outcome, dict[str, Any]]:
    arguments = [command, "--backend", "cuda", "--sizes", "1K,16K", *options, "--verbose", "--output", "run.json"]
    environment = {"COLLBENCH_NCCL": str(fakes.nccl), "NO_COLOR": "1", **(variables or {})}
    done = fakes.run(
        [sys.executable, "-m", "collbench", *arguments],
        tmp_path,
        environment,
        gpus=2,
        memory=4096 * _MIB,
        free=1290 * _MIB,
        nccl=nccl,
    )
    assert done.code == 0, done.stderr
    return done, json.loads((tmp_path / "run.json").read_text())


def test_nccls_choices_are_read_on_request(fakes: Fakes, tmp_path: Path) -> None:
    done, run = _allreduce(fakes, tmp_path, "--algorithms", variables={"NCCL_P2P_LEVEL": "NVL"})

    reported = [tuple(chosen.values()) for chosen in run["chosen"]]
    assert reported == [
        ("allreduce", 2, 1024, "RING", "LL", 1, "none"),
        ("allreduce", 2, 16384, "RING", "LL128", 24, "none"),
    ]
    assert "LL128" in done.stdout
    assert "separate process with NCCL_DEBUG=INFO" in done.stdout
    # The user's own settings are kept, not those that collbench sets for its own process.
    assert run["settings"]["environment"] == {"NCCL_P2P_LEVEL": "NVL"}


def test_a_users_own_nccl_log_stays_as_configured(fakes: Fakes, tmp_path: Path) -> None:
    user_variables = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": str(tmp_path / "mine.%p")}
    _, run = _allreduce(fakes, tmp_path, "--algorithms", variables=user_variables)

    assert len(list(tmp_path.glob("mine.*"))) == 1, "of the process that measured, and not of the one that was asked"
    assert run["settings"]["environment"] == user_variables
    assert len(run["chosen"]) == 2


def test_choices_that_nccl_does_not_log_are_reported_missing(fakes: Fakes, tmp_path: Path) -> None:
    done, run = _allreduce(fakes, tmp_path, "--algorithms", command="sendrecv")

    assert run["chosen"] == []
    assert "skipped   algorithms, protocols and channels" in done.stdout


def test_nccl_is_asked_for_every_memory_and_says_what_copy_engines_ran(fakes: Fakes, tmp_path: Path) -> None:
    options = ("--algorithms", "--registration", "all", "--nccl-config", "CTAPolicy=2")
    done, run = _allreduce(fakes, tmp_path, *options, command="allgather", nccl=22907)

    reported = {(chosen["size_bytes"], chosen["registration"]): chosen["protocol"] for chosen in run["chosen"]}
    assert reported == {
        (1024, "none"): "LL", (1024, "buffer"): "LL", (1024, "window"): "COPY ENGINE",
        (16384, "none"): "LL128", (16384, "buffer"): "LL128", (16384, "window"): "COPY ENGINE",
    }  # fmt: skip
    assert {chosen["algorithm"] for chosen in run["chosen"] if chosen["registration"] == "window"} == {"cudaMemcpy"}
    assert "COPY ENGINE" in done.stdout
    text = " ".join(done.stdout.split())
    assert "kernels CTAPolicy=2 does nothing for allgather, allgather buffer: NCCL has copy engines only for" in text
