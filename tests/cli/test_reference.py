"""Published figures on the command line: which there are, and what ends with 3 below them."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

from collbench.model.operations import Operation
from collbench.runfile import run_file
from tests.builders import gpus, measured, run_of
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


def test_pairs_and_check_end_with_3_for_a_rate_below_normal_and_name_it_first(program: Program) -> None:
    """Copies and labels agree; NCCL reaches 250 GB/s, and the published pairs of H100 320 at 512M."""
    links = (measured(Operation.CE_WRITE, link, [397.0] * 3) for link in ((0, 1), (1, 0)))
    slow = run_of(gpus(2, "NVIDIA H100 80GB HBM3"), [*links, measured(Operation.ALLREDUCE, (0, 1), [250.0] * 3)])
    run_file.save(slow, Path("run.json"))
    line = "allreduce at 1G on 2 GPUs: below, 250.0 GB/s; band 304.2 to 353.4 (1 source)"
    finished = program("pairs", "--resume", "run.json")
    assert (finished.status, finished.out.startswith(f"{line}: 'collbench check RUN.JSON' explains it\n")) == (3, True)
    assert finished.err.splitlines()[-1] == f"collbench: {line}"
    checked = program("check", "run.json")
    assert (checked.status, checked.out.startswith(f"{line}\n")) == (3, True), checked.out
    assert program("compare", "run.json", "--reference").status == 3
