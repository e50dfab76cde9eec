"""What a reader finds in a picture: an SVG's words, parts and shapes, or the data of a drawn figure."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

import numpy as np
from PIL import Image

from collbench.model.operations import Work
from collbench.model.run import Run
from collbench.report.plot import curves, figure
from collbench.report.plot.figure import Named, Picture

SVG = "{http://www.w3.org/2000/svg}"
Shape = tuple[str, tuple[float, ...]]


@dataclass(frozen=True)
class Found:
    """An SVG as read: its title and description, texts, tips by the part's id, ids, and shapes as numbers."""

    title: str
    description: str
    texts: tuple[str, ...]
    tips: dict[str, str]
    ids: tuple[str, ...]
    shapes: tuple[Shape, ...]
    elements: frozenset[str]


def read(svg: bytes) -> Found:
    root = ElementTree.fromstring(svg)  # noqa: S314 -- ours
    parts = {part.attrib["id"]: part for part in root.iter() if "id" in part.attrib}
    titles = {name: part.find(f"{SVG}title") for name, part in parts.items()}
    texts = ("".join(text.itertext()) for text in root.iter(f"{SVG}text"))
    paths = ((path.get("style", ""), path.get("d", "")) for path in root.iter(f"{SVG}path"))
    return Found(
        title=str(root.findtext(f"{SVG}title")),
        description=str(root.findtext(f"{SVG}desc")),
        texts=tuple(text for text in texts if text),
        tips={name: str(title.text) for name, title in titles.items() if title is not None},
        ids=tuple(parts),
        shapes=tuple((style, tuple(float(n) for n in re.findall(r"-?\d+(?:\.\d+)?", d))) for style, d in paths),
        elements=frozenset(part.tag for part in root.iter()),
    )


def svg_of(picture: Picture) -> Found:
    with figure.drawing():
        return read(figure.encode(picture, "svg"))


def named(run: Run, name: str = "run") -> Named:
    return Named(name, run)


def curve_picture(shown: Sequence[tuple[Named, Work]]) -> Picture:
    with figure.drawing():
        return curves.draw(shown)


def ink_at_the_edges(picture: Picture) -> int:
    """Return how many pixels at the edges of the PNG are not white: words that the edges cut off."""
    with figure.drawing():
        pixels = np.asarray(Image.open(io.BytesIO(figure.encode(picture, "png"))).convert("L"))
    edges = (pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1])
    return sum(int((edge < 250).sum()) for edge in edges)


def drawn(picture: Picture) -> dict[str, dict[float, float]]:
    """Return the lines of a picture of curves: legend → x → y."""
    (axes,) = picture.figure.axes
    lines = [line for line in axes.get_lines() if not str(line.get_label()).startswith("_")]
    return {
        str(line.get_label()): {
            float(x): float(y) for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)  # type: ignore[arg-type]
        }
        for line in lines
    }  # fmt: skip
