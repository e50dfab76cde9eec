"""`collbench predict` on saved runs: both pages, the JSON, docs/predict.md's examples, and what cannot be predicted."""

import json
import os
import re
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from collbench.jobs import job_file
from collbench.jobs.predict.page import job_page
from collbench.jobs.predict.recorded import PlacedJob, predict_job
from collbench.model.operations import Operation
from collbench.model.run import Health
from collbench.runfile import run_file
from tests.builders import gpus, in_words, run_of
from tests.cli.program import Program
from tests.jobs.made import made_job
from tests.jobs.predict.made import MIB, curve, links_of, pairs, simulated
from tests.report.pages import text

pytestmark = pytest.mark.usefixtures("loaded_program")

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "benchmarks" / "results"
DOCS, RECORDED = ROOT / "docs" / "predict.md", RESULTS / "2026-11-23-2xh200-recorded-jobs"
NVLINK_PAIRS = pairs({(0, 1): 100.0, (2, 3): 100.0}, 4, other=10.0)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    run_file.save(NVLINK_PAIRS, tmp_path / "run.json")
    run_file.save(simulated("nvlink-pairs-2x2"), tmp_path / "sim.json")
    run_file.save(run_of(gpus(4), curve(Operation.ALLREDUCE, (0, 1), 1.0, sizes=(8,))), tmp_path / "small.json")
    job = made_job([("allreduce", 25 * MIB), ("allreduce", 100 * MIB)])
    job_file.save(job, tmp_path / "job.json")
    job_file.save(replace(job, environment={"NCCL_P2P_DISABLE": "1"}), tmp_path / "staged.json")
    job_file.save(
        replace(job, ranks=tuple(replace(rank, device=None) for rank in job.ranks)), tmp_path / "nowhere.json"
    )
    return tmp_path


def test_a_job_on_another_pair_is_longer_by_what_its_calls_are(program: Program, saved: Path) -> None:
    """The job ran on GPU0 and GPU1, whose link is ten times as fast as the one between GPU1 and GPU2."""
    args = ("predict", "job.json", "run.json", "--devices", "1,2")
    answer = json.loads(program(*args, "--json").out)
    apart = 125 * MIB * (1 / 10e9 - 1 / 100e9)
    least, expected, most = answer["longer_seconds"]
    assert most == pytest.approx(apart, rel=0.01)
    assert least <= expected <= most
    assert [call["recorded_seconds"] for call in answer["calls"]] == pytest.approx(
        [5e-6 + size * MIB / 100e9 for size in (25, 100)], rel=0.01
    )
    page = program(*args)
    assert (page.status, page.err) == (0, "")
    ran = f"if the job ran on GPU0, GPU1 of {NVLINK_PAIRS.machine.hostname} (no --recorded-links): "
    assert " ".join(page.out.split()).startswith(f"{ran}a step takes {1e3 * expected:.1f} ms longer on these links (")
    assert "The estimate was wrong by" in " ".join(page.out.split())


def test_a_page_names_the_one_rule_that_was_applied_and_says_which_machine_is_assumed(program: Program) -> None:
    """DDP on H100s whose buckets are equal, on links of H200s; and a tensor-parallel job that its GPU limits."""
    curves = [f"{RESULTS}/2026-11-21-4xh200-training/curves-2-{arm}-allreduce.json" for arm in ("nop2p", "p2p")]
    job = f"{RESULTS}/2026-11-26-2xh100-jobs/ddp-marks-job.json.gz"
    page = " ".join(program("predict", job, curves[0], "--recorded-links", curves[1]).out.split())
    assert page.startswith("a step takes 0.48 ms longer on these links (0.00 to 1.59 ms); ")
    assert "assumed the job ran on GPU0, GPU1 of vm: 2 × NVIDIA H200 here GPU0, " in page
    assert "by 30% of the change of their" in page
    assert "activations" not in page

    job_of_one_size = made_job([("allreduce", MIB)] * 4)
    links = [PlacedJob(links_of(pairs({}, 2, other=gbs)), {0: 0, 1: 1}) for gbs in (50.0, 100.0)]
    predicted = replace(predict_job(job_of_one_size, *links), gpu_limits=True)
    page = " ".join(text(job_page(job_of_one_size, predicted)).split())
    assert "taken for activations: compute waits for 75% of their change" in page
    assert "30%" not in page


