"""The shipped figures: their schema, the names that they are for, and the published data behind them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from collbench.judge.references import Figure, Reference, by_kind, load, reference_at
from collbench.model.operations import Operation

ROOT = Path(__file__).parents[2]
FILES = [ROOT / "src" / "collbench" / "judge" / name for name in ("figures.json", "curves.json")]
SCHEMA: dict[str, Any] = json.loads((ROOT / "docs" / "reference-figures.schema.json").read_text(encoding="utf-8"))
FIGURES = load()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_the_file_is_as_its_schema_says(file: Path) -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert list(Draft202012Validator(SCHEMA).iter_errors(json.loads(file.read_text(encoding="utf-8")))) == []


def test_no_figure_stands_there_twice() -> None:
    assert len(set(FIGURES)) == len(FIGURES)


def test_sizes_go_up_and_a_curve_has_a_value_for_each_doubling() -> None:
    for figure in FIGURES:
        assert figure.sizes[0] <= figure.sizes[1]
        assert not figure.curve or figure.sizes[1] == figure.sizes[0] << (len(figure.curve) - 1)


def test_what_links_carry_is_known_of_each_figure_and_no_source_measured_more() -> None:
    for kind in by_kind(FIGURES):
        for size in {size for figure in kind for size in figure.sizes}:
            reference = reference_at(kind, size)
            assert reference is not None
            assert reference.ceiling is not None, kind[0]
            assert max((high for _, high in reference.sources.values()), default=0.0) <= reference.ceiling, kind[0]


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
    ("NVIDIA GB300", "GB300"),
    ("NVIDIA B300 SXM6 AC", "B300"),
    ("Tesla V100-SXM2-32GB", "V100 SXM2"),
    ("Tesla V100-PCIE-16GB", "V100 PCIe"),
    ("Tesla P100-SXM2-16GB", "P100 SXM2"),
    ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000 Blackwell"),
    ("NVIDIA GeForce RTX 5090", "RTX 5090"),
    ("NVIDIA GeForce RTX 4090", "RTX 4090"),
    ("NVIDIA GeForce RTX 2080 Ti", "RTX 2080 Ti"),
    ("NVIDIA RTX A6000", "RTX A6000"),
]


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_a_product_name_finds_the_figures_of_its_kind_alone(name: str, kind: str) -> None:
    machines = {figure.machine for figure in FIGURES if figure.is_of(name)}
    assert machines
    assert all(re.search(rf"(^|[ ×]){re.escape(kind)}\b", machine) for machine in machines), machines


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA H200 NVL",
        "NVIDIA H100 PCIe",
        "NVIDIA A10",
        "NVIDIA L40S",
        "NVIDIA H800",
        "NVIDIA GeForce RTX 5090 Laptop GPU",
    ],
)
def test_another_product_finds_none(name: str) -> None:
    assert [figure.machine for figure in FIGURES if figure.is_of(name)] == []


# The machine kinds that people ask about, and whose figures there must be.
WANTED = ("V100 SXM2", "A100 SXM", "H100 SXM", "H200", "B200", "PCIe gen 3", "PCIe gen 4", "PCIe, gen 4", "PCIe gen 5")


def test_each_kind_that_was_asked_for_has_figures() -> None:
    assert [kind for kind in WANTED if not any(kind in figure.machine for figure in FIGURES)] == []


# A document that somebody can open: a repository at a commit and a file in it, an issue, or a manual.
SOURCE = re.compile(
    r"[\w-]+/[\w.-]+ [0-9a-f]{7}, [\w./-]+(, ('[^']+'( and '[^']+')*|conf/[\w.]+))?"
    r"|github\.com/[\w-]+/[\w-]+/issues/\d+( \(NVIDIA's answer\))?"
    r"|Dell, [\w ,.]+, table \d+"
)


def test_every_source_can_be_opened() -> None:
    sources = {source for figure in FIGURES for source in figure.source.split("; ")}
    assert [source for source in sources if not SOURCE.fullmatch(source)] == []


def test_none_of_our_own_measurements_judges_our_own_machines() -> None:
    assert [one.source for one in FIGURES if "collbench" in one.source or "benchmarks/" in one.source] == []


# What aiconfigurator published, read again by pandas; nccl-tests' busbw is bytes over time times these and (n-1)/n.
PUBLISHED = ROOT / "tests" / "data" / "published" / "aiconfigurator_nccl.csv.gz"
NAMES = {
    "NVIDIA A100-SXM4-80GB": "a100_sxm",
    "NVIDIA H100 80GB HBM3": "h100_sxm",
    "NVIDIA H200": "h200_sxm",
    "NVIDIA B200": "b200_sxm",
    "NVIDIA B300 SXM6 AC": "b300_sxm",
    "NVIDIA GB200": "gb200",
    "NVIDIA GB300": "gb300",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": "rtx_pro_6000_server",
}
OPERATIONS = {
    Operation.ALLREDUCE: ("all_reduce", 2),
    Operation.ALLGATHER: ("all_gather", 1),
    Operation.REDUCESCATTER: ("reduce_scatter", 1),
    Operation.ALLTOALL: ("alltoall", 1),
}


def test_every_published_time_is_in_the_curves() -> None:
    import pandas as pd  # type: ignore[import-untyped]

    table = pd.read_csv(PUBLISHED)
    table["machine"] = table.file.str.replace(r"_comm_.*", "", regex=True)
    seen = 0
    for (machine, name, ranks, elements), rows in table.groupby(["machine", "op_name", "num_gpus", "elements"]):
        operation, factor = next((one, f) for one, (theirs, f) in OPERATIONS.items() if theirs == name)
        products = [product for product, theirs in NAMES.items() if theirs == machine]
        curves = [
            one
            for one in FIGURES
            if one.curve and products and one.is_of(products[0]) and "aiconfigurator" in one.source
            if (one.operation, one.ranks) == (operation, ranks)
        ]
        if machine == "l40s":
            assert curves == []
            continue
        rates = 2 * elements * factor * (ranks - 1) / ranks / rows.milliseconds / 1e6
        found = [one.values_at(2 * int(elements)) for one in curves]
        assert len(found) == rows.version.fillna("2.23").nunique()
        for values in found:
            assert values is not None
            assert rates.min() - 0.006 <= values[0] == values[1] <= rates.max() + 0.006
        seen += 1
    assert seen == 4 * (6 * 3 + 2 * 2) * 10  # operations, ranks of eight machines, sizes from 1 to 512 MiB


@pytest.mark.parametrize("ranks", [2, 4])
def test_nccl_tests_on_our_own_machine_is_within_the_bands_of_others(ranks: int) -> None:
    """4 × H200, NCCL 2.28.9, out of place, from the size on that judges to the largest that a curve reaches."""
    printed = (ROOT / f"tests/data/h200x4/all_reduce_perf-{ranks}-ranks.txt").read_text(encoding="utf-8")
    found = re.findall(r"^ +(\d+) +\d+ +float +sum +-1 +[\d.]+ +[\d.]+ +([\d.]+)", printed, re.MULTILINE)
    rates = {int(size): float(busbw) for size, busbw in found if 2**24 <= int(size) <= 2**30}
    ours = [one for one in FIGURES if one.is_of("NVIDIA H200") and one.operation is Operation.ALLREDUCE]
    (kind,) = [one for one in by_kind(ours) if one[0].ranks == ranks]
    assert len(rates) == 7
    for size, gbs in rates.items():
        low, high = at(*kind, size=size).band
        assert high is not None
        assert low < gbs < high, size


def test_the_shipped_curves_are_those_that_the_script_makes() -> None:
    script = ROOT / "benchmarks" / "published_curves.py"
    assert subprocess.run([sys.executable, str(script), "--check"], check=False).returncode == 0


CURVE = {"measured": (), "curve": (100.0, 200.0, 242.0), "sizes": (2**20, 2**22)}


@pytest.mark.parametrize(
    ("size", "values"),
    [
        (2**20 - 1, None),
        (2**20, (100.0, 100.0)),
        (2**21, (200.0, 200.0)),
        (2**22, (242.0, 242.0)),
        (round(2**20.5), (141.42, 141.42)),
        (round(2**21.5), (220.0, 220.0)),
        # Beyond the end by a doubling at most: no slower than the last, no faster than if it grew as before.
        (2**23, (242.0, 292.82)),
        (2**23 + 1, None),
    ],
)
def test_a_curve_is_interpolated_between_its_sizes(size: int, values: tuple[float, float] | None) -> None:
    found = figure(**CURVE).values_at(size)
    assert found == (values and pytest.approx(values, rel=1e-5))


def figure(**changes: Any) -> Figure:
    fields: dict[str, Any] = {"measured": (100.0,), "sizes": (1, 2), "source": "there"} | changes
    return Figure("H200", "kind", "NV18", Operation.ALLREDUCE, 8, conditions="so", **fields)


def at(*figures: Figure, size: int = 1) -> Reference:
    found = reference_at(figures, size)
    assert found is not None
    return found


def test_a_measured_figure_holds_within_5_percent_and_a_test_has_no_upper_end() -> None:
    assert at(figure(measured=(100.0, 120.0))).band == pytest.approx((95.0, 126.0))
    assert at(figure(measured=(), at_least=90.0)).band == (90.0, None)
    assert reference_at([figure()], 3) is None


def test_sources_make_one_band_and_it_is_said_where_they_disagree() -> None:
    one, like = figure(measured=(100.0,), source="a/b 1"), figure(measured=(104.0,), source="c/d 1")
    again, other = figure(measured=(102.0,), source="a/b 2"), figure(measured=(112.0,), source="e/f 1")
    assert (len(at(one).sources), at(one).disagree) == (1, False)
    assert (at(one, again).sources, at(one, again).disagree) == ({"a/b": (100.0, 102.0)}, False)
    assert (len(at(one, like).sources), at(one, like).disagree) == (2, False)
    assert at(one, like).band == pytest.approx((95.0, 109.2))
    assert (len(at(one, like, other).sources), at(one, like, other).disagree) == (3, True)


def test_held_out_sources_are_within_the_band_of_the_others_or_the_page_says_so() -> None:
    """Azure's and aiconfigurator's all-reduces on eight GPUs agree from 256 MiB on, on Hopper from 16 MiB on."""
    for name, first in (("NVIDIA H200", 16), ("NVIDIA H100 80GB HBM3", 16), ("NVIDIA A100-SXM4-80GB", 256)):
        ours = [one for one in FIGURES if one.is_of(name) and one.curve and one.operation is Operation.ALLREDUCE]
        (kind,) = [one for one in by_kind(ours) if one[0].ranks == 8]
        for size in (2**step for step in range(20, 30)):
            values = {one.origin: one.values_at(size) for one in kind}
            (theirs, _), (azure, _) = (value or (0.0, 0.0) for value in values.values())
            inside = 0.95 <= theirs / azure <= 1.05 and 0.95 <= azure / theirs <= 1.05
            assert at(*kind, size=size).disagree is not inside
            assert inside or size < first * 2**20


def test_below_the_size_from_which_sources_agree_a_curve_is_a_guide() -> None:
    one = figure(measured=(), curve=(1.0, 2.0, 3.0), sizes=(1, 4), judges_from=2)
    assert [at(one, size=size).orients for size in (1, 2, 4)] == [True, False, False]
    firm = {one.judges_from for one in FIGURES if one.curve and one.is_of("NVIDIA A100-SXM4-80GB")}
    assert (firm, {one.judges_from for one in FIGURES if one.curve}) == ({2**28}, {2**24, 2**28})


@pytest.mark.parametrize(
    ("title", "changes", "orients"),
    [
        ("a collective over PCIe", {"links": "PIX|SYS"}, True),
        ("over NVLink", {"links": "NV18"}, False),
        ("a copy over PCIe", {"links": "PIX", "operation": Operation.CE_WRITE, "ranks": 2}, False),
    ],
)
def test_one_source_of_a_collective_over_pcie_is_a_guide(title: str, changes: dict[str, Any], orients: bool) -> None:
    one = replace(figure(), **changes)
    assert at(one).orients is orients, title
    assert not at(one, replace(one, source="else/where 1")).orients
