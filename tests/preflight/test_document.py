"""docs/doctor.md shows `doctor`'s page, and names the fields of its JSON."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest

from collbench.preflight.command import dumps, page, summary
from collbench.preflight.findings import Finding, Level, MachineFacts, Space, Topic, status
from collbench.preflight.judge import judge
from tests.preflight.described import gpu, machine
from tests.report.pages import shows, text

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "doctor.md").read_text(encoding="utf-8")
SCHEMA = json.loads((ROOT / "docs" / "doctor.schema.json").read_text(encoding="utf-8"))
_WIDTH = 96  # of the document's example


def example() -> MachineFacts:
    """Return the machine of the document's example: a container with docker's /dev/shm, and three more faults."""
    gpus = tuple(gpu(index, persistence=index > 1, links_up=17 if index == 2 else 18) for index in range(4))
    return machine(
        gpus,
        host={"container": "docker", "shm": Space(64 * 2**20, 64 * 2**20)},
        driver={"virtualization": "pass-through"},
        software={"torch": "2.9.0+cu130"},
        environment={"NCCL_P2P_DISABLED": "1", "NCCL_NVLS_ENABLE": "0"},
    )


def test_the_documents_example_is_what_the_doctor_says() -> None:
    printed = text(page(judge(example())), wide=_WIDTH, columns=_WIDTH)
    (shown,) = re.findall(r"^    \$ collbench doctor\n((?:    .*\n)+)", DOCUMENT, re.MULTILINE)
    assert shows(shown, printed)


@pytest.mark.parametrize("facts", [machine(), example(), machine((), backend="host")])
def test_the_json_is_valid_and_holds_every_finding(facts: MachineFacts) -> None:
    findings = judge(facts)
    head = {"collbench": "1", "hostname": "node7", "backend": facts.backend}
    answer = json.loads(dumps(findings, head, status(findings)))
    jsonschema.validate(answer, SCHEMA)
    assert [finding["name"] for finding in answer["findings"]] == [finding.name for finding in findings]


def test_groups_and_levels_are_the_schemas_and_the_documents() -> None:
    fields = SCHEMA["properties"]["findings"]["items"]["properties"]
    assert fields["group"]["enum"] == list(Topic)
    assert fields["level"]["enum"] == list(Level)
    for word in (*Topic, *Level):
        assert f"`{word}`" in DOCUMENT, word


@pytest.mark.parametrize(
    ("levels", "message"),
    [
        ([Level.OK] * 3, "All 3 are ok."),
        ([Level.FAIL, Level.OK, Level.WARN, Level.WARN], "1 fail: 0; 2 warn: 2, 3; 1 ok."),
        ([Level.UNKNOWN], "1 unknown, 0 ok."),
    ],
)
def test_the_first_line_names_what_fails_and_warns_and_counts(levels: list[Level], message: str) -> None:
    findings = [Finding(Topic.HOST, str(number), level, "x") for number, level in enumerate(levels)]
    assert summary(findings) == message
    assert text(page(findings)).splitlines()[0] == message


@pytest.mark.parametrize("width", [40, 80, 100])
def test_lines_fold_below_themselves(width: int) -> None:
    finding = Finding(Topic.VARIABLES, "NCCL_IB_RESILIENCY_PORT_RECOVERY", Level.WARN, "word " * 40, "fix " * 30)
    lines = text(page([finding]), wide=width, columns=width).splitlines()
    start = lines.index(str(Topic.VARIABLES))
    assert lines[start + 1].split() == ["warn", finding.name]
    assert all(len(line) <= max(width, 50) for line in lines)
    assert " ".join(" ".join(lines[start + 2 :]).split()) == f"{'word ' * 40}fix: {'fix ' * 30}".strip()
