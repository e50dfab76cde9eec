"""Every command that a document shows is one that the program takes: an option that goes takes its examples along."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import click
import pytest

from collbench.cli.program import cli
from collbench.model.errors import UsageError

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "benchmarks").glob("*.md"),
        *ROOT.glob("examples/**/*"),
    ]
)
# A command ends where a comment, a pipe, another command or the code around it goes on.
_END = re.compile(r"""\s\#|\s\\?\||\)"|`|\s&&|;|\s2?>|\)\s|\)$|'$""")
_PLACEHOLDER = re.compile(r"…|<|\||\$[A-Z{]|^[A-Z]+(?:\.[A-Z]+)?$")


def commands(text: str) -> Iterator[list[str]]:
    """Yield the words behind "collbench" wherever a page's code calls it, up to the first placeholder."""
    names = "|".join(cli.list_commands(click.Context(cli)))
    joined = text.replace("\\\n", " ")
    for code in re.findall(r"^(?: {4}|\t)(.+)$|`([^`\n]+)`", joined, re.MULTILINE):
        line = code[0] or code[1]
        for found in re.finditer(rf"(?<![\w/.-])collbench ((?:{names})(?![\w:-]).*)", line):
            with suppress(ValueError):  # a sentence's apostrophe is no quote
                yield definite(shlex.split(_END.split(found[1])[0]))


def definite(words: list[str]) -> list[str]:
    """Return the words before the first placeholder, without the option whose value it is."""
    end = next((place for place, word in enumerate(words) if _PLACEHOLDER.search(word)), len(words))
    return words[: end - 1] if end < len(words) and words[end - 1].startswith("-") else words[:end]


def shown() -> list[tuple[str, list[str]]]:
    """Return every documented command, with its page."""
    pages = [(page, page.read_text(encoding="utf-8")) for page in PAGES if page.is_file()]
    return [(page.name, words) for page, text in pages for words in commands(text)]


@pytest.mark.parametrize(
    ("page", "words"), shown(), ids=lambda value: value if isinstance(value, str) else " ".join(value)
)
def test_a_documented_command_is_understood(page: str, words: list[str]) -> None:
    context = click.Context(cli, info_name="collbench", **cli.context_settings)  # click keeps a command's -h, --help
    command = cli.get_command(context, words[0])
    assert command is not None
    try:
        command.make_context(words[0], list(words[1:]), parent=context)
    except click.exceptions.Exit:
        pass  # --help
    except (click.exceptions.MissingParameter, UsageError):
        if len(words) > 1:  # alone it is the name of the command in a sentence: "`collbench select`"
            raise


def test_the_pages_show_commands_at_all() -> None:
    assert {"README.md", "check.md", "cluster.md", "python.md"} <= {page for page, _ in shown()}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("    collbench pairs --quick    # a look", [["pairs", "--quick"]]),
        ('    eval "$(collbench select 2 --format env)" && python train.py', [["select", "2", "--format", "env"]]),
        ("see `collbench show RUN.JSON`", [["show"]]),
        ("    srun -N 2 python -m collbench allreduce --sizes 1M:1G", [["allreduce", "--sizes", "1M:1G"]]),
        ("    collbench select 2 --format json | jq .", [["select", "2", "--format", "json"]]),
        ("    import collbench", []),
        ("    collbench: using GPU0", []),
    ],
)
def test_commands_are_found_in_text(line: str, words: list[list[str]]) -> None:
    assert list(commands(line)) == words
