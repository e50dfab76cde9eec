"""docs/guard.md says what the examples do: their files, variables, places, metrics and statuses."""

from __future__ import annotations

import re
from pathlib import Path

from tests.examples.programs import EXAMPLES, ROOT

DOCUMENT = (ROOT / "docs" / "guard.md").read_text(encoding="utf-8")
PROLOG = (EXAMPLES / "slurm" / "prolog.sh").read_text(encoding="utf-8")
TEXTFILE = (EXAMPLES / "systemd" / "collbench-textfile").read_text(encoding="utf-8")


def test_every_example_is_named_and_every_named_one_is_there() -> None:
    named = set(re.findall(r"\bexamples/([\w/.*-]+)", DOCUMENT))
    for name in named:
        assert list(EXAMPLES.glob(name.rstrip("/"))), name
    files = {path for path in EXAMPLES.rglob("*") if path.is_file()}
    reached = {path for name in named for path in EXAMPLES.glob(name.rstrip("/"))}
    reached |= {path for folder in reached if folder.is_dir() for path in folder.iterdir()}
    assert files <= reached


def test_the_prologs_limit_is_shorter_than_slurms() -> None:
    own_limit = re.search(r"COLLBENCH_LIMIT:-(\d+)", PROLOG)
    slurm_limit = re.search(r"PrologEpilogTimeout=(\d+)", DOCUMENT)
    assert own_limit is not None
    assert slurm_limit is not None
    assert int(own_limit[1]) + 5 < int(slurm_limit[1])  # 5 s until the kill


def test_metrics_are_the_scripts_and_the_exports() -> None:
    exported = "".join(path.read_text("utf-8") for path in (ROOT / "src/collbench/report").rglob("*.py"))
    for metric in set(re.findall(r"\bcollbench_[a-z_]+\b", DOCUMENT)):
        assert metric in TEXTFILE or metric.removeprefix("collbench_") in exported or metric in exported, metric


def test_the_timeouts_of_the_service_leave_room_for_the_script() -> None:
    service = Path(EXAMPLES / "systemd" / "collbench-check.service").read_text(encoding="utf-8")
    limit, timeout = re.search(r"LIMIT:-(\d+)", TEXTFILE), re.search(r"TimeoutStartSec=(\d+)", service)
    assert limit is not None
    assert timeout is not None
    assert int(limit[1]) + 5 < int(timeout[1])
