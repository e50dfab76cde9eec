"""`collbench predict` on saved runs: the page, the JSON, docs/predict.md's example, and what cannot be predicted."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from collbench.jobs import job_file
from collbench.jobs.predict.networks import NAMES
from collbench.model.failures import FailureKind
from collbench.model.operations import Operation, Registration
from collbench.model.run import Run, StopReason
from collbench.runfile import run_file
from tests.builders import gpus, in_words, measured, run_of
from tests.cli.program import Program
from tests.jobs.made import documented_job
from tests.jobs.predict.made import curve, overlapping, pairs, simulated

pytestmark = pytest.mark.usefixtures("loaded_program")

DOCS = Path(__file__).parents[3] / "docs" / "predict.md"
NVLINK_PAIR = pairs({(0, 1): 100.0, (2, 3): 100.0}, 4, other=10.0)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    run_file.save(NVLINK_PAIR, tmp_path / "run.json")
    run_file.save(simulated("nvlink-pairs-2x2"), tmp_path / "sim.json")
    return tmp_path


def test_all_strategies_leave_hsdp_out_unless_its_shards_are_given(program: Program, saved: Path) -> None:
    args = ("run.json", "--model", "gpt2", "--gpus", "4", "--strategy", "all", "--json")
    without, with_shards = (
        [case["strategy"] for case in json.loads(program("predict", *args, *more).out)["cases"]]
        for more in ((), ("--shard", "2"))
    )
    assert without == ["ddp", "zero1", "zero2", "zero3", "fsdp"]
    assert with_shards == [*without, "hsdp"]


def test_gradients_of_four_bytes_beside_parameters_of_two(program: Program, saved: Path) -> None:
    args = ("run.json", "--model", "gpt2", "--gpus", "2", "--grad-dtype", "fp32", "--strategy", "zero1", "--json")
    (case,) = json.loads(program("predict", *args).out)["cases"]
    assert case["sent_bytes"] == {"reducescatter": 4 * 124_439_808, "allgather": 2 * 124_439_808}


def test_a_host_that_holds_the_gpu_hides_what_is_sent(program: Program, saved: Path) -> None:
    """FSDP on the slow pair, 10 GB/s: a GPU with a tenth of the work catches up with its host, or nearly."""
    args = ("run.json", "--model", "gpt2", "--gpus", "2", "--strategy", "fsdp", "--step-time", "80ms", "--json")
    hosts: tuple[tuple[str, ...], ...] = ((), ("--gpu-time", "8ms"), ("--gpu-time", "8ms", "--host-phases", "2,1,1"))
    answer = [json.loads(program("predict", *args, *host).out) for host in hosts]
    exposed = [entry["cases"][0]["worst"]["exposed_seconds"]["middle"] for entry in answer]
    # Behind the end of backward there is the root, of 78.8 MB, of which half goes over 10 GB/s, and some of the blocks.
    assert exposed[0] > exposed[1] > 78.8e6 / 2 / 10e9 > exposed[2] == 0
    assert [(entry["gpu_seconds"], entry["host_phases"]) for entry in answer] == [
        (None, None),
        (0.008, None),
        (0.008, [0.5, 0.25, 0.25]),
    ]
    assert [sum("--host-phases changes this" in line for line in entry["assumptions"]) for entry in answer] == [0, 1, 0]


def overlap_file(folder: Path, name: str, run: Run | None = None) -> Path:
    """Save a run of overlap of the four GPUs: the collective takes 3 times as long, compute 1.2 times."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    run_file.save(run or overlapping({2**20: (3.0, 1.2), 2**30: (3.0, 1.2)}), path)
    return path


STEP = ("--model", "gpt2", "--gpus", "2", "--strategy", "ddp,fsdp", "--step-time", "22ms")
SAVED = "state/collbench/runs"


