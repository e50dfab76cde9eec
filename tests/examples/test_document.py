"""docs/guard.md says what the examples do: their files, variables, places, metrics and statuses."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("line", ["PrologFlags=Alloc", "PrologEpilogTimeout=60", "Prolog=/etc/slurm/prolog.d/50-"])
def test_slurm_conf_is_the_prologs_own(line: str) -> None:
    assert line in DOCUMENT
    assert line in PROLOG


@pytest.mark.parametrize(
    ("script", "defaults"),
    [
        (PROLOG, {"COLLBENCH": "/opt/collbench/bin/collbench", "COLLBENCH_LIMIT": "30",
                  "COLLBENCH_LOGS": "/var/log/collbench"}),
        (TEXTFILE, {"COLLBENCH_TEXTFILES": "/var/lib/node_exporter/textfile_collector"}),
    ],
)  # fmt: skip
def test_defaults_are_the_scripts(script: str, defaults: dict[str, str]) -> None:
    for name, default in defaults.items():
        assert f"${{{name}:-{default}}}" in script
        assert default in DOCUMENT


def test_the_prologs_limit_is_shorter_than_slurms() -> None:
    own_limit = re.search(r"COLLBENCH_LIMIT:-(\d+)", PROLOG)
    slurm_limit = re.search(r"PrologEpilogTimeout=(\d+)", DOCUMENT)
    assert own_limit is not None
    assert slurm_limit is not None
    assert int(own_limit[1]) + 5 < int(slurm_limit[1])  # 5 s until the kill


def test_the_line_of_a_refusal_is_the_prologs() -> None:
    shown = re.search(r"^    collbench-prolog: job 17: refused: (.*), see (\S+)/job-17.txt$", DOCUMENT, re.MULTILINE)
    assert shown is not None
    assert 'refuse "GPUs $gpus: labels and measurement disagree, see $text"' in PROLOG
    assert shown[1] == "GPUs 0,1,2,3: labels and measurement disagree"


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
