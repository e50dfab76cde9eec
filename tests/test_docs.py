"""The documents: collbench accepts each command, and a reader can follow each reference."""

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
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "benchmarks").glob("*.md"),
        *ROOT.glob("examples/**/*"),
    ]
)
# A command ends where a comment, a pipe, another command or the code around it goes on.
_END = re.compile(r"""\s\#|\s\\?\||\)"|`|\s&&|;|\s2?>|\)\s|\)$|'$""")
_PLACEHOLDER = re.compile(r"…|<|\||\$[A-Z{]|^[A-Z]+(?:\.[A-Z]+)?$")


def commands(text: str) -> Iterator[list[str]]:
    """Yield the arguments after "collbench" wherever a page's code calls it, up to the first placeholder."""
    names = "|".join(cli.list_commands(click.Context(cli)))
    joined = text.replace("\\\n", " ")
    for code in re.findall(r"^(?: {4}|\t)(.+)$|`([^`\n]+)`", joined, re.MULTILINE):
        line = code[0] or code[1]
        for match in re.finditer(rf"(?<![\w/.-])collbench ((?:{names})(?![\w:-]).*)", line):
            with suppress(ValueError):  # a sentence's apostrophe is no quote
                yield definite(shlex.split(_END.split(match[1])[0]))


def definite(args: list[str]) -> list[str]:
    """Return the arguments before the first placeholder, without the option whose value it is."""
    end = next((index for index, word in enumerate(args) if _PLACEHOLDER.search(word)), len(args))
    return args[: end - 1] if end < len(args) and args[end - 1].startswith("-") else args[:end]


def documented() -> list[tuple[str, list[str]]]:
    """Return every documented command, with its page."""
    pages = [(page, page.read_text(encoding="utf-8")) for page in PAGES if page.is_file()]
    return [(page.name, args) for page, text in pages for args in commands(text)]


@pytest.mark.parametrize(
    ("page", "args"), documented(), ids=lambda value: value if isinstance(value, str) else " ".join(value)
)
def test_a_documented_command_is_understood(page: str, args: list[str]) -> None:
    context = click.Context(cli, info_name="collbench", **cli.context_settings)  # click keeps a command's -h, --help
    command = cli.get_command(context, args[0])
    assert command is not None
    try:
        command.make_context(args[0], list(args[1:]), parent=context)
    except click.exceptions.Exit:
        pass  # --help
    except (click.exceptions.MissingParameter, UsageError):
        if len(args) > 1:  # a single argument is the command's name in a sentence: "`collbench select`"
            raise


def test_the_pages_show_commands_at_all() -> None:
    assert {"README.md", "check.md", "slow-nodes.md", "python.md"} <= {page for page, _ in documented()}


@pytest.mark.parametrize(
    ("line", "args"),
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
def test_commands_are_found_in_text(line: str, args: list[list[str]]) -> None:
    assert list(commands(line)) == args


def test_each_row_of_a_table_has_a_line_of_its_own() -> None:
    rulers = [
        (page.name, line)
        for page in PAGES
        if page.suffix == ".md"
        for line in page.read_text(encoding="utf-8").splitlines()
        if re.search(r"\|\s?:?---", line)
    ]
    assert [(name, line) for name, line in rulers if not re.fullmatch(r" *\|[ :|-]+\|", line)] == []


# What no reader has: papers outside the project, and numbers of a list that is not in it. (nccl#814 is a public one.)
_DANGLING = re.compile(r"\b[D]ESIGN\.md|\b[M]ETHOD\b|(?<![\w/])[s]hared/|\b[Ii]ssues? #?\d")
_METHOD = sorted((ROOT / "docs" / "method").glob("*.md"))
# A page of the method, in code or as a link of another page, and the sections that are cited of it.
_CITED = re.compile(r"method/(\w+\.md)\)?(?: (\d+(?:(?:, | and | to )\d+(?![\d×]))*))?")
_HEADING = re.compile(r"^## (\d+) ", re.MULTILINE)


def sources() -> list[Path]:
    """Return every text file of the project, except results, which are records of their day."""
    kinds = {".py", ".pyi", ".md", ".cpp", ".hpp", ".cu", ".cuh", ".c", ".sh", ".json", ".toml", ".yaml", ".service"}
    folders = ("src", "csrc", "tests", "benchmarks", "docs", "examples")
    paths = [*ROOT.glob("*"), *(path for folder in folders for path in (ROOT / folder).rglob("*"))]
    left_out = (ROOT / "benchmarks" / "results", ROOT / "tests" / "data")
    return [
        path
        for path in paths
        if path.is_file()
        and (path.suffix in kinds or path.name == "Makefile")
        and not any(path.is_relative_to(folder) for folder in left_out)
    ]


def test_nothing_points_to_what_a_reader_lacks() -> None:
    dangling = [
        f"{path.relative_to(ROOT)}: {hit[0]}"
        for path in sources()
        for hit in _DANGLING.finditer(path.read_text(encoding="utf-8"))
    ]
    assert dangling == []


@pytest.mark.parametrize(
    "text", ["METH" + "OD.md, 5", "DESIGN" + ".md", "see shar" + "ed/a", "the bar of iss" + "ue 5", "iss" + "ue #12"]
)
def test_a_reference_that_leads_nowhere_is_noticed(text: str) -> None:
    assert _DANGLING.search(text)


@pytest.mark.parametrize(
    "text", ["nccl#814", "docs/method/measuring.md 5", "the issue", "localhost#2", "the shared L3"]
)
def test_a_reference_that_a_reader_can_follow_is_left_alone(text: str) -> None:
    assert not _DANGLING.search(text)


def test_each_cited_section_of_the_method_exists() -> None:
    sections = {page.name: set(_HEADING.findall(page.read_text(encoding="utf-8"))) for page in _METHOD}
    cited = {
        (hit[1], number, str(path.relative_to(ROOT)))
        for path in sources()
        for hit in _CITED.finditer(path.read_text(encoding="utf-8"))
        for number in re.findall(r"\d+", hit[2] or "") or [None]
    }
    assert len(cited) > 50
    lacking = [one for one in cited if one[0] not in sections or one[1] not in {None, *sections[one[0]]}]
    assert lacking == []


@pytest.mark.parametrize("page", _METHOD, ids=lambda page: page.stem)
def test_the_methods_sections_are_numbered_in_order_and_few_enough_to_read(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    numbers = _HEADING.findall(text)
    assert numbers == [str(place) for place in range(1, len(numbers) + 1)]
    assert len(numbers) == text.count("\n## ")
    assert len(text.splitlines()) <= 250


@pytest.mark.parametrize("page", _METHOD, ids=lambda page: page.stem)
def test_a_page_of_the_method_cites_sections_that_the_others_have(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    own = set(_HEADING.findall(text))
    for other, numbers in re.findall(r"\]\((\w+\.md)\) (\d+(?:(?:, | and )\d+)*)", text):
        there = set(_HEADING.findall((page.parent / other).read_text(encoding="utf-8")))
        assert set(re.findall(r"\d+", numbers)) <= there, (other, numbers)
    within = re.findall(r"(?<=\()(\d{1,2})(?:, (\d{1,2}))?(?=\))", text)
    assert {number for pair in within for number in pair if number} <= own
