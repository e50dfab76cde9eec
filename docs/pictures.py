#!/usr/bin/env python3
"""Makes the pictures of the HTML report in docs/figures: of the README, and numbered ones of docs/report.md.

    python docs/pictures.py

Needs playwright, Pillow (which comes with matplotlib) and a Chromium; COLLBENCH_TEST_BROWSER names it, as for tests.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
from importlib import resources
from pathlib import Path

from PIL import Image
from playwright.sync_api import FloatRect, sync_playwright

FIGURES = Path(__file__).parent / "figures"
FAULT = {"kind": "slow-link", "devices": [2, 3], "factor": 0.6}
SLOW = "[role=gridcell][data-at='2,3']"  # its cell in the map
# Each picture: its name, the faults of its simulated machine, the part of the page that it shows, its height in pixels,
# and what gets a number.
PICTURES: dict[str, tuple[list[object], str, int, list[str]]] = {
    "report-sim": ([], "body", 1010, []),
    "report-answer-sim": (
        [FAULT],
        "h1",
        455,
        ["h1", ".answer:nth-of-type(1)", ".answer:nth-of-type(2)", ".answer:nth-of-type(3)"],
    ),
    "report-map-sim": (
        [FAULT],
        ".maps.alive",
        1310,
        [".maps.alive select", SLOW, ".maps.alive dl", ".maps.alive figure svg"],
    ),
    "report-verdict-sim": ([FAULT], "[id$=-verdicts]", 345, ["[id$=-verdicts] ~ * h3"]),
}
# A number left of the top of each element.
NUMBERED = """selectors => selectors.forEach((selector, i) => {
    const box = document.querySelector(selector).getBoundingClientRect(), badge = document.createElement("div");
    badge.textContent = i + 1;
    badge.style = `position:absolute; left:${Math.max(2, box.x + scrollX - 28)}px; top:${box.y + scrollY - 2}px;
        width:26px; height:26px; border-radius:13px; background:#c2185b; color:white; z-index:99;
        font:bold 16px/26px sans-serif; text-align:center`;
    document.body.append(badge);
})"""


def main() -> None:
    """Write the pictures."""
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    browser = os.environ.get("COLLBENCH_TEST_BROWSER") or next(filter(None, map(shutil.which, names)), None)
    if browser is None:
        sys.exit("pictures: no Chromium: name it by COLLBENCH_TEST_BROWSER")
    machine = json.loads((resources.files("collbench.sim") / "machines" / "dgx-1v.json").read_text("utf-8"))
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=browser, args=["--no-sandbox", "--disable-gpu"])
        for name, (faults, top, height, numbered) in PICTURES.items():
            machine |= {"name": "dgx-1v-slow-link" if faults else "dgx-1v", "faults": faults}
            (Path(folder) / "machine.json").write_text(json.dumps(machine), encoding="utf-8")
            pairs = ["pairs", "--backend", "sim", "--fabric", "machine.json", "--seed", "1", "-o", "run.json"]
            for command in (pairs, ["report", "run.json", "-o", "report.html"]):
                collbench = [sys.executable, "-m", "collbench", *command, "--force"]
                subprocess.run(collbench, cwd=folder, check=False, capture_output=True)
            page = opened.new_page(viewport={"width": 1000, "height": 900}, color_scheme="light")
            page.goto((Path(folder) / "report.html").as_uri())
            page.wait_for_load_state("networkidle")
            if numbered:
                page.locator(SLOW).click()
                page.evaluate(NUMBERED, numbered)
            start = page.evaluate("top => document.querySelector(top).getBoundingClientRect().y + scrollY", top)
            clip = FloatRect(x=0, y=max(0, start - 25), width=1000, height=height)
            picture = Image.open(io.BytesIO(page.screenshot(full_page=True, clip=clip)))
            colors = picture.convert("P", palette=Image.Palette.ADAPTIVE, colors=64)
            colors.save(FIGURES / f"{name}.png", optimize=True)
        opened.close()


if __name__ == "__main__":
    main()