def test_a_run_of_overlap_makes_the_step_longer_and_is_named(program: Program, saved: Path) -> None:
    overlap_file(saved, "over.json")
    result = program("predict", "run.json", *STEP, "--overlap", "over.json")
    assert (result.status, result.err) == (0, "")
    page = " ".join(result.out.split())
    assert "overlap all-reduce 3.00x, compute 1.20x overlapping gemm:8192, over.json; measured on GPU0, GPU1" in page
    assert "overlap all-gather and reduce-scatter 3.00x" in page
    assert "taken from all-reduce" in page
    free, slowed = (
        json.loads(program("predict", "run.json", *STEP, *more, "--json").out)
        for more in (("--overlap", "none"), ("--overlap", "over.json"))
    )
    for before, after in zip(free["cases"], slowed["cases"], strict=True):
        assert after["best"]["step_seconds"]["middle"] > before["best"]["step_seconds"]["middle"]
        assert after["best"]["step_seconds"]["low"] == before["best"]["step_seconds"]["low"]
        assert after["best"]["raw_seconds"] == before["best"]["raw_seconds"]
        assert (before["best"]["slowed_seconds"], after["best"]["slowed_seconds"] > 0) == (None, True)
    assert {use["borrowed"] for use in slowed["overlap"] if use["operation"] != "allreduce"} == {True}


def test_the_newest_saved_overlap_that_fits_is_taken(program: Program, saved: Path) -> None:
    """Runs of another machine, older runs and unreadable ones lie in the same folder; none of them is used."""
    other = overlapping({2**20: (9.0, 2.0)})
    other = replace(other, devices=tuple(replace(gpu, uuid=f"x{gpu.index}") for gpu in gpus(4)))
    overlap_file(saved, f"{SAVED}/20260104T000000Z-cuda-overlap-0000000d.json", other)
    overlap_file(saved, f"{SAVED}/20260103T000000Z-cuda-overlap-0000000c.json").write_text("{", encoding="utf-8")
    overlap_file(saved, f"{SAVED}/20260102T000000Z-cuda-overlap-0000000b.json")
    overlap_file(saved, f"{SAVED}/20260101T000000Z-cuda-overlap-0000000a.json", overlapping({2**20: (9.0, 2.0)}))
    gathers = overlapping({2**20: (2.0, 1.1), 2**30: (2.0, 1.1)}, Operation.ALLGATHER)
    overlap_file(saved, f"{SAVED}/20251231T000000Z-cuda-overlap-00000009.json", gathers)
    answer = json.loads(program("predict", "run.json", *STEP, "--json").out)
    used = {(use["operation"], use["source"].rpartition("/")[2][:8], use["borrowed"]) for use in answer["overlap"]}
    assert used == {
        ("allreduce", "20260102", False),
        ("allgather", "20251231", False),
        ("reducescatter", "20251231", True),
    }
    assert json.loads(program("predict", "run.json", *STEP, "--overlap", "none", "--json").out)["overlap"] == []


def test_without_a_file_the_newest_run_of_links_is_read(program: Program, saved: Path) -> None:
    overlap_file(saved, f"{SAVED}/20260102T000000Z-cuda-overlap-0000000b.json")
    overlap_file(saved, f"{SAVED}/20260103T000000Z-cuda-replay-0000000c.json")
    assert "there is no saved run" in program("predict", *STEP).line
    overlap_file(saved, f"{SAVED}/20260101T000000Z-cuda-pairs-0000000a.json", NVLINK_PAIR)
    result = program("predict", *STEP)
    assert result.status == 0
    assert "cuda-pairs-0000000a.json" in result.err
    assert "overlap   all-reduce 3.00x" in result.out


def test_registered_memory_has_its_own_times(program: Program, saved: Path) -> None:
    fast = [
        replace(measurement, point=replace(measurement.point, registration=Registration.WINDOW))
        for measurement in curve(Operation.ALLREDUCE, (0, 1), 200.0)
    ]
    run_file.save(run_of(gpus(4), [*NVLINK_PAIR.measurements, *fast]), saved / "both.json")
    args = ("--model", "gpt2", "--gpus", "2", "--step-time", "22ms")
    ordinary, window = (
        json.loads(program("predict", "both.json", *args, *more, "--json").out)
        for more in ((), ("--registration", "window"))
    )
    assert (ordinary["registration"], window["registration"]) == ("none", "window")
    raw = [entry["cases"][0]["best"]["raw_seconds"]["middle"] for entry in (ordinary, window)]
    assert raw[1] == pytest.approx(raw[0] / 2, rel=0.05)
    assert "memory    registered (window)" in program("predict", "both.json", *args, "--registration", "window").out
    refused = program("predict", "both.json", *args, "--registration", "buffer")
    assert (refused.status, refused.out) == (2, "")
    assert "was measured on buffer memory: measure with --registration buffer" in refused.line