def test_a_page_first_says_what_the_runs_do_not_cover(program: Program, saved: Path) -> None:
    job_file.save(made_job([("alltoall", MIB), ("allreduce", 30 * MIB)]), saved / "mixed.json")
    page = program("predict", "mixed.json", "run.json", "--devices", "1,2").out
    assert page.startswith("the runs cover only 96% of the step's bytes; if the job ran on GPU0, GPU1 of ")


def test_a_run_of_another_model_says_so_first(program: Program, saved: Path) -> None:
    """Computing takes another time there, too, which links do not show."""
    other = replace(NVLINK_PAIRS, devices=tuple(replace(device, name="NVIDIA H100") for device in NVLINK_PAIRS.devices))
    run_file.save(other, saved / "other.json")
    model = NVLINK_PAIRS.devices[0].name
    for first, second, line in (
        ("other.json", "run.json", f"other GPUs: links of 2 × {model} before, of 2 × NVIDIA H100 here: "),
        ("other.json", "other.json", "nothing changes, because the same measurements describe "),
        ("run.json", "run.json", "nothing changes, because the same measurements describe "),
    ):
        found = program("predict", "job.json", first, "--recorded-links", second)
        assert " ".join(found.out.split()).startswith(line)
    fields = json.loads(program("predict", "job.json", "other.json", "--recorded-links", "run.json", "--json").out)
    assert (fields["recorded_gpus"], fields["gpus"]) == ([model] * 2, ["NVIDIA H100"] * 2)


def test_a_job_on_its_own_links_does_not_change(program: Program, saved: Path) -> None:
    """Figures that stand for both links are no prediction, whatever links the job had."""
    page = " ".join(program("predict", "job.json", "run.json").out.split())
    assert page.startswith("if the job ran on GPU0, GPU1 of ")
    why = "because the same measurements describe the job's links and these"
    assert f"(no --recorded-links): nothing changes, {why}" in page
    for more in ((), ("--recorded-links", "run.json")):
        answer = json.loads(program("predict", "job.json", "run.json", *more, "--json").out)
        assert answer["longer_seconds"] == pytest.approx([0, 0, 0], abs=1e-12)
        assert answer["recorded_links_given"] == bool(more)


def test_a_job_from_a_pipe_is_refused_which_can_be_read_once(program: Program, saved: Path) -> None:
    """A shell's <(zcat job.json.gz) is one. So small that its buffer holds it."""
    reader, writer = os.pipe()
    with os.fdopen(writer, "wb") as pipe:
        pipe.write((saved / "job.json").read_bytes())
    refused = program("show", f"/dev/fd/{reader}")  # a job is told from a run by reading twice
    os.close(reader)
    assert refused.line.endswith("'collbench show FILE' prints it from a file")


def test_a_run_with_a_failure_says_so_and_fails(program: Program, saved: Path) -> None:
    failed = pairs({}, 4)
    failed.measurements[0].failure = in_words("hang")
    run_file.save(failed, saved / "failed.json")
    found = program("predict", "failed.json", "--params", "1B")
    assert found.status == 1
    assert found.out.startswith("FAILED")


