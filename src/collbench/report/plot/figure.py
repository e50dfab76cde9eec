"""A matplotlib figure that has the same bytes on every machine, with its title, origin and description."""

from __future__ import annotations

import html
import io
import re
import textwrap
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from collbench.judge.physics import impossible
from collbench.model.capabilities import capabilities
from collbench.model.errors import UsageError
from collbench.model.operations import Work
from collbench.model.run import Run
from collbench.model.units import counted
from collbench.report.text.frame import nvls

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LONGEST = 100  # characters of a text that came from a machine
_MOST_ORIGINS = 4


@dataclass(frozen=True, slots=True)
class Named:
    """A run, and its name in a picture of several runs: its file's."""

    name: str
    run: Run


def clean(text: str, most: int = _LONGEST) -> str:
    """Return a machine's text for a picture: shortened, and without control characters, which XML forbids."""
    shown = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"


def subject(works: Iterable[Work], runs: Iterable[Named]) -> str:
    """Return what is shown, with the mark of simulated machines: "allreduce, ce-write", "sim allreduce"."""
    names = ", ".join(dict.fromkeys(map(str, works)))
    simulated = {capabilities(named.run.backend).simulated for named in runs}
    if simulated == {True}:
        return f"sim {names}"
    return f"{names} (some sim)" if True in simulated else names


def quantity(works: Iterable[Work]) -> str:
    """Return the title of the bandwidth axis, with its unit."""
    collectives = {work.operation.is_collective for work in works}
    if collectives == {True}:
        return "busbw, GB/s"
    return "GB/s (collectives: busbw)" if True in collectives else "GB/s"


def origins(runs: Sequence[Named]) -> str:
    """Return a line for each run: its machine, devices, versions and date."""
    lines = [f"{clean(named.name)}: {_origin(named.run)}" if len(runs) > 1 else _origin(named.run) for named in runs]
    more = len(lines) - _MOST_ORIGINS
    return "\n".join([*lines[:_MOST_ORIGINS], *([f"and {more} more runs"] if more > 0 else [])])


def _origin(run: Run) -> str:
    devices = counted(clean(device.name, 40) for device in run.devices)
    machine, impossible_points = run.machine, impossible(run)
    stamp = (
        f"collbench {clean(run.version, 20)}, {clean(run.started[:10], 10)}{'' if run.complete else ', interrupted'}"
    )
    stamp += f"; IMPOSSIBLE rates in {len(impossible_points)} data points" if impossible_points else ""
    if capabilities(run.backend).simulated:
        return f"SIMULATED machine '{clean(machine.fabric, 40)}', {devices}; {stamp}"
    backend = ", CPU cores (host backend)" if capabilities(run.backend).cores else ""
    parts = [
        f"{clean(machine.hostname, 40)}, {devices}{backend}",
        f"driver {machine.driver}" if machine.driver else "",
        f"NCCL {machine.nccl}" if machine.nccl else "",
        nvls(run),
    ]
    return f"{clean('; '.join(filter(None, parts)), 200)}; {stamp}"


# The figure: settings, colors, the three file formats, accessible SVG.

SUFFIXES = ("svg", "png", "pdf")
# Okabe and Ito's colors, distinguished by the color-blind; without their yellow, which white paper swallows.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7F7F7F")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")  # and without color
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
# Metadata that would differ between files of the same run; its date and version stand in the picture.
_UNDATED: dict[str, dict[str, str | None]] = {
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


def figure_of(inches: tuple[float, float], title: str, runs: Sequence[Named]) -> tuple[Figure, Axes]:
    """Return an empty figure with its title and the origins of the runs in small print, and its axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=inches, layout="constrained")
    figure.suptitle(title)
    # 17 characters of 6.5 points fit an inch.
    small_print = "\n".join(textwrap.fill(line, int(inches[0] * 17)) for line in origins(runs).split("\n"))
    figure.supxlabel(small_print, fontsize=6.5, x=0.01, ha="left")
    return figure, figure.add_subplot()


@dataclass(frozen=True, slots=True)
class Picture:
    """A drawn figure and its description; `tips` are the texts of parts by their id (gid) in the SVG."""

    figure: Figure
    title: str
    description: str
    tips: Mapping[str, str] = field(default_factory=dict)


@contextmanager
def drawing() -> Iterator[None]:
    """Give matplotlib our settings while a figure is drawn and saved. Raises UsageError if it is not installed."""
    try:
        from matplotlib import style
    except ImportError as error:
        raise UsageError("plot needs matplotlib, which is missing: pip install matplotlib") from error
    settings: Any = ["default", _RC]  # "default": not what the user's own matplotlibrc says
    with style.context(settings), warnings.catch_warnings():
        # A name in letters that the font lacks: SVG leaves them to the viewer, PNG and PDF show boxes.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def encode(picture: Picture, suffix: str) -> bytes:
    """Return a picture as the bytes of a file: "svg", "png" or "pdf"; the same bytes for the same run."""
    file = io.BytesIO()
    metadata = _UNDATED[suffix] | ({} if suffix == "svg" else {"Title": picture.title})
    # tight: what does not fit the layout, such as a long label, makes the picture larger instead of being cut off.
    picture.figure.savefig(file, format=suffix, metadata=metadata, bbox_inches="tight", pad_inches=0.06)
    data = file.getvalue()
    return _accessible(data.decode("utf-8"), picture).encode("utf-8") if suffix == "svg" else data


def _accessible(svg: str, picture: Picture) -> str:
    """Add a title and a description for readers who cannot see, and a tip to each named part."""
    # A viewer without DejaVu takes a font of the same width, not a serif.
    svg = svg.replace("'DejaVu Sans'", "'DejaVu Sans', Verdana, sans-serif")
    head = f'<title id="title">{_text(picture.title)}</title>\n <desc id="desc">{_text(picture.description)}</desc>'
    opened = re.compile(r"<svg\b([^>]*)>").sub(
        lambda match: f'<svg{match[1]} role="img" aria-labelledby="title desc">\n {head}', svg, count=1
    )
    parts = re.compile(r'<g id="([\w-]+)">')
    tips = picture.tips
    return parts.sub(
        lambda match: f"{match[0]}\n<title>{_text(tips[match[1]])}</title>" if match[1] in tips else match[0], opened
    )


def _text(text: str) -> str:
    return html.escape(clean(text, most=10_000), quote=False)
