"""How a command line becomes a request for the session, and which page shows the run."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest

from collbench.cli import measuring
from collbench.cli.options import NCCL_TESTS
from collbench.measurement.backends import factory
from collbench.measurement.plan import Request
from collbench.model.operations import COLLECTIVES, Operation, Registration, Variant, Work
from collbench.runfile import run_file
from tests.builders import gpus
from tests.cli.program import Program

IN_PLACE = Variant.IN_PLACE
BOTH_PLACES = (Work(Operation.REDUCE), Work(Operation.REDUCE, IN_PLACE))


@dataclass
class RecordingProgram:
    """The program, and the request, file and layout of its last command."""

    program: Program
    request: Request | None = None
    path: Path | None = None
    layout: str = ""

    def __call__(self, args: str) -> Request:
        result = self.program(*shlex.split(args))
        assert result.status == 0, result.err
        assert self.request is not None
        return self.request


@pytest.fixture
def requested(monkeypatch: pytest.MonkeyPatch, program: Program) -> RecordingProgram:
    """The program on four GPUs that are only listed; nothing is measured, and the request is recorded."""
    recorder = RecordingProgram(program)

    def record(request: Request, path: Path, layout: str, _begun: object) -> None:
        recorder.request, recorder.path, recorder.layout = request, path, layout

    monkeypatch.setattr(factory, "present_devices", lambda backend, *_: gpus(4) if backend == "cuda" else ())
    monkeypatch.setattr(measuring, "measured_and_shown", record)
    monkeypatch.setattr(measuring, "leave_with", lambda _diagnosis: None)
    return recorder


@pytest.mark.parametrize("operation", COLLECTIVES)
def test_each_collective_has_a_command(requested: RecordingProgram, operation: Operation) -> None:
    request = requested(f"{operation} --backend cuda --sizes 1M")
    assert request.collectives == (Work(operation),)
    assert (request.copies, request.pairs, request.split, request.chase) == ((), False, 1, False)
    assert request.launches
    assert request.command[0] == operation
    assert requested.path is None


def test_a_spelling_with_hyphens_is_recorded_as_the_command(requested: RecordingProgram) -> None:
    assert requested("reduce-scatter --backend cuda").command[0] == "reducescatter"


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ("reduce --backend cuda --pairs --root 1", {"pairs": True, "root": 1}),
        ("reduce --backend cuda --split 2", {"split": 2}),
        ("reduce --backend cuda --op max --dtype half", {"redop": "max", "dtype": "float16"}),
        ("reduce --backend cuda --in-place", {"collectives": BOTH_PLACES}),
        ("reduce --backend cuda --quick --seed 3", {"quick": True, "seed": 3, "budget_seconds": None}),
        ("reduce --backend cuda --budget 10s", {"budget_seconds": 10.0, "precision": None}),
        ("reduce --backend cuda --precision 0.5%", {"precision": 0.005, "budget_seconds": 60.0}),
        ("pairs --backend cuda --precision 1%", {"precision": 0.01, "pairs": True, "launches": False}),
        (
            "pairs --backend cuda --operations allreduce",
            {"copies": (), "collectives": (Work(Operation.ALLREDUCE),), "pairs": True},
        ),
        ("copies --backend cuda", {"sizes": (512 * 2**20,), "collectives": (), "chase": False}),
        (
            "copies --backend cuda --patterns staged,host --sizes 8,1K",
            {"sizes": (8, 1024), "copies": (Variant.STAGED, Variant.HOST)},
        ),
        ("copies --backend host", {"sizes": (64 * 2**20,)}),
        (
            "latency --backend cuda",
            {
                "sizes": (8,),
                "chase": True,
                "copies": (Variant.PLAIN,),
                "collectives": (Work(Operation.ALLREDUCE),),
                "pairs": True,
                "launches": True,
            },
        ),
        (
            "latency --backend cuda --collectives",
            {
                "sizes": tuple(2**exponent for exponent in range(7, 21)),
                "collectives": tuple(Work(Operation.ALLREDUCE, registration=kind) for kind in Registration),
                "dtype": "bfloat16",
                "latency": 400,
                "layers": 80,
                "copies": (),
                "chase": False,
                "pairs": False,
            },
        ),
        ("latency --backend cuda --collectives --layers 32", {"layers": 32, "fewest_devices": 2}),
    ],
)  # fmt: skip
def test_arguments_become_a_request(requested: RecordingProgram, args: str, expected: dict[str, object]) -> None:
    request = requested(args)
    assert {name: getattr(request, name) for name in expected} == expected


def test_copies_request_every_pattern(requested: RecordingProgram) -> None:
    assert set(requested("copies --backend cuda").copies) == set(Variant) - {IN_PLACE}


@pytest.mark.parametrize(
    ("args", "both"),
    [
        ("alltoall --backend cuda", False),
        ("alltoall --backend cuda --format nccl-tests", True),
        ("alltoall --backend host --format nccl-tests", False),
    ],
)
def test_nccl_tests_two_halves_are_measured_where_they_are_shown(
    requested: RecordingProgram, args: str, both: bool
) -> None:
    works = requested(args).collectives
    assert (Work(Operation.ALLTOALL, IN_PLACE) in works) == both
    assert works[0] == Work(Operation.ALLTOALL)


def test_the_layout_is_passed_on(requested: RecordingProgram) -> None:
    requested("gather --backend cuda --format nccl-tests --output run.json")
    assert requested.layout == NCCL_TESTS
    assert requested.path == Path("run.json")


def test_two_hyphens_before_the_command_are_no_part_of_the_saved_command(program: Program, tmp_path: Path) -> None:
    words = ["latency", "--backend", "sim", "--quick", "-o"]
    for number, start in enumerate(([], ["--"])):
        file = f"run-{number}.json"
        assert program(*start, *words, file).status == 0
        assert run_file.load(tmp_path / file).settings.command == (*words, file)


def test_a_command_is_not_an_option(program: Program) -> None:
    result = program("--", "--pairs")
    assert result.status == 2
    assert "--pairs" in result.line
