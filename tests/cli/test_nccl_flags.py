"""nccl-tests' flags: the requests that they become, and one line for what they cannot ask for."""

import shlex
from typing import Any

import click
import pytest

from collbench.cli import timing
from collbench.measurement.backends import factory
from collbench.measurement.plan import Request, default_sizes
from collbench.model.errors import CollbenchError
from tests.builders import gpus
from tests.cli.program import Program

KIB, MIB, GIB = 2**10, 2**20, 2**30


@pytest.fixture(autouse=True)
def four_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose GPUs are only listed: 1, 2, 5 and 7 of nvidia-smi's are visible."""
    listed = gpus(8)
    monkeypatch.setattr(factory, "present_devices", lambda *_: tuple(listed[index] for index in (1, 2, 5, 7)))


def requested(args: str, backend: str) -> Request:
    command = timing.COMMANDS["allreduce"]
    return command.request(
        command.make_context("allreduce", shlex.split(f"--backend {backend} --seed 1 {args}")).params, ()
    )


def requested_fields(args: str, backend: str = "cuda") -> dict[str, Any]:
    """Return the request's fields that differ from those of the command without flags."""
    request, plain = requested(args, backend), requested("", backend)
    fields = {name: getattr(request, name) for name in Request.__dataclass_fields__}
    return {name: value for name, value in fields.items() if value != getattr(plain, name)}


def refused(args: str) -> str:
    with pytest.raises(CollbenchError) as caught:
        requested_fields(args)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("args", "sizes"),
    [
        ("-b 8 -e 128 -f 2", (8, 16, 32, 64, 128)),
        ("--minbytes 64K --maxbytes=1M --stepfactor 4", (64 * KIB, 256 * KIB, MIB)),
        ("-b 1M -e 9M -f 3", (MIB, 3 * MIB, 9 * MIB)),
        ("-b 1M -e 4M", (MIB, 2 * MIB, 3 * MIB, 4 * MIB)),  # its own step is 1 MiB [src/common.cu, stepBytes]
        ("-e 64", (8, 16, 32, 64)),
        ("-e 4", (4,)),
        ("-b 256M", (256 * MIB, 512 * MIB, GIB)),
        ("-b 2G", (2 * GIB,)),
    ],
)
def test_sizes(args: str, sizes: tuple[int, ...]) -> None:
    assert requested_fields(args) == {"sizes": sizes}


def test_without_sizes_the_default_stays() -> None:
    assert requested_fields("-n 20") == {"iterations": 20}
    assert requested_fields("-f 2") == {"sizes": default_sizes("cuda")}


def test_only_a_smallest_size_ends_where_the_backend_does() -> None:
    assert requested_fields("-b 16M", backend="host") == {"sizes": (16 * MIB, 32 * MIB, 64 * MIB)}


@pytest.mark.parametrize(
    ("args", "fields"),
    [
        ("", {}),
        ("-n 50", {"iterations": 50}),
        ("--iters 50 -w 5", {"iterations": 50, "warmup": 5}),
        ("--warmup_iters 0", {"warmup": 0}),
        ("-c 0", {"verify": False}),
        ("-d half", {"dtype": "float16"}),
        ("--datatype bfloat16", {"dtype": "bfloat16"}),
        ("-d f8e4m3", {"dtype": "float8_e4m3fn"}),
        ("-d float --op sum -r 0", {}),
        ("--op avg", {"redop": "avg"}),
        ("-r 3", {"root": 3}),
        ("-G 20", {"graph": 20}),
        ("-g 2", {"devices": "1,2"}),
    ],
)
def test_fields(args: str, fields: dict[str, Any]) -> None:
    assert requested_fields(args) == fields


def test_one_of_many_processes_has_one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 4, "LOCAL_WORLD_SIZE": 4}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("MASTER_PORT", "29500")
    assert requested_fields("-g 1") == {}
    assert "each of the 4 processes has one device" in refused("-g 2")


@pytest.mark.parametrize(
    ("args", "named", "advice"),
    [
        ("-b 1M -e 8", "-b 1M is larger than -e 8", "smaller one as -b"),
        ("-b 8 -e 1G", "1024 sizes", "-f 2"),
        ("-b 8X -e 1G", "'8X'", "64K"),
        ("-b 0 -e 1G", "'0' is zero", "smallest"),
        ("-g 8", "asks for 8 of", "4 devices"),
        ("-g 1", "-g 1 is one device", "-g 2"),
        ("-d int128", "'int128'", "bfloat16"),
    ],
)
def test_values_without_a_meaning_are_refused_with_advice(args: str, named: str, advice: str) -> None:
    line = refused(args)
    assert named in line
    assert advice in line


def test_numbers_that_are_none_are_clicks_to_refuse() -> None:
    for args in ("-n 0", "-w -1", "-f 0", "-n many", "-c yes", "-r -1", "--op all", "--op minimum"):
        with pytest.raises(click.UsageError):
            requested_fields(args)


@pytest.mark.parametrize("letter", "amNpzyTCSRxDVMuIKJit")
def test_flags_of_another_measurement_are_no_options_even_with_harmless_values(letter: str) -> None:
    with pytest.raises(click.NoSuchOption):
        requested_fields(f"-{letter} 1")


@pytest.mark.parametrize("args", ["-o max", "-omax", "--format nccl-tests -o mulsum"])
def test_a_reduction_where_the_runs_file_is_expected_is_refused(program: Program, args: str) -> None:
    result = program("allreduce", *args.split())
    assert (result.status, result.out) == (2, "")
    assert "-o is the run's file, as in every command: write --op m" in result.line
