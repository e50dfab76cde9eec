"""The manual pages say what --help says, in a form that man and mandoc read without complaint."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import click
import pytest

from collbench.cli import manual
from collbench.cli.program import cli

PAGES = manual.pages(cli, "9.9")


def command(name: str) -> click.Command:
    """Return the command that a page is about."""
    subcommand = cli.get_command(click.Context(cli), name.removesuffix(".1").removeprefix("collbench-"))
    return subcommand or cli


def shown(page: str, tmp_path: Path) -> str:
    """Return a page as a reader sees it, on very long lines and without bold."""
    (tmp_path / "page.1").write_text(page, encoding="ascii")
    environment = os.environ | {"MANWIDTH": "2000", "LC_ALL": "C.UTF-8", "MAN_KEEP_FORMATTING": "", "GROFF_NO_SGR": "1"}
    done = subprocess.run(
        ["groff", "-man", "-Tutf8", "-rLL=2000n", "-P-cbou", str(tmp_path / "page.1")],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout


def test_each_command_has_a_page() -> None:
    assert set(PAGES) == {"collbench.1", *(f"collbench-{name}.1" for name in cli.list_commands(click.Context(cli)))}


@pytest.mark.parametrize("name", sorted(PAGES))
def test_every_option_stands_on_its_page(name: str) -> None:
    plain = PAGES[name].replace("\\-", "-")
    for param in command(name).params:
        if isinstance(param, click.Option) and not param.hidden:
            assert all(re.search(rf"^\\fB.*{re.escape(option)}\b", plain, re.MULTILINE) for option in param.opts)
    assert "-h, --help" in plain


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
@pytest.mark.parametrize("name", sorted(PAGES))
def test_groff_reads_it_without_a_warning(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(PAGES[name], encoding="ascii")
    done = subprocess.run(
        ["groff", "-man", "-ww", "-Tutf8", str(tmp_path / name)], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""


@pytest.mark.skipif(shutil.which("mandoc") is None, reason="mandoc is not installed")
@pytest.mark.parametrize("name", sorted(PAGES))
def test_mandoc_reads_it_without_a_warning(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(PAGES[name], encoding="ascii")
    done = subprocess.run(
        ["mandoc", "-Tlint", "-Wwarning", str(tmp_path / name)], capture_output=True, text=True, check=False
    )
    # Without a date a page is the same whenever it is made.
    assert [line for line in done.stdout.splitlines() if "missing date" not in line] == []


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
def test_examples_can_be_copied_from_the_page(tmp_path: Path) -> None:
    text = shown(PAGES["collbench-select.1"], tmp_path)
    assert '         eval "$(collbench select 2 --format env)" && python train.py\n' in text
    assert "'nvidia-smi topo -m'" in text


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
def test_unusual_help_stays_text(tmp_path: Path) -> None:
    @click.command(short_help="Odd.")
    @click.option("--odd", help=".so /etc/passwd \\fB×\\fR 'a' -- \"b\" ~^`")
    def odd(odd: str) -> None:
        """.de XX begins no request.

        \b
        .in +3
          'kept'  as it is
        """

    page = manual.pages(odd, "1")["collbench.1"]
    text = shown(page, tmp_path)
    assert ".de XX begins no request." in text
    assert ".in +3\n" in text
    assert "  'kept'  as it is" in text
    assert ".so /etc/passwd \\fB×\\fR 'a' -- \"b\" ~^`" in text


def test_make_man_writes_them(tmp_path: Path) -> None:
    assert manual.main([str(tmp_path / "new" / "man")]) == 0
    assert {file.name for file in (tmp_path / "new" / "man").iterdir()} == set(PAGES)
