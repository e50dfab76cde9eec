"""Renders the content as one HTML page that contains its script, style and data.

jinja2 escapes all text, and JSON: data is in a block that the browser does not run. A Content-Security-Policy allows
only this script and this style, by their hashes, and no requests.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from collbench.model.units import NAME_WIDE
from collbench.report.text.layout import Found, Lines, Part, Table

_STYLES = ("base.css", "parts.css", "map.css", "print.css")
_SCRIPTS = ("dom.js", "words.js", "grid.js", "chart.js", "view.js", "main.js")
_LONG = 40  # characters of a cell that wraps
_STATES = {"bold red": "hard", "bold yellow": "warn", "bold cyan": "info"}  # by the style of what was found


@dataclass(frozen=True, slots=True)
class Panel:
    """Parts of a section that stand together; with a summary a reader opens them. `paper`: they are printed open."""

    parts: Sequence[Part]
    summary: str = ""
    opened: bool = False
    paper: bool = False


@dataclass(frozen=True, slots=True)
class PageSection:
    """A section of a run's page: a key for links, its heading, its groups, and a note above them."""

    key: str
    title: str
    groups: Sequence[Panel]
    note: str = ""


def _kind(part: Part) -> dict[str, Any]:
    """Return what the template draws of a part, by its kind."""
    if isinstance(part, Table):
        longest = [max((len(row[at]) for row in part.rows), default=0) for at, _ in enumerate(part.heads)]
        looks = ("number" if at not in part.left else "text" if long > _LONG else "" for at, long in enumerate(longest))
        return {"columns": list(zip(part.heads, looks, strict=True)), "rows": part.rows}
    if isinstance(part, Found):
        return {"found": part, "state": _STATES[part.style]}
    text, heads = part.plain.strip("\n"), part.plain.startswith("\n")
    if isinstance(part, Lines) and ("\n" in text or not heads):
        return {"facts": [(line[:NAME_WIDE].strip(), line[NAME_WIDE:].strip()) for line in text.split("\n")]}
    return {"lined" if "\n" in text else "head" if heads else "text": text}


def render(content: Mapping[str, Any]) -> str:
    """Return the page as text, from what `content.content` returns."""
    loader = PackageLoader("collbench.report.html", "pieces")
    environment = Environment(
        loader=loader,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    style, script = (
        "".join(loader.get_source(environment, name)[0] for name in names) for names in (_STYLES, _SCRIPTS)
    )
    # One scope, so that nothing becomes a global name.
    script = f'(() => {{\n"use strict";\n{script}}})();\n'
    return environment.get_template("page.html").render(
        content,
        policy=_policy(script, style),
        style=Markup(style),  # noqa: S704  # our own file, not a machine's words
        script=Markup(script),  # noqa: S704  # likewise
        kind=_kind,
    )


def _policy(script: str, style: str) -> str:
    """Return the Content-Security-Policy. Its hashes are of the exact bytes between the tags."""
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {_hash(script)}",
            f"style-src {_hash(style)}",
            "img-src data:",  # an empty icon, so that no browser asks a server for one
            "base-uri 'none'",
            "form-action 'none'",
            "require-trusted-types-for 'script'",  # innerHTML and similar APIs throw
        )
    )


def _hash(text: str) -> str:
    # The files end lines with \n, as HTML reads them, so the hash is of the bytes in the page.
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
