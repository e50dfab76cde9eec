"""docs/faq.md: each symptom stands in the file that the page links to, or in today's sources."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from collbench.judge.diagnose import Kind

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "faq.md"
SOURCES = "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "src").rglob("*.py")))


def rows() -> Iterator[tuple[str, str, str, str]]:
    """Yield symptom, command, cause, and where it was seen, of every row."""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("| ") and not line.startswith("| symptom"):
            symptom, command, cause, link = (part.strip() for part in line.strip("|").split(" | "))
            yield symptom, command, cause, link


def evidence(link: str) -> str:
    """Return the text of the file that a row points to."""
    match = re.fullmatch(r"\[.+\]\((.+)\)", link)
    assert match, link
    return (PAGE.parent / match[1]).read_text(encoding="utf-8")


@pytest.mark.parametrize("row", list(rows()), ids=lambda row: row[0])
def test_a_symptom_and_its_verdict_stand_where_it_was_seen(row: tuple[str, str, str, str]) -> None:
    symptom, _, cause, link = row
    text = evidence(link)
    phrases = [phrase for phrase in re.findall(r"`([^`]+)`", symptom) if " " in phrase]
    kinds = [word for word in re.findall(r"`([A-Z_]+)`", cause) if word in set(Kind)][:1]  # others are examples
    assert [phrase for phrase in phrases if phrase not in text and phrase not in SOURCES] == []
    assert [kind for kind in kinds if kind not in text] == []


def test_the_page_has_rows() -> None:
    assert len(list(rows())) >= 15
