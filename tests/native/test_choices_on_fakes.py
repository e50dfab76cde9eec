"""What a simulated NCCL says that it chose, asked by a process of its own after the sweep."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.native.fakes import Fakes, Outcome

_MIB = 2**20


def _allreduce(
    fakes: Fakes, tmp_path: Path, *words: str, command: str = "allreduce", **variables: str
) -> tuple[Outcome, dict[str, Any]]:
    arguments = [command, "--backend", "cuda", "--sizes", "1K,16K", *words, "--verbose", "--output", "run.json"]
    environment = {"COLLBENCH_NCCL": str(fakes.nccl), "NO_COLOR": "1", **variables}
    done = fakes.run(
        [sys.executable, "-m", "collbench", *arguments],
        tmp_path,
        environment,
        gpus=2,
        memory=4096 * _MIB,
        free=1282 * _MIB,
    )
    assert done.code == 0, done.stderr
    return done, json.loads((tmp_path / "run.json").read_text())


def test_nccl_is_asked_when_the_user_asks(fakes: Fakes, tmp_path: Path) -> None:
    done, run = _allreduce(fakes, tmp_path, "--algorithms", NCCL_P2P_LEVEL="NVL")

    reported = [tuple(chosen.values()) for chosen in run["chosen"]]
    assert reported == [("allreduce", 2, 1024, "RING", "LL", 1), ("allreduce", 2, 16384, "RING", "LL128", 24)]
    assert "LL128" in done.stdout
    assert "separate process with NCCL_DEBUG=INFO" in done.stdout
    # What collbench set for the process that it asked is not what the user had set.
    assert run["settings"]["environment"] == {"NCCL_P2P_LEVEL": "NVL"}


def test_nobody_is_asked_otherwise(fakes: Fakes, tmp_path: Path) -> None:
    done, run = _allreduce(fakes, tmp_path)

    assert run["chosen"] == []
    assert "NCCL_DEBUG" not in done.stdout


def test_a_users_own_log_stays_as_it_was_asked_for(fakes: Fakes, tmp_path: Path) -> None:
    own = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": str(tmp_path / "mine.%p")}
    _, run = _allreduce(fakes, tmp_path, "--algorithms", **own)

    assert len(list(tmp_path.glob("mine.*"))) == 1, "of the process that measured, and not of the one that was asked"
    assert run["settings"]["environment"] == own
    assert len(run["chosen"]) == 2


def test_what_nccl_does_not_tell_is_said_to_be_missing(fakes: Fakes, tmp_path: Path) -> None:
    done, run = _allreduce(fakes, tmp_path, "--algorithms", command="sendrecv")

    assert run["chosen"] == []
    assert "skipped   algorithms, protocols and channels" in done.stdout
