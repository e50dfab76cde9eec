"""docs/site_pages.py: every command, function and column has its place in the site, and every link leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

import collbench
from collbench.cli.program import cli
from collbench.jobs.replay import view as replays
from collbench.overlaps import view as overlaps
from collbench.report import rows as export
from docs import site_pages
from tests.cli.program import Program

ROOT = Path(__file__).parent.parent


def test_every_command_has_its_help(program: Program) -> None:
    page = site_pages.command_line()
    headings = re.findall(r"^## (\S+)$", page, re.MULTILINE)
    assert headings == cli.list_commands(click.Context(cli))
    for name, section in zip(headings, re.split(r"^## .*$", page, flags=re.MULTILINE)[1:], strict=True):
        assert "".join(program(name, "--help").out.split()) in "".join(section.split()), name


def test_every_function_has_its_signature_and_words() -> None:
    page = site_pages.python()
    for name in collbench.__all__:
        assert f"\ncollbench.{name}" in page
    assert "collbench.model." not in page
    assert "\nNone\n" not in page  # a function without a docstring


def test_every_column_is_listed() -> None:
    rows = site_pages.table(site_pages.COLUMNS).splitlines()[2:]
    names = [column.name for module in (export, overlaps, replays) for column in module.COLUMNS]
    assert [row.split(" | ")[1] for row in rows] == names
    assert site_pages.COLUMNS.read_text(encoding="utf-8") == site_pages.columns()


# The site's pages; its home is docs/README.md, not the project's README.
SHOWN = [path for path in site_pages.SHOWN if path.endswith(".md") and path != "README.md"]
PAGES = [*(ROOT / "docs").rglob("*.md"), *(ROOT / path for path in SHOWN)]


def test_a_reader_can_read_all_pages_in_an_afternoon() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    words = {str(page.relative_to(ROOT)): len(page.read_text(encoding="utf-8").split()) for page in pages}
    assert sum(words.values()) <= 35_000, sorted(words.items(), key=lambda page: -page[1])[:10]


def test_pages_of_the_repository_have_what_is_generated_too() -> None:
    """On a forge nobody builds the site; `python docs/site_pages.py` writes the parts that change."""
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        assert site_pages.current(text) == text, path.name
        places = site_pages.PLACE.findall(text)
        assert len(places) == len(re.findall("^<!-- generated: ", text, re.MULTILINE)), path.name
        assert all(there.strip() for _name, there in places), path.name


def test_a_dead_link_ends_the_build() -> None:
    with pytest.raises(click.ClickException, match=r"no file for the link to gone\.md"):
        site_pages.relinked("[x](gone.md)", ROOT / "docs")


@pytest.mark.parametrize(
    "text",
    [
        '<script src="https://a.example/x.js">',
        "<link rel=stylesheet href=//a.example/x.css>",
        "<img alt=x src=http://a.example/x.png>",
        "@font-face{src:url(https://a.example/x.woff2)}",
    ],
)
def test_a_page_that_loads_from_a_network_ends_the_build(tmp_path: Path, text: str) -> None:
    (tmp_path / "own.html").write_text('<a href="https://a.example">x</a><script src="a.js">', encoding="utf-8")
    site_pages.on_post_build({"site_dir": str(tmp_path)})
    (tmp_path / "x.html").write_text(text, encoding="utf-8")
    with pytest.raises(click.ClickException, match="network"):
        site_pages.on_post_build({"site_dir": str(tmp_path)})
