#!/usr/bin/env python3
"""Makes docs/figures/report-sim.png, the README's picture: the first screen of a report of a simulated machine.

    python benchmarks/report_picture.py [--out docs/figures/report-sim.png]

Needs playwright, Pillow (which comes with matplotlib) and a Chromium; COLLBENCH_TEST_BROWSER names it, as for tests.
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[1]
FABRIC = "dgx-1v"
WIDTH, HEIGHT = 1100, 1010
_COLORS = 128
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "figures" / "report-sim.png")
    out = parser.parse_args().out
    browser = os.environ.get("COLLBENCH_TEST_BROWSER") or next(filter(None, map(shutil.which, _BROWSERS)), None)
    if browser is None:
        print("report_picture: no Chromium: name it by COLLBENCH_TEST_BROWSER", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as name:
        collbench = [sys.executable, "-m", "collbench"]
        pairs = [*collbench, "pairs", "--backend", "sim", "--fabric", FABRIC, "-o", "run.json"]
        for command in (pairs, [*collbench, "report", "run.json", "-o", "report.html"]):
            subprocess.run(command, cwd=name, check=True, capture_output=True)
        with sync_playwright() as driver:
            opened = driver.chromium.launch(executable_path=browser, args=["--no-sandbox", "--disable-gpu"])
            page = opened.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
            page.goto((Path(name) / "report.html").as_uri())
            page.wait_for_load_state("networkidle")
            picture = page.screenshot()
            opened.close()
    Image.open(io.BytesIO(picture)).convert("P", palette=Image.Palette.ADAPTIVE, colors=_COLORS).save(
        out, optimize=True
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