def test_an_interrupted_run_says_first_what_it_has(program: Program, saved: Path) -> None:
    """It lacks all slow pairs but one, so nobody can say how slow the machine's worst pair is."""
    left = [one for one in NVLINK_PAIRS.measurements if one.point.members in ((0, 1), (1, 2), (2, 3))]
    run_file.save(replace(NVLINK_PAIRS, measurements=left, complete=False), saved / "part.json")
    begins = f"INTERRUPTED: 3 of 6 pairs, {len(left)} data points measured in part.json: what it lacks may "
    for command in (("part.json", "--params", "1B"), ("job.json", "run.json", "--recorded-links", "part.json")):
        assert " ".join(program("predict", *command).out.split()).startswith(begins)
        (line,) = json.loads(program("predict", *command, "--json").out)["interrupted"]
        assert line.startswith(begins)
    of_sets = "On 2 GPUs the worst of the 3 measured sets (of 6) lengthens"
    assert of_sets in " ".join(program("predict", "part.json", "--params", "1B").out.split())
    whole = program("predict", "run.json", "--params", "1B").out
    assert "INTERRUPTED" not in whole
    assert "On 2 GPUs the worst set lengthens" in whole


def test_a_pair_of_which_only_small_messages_were_measured_keeps_no_other_from_being_predicted(
    program: Program, saved: Path
) -> None:
    """GPU1 and GPU2 were interrupted after 8 bytes, which say nothing of a bucket of 25 MiB."""
    points = NVLINK_PAIRS.measurements
    left = [point for point in points if point.point.members != (1, 2) or point.point.size_bytes == 8]
    run_file.save(replace(NVLINK_PAIRS, measurements=left, complete=False), saved / "part.json")
    (case,) = json.loads(program("predict", "part.json", "--params", "1B", "--json").out)["cases"]
    whole = json.loads(program("predict", "run.json", "--params", "1B", "--json").out)["cases"][0]
    assert (case["measured"], case["sets"]) == (5, 6)
    assert case["longer_seconds"] == whole["longer_seconds"]
    small = [point for point in points if point.point.size_bytes == 8]
    run_file.save(replace(NVLINK_PAIRS, measurements=small, complete=False), saved / "part.json", replace=True)
    refused = program("predict", "part.json", "--params", "1B")
    assert refused.status == 2
    assert "too far from the measured sizes, 8 B" in refused.line
    assert "INTERRUPTED: 6 data points measured in part.json" in refused.line


def test_a_run_whose_links_others_used_says_so_first(program: Program, saved: Path) -> None:
    busy = replace(NVLINK_PAIRS, health_before=tuple(Health(processes=int(gpu == 1)) for gpu in range(4)))
    run_file.save(busy, saved / "busy.json")
    line = "CONTENTION in busy.json: another process was on GPU1 before measuring; another job computes"
    for command in (("busy.json", "--params", "1B"), ("job.json", "run.json", "--recorded-links", "busy.json")):
        assert " ".join(program("predict", *command).out.split()).startswith(line)
        (found,) = json.loads(program("predict", *command, "--json").out)["contention"]
        assert found.startswith(line)
    assert "CONTENTION" not in program("predict", "run.json", "--params", "1B").out


