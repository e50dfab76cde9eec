"""What mkdocs does to the pages: fills in what is generated, and treats links to files outside docs/.

Where nobody builds the site, as on a forge, a shorter text stands in its place. Run as a program, this writes it.
"""

from __future__ import annotations

import csv
import importlib
import inspect
import io
import json
import os
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

ROOT = Path(__file__).parent.parent
# Files outside docs/ that a page shows whole.
SHOWN = {
    "CHANGELOG.md": "changes.md",
    "CONTRIBUTING.md": "contributing.md",
    "benchmarks/README.md": "benchmarks.md",
    "CITATION.cff": "citation.md",
    "README.md": "README.md",
}
COLUMNS = ROOT / "docs" / "columns.csv"
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
_LOADED = re.compile(
    r"""<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=["']?(?:https?:)?//|url\(["']?(?:https?:)?//"""
)


def command_line() -> str:
    """Return every command's own help."""
    from collbench.cli.program import NAME, cli

    parts = []
    for name in cli.list_commands(click.Context(cli)):
        if command := cli.get_command(click.Context(cli), name):
            settings = {**cli.context_settings, "max_content_width": 100, "terminal_width": 100}
            context = click.Context(command, info_name=f"{NAME} {name}", **settings)
            parts.append(f"## {name}\n\n```text\n{command.get_help(context)}\n```\n")
    return "\n".join(parts)


def commands() -> str:
    """Return the list of commands."""
    from collbench.cli.program import NAME, cli

    context = click.Context(cli, info_name=NAME, **cli.context_settings)
    return f"```text\n{cli.get_help(context)}\n```"


def functions() -> str:
    """Return the names of all public functions."""
    import collbench

    names = ", ".join(f"`{name}`" for name in collbench.__all__)
    return textwrap.fill(names, 120, break_long_words=False, break_on_hyphens=False)


def python() -> str:
    """Return every public function's signature and docstring."""
    import collbench

    parts = []
    for name in collbench.__all__:
        value = getattr(collbench, name)
        shown = "" if inspect.isclass(value) else re.sub(r"(: |-> )'([^']*)'", r"\1\2", str(inspect.signature(value)))
        call = textwrap.fill(f"collbench.{name}{shown}", 100, subsequent_indent="    ", break_long_words=False)
        words = re.sub(r"\bdocs/([\w-]+\.md)", r"[\1](\1)", inspect.getdoc(value) or "")
        parts.append(f"### {name}\n\n```python\n{call}\n```\n\n{words}\n")
    return "\n".join(parts)


def columns() -> str:
    """Return the columns of each kind of run that `export` writes, as CSV."""
    lines = io.StringIO()
    rows = csv.writer(lines, lineterminator="\n")
    rows.writerow(("of", "column", "type", "meaning"))
    for kind, module in (("all", "report.rows"), ("overlap", "overlaps.view"), ("replay", "jobs.replay.view")):
        for column in importlib.import_module(f"collbench.{module}").COLUMNS:
            rows.writerow((kind, column.name, column.type.value, column.meaning))
    return lines.getvalue()


def table(path: Path) -> str:
    """Return a CSV file as a table."""
    heads, *rows = csv.reader(path.read_text(encoding="utf-8").splitlines())
    return "\n".join(f"| {' | '.join(row)} |" for row in (heads, ["---"] * len(heads), *rows))


def _kind(part: dict[str, Any]) -> str:
    """Return a field's type in words."""
    if reference := part.get("$ref"):
        return str(reference).rpartition("/")[2]
    if "enum" in part:
        return ", ".join("null" if value is None else f"`{value}`" for value in part["enum"])
    if "const" in part:
        return f"`{part['const']}`"
    for several in ("anyOf", "oneOf"):
        if several in part:
            return " or ".join(map(_kind, part[several]))
    if part.get("type") == "array" and isinstance(part.get("items"), dict):
        return f"list of {_kind(part['items'])}"
    kinds = part.get("type", "any")
    return kinds if isinstance(kinds, str) else " or ".join(kinds)


def _fields(part: dict[str, Any], before: str = "") -> list[str]:
    """Return a table's row for each field of an object, and of the objects in it."""
    rows = []
    for name, field in part.get("properties", {}).items():
        default = f"; default {json.dumps(field['default'])}" if "default" in field else ""
        rows.append(f"| `{before}{name}` | {_kind(field)}{default} | {field.get('description', '')} |")
        item = field.get("items")
        rows += _fields(field, f"{before}{name}.")
        rows += _fields(item, f"{before}{name}[].") if isinstance(item, dict) else []
    return rows


