"""Published figures on the command line: which there are, and what ends with 3 below them."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import click
import pytest

from collbench.cli.measuring import leave_with
from collbench.judge.diagnose import Diagnosis
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


@pytest.mark.parametrize(
    ("machine", "operation", "size", "busbw", "standing", "status"),
    [
        # Azure's eight H100 reach 466.35 GB/s at 1G; one that runs over PCIe and the host does not.
        ("8 x H100", "allreduce", "1G", "466.35", "normal", 0),
        ("8xh100", "all_reduce_perf", "1G", "311", "below", 3),
        # What no links carry: 18 NVLinks of 25 GB/s, times 2 × 7/8 where the switch reduces; a PCIe slot, too.
        ("2 x H200", "allreduce", "1G", "460", "impossible", 3),
        ("8 x H100", "allreduce", "1G", "780", "above", 0),
        ("8 x RTX 5090", "allreduce", "1G", "70", "impossible", 3),
        # Azure requires 208 GB/s of two bridged H100 NVL, 110 of eight V100, and nobody has published what they reach.
        ("2 x H100 NVL", "allreduce", "16G", "30", "below what is required", 3),
        ("8 x V100", "allreduce", "8G", "110", "at least what is required", 0),
        # Azure requires 228 of eight A100, within 5% of the least that was published.
        ("8 x A100", "allreduce", "8G", "225", "below what is required", 3),
        # The band begins at 331.2 GB/s; less than 2% under that is not below it. A minimum is a limit, as above.
        ("4 x H200", "allreduce", "1G", "330", "at the lower end", 0),
        ("4 x H200", "allreduce", "1G", "324", "below", 3),
        # One source of a collective over PCIe is only a guide.
        ("8 x RTX 5090", "allreduce", "1G", "3", "not judged", 1),
        # Two RTX 2080 Ti may have a bridge: two NVLinks of 25 GB/s, and no figure is of them.
        ("2 x RTX 2080 Ti", "allreduce", "1G", "40", "not judged", 1),
        ("2 x RTX 2080 Ti", "allreduce", "1G", "55", "impossible", 3),
        # No figure: of the operation, of the number of GPUs.
        ("8 x H100", "gather", "1G", "311", "nothing to compare with; there are figures of allreduce", 1),
        ("2 x RTX 4090", "allreduce", "32M", "20", "nothing to compare with; there are figures of 4 GPUs", 1),
    ],
)
def test_one_number_is_judged_without_a_run(
    program: Program, machine: str, operation: str, size: str, busbw: str, standing: str, status: int
) -> None:
    result = program("reference", machine, operation, "--size", size, "--busbw", busbw)
    line, *then = result.out.splitlines()
    assert [text.split()[0] for text in then] == (["next"] if "below" in standing or "end" in standing else [])
    assert (standing == "impossible") == ("that the links carry" in line)
    assert (result.status, line.partition(": ")[2].partition(",")[0]) == (status, standing), line


def test_a_rate_between_nvls_on_and_off_depends_on_it(program: Program) -> None:
    """Published at 8G: 473 to 480 GB/s with NVLS, 365.6 without."""
    result = program("reference", "8 x H200", "allreduce", "--size", "8G", "--busbw", "366")
    on, off, then = result.out.splitlines()
    assert ("NVLS on): below" in on, "NVLS off): normal" in off, "NVLS is on" in then, result.status) == (1, 1, 1, 1)
    assert program("reference", "8 x H200", "allreduce", "--size", "8G", "--busbw", "200 GB/s").status == 3


def test_a_rate_below_one_setting_of_nvls_is_said_to_be_usual_with_the_other_at_the_nearest_size(
    program: Program,
) -> None:
    """Published without NVLS: 370 GB/s, of 8G and more only."""
    asked = ("reference", "8 x H100", "allreduce", "--size", "1G", "--busbw")
    below, other, then = program(*asked, "365").out.splitlines()
    assert "NVLS on): below" in below
    assert other == (
        "if NVLS is off, 365.0 GB/s may be usual: the band 351.5 to 388.5 (1 source) is of 8G, and 1G reaches 0.93 of "
        "8G's rate with NVLS on"
    )
    assert then == "next      run the job with NCCL_DEBUG=INFO: its log says whether NVLS is on"
    below, then = program(*asked, "311").out.splitlines()
    assert ("NVLS on): below" in below, then.split()[0]) == (True, "next")
    assert len(program(*asked, "466").out.splitlines()) == 1
    # With NVLS 64M have 0.76 of the rate of 8G: so much of 370 is 280.
    asked = ("reference", "8 x H100", "allreduce", "--size", "64M", "--busbw")
    assert [(program(*asked, rate).status, "NVLS is off" in program(*asked, rate).out) for rate in ("310", "250")] == [
        (1, True),
        (3, False),
    ]


@pytest.mark.parametrize("rate", ["445", "457"])
def test_a_rate_that_is_normal_with_neither_setting_of_nvls_does_not_pass(program: Program, rate: str) -> None:
    """Of 16G are published 479 and more with NVLS, at most 370 without; Azure requires 460."""
    result = program("reference", "8 x H100", "allreduce", "--size", "16G", "--busbw", rate)
    on, off, then = result.out.splitlines()
    assert ("NVLS on): below" in on, "required: 460.0 or more (Azure)" in on, "NVLS off): above" in off) == (True,) * 3
    assert (result.status, then.split()[0]) == (1, "next")


def test_sizes_without_figures_name_the_nearest_with_some(program: Program) -> None:
    for machine, nearest in (("2 x A100 PCIe", "8G and 16G"), ("8 x V100", "8G"), ("4 x RTX 4090", "32M")):
        result = program("reference", machine, "allreduce", "--size", "128M", "--busbw", "80")
        assert (result.status, result.out.endswith(f"are of {nearest}\n")) == (1, True), result.out


def test_a_guide_says_how_far_a_rate_is_from_it(program: Program) -> None:
    """Published: 171.4 GB/s, by one source."""
    asked = ("reference", "2 x A100", "allreduce", "--size", "64M", "--busbw")
    said = [program(*asked, rate).out.partition("not judged, ")[2].partition(";")[0] for rate in ("81.4", "171", "198")]
    assert said == ["81.4 GB/s, 50% below it", "171.0 GB/s, within it", "198.0 GB/s, 10% above it"]
    assert program(*asked, "171").out.endswith("(1 source, only a guide: below 256M)\n")
    assert program("reference", "8 x RTX 5090", "allreduce", "--size", "1G").out.endswith(
        "(1 source, only a guide: a collective over PCIe)\n"
    )


@pytest.mark.parametrize("machine", ["8 x H100", "2 x A100 SXM", "8 x RTX 5090"])
def test_the_table_says_from_which_size_a_rate_is_judged(program: Program, machine: str) -> None:
    """At each size that it lists, the answer for one rate agrees."""
    rows = json.loads(program("reference", machine, "allreduce", "--json").out)["references"]
    judged_at = {size for row in rows for size in row["sizes"] if size >= (row["judged_from_bytes"] or size + 1)}
    for size in {size for row in rows for size in row["sizes"]}:
        answer = json.loads(program("reference", machine, "allreduce", "--size", str(size), "--json").out)
        assert any(not one["guide_only"] for one in answer["normal"]) == (size in judged_at), size
    page = program("reference", machine, "allreduce").out
    assert ("guide" in page) == any(row["judged_from_bytes"] is None for row in rows)


@pytest.mark.parametrize(
    ("called", "gpu"),
    [
        ("8 x h200 sxm", "H200"),
        ("H200-SXM-141GB x 8", "H200"),
        ("8xH100-SXM5-80GB", "H100 SXM"),
        ("8 NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("8 x nvidia h100 80gb hbm3", "H100 SXM"),
        ("DGX A100", "A100 SXM"),
        ("a100 pci-e 80 GB", "A100 PCIe"),
        ("NVIDIA A100-PCIE-40GB", "A100 PCIe"),
        ("v100-sxm2-32gb", "V100 SXM2"),
        ("rtx4090", "RTX 4090"),
        ("GeForce RTX 2080ti", "RTX 2080 Ti"),
        ("A6000", "RTX A6000"),
        ("GB200 NVL72", "GB200"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "RTX PRO 6000"),
    ],
)
def test_a_gpu_may_be_called_as_nvidia_smi_or_a_shop_does(program: Program, called: str, gpu: str) -> None:
    result = program("reference", called, "--json")
    machines = {row["machine"].partition(" × ")[2] or row["machine"] for row in json.loads(result.out)["references"]}
    assert (result.status, bool(machines)) == (0, True)
    assert all(machine.startswith(gpu) for machine in machines), machines


@pytest.mark.parametrize(
    "called",
    [
        "L40S",
        "2 L4",
        "NVIDIA H100 PCIe",
        "H200 NVL",
        "RTX 6000 Ada Generation",
        "RTX 6000",
        "RTX 2080",
        "GH200",
        "SXM5",
        "RTX 5090 Laptop GPU",
    ],
)
def test_a_gpu_without_figures_is_one_line_with_those_that_have_some(program: Program, called: str) -> None:
    for more in ((), ("allreduce",), ("allreduce", "--size", "1G", "--busbw", "3")):
        result = program("reference", called, *more)
        assert (result.status, result.out) == (2, "")
        assert f"no reference figure is of a GPU '{called.removeprefix('2 ')}'" in result.line
        assert "all names: A100 PCIe, A100 SXM, B200, " in result.line


@pytest.mark.parametrize(
    ("machine", "rate", "normal", "status"),
    [
        # NVIDIA's and Azure's figures of 1G; without NVLS only of 8G.
        ("8 x H100", "365", [("on", 2**30, "below"), ("on", 2**30, "below"), ("off", 2**33, None)], 1),
        ("8 x H100", "311", [("on", 2**30, "below"), ("on", 2**30, "below")], 3),
        ("8 x B300", "400", [("on", 2**30, "below")], 1),  # nothing is known without NVLS, which might allow it
        ("8 x A100", None, [(None, 2**30, None), (None, 2**30, None)], 0),
    ],
)
def test_json_has_what_is_normal_at_a_size_and_whether_a_rate_is(
    program: Program, machine: str, rate: str | None, normal: list[tuple[str | None, int, str | None]], status: int
) -> None:
    result = program("reference", machine, "allreduce", "--size", "1G", *(["--busbw", rate] if rate else []), "--json")
    answer = json.loads(result.out)
    assert (answer["format"], answer["exit_status"]) == ("collbench-reference-rate", status)
    assert (result.status, answer["busbw_gbs"]) == (status, float(rate) if rate else None)
    assert [(one["nvls"], one["size_bytes"], one["standing"]) for one in answer["normal"]] == normal
    for one in answer["normal"]:
        low, high = one["band_gbs"]
        assert (high is None) == one["minimum"]
        assert low < (high or low + 1) < one["limit_gbs"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["H100", "--size", "1G"], "--size asks about one operation"),
        (["H100", "allreduce", "--busbw", "3"], "--busbw needs the message size"),
        (["8 x H100", "allreduce", "--size", "1G", "--busbw", "nan"], "--busbw 'nan' is no rate"),
        (["8 x H100", "allreduce", "--size", "1G", "--busbw", "480Gb/s"], "--busbw '480Gb/s' is no rate: write it in"),
        (["8", "x", "H100", "allreduce"], "OPERATION='x' is unknown: write one of ce-write, "),
        (["RTX", "4090"], "OPERATION='4090' is unknown: write one of ce-write, "),
        (["H200", "allreduce", "--size", "1G", "--busbw", "326"], "what is normal depends on the number of GPUs"),
        (["run.json"], "run.json is no GPU: a run is judged by 'collbench compare run.json --reference'"),
    ],
)
def test_half_a_question_is_refused(program: Program, arguments: list[str], message: str) -> None:
    Path("run.json").touch()
    result = program("reference", *arguments)
    assert (result.status, result.out) == (2, "")
    assert result.line.startswith(message)
    assert result.line.endswith('; a GPU of several words takes quotes, as "8 x H100"') == ("OPERATION" in message)


@pytest.mark.parametrize(
    ("asked", "there"),
    [
        (("2 x RTX 4090", "allreduce"), "allreduce on '2 x RTX 4090': there are figures of 4 GPUs"),
        (("H100", "gather"), "gather on 'H100': there are figures of allreduce, "),
    ],
)
def test_what_nobody_published_of_a_known_gpu_cannot_be_judged(
    program: Program, asked: tuple[str, str], there: str
) -> None:
    result = program("reference", *asked)
    assert (result.status, result.err) == (1, "")
    assert result.out.startswith(f"there is no published figure for {there}")
    answer = json.loads(program("reference", *asked, "--json").out)
    assert (answer["exit_status"], answer["references"]) == (1, [])
    assert program("reference", *asked, "--size", "1G").status == 1


def test_pairs_and_check_end_with_3_for_a_rate_below_normal_and_name_it_first(program: Program) -> None:
    """Copies and labels agree; NCCL reaches 250 GB/s, and the published pairs of H100 320 at 512M."""
    links = (measured(Operation.CE_WRITE, link, [397.0] * 3) for link in ((0, 1), (1, 0)))
    slow = run_of(gpus(2, "NVIDIA H100 80GB HBM3"), [*links, measured(Operation.ALLREDUCE, (0, 1), [250.0] * 3)])
    run_file.save(slow, Path("run.json"))
    line = "allreduce at 1G on 2 GPUs: below, 250.0 GB/s; band 304.2 to 353.4 (1 source)"
    with pytest.raises(click.exceptions.Exit) as left:
        leave_with(Diagnosis(slow))  # as pairs does
    assert left.value.exit_code == 3
    assert program("show", "run.json").out.startswith(f"{line}: 'collbench check run.json' explains it\n")
    checked = program("check", "run.json")
    assert (checked.status, checked.out.startswith(f"{line}\n")) == (3, True), checked.out
    assert program("compare", "run.json", "--reference").status == 3
