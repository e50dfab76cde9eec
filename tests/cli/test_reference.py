"""`collbench reference`: which published figures there are."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

from tests.cli.program import Program

PUBLISHED = Path(__file__).parents[1] / "data" / "published" / "aiconfigurator_nccl.csv.gz"


def test_one_machine_has_a_line_for_each_operation_and_number_of_gpus(program: Program) -> None:
    result = program("reference", "NVIDIA H100 80GB HBM3", "--json")
    rows = json.loads(result.out)["references"]
    with gzip.open(PUBLISHED, "rt", encoding="utf-8") as file:
        published = {(row["op_name"], int(row["num_gpus"])) for row in csv.DictReader(file) if "h100" in row["file"]}
    names = {
        "allreduce": "all_reduce",
        "allgather": "all_gather",
        "reducescatter": "reduce_scatter",
        "alltoall": "alltoall",
    }
    measured = {(names[row["operation"]], row["ranks"]) for row in rows if "ai-dynamo/aiconfigurator" in row["sources"]}
    assert (result.status, measured) == (0, published)
    (eight,) = [
        row
        for row in rows
        if (row["operation"], row["ranks"], row["nvls"], row["minimum"]) == ("allreduce", 8, "on", False)
    ]
    assert len(eight["sources"]) == 3
    # Azure and aiconfigurator at 1, 2, 4 and 8 MiB: 43.7 and 72.2 … 172.1 and 185.5 GB/s.
    assert eight["disagree"] == [2**20, 2**21, 2**22, 2**23]


def test_the_table_is_of_all_machines_or_of_those_of_a_name(program: Program) -> None:
    everything, h100 = program("reference"), program("reference", "h100 sxm")
    machines = {line.partition(" behind")[0] for line in h100.out.splitlines()[1:] if "behind" in line}
    assert machines == {"8 × H100 SXM", "H100 SXM"}
    assert "RTX 5090, PCIe gen 5" in everything.out
    assert len(everything.out.splitlines()) > 2 * len(h100.out.splitlines())


def test_a_machine_without_figures_is_named(program: Program) -> None:
    result = program("reference", "NVIDIA L4")
    assert (result.status, result.out) == (2, "")
    assert result.line == "there is no published figure for 'NVIDIA L4': 'collbench reference' lists all machines"
