"""The page as text: one file that asks for nothing, in which a machine's words stay words."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import product
from pathlib import Path

import pytest

from collbench.judge.tiers import Relation
from collbench.model.operations import COLLECTIVES, Work
from collbench.model.run import Run
from collbench.report.html import render
from tests.builders import gpus, pair_run, run_of
from tests.report.html.runs import EVIL, SIM_PAIRS, by_hand, hostile, page, recorded_content, simulated, usual_page

PIECES = Path(__file__).parents[3] / "src" / "collbench" / "report" / "pieces"
MIB = 2**20
HEADINGS = {"h1", "h2", "h3", "caption", "figcaption", "summary"}


class Outline(HTMLParser):
    """What a browser would make of the page: elements with their attributes, headings and the text of each block."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.headings: list[str] = []
        self.blocks: dict[str, str] = {}
        self.words = ""
        self._inside: list[str] = []
        self._block = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self._block = dict(attrs).get("id") or tag
        if tag in HEADINGS:
            self._inside.append(tag)
            self.headings.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("script", "style"):
            self._block = ""
        if tag in HEADINGS:
            self._inside.pop()

    def handle_data(self, data: str) -> None:
        if self._block:
            self.blocks[self._block] = self.blocks.get(self._block, "") + data
            return
        self.words += data
        if self._inside:
            self.headings[-1] += data


def test_the_page_holds_its_data_as_it_was_computed() -> None:
    reported = recorded_content()
    assert json.loads(Outline(render(reported)).blocks["run-0-data"]) == reported["runs"][0]["data"]


def test_one_script_and_one_style_are_allowed_by_their_hash_and_nothing_else() -> None:
    outline = Outline(render(recorded_content()))
    policies = [given["content"] or "" for tag, given in outline.elements if given.get("http-equiv")]
    rules = dict(rule.split(" ", 1) for rule in policies[0].split("; "))
    hashes = {
        block: f"'sha256-{base64.b64encode(hashlib.sha256(outline.blocks[block].encode()).digest()).decode()}'"
        for block in ("script", "style")
    }
    assert len(policies) == 1
    assert rules == {
        "default-src": "'none'",
        "script-src": hashes["script"],
        "style-src": hashes["style"],
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "require-trusted-types-for": "'script'",
    }


def test_nothing_is_loaded_from_elsewhere() -> None:
    outline = Outline(usual_page())
    targets = [
        (tag, value) for tag, given in outline.elements for key, value in given.items() if key in ("href", "src")
    ]
    assert {value for tag, value in targets if tag == "link"} == {"data:,"}
    assert all(tag == "link" or (value or "").startswith("#") for tag, value in targets)
    assert "url(" not in outline.blocks["style"]
    assert "@import" not in outline.blocks["style"]
    assert not [
        given for _, given in outline.elements if "style" in given or any(key.startswith("on") for key in given)
    ]


