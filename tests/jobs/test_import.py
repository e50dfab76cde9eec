"""`collbench import`: which traces it reads, and what it reports as missing from them."""

from __future__ import annotations

import pickle
import tarfile
from pathlib import Path

import pytest

from collbench.jobs import job_file
from collbench.jobs.job import Source
from collbench.runfile.run_file import save as save_run
from tests.cli.program import Program
from tests.jobs.predict.made import pairs
from tests.jobs.traces import noted, observed

pytestmark = pytest.mark.usefixtures("loaded_program")

STEPS = range(12)


def execution_trace() -> bytes:
    groups = [{"pg_name": "0", "pg_desc": "default_pg", "ranks": [], "group_size": 2}]
    return observed([noted("allreduce", 2048 * (1 + n % 2), 0, number=n + 10) for n in STEPS], groups)


def test_a_job_is_imported_and_shown(program: Program, tmp_path: Path) -> None:
    files = [tmp_path / f"trace.{rank}.json" for rank in range(2)]
    for path in files:
        path.write_bytes(execution_trace())
    output = tmp_path / "job.json"
    result = program("import", "--calls-per-step", "2", "-o", str(output), *map(str, files))
    assert (result.status, result.out) == (0, "")
    assert result.line.startswith("imported 24 calls of 2 ranks")
    job = job_file.load(output)
    assert (job.source, job.world_size) == (Source.EXECUTION_TRACE, 2)
    for rank in job.ranks:
        assert [job.calls[call].size_bytes for call in rank.unfolded()] == [8192 * (1 + n % 2) for n in STEPS]
        assert rank.step is not None
        assert (len(rank.step.positions), rank.step.repetitions) == (2, 6)
    shown = program("show", str(output))
    assert (shown.status, "by pytorch-et" in shown.out) == (0, True)


def test_a_length_that_the_calls_contradict_is_no_step_and_the_first_line_says_what_repeats(
    program: Program, tmp_path: Path
) -> None:
    """DDP's three all-reduces of two sizes come again every 3 calls."""
    kept = Path("benchmarks/results/2026-11-23-2xh200-recorded-jobs/recorded.tar.gz")
    with tarfile.open(Path(__file__).parents[2] / kept) as files:
        files.extract("rec/ddp-gpu-job.json", tmp_path, filter="data")
    recorded, new = str(tmp_path / "rec" / "ddp-gpu-job.json"), str(tmp_path / "new.json")
    wrong = program("import", recorded, "--calls-per-step", "4", "-o", new)
    why = "rank 0 sends the same calls again every 3, not every 4"
    assert wrong.line == f"imported 306 calls of 2 ranks; no step was found ({why}): {new}"
    assert " ".join(program("show", new).out.split()).startswith(f"no step is known: {why}; ")
    save_run(pairs({}, 4), run := tmp_path / "run.json")
    simulated = ("replay", new, "--backend", "sim", "--fabric", "titan-rtx-nv2", "-o", str(tmp_path / "replay.json"))
    for refused in (program(*simulated), program("predict", new, str(run))):
        assert refused.status == 2
    program("import", recorded, "--calls-per-step", "6", "-o", new, "--force")
    blocks = "6 calls are 2 equal blocks of 3: the record repeats after each"
    assert blocks in program(*simulated).err
    shown, predicted = (
        program("show", new),
        program("predict", new, str(run), "--devices", "1,2", "--recorded-links", str(run)),
    )
    assert not predicted.status, predicted.err
    for told in (shown.out, predicted.out):
        assert blocks in " ".join(told.split())


def test_missing_facts_are_reported(program: Program, tmp_path: Path) -> None:
    path = tmp_path / "nccl_trace_rank_0"
    groups = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}}
    sent = {"process_group": ("0", "default_pg"), "input_sizes": [[64]], "output_sizes": [[64]], "record_id": 5}
    sent |= {"input_dtypes": ["Float"], "output_dtypes": ["Float"]}
    entries = [sent | {"profiling_name": f"nccl:{name}"} for name in ("all_reduce", "all_smile")]
    path.write_bytes(pickle.dumps({"pg_config": groups, "entries": entries}))
    result = program("import", "-o", str(tmp_path / "job.json"), str(path))
    assert result.status == 0
    assert "rows were left out: 1 × all_smile, an unknown operation" in result.err
    assert "5 calls are missing: the Flight Recorder's ring had no room for them" in result.err
    assert "3 of 4 ranks have no trace" in result.err


