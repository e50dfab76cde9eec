"""benchmarks/compare_trials.py: a few of its trials, every line of which says sim."""

from __future__ import annotations

import csv
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "compare_trials.py"
KEPT = ROOT / "benchmarks" / "results" / "2026-11-21-decisions"


def test_a_few_trials_meet_the_bars_and_are_kept(tmp_path: Path) -> None:
    out = tmp_path / "trials.csv"
    words = [sys.executable, str(SCRIPT), "--runs", "2", "--csv", str(out)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(line.startswith("sim") for line in done.stdout.splitlines())
    trials = list(csv.DictReader(out.read_text(encoding="utf-8").splitlines()))
    assert [(trial["part"], trial["run"], trial["found"]) for trial in trials] == [
        ("healthy", "0", "False"),
        ("healthy", "1", "False"),
        ("slow", "0", "True"),
        ("slow", "1", "True"),
    ]


def test_the_page_shows_the_rates_that_were_kept() -> None:
    page = (ROOT / "docs" / "exchange.md").read_text(encoding="utf-8").partition("**How often it errs.**")[2]
    shown = re.findall(r"^\| [^|]+ \| (\d[\d,]* of [\d,]+) \| [^|]*\|$", page, re.MULTILINE)
    kept = re.findall(r" (\d[\d,]* of [\d,]+) \(", (KEPT / "compare.txt").read_text(encoding="utf-8"))
    assert [shown[0], *shown[1:]] == [kept[0], *kept[2:]]  # the second: a regression of a healthy machine


def test_the_kept_trials_are_those_of_the_kept_rates() -> None:
    trials = list(csv.DictReader((KEPT / "compare.csv").read_text(encoding="utf-8").splitlines()))
    healthy, slow = ([trial for trial in trials if trial["part"] == part] for part in ("healthy", "slow"))
    cried = sum(trial["wrong"] != "0" or trial["better"] != "0" for trial in healthy)
    found = sum(trial["found"] == "True" for trial in slow)
    rates = (KEPT / "compare.txt").read_text(encoding="utf-8")
    assert f" {cried} of {len(healthy):,} (" in rates
    assert f" {found} of {len(slow):,} (" in rates
    assert cried <= 0.01 * len(healthy)
    assert found >= 0.99 * len(slow)
