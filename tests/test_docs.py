"""The documents: collbench accepts each command, and a reader can follow each reference."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import click

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


def test_each_documented_command_is_understood() -> None:
    context = click.Context(cli, info_name="collbench", **cli.context_settings)  # click keeps a command's -h, --help
    for page, args in documented():
        command = cli.get_command(context, args[0])
        assert command is not None, (page, args)
        try:
            command.make_context(args[0], list(args[1:]), parent=context)
        except click.exceptions.Exit:
            pass  # --help
        except (click.exceptions.ClickException, UsageError) as error:
            # A single argument is the command's name in a sentence: "`collbench select`".
            if len(args) > 1 or not isinstance(error, (click.exceptions.MissingParameter, UsageError)):
                error.add_note(f"{page}: {args}")
                raise


def test_the_pages_show_commands_at_all() -> None:
    assert {"README.md", "check.md", "slow-nodes.md", "python.md"} <= {page for page, _ in documented()}


# A line of a block or a span of code that starts a shell command, with the first argument and the rest.
_SHELL = re.compile(r"^(?:\$ )?(?:python -m )?(pip|make|collbench) +([^\s#]+) *([^#]*)")
_TARGETS = re.compile(r"^([a-z-]+):", re.MULTILINE)


def shell_commands(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield the program, its first argument and the rest of each such command of a page."""
    joined = text.replace("\\\n", " ")
    blocks = re.findall(r"^(?: {4}|\t)(.+)$", joined, re.MULTILINE)
    for line in [*blocks, *re.findall(r"`([^`\n]+)`", joined)]:
        if match := _SHELL.match(line):
            yield match[1], match[2], match[3].strip()


def test_a_shell_command_names_what_its_program_does() -> None:
    known = {
        "pip": {"install"},
        "make": set(_TARGETS.findall((ROOT / "Makefile").read_text(encoding="utf-8"))),
        "collbench": set(cli.list_commands(click.Context(cli))),
    }
    found = [
        (page.name, *command)
        for page in PAGES
        if page.is_file()
        for command in shell_commands(page.read_text(encoding="utf-8"))
    ]
    assert {program for _page, program, *_ in found} == set(known)
    wrong = [
        (page, program, first, rest)
        for page, program, first, rest in found
        if not (first in known[program] or (first.startswith("--") and program == "collbench"))
        and not _PLACEHOLDER.search(first)
    ]
    assert wrong == []
    assert [one for one in found if one[2] == "install" and not re.search(r"(?:^| )[.\w]", one[3])] == []


# A space before a comma or a full stop, and a full stop alone on its line: what cutting words leaves behind.
_TORN = re.compile(r"`[^`\n]*`|( [,.;](?=\s)|^[,.;]$)", re.MULTILINE)


def test_no_sentence_is_torn() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").glob("*.md")]
    texts = {page.name: re.sub(r"^ {4}.*$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE) for page in pages}
    assert [(name, hit.start()) for name, text in texts.items() for hit in _TORN.finditer(text) if hit[1]] == []


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


def test_a_link_to_a_heading_finds_it_in_the_repository_too() -> None:
    """The site fills in pages that have only a reference in the repository: a heading there is none on a forge."""
    lost = []
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for target, anchor in re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", page.read_text(encoding="utf-8")):
            file = page.parent / target if target else page
            if "://" in target or file.suffix != ".md":
                continue
            headings = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            if anchor not in {
                re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings
            }:
                lost.append(f"{page.name}: {target}#{anchor}")
    assert lost == []
