"""benchmarks/compare_trials.py: a few of its trials, every line of which says sim."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "compare_trials.py"


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