def schema(path: Path) -> str:
    """Return the fields of a JSON Schema as tables: of the file, and of each kind of object in it."""
    whole = json.loads(path.read_text(encoding="utf-8"))
    parts = []
    for name, part in {"the file": whole, **whole.get("$defs", {})}.items():
        rows = _fields(part)
        table = ["| field | type | meaning |", "|---|---|---|", *rows, ""] if rows else [f"One of {_kind(part)}.\n"]
        parts.append("\n".join([f"### {name}\n", f"{part.get('description', '')}\n", *table]))
    return "\n".join(parts)


GENERATED: dict[str, Callable[[], str]] = {"command-line": command_line, "python": python}
# What stands in their place in the repository; in that of a file it is a link.
SHORTER: dict[str, Callable[[], str]] = {"command-line": commands, "python": functions}
PLACE = re.compile(r"<!-- generated: (\S+) -->\n(.*?)\n<!-- end -->", re.DOTALL)


def relinked(text: str, folder: Path, place: str = "", shown: Callable[[str], None] = lambda _picture: None) -> str:
    """Return the text of a file in a folder with its links as a page in `place`, a folder of docs/, needs them.

    Files outside docs/ become their paths; `shown` is told of pictures there, which the site needs, too. Raises for a
    dead link.
    """

    def link(match: re.Match[str]) -> str:
        picture, words, target = match.groups()
        path, _, anchor = target.partition("#")
        if not path or ":" in path:
            return match[0]
        found = os.path.relpath(folder / path, ROOT)
        if not (ROOT / found).exists():
            raise click.ClickException(f"{folder}: no file for the link to {target}")
        if found in SHOWN or found.startswith("docs/") or picture:
            if picture and not found.startswith("docs/"):
                shown(found)
            page = os.path.relpath(SHOWN.get(found, found.removeprefix("docs/")), place or ".")
            return f"{picture}[{words}]({page}{'#' + anchor if anchor else ''})"
        return f"{words} (`{found}`)" if words.strip("`") != Path(found).name else f"`{found}`"

    return _LINK.sub(link, text)


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Fill in what stands between `<!-- generated: NAME -->` and `<!-- end -->`: a part from above, or a file."""
    from mkdocs.structure.files import File

    place = os.path.dirname(page.file.src_uri)  # noqa: PTH120  # a URI

    def shown(picture: str) -> None:
        if files.get_file_from_path(picture) is None:
            files.append(File(picture, str(ROOT), config["site_dir"], use_directory_urls=False))

    def generated(match: re.Match[str]) -> str:
        if match[1] in GENERATED:
            return GENERATED[match[1]]()
        path = ROOT / match[1]
        if path.suffix == ".json":
            return schema(path)
        if path.suffix == ".csv":
            return table(path)
        text = path.read_text(encoding="utf-8")
        return relinked(text, path.parent, place, shown) if path.suffix == ".md" else f"```yaml\n{text}```"

    return PLACE.sub(generated, relinked(markdown, ROOT / "docs" / place, place, shown))


def on_post_build(config: Any) -> None:
    """Raise if a page would load something from a network."""
    pages = [path for path in Path(config["site_dir"]).rglob("*") if path.suffix in {".html", ".css"}]
    foreign = {path.name: hit[0] for path in pages if (hit := _LOADED.search(path.read_text(encoding="utf-8")))}
    if foreign:
        raise click.ClickException(f"pages load from a network: {foreign}")


def current(page: str) -> str:
    """Return a page's text with what is generated as it is now in the repository."""

    def written(match: re.Match[str]) -> str:
        text = SHORTER[match[1]]().strip() if match[1] in SHORTER else match[2]
        return f"<!-- generated: {match[1]} -->\n{text}\n<!-- end -->"

    return PLACE.sub(written, page)


if __name__ == "__main__":
    COLUMNS.write_text(columns(), encoding="utf-8")
    for path in sorted((ROOT / "docs").rglob("*.md")):
        text = path.read_text(encoding="utf-8")
        if (written := current(text)) != text:
            path.write_text(written, encoding="utf-8")