def test_json_has_the_fields_of_the_page(program: Program, saved: Path) -> None:
    answer = json.loads(program("predict", "run.json", "--params", "124M", "--gpus", "2", "--json").out)
    (case,) = answer["cases"]
    assert (answer["format"], answer["parameters"], case["best"]) == (
        "collbench-prediction",
        124_000_000,
        ["GPU0", "GPU1"],
    )
    documented = set(re.findall(r"`([a-z_]+)`", DOCS.read_text(encoding="utf-8")))
    job = json.loads(program("predict", "job.json", "run.json", "--json").out)
    for fields in (answer, case, answer["messages"][0], job, job["calls"][0]):
        assert set(fields) <= documented


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (("small.json", "--params", "7B"), "is too far from the measured sizes, 8 B"),
        (
            ("run.json", "--params", "124"),
            "--params 124 has no unit: write 124M for millions, 124B for billions, or 124K",
        ),
        (
            ("run.json", "--params", "1B", "--gpus", "99,2,9"),
            "cannot predict for 9, 99 devices: no run has",
        ),
        (("run.json", "--params", "1B", "--devices", "0,1"), "for a recorded job"),
        (("job.json", "run.json", "--params", "1B"), "--params describes a network"),
        (("job.json", "run.json", "--gpus", "2"), "--gpus describes a network"),
        (("job.json", "run.json", "--devices", "0"), "--devices names 1 device, and the job has 2 ranks"),
        (
            ("staged.json", "run.json"),
            "other NCCL_* variables than the job (NCCL_P2P_DISABLE: 1 in the job, not set in the runs): measure its "
            "links with the job's, 'collbench pairs -o links.json', and add --recorded-links links.json",
        ),
        (
            ("nowhere.json", "run.json", "--devices", "1,2"),
            "-o nowhere-devices.json; or add a run of the links that the job used, with --recorded-links",
        ),
        (
            ("job.json", "sim.json", "--recorded-links", "run.json"),
            "the job's links are measured and the others simulated, and their difference says nothing about any",
        ),
        (
            ("job.json", "run.json", "--recorded-links", "sim.json"),
            "the job's links are simulated and the others measured, and their difference says nothing about any",
        ),
        (  # --devices says where it would run, and the run has two more
            ("nowhere.json", "run.json", "--devices", "1,2", "--recorded-links", "run.json"),
            "nowhere.json does not say which devices its ranks had: write a copy that does",
        ),
    ],
)
def test_what_cannot_be_predicted_is_one_line(program: Program, saved: Path, args: tuple[str, ...], line: str) -> None:
    result = program("predict", *args)
    assert result.status == 2
    assert line in result.line


def test_a_job_of_unknown_devices_names_the_command_that_makes_it_predictable(program: Program, saved: Path) -> None:
    """Traces do not say them. `show` has no option that would."""
    longer = json.loads(program("predict", "job.json", "run.json", "--devices", "1,2", "--json").out)["longer_seconds"]
    for words in (("predict", "nowhere.json", "run.json"), ("show", "nowhere.json", "--run-file", "run.json")):
        refused = program(*words)
        assert (refused.status, refused.out) == (2, "")
        said, _, pasted = refused.line.partition(", in rank order: ")
        assert said == "nowhere.json does not say which devices its ranks had: write a copy that does"
    made = program(*pasted.split()[1:])
    assert made.status == 0, made.err
    named = pasted.split()[-1]
    answer = json.loads(program("predict", named, "run.json", "--devices", "1,2", "--json").out)
    assert answer["longer_seconds"] == longer
    shown = " ".join(program("show", named, "--run-file", "run.json").out.split())
    assert shown.startswith("rank 0's calls take 0.2 ms a step, alone 1.32 ms: none of it is waiting for other ranks,")


def test_the_links_of_a_job_of_unknown_devices_are_those_of_a_run_of_as_many(program: Program, saved: Path) -> None:
    run_file.save(pairs({(0, 1): 100.0}, 2), saved / "own.json")
    args = ("--devices", "1,2", "--recorded-links", "own.json")
    known, unknown = (program("predict", job, "run.json", *args).out for job in ("job.json", "nowhere.json"))
    assert "assumed the job ran on GPU0, GPU1 of" in " ".join(unknown.split())
    assert known == unknown


@pytest.mark.parametrize(
    ("listed", "says"),
    [
        ("0", "names 1 device, and the job has 2 ranks"),
        ("GPU-1,0", "'GPU-1' is not an"),
    ],
)
def test_devices_that_are_not_one_for_each_rank_are_refused(
    program: Program, saved: Path, listed: str, says: str
) -> None:
    refused = program("import", "nowhere.json", "--devices", listed, "-o", "new.json")
    assert (refused.status, refused.out) == (2, "")
    assert says in refused.line
    assert not (saved / "new.json").exists()


