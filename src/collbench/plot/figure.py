"""A matplotlib figure that is the same bytes everywhere: settings, colours, the three file formats, accessible SVG."""

from __future__ import annotations

import html
import io
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from collbench.errors import UsageError
from collbench.plot.words import clean

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = ("svg", "png", "pdf")
# Okabe and Ito's colours, told apart by the colour-blind; without their yellow, which white paper swallows.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7F7F7F")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")  # and without colour
THEORY = "#595959"
_RC = {
    "font.family": ["DejaVu Sans"],  # matplotlib brings it: the layout is the same on every machine
    "font.size": 9.0,
    "text.parse_math": False,  # a GPU named "$x" is no formula
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.fonttype": "none",  # text stays text: it can be found, read aloud and compared
    "svg.hashsalt": "collbench",  # else every file has other ids
    "pdf.fonttype": 42,
    "savefig.facecolor": "white",
    "savefig.dpi": 150.0,
}
# What says when and by what a file was made: the run's own date and version stand in the picture.
_UNDATED: dict[str, dict[str, str | None]] = {
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


@dataclass(frozen=True, slots=True)
class Picture:
    """A drawn figure and what it says in words; `tips` are the words of single parts by their id (gid) in the SVG."""

    figure: Figure
    title: str
    description: str
    tips: Mapping[str, str] = field(default_factory=dict)


@contextmanager
def drawing() -> Iterator[None]:
    """Give matplotlib our settings while a figure is drawn and saved. Raises UsageError where it is not installed."""
    try:
        from matplotlib import style
    except ImportError as error:
        raise UsageError("plot needs matplotlib, which is missing: pip install 'collbench[plot]'") from error
    settings: Any = ["default", _RC]  # "default": not what the user's own matplotlibrc says
    with style.context(settings), warnings.catch_warnings():
        # A name in letters that the font lacks: SVG leaves them to the viewer, PNG and PDF show boxes.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def encode(picture: Picture, suffix: str) -> bytes:
    """Return a picture as the bytes of a file: "svg", "png" or "pdf"; the same bytes for the same run."""
    file = io.BytesIO()
    metadata = _UNDATED[suffix] | ({} if suffix == "svg" else {"Title": picture.title})
    picture.figure.savefig(file, format=suffix, metadata=metadata)
    data = file.getvalue()
    return _accessible(data.decode("utf-8"), picture).encode("utf-8") if suffix == "svg" else data


def _accessible(svg: str, picture: Picture) -> str:
    """Add title and description for who cannot see, and a tip to each named part."""
    head = f'<title id="title">{_text(picture.title)}</title>\n <desc id="desc">{_text(picture.description)}</desc>'
    opened = re.compile(r"<svg\b([^>]*)>").sub(
        lambda found: f'<svg{found[1]} role="img" aria-labelledby="title desc">\n {head}', svg, count=1
    )
    parts = re.compile(r'<g id="([\w-]+)">')
    tips = picture.tips
    return parts.sub(
        lambda found: f"{found[0]}\n<title>{_text(tips[found[1]])}</title>" if found[1] in tips else found[0], opened
    )


def _text(words: str) -> str:
    return html.escape(clean(words, most=10_000), quote=False)
