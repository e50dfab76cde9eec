"""A matplotlib figure as SVG: the same bytes on every machine, with a title and a description to be read aloud."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's colors, distinguished by the color-blind; without their yellow, which white paper swallows.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7F7F7F")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")  # and without color
_RC = {
    "font.family": ["DejaVu Sans"],  # matplotlib brings it: the layout is the same on every machine
    "font.size": 9.0,
    "text.parse_math": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.fonttype": "none",  # text stays text: it can be found, read aloud and compared
    "svg.hashsalt": "collbench",  # else every file has other ids
    "savefig.facecolor": "white",
}


@dataclass(frozen=True, slots=True)
class Picture:
    """A drawn figure, its title and its description."""

    figure: Figure
    title: str
    description: str


@contextmanager
def drawing() -> Iterator[None]:
    """Give matplotlib our settings while a figure is drawn and saved, not those of the user's own matplotlibrc."""
    from matplotlib import style

    settings: Any = ["default", _RC]
    with style.context(settings):
        yield


def svg(picture: Picture) -> bytes:
    """Return a picture as the bytes of an SVG file. Its date would differ between files of the same results."""
    file = io.BytesIO()
    undated: Any = {"Date": None, "Creator": None}
    picture.figure.savefig(file, format="svg", metadata=undated, bbox_inches="tight", pad_inches=0.06)
    # A viewer without DejaVu takes a font of the same width, not a serif.
    text = file.getvalue().decode("utf-8").replace("'DejaVu Sans'", "'DejaVu Sans', Verdana, sans-serif")
    title, description = html.escape(picture.title, quote=False), html.escape(picture.description, quote=False)
    head = f'<title id="title">{title}</title>\n <desc id="desc">{description}</desc>'
    opened = re.compile(r"<svg\b([^>]*)>").sub(
        lambda match: f'<svg{match[1]} role="img" aria-labelledby="title desc">\n {head}', text, count=1
    )
    return opened.encode("utf-8")