TRACES = Path(__file__).parents[1] / "data" / "traces"


def test_traces_of_different_jobs_are_doubted_and_those_of_one_are_not(program: Program, tmp_path: Path) -> None:
    """A rank of DDP beside one of FSDP2: both have two ranks and name their group alike."""
    files = ("-o", str(tmp_path / "job.json"), "--force", str(TRACES / "ddp-0.kineto.json.gz"))
    mixed = program("import", *files, str(TRACES / "fsdp2-1.kineto.json.gz"))
    assert mixed.status == 0
    doubt = "collbench: rank 0 sends no allgather to all ranks, and rank 1 does: are the traces of one job?"
    assert mixed.err.splitlines()[0] == doubt
    shown = program("show", str(tmp_path / "job.json")).out
    assert "not judged: no call is known to be the same one on all ranks of a group" in shown
    assert program("import", *files, str(TRACES / "ddp-1.kineto.json.gz")).line.startswith("imported 18 calls")


def test_a_rank_that_is_last_at_all_of_few_calls_is_named_though_not_called_late(
    program: Program, tmp_path: Path
) -> None:
    job = str(tmp_path / "job.json")
    program("import", "-o", job, *(str(TRACES / f"ddp-{rank}.kineto.json.gz") for rank in range(2)))
    page = " ".join(program("show", job).out.split())
    assert "no rank is shown to be late: rank 1 is last at 100% of its calls, in too few steps or by too little" in page


def test_two_files_of_one_rank_are_both_named(program: Program, tmp_path: Path) -> None:
    first, copy = TRACES / "ddp-0.kineto.json.gz", tmp_path / "a.gz"
    copy.write_bytes(first.read_bytes())
    for second in (copy, first):
        refused = program("import", "-o", str(tmp_path / "job.json"), str(first), str(second))
        said = f"{first} and {second} are both of rank 0: name the files of different ranks"
        assert (refused.status, refused.line) == (2, said)


def test_a_job_needs_no_import(program: Program) -> None:
    job = Path(__file__).parents[1] / "data" / "traces" / "ddp-job.json"
    result = program("import", str(job))
    assert (result.status, result.out) == (2, "")
    assert result.err.endswith("it is a recorded job already, which show, replay and predict read\n")


PUBLIC = Path(__file__).parents[1] / "data" / "traces" / "public"


@pytest.mark.parametrize(
    ("name", "page", "why"),
    [
        (
            "no-shapes-1",
            "allreduce",
            "the kineto traces do not say the bytes of all calls: profile with record_shapes=True",
        ),
        (
            "gloo-300-34",
            "calls of gloo",
            "the job's calls are of gloo: only those of NCCL can be replayed and predicted",
        ),
    ],
)
def test_a_job_that_nccl_cannot_send_again_has_a_page_and_is_not_replayed(
    name: str, page: str, why: str, program: Program, tmp_path: Path
) -> None:
    job = str(tmp_path / "job.json")
    assert program("import", "-o", job, str(PUBLIC / f"{name}.json.gz")).status == 0
    shown = program("show", job)
    assert (shown.status, page in " ".join(shown.out.split())) == (0, True)
    refused = program("replay", job, "--backend", "sim")
    assert (refused.status, refused.line) == (2, why)


def test_an_unknown_number_of_ranks_is_said(program: Program, tmp_path: Path) -> None:
    result = program("import", "-o", str(tmp_path / "job.json"), str(PUBLIC / "no-kernels-0.json.gz"))
    assert "no trace says how many ranks the job has: it is taken to have 1\n" in result.err
