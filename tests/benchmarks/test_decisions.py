"""benchmarks/decisions.py in small: its parts, bars and seed, with few machines of each; all of it is simulation."""

from __future__ import annotations

import csv
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.deciding import dgx, healthy, kinds, regret, relabel, slow, truth
from benchmarks.deciding.bench import FIRST_SEED, LARGE, Asked, Part, measured, survey
from collbench.analysis.diagnose import Kind, Severity, Verdict
from collbench.sim import fabrics
from collbench.sim.fabrics import Fabric, Fault, FaultKind, Noise

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("title", "part", "runs"),
    [
        ("healthy machines show nothing false", healthy.run, 40),
        ("a pair that is 8 % slow is found", slow.run, 10),
        ("each kind of verdict is found where it was put, and nothing elsewhere", kinds.run, 1),
        ("the DGX-1V of docs/method.md 11.6", dgx.run, 2),
        ("the chosen set is as good as the best", regret.run, 8),
        ("a permutation of the GPUs permutes the answer", relabel.run, 4),
    ],
)
def test_a_small_run_meets_every_bar(title: str, part: Callable[[Asked], Part], runs: int) -> None:
    found = part(Asked(runs, FIRST_SEED, jobs=1))
    assert [row for row in found.rows if row.met is False] == [], title
    assert any(row.met for row in found.rows)


def silent(*faults: Fault) -> Fabric:
    return replace(fabrics.load("hgx-h200"), noise=Noise(0.0, 0.0), faults=faults)


SLOW = Fault(FaultKind.SLOW_LINK, (1, 2), factor=0.9)


@pytest.mark.parametrize(
    ("title", "told", "true", "splits"),
    [
        ("all equal, and told so", (), (), False),
        ("a slow pair, and told so", (SLOW,), (SLOW,), False),
        ("a pair told to be slow that is not", (SLOW,), (), True),
        ("a slow pair that is not told", (), (SLOW,), False),
    ],
)
def test_a_split_is_false_where_links_are_truly_equal(
    title: str, told: tuple[Fault, ...], true: tuple[Fault, ...], splits: bool
) -> None:
    request = survey((LARGE,))
    run = measured(silent(*told), request, seed=1)
    assert bool(truth.false_splits(run, truth.times(silent(*true), request))) is splits


def verdict(kind: Kind, members: tuple[int, ...]) -> Verdict:
    return Verdict(kind, Severity.CONTRADICTION, members, "NV18", None, None, "", "", "")


@pytest.mark.parametrize(
    ("title", "said", "holds"),
    [
        ("the slow pair", verdict(Kind.INTRA_LABEL_OUTLIER, (1, 2)), True),
        ("a GPU of the slow pair", verdict(Kind.INTRA_LABEL_OUTLIER, (1,)), True),
        ("another pair", verdict(Kind.INTRA_LABEL_OUTLIER, (0, 3)), False),
        ("one way of a pair that is slow both ways", verdict(Kind.ASYMMETRY, (1, 2)), False),
        ("a worse label that is faster, on a machine with one label", verdict(Kind.ORDER_INVERSION, (1, 2)), False),
        ("a kind that no healthy machine shows", verdict(Kind.NV_DEGRADED, (1, 2)), False),
    ],
)
def test_a_verdict_holds_where_the_fabric_is_so(title: str, said: Verdict, holds: bool) -> None:
    request = survey((LARGE,))
    fabric = silent(SLOW)
    assert truth.holds(said, measured(fabric, request, seed=1), truth.times(fabric, request)) is holds


def test_the_program_prints_and_keeps_its_tables(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "decisions.py"), "--part", "dgx", "--runs", "1"]
    ran = subprocess.run([*command, "--out", str(tmp_path)], check=True, capture_output=True, text=True, timeout=100)
    assert "dgx (sim)" in ran.stdout
    assert f"sim, seed {FIRST_SEED}" in ran.stdout
    for name in ("decisions.txt", "decisions.md"):
        assert "never" in (tmp_path / name).read_text(encoding="utf-8")
    rows = list(csv.DictReader((tmp_path / "dgx.csv").open(encoding="utf-8")))
    assert [row["k"] for row in rows] == [str(k) for k in range(2, 9)]