@pytest.mark.parametrize(
    ("title", "args", "line"),
    [
        ("another machine's", ["--overlap", "other.json"], "other.json has GPU0 (x0), which run.json lacks"),
        ("no run of overlap", ["--overlap", "run.json"], "run.json cannot be used to predict"),
        ("none and one", ["--overlap", "none", "--overlap", "over.json"], "--overlap none ignores the cost of overlap"),
        ("a file that is not there", ["--overlap", "gone.json"], "cannot read run file gone.json"),
        (
            "its curves",
            ["over.json"],
            "over.json timed a collective overlapping compute, not alone: name it with --overlap",
        ),
    ],
)
def test_an_unrelated_run_of_overlap_is_refused(
    program: Program, saved: Path, title: str, args: list[str], line: str
) -> None:
    overlap_file(saved, "over.json")
    other = overlapping({2**20: (3.0, 1.2)})
    other = replace(other, devices=tuple(replace(gpu, uuid=f"x{gpu.index}") for gpu in gpus(4)))
    overlap_file(saved, "other.json", other)
    result = program("predict", "run.json", *STEP, *args)
    assert (result.status, result.out) == (2, ""), title
    assert line in result.line


def test_the_default_is_every_doubling_and_all(program: Program, tmp_path: Path) -> None:
    run_file.save(pairs({}, 6), tmp_path / "six.json")
    answer = json.loads(program("predict", "six.json", "--model", "gpt2", "--json").out)
    assert [case["gpus"] for case in answer["cases"]] == [2, 4, 6]


def test_a_pair_that_hung_costs_only_the_numbers_that_need_it(program: Program, tmp_path: Path) -> None:
    run = pairs({}, 8)
    for found in run.measurements:
        if found.point.members == (2, 5):
            found.samples, found.stop = [], StopReason.FAILED
            found.failure = in_words("no answer", FailureKind.HANG)
    run_file.save(run, tmp_path / "hung.json")
    said = program("predict", "hung.json", "--model", "gpt2", "--json")
    answer = json.loads(said.out)
    assert said.status == 4
    assert [case["gpus"] for case in answer["cases"]] == [2, 4]
    (left,) = answer["unpredicted"]
    assert left["gpus"] == 8
    assert "a run of 'collbench pairs' in which no pair failed" in left["reason"]
    assert "left out  8 GPUs: cannot predict all-reduce on" in program("predict", "hung.json", "--model", "gpt2").out
    for counts in ("8", "2,8"):
        asked = program("predict", "hung.json", "--model", "gpt2", "--gpus", counts)
        assert (asked.status, asked.out) == (2, "")


def test_a_first_file_that_cannot_be_read_is_the_complaint(program: Program, saved: Path) -> None:
    (saved / "torn.json").write_text("{", encoding="utf-8")
    for name, says in (("missing.json", "No such file"), ("torn.json", "cut off or damaged at")):
        said = program("predict", name, "run.json", "--devices", "0,1")
        assert (said.status, said.out) == (2, "")
        assert name in said.line
        assert says in said.line


def test_without_pairs_the_default_is_what_was_measured(program: Program, tmp_path: Path) -> None:
    run_file.save(simulated("dgx-1v", Operation.ALLGATHER, together=True), tmp_path / "all.json")
    answer = json.loads(program("predict", "all.json", "--model", "gpt2", "--strategy", "fsdp", "--json").out)
    assert [(case["gpus"], case["worst"]) for case in answer["cases"]] == [(8, None)]
    assert answer["cases"][0]["note"] == "one set of 8 and no pairs were measured, so there is nothing to compare"


