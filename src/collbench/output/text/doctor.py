"""The doctor's findings as a page and as JSON. Pure; whatever came from the machine stays text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from rich.text import Text

from collbench.machine.doctor.findings import Finding, Level
from collbench.output.text.layout import filled
from collbench.runfile.codec import plain

_VERSION = 1
_STYLES = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "bold red", Level.UNKNOWN: "dim"}
_LEVEL_WIDTH = max(map(len, Level))
# A name longer than this (NCCL has some of 40 letters) takes a line of its own.
_WIDEST_NAME = 21


def page(findings: Sequence[Finding], width: int) -> Iterator[Text]:
    """Yield the findings by group, a line each, its fix below it; then how many of each level there are."""
    for group, grouped in groupby(findings, key=lambda finding: finding.group):
        lines = list(grouped)
        column = max((len(finding.name) for finding in lines if len(finding.name) <= _WIDEST_NAME), default=0)
        yield Text(f"{group}", style="bold")
        yield from (_line(finding, column, width) for finding in lines)
        yield Text("")
    yield Text(summary(findings))


def summary(findings: Sequence[Finding]) -> str:
    """Return one sentence: how many findings fail, warn or are unknown."""
    counts = {level: sum(finding.level is level for finding in findings) for level in Level}
    if counts[Level.OK] == len(findings):
        return f"All {len(findings)} are ok."
    parts = [f"{counts[level]} {level}" for level in (Level.FAIL, Level.WARN, Level.UNKNOWN) if counts[level]]
    return f"{', '.join(parts)}, {counts[Level.OK]} ok."


def dumps(findings: Sequence[Finding], head: Mapping[str, str], exit_status: int) -> str:
    """Return the findings as JSON (docs/doctor.md); `head` says which collbench looked at which machine."""
    kind = {"format": "collbench-doctor", "format_version": _VERSION}
    body = {**kind, **head, "exit_status": exit_status, "findings": plain(tuple(findings))}
    return json.dumps(body, ensure_ascii=True, indent=2) + "\n"


def printable(text: str) -> str:
    """Return text whose control characters, and what would turn the line's direction, are written as escapes."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def _line(finding: Finding, column: int, width: int) -> Text:
    """Return "level  name  what was found", wrapped below itself, and the fix in a line of its own."""
    indent = " " * (2 + _LEVEL_WIDTH + 2 + column + 2)
    text = filled(printable(finding.text), width, indent, indent)
    line = Text("  ")
    line.append(f"{finding.level:<{_LEVEL_WIDTH}}", style=_STYLES[finding.level])
    line.append(f"  {printable(finding.name):<{column}}  ")
    line.append(text.lstrip(" ") if len(finding.name) <= column else f"\n{text}")
    if finding.fix:
        line.append(f"\n{filled(printable(f'fix: {finding.fix}'), width, indent, indent)}")
    return line