def test_the_ranks_of_several_hosts_are_not_placed_on_one(program: Program, saved: Path) -> None:
    job = job_file.load(saved / "nowhere.json")
    ranks = tuple(replace(rank, host=f"h{rank.rank}") for rank in job.ranks)
    job_file.save(replace(job, ranks=ranks), saved / "hosts.json")
    refused = program("predict", "hosts.json", "run.json")
    assert "had devices of several hosts" in refused.line
    assert "import" not in refused.line


def test_the_documented_pages_are_how_those_of_the_program_begin(program: Program, tmp_path: Path) -> None:
    """The examples of docs/predict.md: a record of two H200 with P2P, their curves, and a simulated machine."""
    with tarfile.open(RECORDED / "raw.tar.gz") as kept:
        kept.extractall(tmp_path, filter="data")
    job = (tmp_path / "pj" / "ddp-gpt2-job.json").read_text(encoding="utf-8")
    # The field of the version had another name then, and a time was a spread.
    job = re.sub(
        r'\{"count":[^{}]*"median":([^,{}]*)[^{}]*\}', r"\1", job.replace('"version":', '"format_version":', 1)
    )
    (tmp_path / "job.json").write_text(job, encoding="utf-8")
    for arm, name in (("nop2p", "without"), ("p2p", "with")):
        (tmp_path / "pj" / f"curves-{arm}-allreduce.json").rename(tmp_path / f"{name}-p2p.json")
    blocks = re.findall(r"(?:^    .*\n|^\n(?=    ))+", DOCS.read_text(encoding="utf-8"), re.MULTILINE)
    examples = [
        example for block in blocks for example in re.split(r"^    \$ collbench ", block, flags=re.MULTILINE)[1:]
    ]
    pages = [example.partition("\n") for example in examples]
    assert len(pages) == 3
    for command, _, page in pages:
        printed = program(*command.split()).out
        expected = "".join(line.removeprefix("    ") for line in page.strip("\n").splitlines(keepends=True))
        assert printed.startswith(expected), command


def test_without_a_run_the_newest_measured_one_is_taken_and_named_and_never_a_simulated_one(
    program: Program, saved: Path
) -> None:
    folder = saved / "state" / "collbench" / "runs"
    folder.mkdir(parents=True, mode=0o700)
    run_file.save(simulated("nvlink-pairs-2x2"), newest := folder / "20261122T000000Z-sim-pairs-1.json")
    refused = program("predict", "--params", "124M")
    assert (refused.status, refused.out) == (2, "")
    assert "no saved run is of real GPUs: measure with 'collbench pairs' first, or name a simulated" in refused.line
    assert refused.line.endswith(f"as the newest: {newest}")
    run_file.save(replace(NVLINK_PAIRS, measurements=[]), small := folder / "20261120T000000Z-cuda-copies-1.json")
    refused = program("predict", "--params", "124M")
    assert f"{small}: no all-reduce, all-gather or reduce-scatter was measured" in refused.line, "not the simulated one"
    assert program("predict", str(newest), "--params", "124M").status == 0
    run_file.save(NVLINK_PAIRS, measured := folder / "20261121T000000Z-cuda-pairs-1.json")
    taken = program("predict", "--params", "124M")
    assert taken.status == 0
    assert str(measured) in "".join(taken.out.split("\n\n")[0].splitlines())
    run_file.save(replace(NVLINK_PAIRS, backend="host"), folder / "20261123T000000Z-host-pairs-1.json")
    run_file.save(replace(NVLINK_PAIRS, measurements=[]), folder / "20261124T000000Z-cuda-copies-1.json")
    assert program("predict", "--params", "124M").out == taken.out, "neither CPU cores nor a run without collectives"
    others = run_of(gpus(4)[2:], curve(Operation.ALLREDUCE, (0, 1), 50.0))
    run_file.save(others, folder / "20261125T000000Z-cuda-pairs-1.json")
    assert str(measured) in "".join(program("predict", "job.json").out.split("\n\n")[0].splitlines()), "job's GPUs"
    named = program("predict", str(measured), "--params", "124M")
    assert "newest saved run" not in named.out
    assert taken.out.endswith(named.out)
