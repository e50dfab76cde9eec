"""The shipped figures: their schema, the names that they are for, and our own recordings behind them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from collbench.judge.references import Figure, check, load
from collbench.model.operations import Operation, Variant

ROOT = Path(__file__).parents[2]
FILE = ROOT / "src" / "collbench" / "judge" / "figures.json"
SCHEMA: dict[str, Any] = json.loads((ROOT / "docs" / "reference-figures.schema.json").read_text(encoding="utf-8"))
FIGURES = load()


def test_the_file_is_as_its_schema_says() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert list(Draft202012Validator(SCHEMA).iter_errors(json.loads(FILE.read_text(encoding="utf-8")))) == []


def test_no_figure_stands_there_twice() -> None:
    assert len(set(FIGURES)) == len(FIGURES)


# As NVML and nvidia-smi name them.
KINDS = [
    ("NVIDIA H200", "H200"),
    ("NVIDIA H100 80GB HBM3", "H100 SXM"),
    ("NVIDIA H100 NVL", "H100 NVL"),
    ("NVIDIA A100-SXM4-80GB", "A100 SXM"),
    ("A100-SXM4-40GB", "A100 SXM"),
    ("NVIDIA A100 80GB PCIe", "A100 PCIe"),
    ("NVIDIA A100-PCIE-40GB", "A100 PCIe"),
    ("NVIDIA B200", "B200"),
    ("NVIDIA GB200", "GB200"),
    ("NVIDIA B300 SXM6 AC", "B300"),
    ("Tesla V100-SXM2-32GB", "V100 SXM2"),
    ("Tesla V100-PCIE-16GB", "V100 PCIe"),
    ("Tesla P100-SXM2-16GB", "P100 SXM2"),
    ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000 Blackwell"),
]


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_a_product_name_finds_the_figures_of_its_kind_alone(name: str, kind: str) -> None:
    machines = {figure.machine for figure in FIGURES if figure.is_of(name)}
    assert machines
    assert all(re.search(rf"(^|[ ×]){re.escape(kind)}\b", machine) for machine in machines), machines


@pytest.mark.parametrize("name", ["NVIDIA H200 NVL", "NVIDIA H100 PCIe", "NVIDIA A10", "NVIDIA L40S", "NVIDIA H800"])
def test_another_product_finds_none(name: str) -> None:
    assert [figure.machine for figure in FIGURES if figure.is_of(name)] == []


# The machine kinds that people ask about, and whose figures there must be.
WANTED = ("V100 SXM2", "A100 SXM", "H100 SXM", "H200", "B200", "PCIe gen 3", "PCIe gen 4", "PCIe, gen 4", "PCIe gen 5")


@pytest.mark.parametrize("kind", WANTED)
def test_each_kind_that_was_asked_for_has_figures(kind: str) -> None:
    assert [figure for figure in FIGURES if kind in figure.machine]


# A document that somebody can open: a repository at a commit and a file in it, an issue, a manual, or a file of ours.
SOURCE = re.compile(
    r"[\w-]+/[\w-]+ [0-9a-f]{7}, [\w./-]+(, ('[^']+'( and '[^']+')*|conf/[\w.]+))?"
    r"|github\.com/[\w-]+/[\w-]+/issues/\d+ \(NVIDIA's answer\)"
    r"|Dell, [\w ,.]+, table \d+"
    r"|(collbench, )?(?P<ours>(tests/data|benchmarks/results)/[\w./-]+)"
)


@pytest.mark.parametrize("source", sorted({one for figure in FIGURES for one in figure.source.split("; ")}))
def test_every_source_can_be_opened(source: str) -> None:
    match = SOURCE.fullmatch(source)
    assert match, source
    assert match["ours"] is None or (ROOT / match["ours"]).is_file()


def rows(path: str) -> dict[int, float]:
    """Return the out-of-place busbw of each size that nccl-tests printed."""
    text = (ROOT / path).read_text(encoding="utf-8")
    found = re.findall(r"^ +(\d+) +\d+ +float +sum +-1 +[\d.]+ +[\d.]+ +([\d.]+)", text, re.MULTILINE)
    return {int(size): float(busbw) for size, busbw in found}


OURS = [figure for figure in FIGURES if figure.source.startswith("collbench, tests/data")]


@pytest.mark.parametrize("figure", OURS, ids=lambda figure: f"{figure.ranks} ranks, {figure.sizes[0]} B")
def test_our_own_all_reduces_are_those_of_the_recorded_text(figure: Figure) -> None:
    path = figure.source.removeprefix("collbench, ").split(";")[0]
    assert rows(path)[figure.sizes[0]] in figure.measured


def test_our_own_copies_are_those_of_the_recorded_comparison() -> None:
    text = (ROOT / "benchmarks/results/2026-11-21-4xh200-peers/versus_peers-3.txt").read_text(encoding="utf-8")
    ours = [f for f in FIGURES if "versus_peers-3" in f.source and f.operation.is_copy and f.variant is Variant.PLAIN]
    peer = {
        (name, size): float(gbs)
        for name, size, gbs in re.findall(r"^([cs][em]-\w+) (512M|1024M), \d+ links +([\d.]+)", text, re.MULTILINE)
    }
    assert len(ours) == 4
    for figure in ours:
        assert {peer[figure.operation.value, "512M"], peer[figure.operation.value, "1024M"]} <= set(figure.measured)


def figure(**changes: Any) -> Figure:
    fields: dict[str, Any] = {"measured": (100.0,), "sizes": (1, 2)} | changes
    return Figure("H200", "kind", "NV18", Operation.ALLREDUCE, 8, conditions="so", source="there", **fields)


@pytest.mark.parametrize(
    ("title", "changes", "reported"),
    [
        ("neither measured nor asked for", {"measured": ()}, "either"),
        ("both", {"at_least": 90.0}, "either"),
        ("nothing", {"measured": (0.0,)}, "above 0"),
        ("sizes the wrong way", {"sizes": (2, 1)}, "smaller to the larger"),
        ("a word for NVLS", {"nvls": "maybe"}, "on, off or null"),
    ],
)
def test_a_wrong_figure_is_refused(title: str, changes: dict[str, Any], reported: str) -> None:
    with pytest.raises(ValueError, match=reported):
        check(figure(**changes))


def test_a_measured_figure_holds_within_5_percent_and_a_test_has_no_upper_end() -> None:
    assert figure(measured=(100.0, 120.0)).band == pytest.approx((95.0, 126.0))
    assert figure(measured=(), at_least=90.0).band == (90.0, None)