@pytest.mark.parametrize("name", sorted(path.name for path in PIECES.glob("*.js")))
def test_the_script_never_takes_text_for_html(name: str) -> None:
    source = (PIECES / name).read_text(encoding="utf-8")
    assert (
        re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|fetch\(", source)
        == []
    )


def test_a_hostile_machines_words_stay_words() -> None:
    outline = Outline(page(hostile()))
    assert outline.words.count(EVIL) > 20  # names, labels, versions, paths, variables, flags, failures: each as it is
    assert "49" not in outline.headings[0]  # {{7*7}} is no template either
    assert json.loads(outline.blocks["run-0-data"])["tags"][0] == f"{EVIL}:GPU0"
    assert {tag for tag, _ in outline.elements} <= {tag for tag, _ in Outline(usual_page()).elements} | {"pre"}
    assert [tag for tag, _ in outline.elements].count("script") == 2


def test_a_name_of_broken_unicode_and_control_characters_is_written() -> None:
    run = by_hand()
    text = page(run_of(gpus(4, "A\udcff\x00\x1b[31m"), run.measurements, run.paths))
    assert "A\udcff" in text  # wholefile writes it as \udcff
    assert json.loads(Outline(text).blocks["run-0-data"])["tags"][0] == "GPU0"


def test_no_section_of_a_simulated_run_goes_without_the_word_sim_and_few_things_have_it() -> None:
    """Wherever it stood beside each line, 73 times, nobody read it."""
    text = page(simulated("nvlink-pairs-2x2"))
    headings = re.findall(r"<h[12][^>]*>(.*?)</h[12]>", text.partition("<main")[2], re.DOTALL)
    assert len(headings) >= 9
    assert [head for head in headings if not re.search(r"\bsim\b", head)] == []
    assert text.partition("<script")[0].count('class="sim"') + text.partition("</script>")[2].count('class="sim"') <= 15


@pytest.mark.parametrize(
    ("what", "run"),
    [
        ("nothing measured", run_of(gpus(2), [])),
        ("one device", run_of(gpus(1), [])),
        ("no paths", pair_run(3, lambda _a, _b: 1.0, links=[])),
    ],
)
def test_a_poor_run_has_a_page(what: str, run: Run) -> None:
    assert Outline(page(run)).headings, what


def test_everything_of_8_gpus_at_14_sizes_fits_into_a_mail() -> None:
    """A page grows with its data points: one of the collectives has its share of them, and may fill that share."""
    sizes = (8, *(64 * 4**power for power in range(13)))  # as `pairs` has them
    works = tuple(Work(operation) for operation in COLLECTIVES[:1])
    run = simulated("dgx-1v", replace(SIM_PAIRS, sizes=sizes, copies=(), collectives=works))
    assert len(run.measurements) == 28 * 14
    everything = 14 * (28 * len(COLLECTIVES) + 56 * 4)  # and copies on links, by ce and sm, written and read
    assert len(page(run).encode()) < 1.5 * MIB * len(run.measurements) / everything


def luminance(colour: str) -> float:
    """Return WCAG 2's relative luminance of #rgb or #rrggbb."""
    digits = colour[1:] if len(colour) == 7 else "".join(digit * 2 for digit in colour[1:])
    parts = (int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4))
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_the_map_has_words_for_every_relation_to_the_best() -> None:
    """The page's data have the first letter of each: one without words would read "1, undefined"."""
    words = re.search(r"RELATIONS = \{(.+?)\};", (PIECES / "words.js").read_text("utf-8"), re.DOTALL)
    assert words is not None
    assert sorted(re.findall(r"(\w): \"", words[1])) == sorted(relation.value[0] for relation in Relation)


SHADES = re.findall(r"\.s([A-Y]) \{ background: (#\w+); color: (#\w+)", (PIECES / "map.css").read_text("utf-8"))


def test_there_is_a_colour_for_every_shade() -> None:
    assert "".join(letter for letter, _, _ in SHADES) == "ABCDEFGHIJKLMNOPQRSTUVWXY"


def test_figures_can_be_read_on_every_shade() -> None:
    assert [letter for letter, ground, ink in SHADES if contrast(ground, ink) < 4.5] == []  # WCAG 2.2, 1.4.3


def test_the_map_is_brighter_the_nearer_the_best() -> None:
    lights = [luminance(ground) for _, ground, _ in SHADES]
    assert lights == sorted(lights)


COLOURS = {
    name: (light, dark)
    for name, light, dark in re.findall(
        r"--(\w+): light-dark\((#\w+), (#\w+)\)", (PIECES / "base.css").read_text(encoding="utf-8")
    )
}


def test_text_can_be_read_in_both_themes() -> None:
    inks = ("ink", "soft", "accent", "good", "warn", "bad", "sim")
    for ink, ground, theme in product(inks, ("paper", "surface", "raised"), (0, 1)):
        assert contrast(COLOURS[ink][theme], COLOURS[ground][theme]) >= 4.5, (ink, ground, theme)