def test_a_run_of_all_gpus_beside_the_pairs_is_used(program: Program, saved: Path) -> None:
    run_file.save(simulated("nvlink-pairs-2x2", Operation.ALLREDUCE, together=True), saved / "all.json")
    args = ("--model", "gpt2", "--gpus", "4", "--json")
    pairs_only, with_all = (
        json.loads(program("predict", *files, *args).out) for files in (["sim.json"], ["sim.json", "all.json"])
    )
    assert any("a ring at" in reported for reported in pairs_only["assumptions"])
    assert not any("a ring at" in reported for reported in with_all["assumptions"])
    raw = with_all["cases"][0]["best"]["raw_seconds"]
    assert raw["low"] == raw["middle"] == raw["high"]


@pytest.mark.parametrize(
    ("title", "args", "line"),
    [
        ("no network", [], "name one network: write either --model gpt2 or --params 124M"),
        ("two networks", ["--model", "gpt2", "--params", "1B"], "name one network: write either"),
        ("an unknown network", ["--model", "gtp2"], "--model 'gtp2' is unknown: did you mean gpt2"),
        ("layers of a known one", ["--model", "gpt2", "--layers", "3"], "--layers is only for --params: gpt2"),
        ("no number", ["--params", "many"], "--params 'many' is not a number of parameters"),
        ("a fraction of a parameter", ["--params", "1.5"], "--params 1.5 is not a whole number of parameters"),
        ("a fraction of none", ["--params", "1."], "--params 1. is not a whole number of parameters"),
        ("a run first, with devices", ["--devices", "0,1"], "--devices and --recorded are for a recorded job"),
        ("an unknown strategy", ["--model", "gpt2", "--strategy", "zero9"], "--strategy 'zero9' is unknown: did you"),
        ("no time", ["--model", "gpt2", "--step-time", "22"], "--step-time '22' lacks a unit: write 22ms"),
        ("a time of zero", ["--model", "gpt2", "--step-time", "0ms"], "--step-time '0ms' is not a time above zero"),
        ("one GPU", ["--model", "gpt2", "--gpus", "2,1"], "--gpus '1' is not a number of GPUs from 2"),
        ("no GPUs", ["--model", "gpt2", "--gpus", "two"], "--gpus 'two' is not a number of GPUs from 2"),
        ("more than there are", ["--model", "gpt2", "--gpus", "5"], "cannot predict for 5 of 4 devices: choose 2 to 4"),
        ("hsdp without shards", ["--model", "gpt2", "--strategy", "hsdp"], "--strategy hsdp needs --shard N"),
        (
            "shards that do not divide",
            ["--model", "gpt2", "--strategy", "all", "--shard", "3"],
            "--shard 3 does not divide 2 GPUs",
        ),
        ("no size", ["--model", "gpt2", "--bucket", "big"], "size 'big' is not a number of bytes"),
        (
            "one step for several numbers",
            ["--model", "gpt2", "--step-time", "22ms", "--timed-on", "best"],
            "--timed-on best is one measured step: add its number of GPUs, such as --gpus 2",
        ),
        (
            "the GPU's part of nothing",
            ["--model", "gpt2", "--gpu-time", "9ms"],
            "--gpu-time is the GPU's part of the step time",
        ),
        (
            "no time of the GPU",
            ["--model", "gpt2", "--step-time", "22ms", "--gpu-time", "9"],
            "--gpu-time '9' lacks a unit: write 9ms",
        ),
        (
            "a GPU slower than the step",
            ["--model", "gpt2", "--step-time", "22ms", "--gpu-time", "23ms"],
            "--gpu-time 23ms is more than --step-time 22ms, and a step is never shorter than its GPU time",
        ),
        (
            "phases without a host",
            ["--model", "gpt2", "--step-time", "22ms", "--host-phases", "1,1,1"],
            "--host-phases divides a step in which the GPU waits for the host: add --gpu-time 15ms",
        ),
        (
            "phases that are none",
            ["--model", "gpt2", "--step-time", "22ms", "--gpu-time", "9ms", "--host-phases", "1,1"],
            "--host-phases '1,1' is not the host's time in forward, backward, optimizer: write 12,14,9",
        ),
        (
            "a measured step too short for the GPU's time and what is sent",
            [
                *("--model", "gpt2", "--gpus", "2", "--step-time", "22ms", "--timed-on", "best"),
                *("--gpu-time", "21.9ms"),
            ],
            "--step-time 22ms is less than --gpu-time 21.9ms takes with ddp's communication on GPU0, GPU1: leave",
        ),
        ("where, but not how long", ["--model", "gpt2", "--timed-on", "best"], "add --step-time 22ms"),
        (
            "a step too short",
            ["--model", "gpt2", "--gpus", "2", "--step-time", "1us", "--timed-on", "best"],
            "is it a step without communication?",
        ),
    ],
)
def test_what_cannot_be_predicted_is_one_line(
    program: Program, saved: Path, title: str, args: list[str], line: str
) -> None:
    result = program("predict", "run.json", *args)
    assert (result.status, result.out) == (2, "")
    assert line in result.line


