"""Renders the content as one HTML page that contains its script, style and data.

jinja2 escapes all text; data is JSON in a block that the browser does not run. A Content-Security-Policy allows only
this script and this style, by their hashes, and no requests.
"""

from __future__ import annotations

import base64
import hashlib
import json
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
_PROBLEMS = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


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
    environment = _environment()
    style = _joined(environment, _STYLES)
    # One scope, so that nothing becomes a global name.
    script = f'(() => {{\n"use strict";\n{_joined(environment, _SCRIPTS)}}})();\n'
    return environment.get_template("page.html").render(
        content,
        policy=_policy(script, style),
        style=Markup(style),  # noqa: S704  # our own file, not a machine's words
        script=Markup(script),  # noqa: S704  # likewise
        as_data=_as_data,
        kind=_kind,
    )


def render_plain(template: str, content: Mapping[str, Any]) -> str:
    """Return an annex's page in the same style, from its template and content, whose parts it draws; without script."""
    environment = _environment()
    style = _joined(environment, _STYLES)
    markup = Markup(style)  # noqa: S704  # likewise
    return environment.from_string(template).render(content, policy=_policy("", style), style=markup, kind=_kind)


def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("collbench.report.html", "pieces"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _joined(environment: Environment, names: Sequence[str]) -> str:
    assert environment.loader is not None  # noqa: S101  # it was given
    return "".join(environment.loader.get_source(environment, name)[0] for name in names)


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


def _as_data(value: Any) -> Markup:
    """Return JSON that cannot end its block, even if a machine's name contains markup."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for problem, escaped in _PROBLEMS.items():
        text = text.replace(problem, escaped)
    return Markup(text)  # noqa: S704  # no '<' is left