@pytest.mark.parametrize(
    "option",
    [["--micro-batches", "0"], ["--layers", "x"], ["--dtype", "int3"], ["--shard", "1"], ["--head-share", "1"]],
)
def test_options_of_the_wrong_kind_are_refused(program: Program, saved: Path, option: list[str]) -> None:
    result = program("predict", "run.json", "--params", "1M", *option)
    assert (result.status, result.out) == (2, "")
    assert option[0] in result.err
    assert "Traceback" not in result.err


def test_runs_that_cannot_be_used_are_refused(program: Program, saved: Path) -> None:
    run_file.save(run_of(gpus(2), [measured(Operation.CE_WRITE, (0, 1), 300.0)]), saved / "copies.json")
    other = replace(NVLINK_PAIR, devices=tuple(replace(gpu, uuid=f"x{gpu.index}") for gpu in gpus(4)))
    run_file.save(other, saved / "other.json")
    for files, line in (
        (["copies.json"], "copies.json: no all-reduce, all-gather or reduce-scatter was measured"),
        (["run.json", "other.json"], "other.json has GPU0 (x0), which run.json lacks"),
        (["run.json", "sim.json"], "are of different machines (cuda and sim nvlink-pairs-2x2)"),
        (["none.json"], "cannot read run file none.json"),
    ):
        result = program("predict", *files, "--model", "gpt2")
        assert (result.status, result.out) == (2, "")
        assert line in result.line


def test_the_worked_example_of_the_docs_is_what_the_program_prints(program: Program, tmp_path: Path) -> None:
    """The page's commands, run in an empty folder; a simulated run's time of day is not part of it."""
    blocks = re.findall(r"\n    \$ (collbench .*)\n((?:    .*\n|\n(?=    ))*)", DOCS.read_text(encoding="utf-8"))
    assert [command.split()[1] for command, _ in blocks] == ["pairs", "predict"]
    assert program(*blocks[0][0].split()[1:]).status == 0
    page = program(*blocks[1][0].split()[1:]).out
    undated = re.sub(r"^simulated [^ ]+,", "simulated 2026-01-02T03:04:05Z,", page, flags=re.MULTILINE)
    expected = re.sub(r"^    ", "", blocks[1][1], flags=re.MULTILINE)
    assert undated.rstrip("\n") == expected.rstrip("\n")


def test_the_docs_name_every_network_and_no_other() -> None:
    table = DOCS.read_text(encoding="utf-8").partition("## Models")[2].partition("\n## ")[0]
    assert set(re.findall(r"`([\w./-]+)`", table.partition("\n\n|")[2])) == set(NAMES)


def test_the_documented_page_of_a_recorded_job_is_what_is_printed(program: Program, tmp_path: Path) -> None:
    job_file.save(documented_job(), tmp_path / "job.json")
    runs = [f"{operation}.json" for operation in ("allgather", "reducescatter", "allreduce")]
    for run in runs:
        machine = ("--backend", "sim", "--fabric", "hgx-h200", "--devices", "0,1,2,3", "--seed", "1")
        assert program(run.removesuffix(".json"), *machine, "--output", run).status == 0
    shown = program("predict", "job.json", *runs, "--devices", "0,1,2,3").out
    assert "\n".join(f"    {line}".rstrip() for line in shown.strip().splitlines()) in DOCS.read_text(encoding="utf-8")
