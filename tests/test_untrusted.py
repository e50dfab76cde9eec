"""Files that somebody else made: of any kind, size and owner, with numbers that lie; one line, and little memory."""

from __future__ import annotations

import gzip
import io
import json
import math
import os
import pickle
import random
import re
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from collbench import untrusted
from collbench.cluster.switches import read_switches
from collbench.jobs import job_file, streams
from collbench.jobs.traces.content import Unreadable
from collbench.jobs.traces.folding import job_of
from collbench.jobs.traces.formats import parse
from collbench.model.errors import ExitStatus, RunFileError, UsageError
from collbench.runfile import run_file
from tests.builders import gpus
from tests.cli.program import Program, collbench, save_run
from tests.jobs.test_streams import recording as recording  # noqa: PLC0414  # the fixture
from tests.jobs.traces import noted, observed
from tests.runfile.test_run_writer import keep

DATA = Path(__file__).parent / "data"


def pipe(path: Path) -> None:
    os.mkfifo(path)


def zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


def unix_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path.name)


def huge(path: Path) -> None:
    path.touch()
    os.truncate(path, 2**35)


KINDS: list[tuple[Callable[[Path], None], str]] = [
    (pipe, "it is a pipe, not a regular file"),
    (zeros, "it is a device, not a regular file"),
    (unix_socket, "No such device or address"),
    (Path.mkdir, "Is a directory"),
    (huge, "it has more than "),
]
READERS = (
    "show odd",
    "show job.json --run-file odd",
    "show odd --ranking",
    "report odd",
    "import odd -o new.json",
    "replay --backend host odd",
    "topo --topology odd",
    "pairs --backend sim --fabric ./odd",
    "nodes --backend sim --fabric-cluster ./odd",
    "alltoallv --backend host --skew odd",
)


# Each reader refuses a pipe; what else is no file is refused in the same place, so one reader has it all.
ODD = [(command, *KINDS[0]) for command in READERS] + [(READERS[0], *kind) for kind in KINDS[1:]]


@pytest.mark.parametrize(("command", "make", "why"), ODD, ids=[f"{row[0]}, {row[1].__name__}" for row in ODD])
def test_what_is_no_regular_file_or_too_long_is_refused_in_a_line(
    program: Program, tmp_path: Path, command: str, make: Callable[[Path], None], why: str
) -> None:
    (tmp_path / "job.json").write_bytes((DATA / "traces" / "ddp-job.json").read_bytes())
    save_run(tmp_path / "run.json", gpus(4))
    make(tmp_path / "odd")
    result = program(*command.split())
    assert (result.status, result.out) == (2, "")
    assert "odd" in result.line
    assert why in result.line


def test_a_list_of_switches_is_no_pipe(tmp_path: Path) -> None:
    pipe(tmp_path / "odd")
    with pytest.raises(UsageError, match=r"cannot read --switches .*odd: it is a pipe, not a regular file"):
        read_switches(str(tmp_path / "odd"))


@pytest.mark.parametrize("command", ["show", "show --ranking"])
def test_a_run_from_a_pipe_of_the_shell_is_read(loaded_program: None, tmp_path: Path, command: str) -> None:
    save_run(tmp_path / "run.json", gpus(4))
    args = collbench(*command.split())
    done = subprocess.run(
        ["bash", "-c", '"$@" <(cat run.json)', "-", *args], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "allreduce" in done.stdout


def test_a_pipe_that_does_not_end_is_too_long() -> None:
    with Path("/dev/zero").open("rb") as zeros, pytest.raises(untrusted.Refused, match="more than 3 MiB"):
        untrusted.unpacked(zeros, 0, 3 * 2**20).read()


def test_a_result_that_cannot_be_read_back_leaves_the_older_file(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    run = keep(path, 4)
    before = path.read_bytes()
    run.measurements[0].samples.clear()
    writer = run_file.RunWriter(run, path, pytest.fail, replace=True)
    writer.end()
    assert "has no batch times" in str(writer.failure)
    assert path.read_bytes() == before


def test_a_number_that_json_has_not_is_never_written(tmp_path: Path) -> None:
    run = keep(tmp_path / "run.json", 1)
    run.measurements[0].samples.append(replace(run.measurements[0].samples[0], seconds=(float("inf"),)))
    with pytest.raises(RunFileError, match="cannot be saved"):
        run_file.dumps(run)
    reported: list[str] = []
    writer = run_file.RunWriter(run, tmp_path / "run.json", reported.append, replace=True)
    writer.keep()
    writer.end()
    assert len(reported) == 1
    assert "cannot be saved" in str(writer.failure)


def others_can_write(path: Path, _patch: pytest.MonkeyPatch) -> None:
    path.chmod(0o664)


def a_link(path: Path, _patch: pytest.MonkeyPatch) -> None:
    path.symlink_to(path.rename(path.with_name("elsewhere")))


def another_users(path: Path, patch: pytest.MonkeyPatch) -> None:
    """Let a file look like another user's; only root could really change its owner."""
    real, inode = os.fstat, path.stat().st_ino

    def reported(number: int) -> os.stat_result:
        status = real(number)
        return os.stat_result((*status[:4], 54321, *status[5:])) if status.st_ino == inode else status

    patch.setattr(os, "fstat", reported)


def a_pipe(path: Path, _patch: pytest.MonkeyPatch) -> None:
    path.unlink()
    pipe(path)


DOUBTFUL: list[tuple[Callable[[Path, pytest.MonkeyPatch], None], str]] = [
    (others_can_write, "others can write it"),
    (a_link, "it is a link"),
    (another_users, "it belongs to another user (uid 54321)"),
    (a_pipe, "it is a pipe"),
]


@pytest.mark.parametrize(("spoil", "why"), DOUBTFUL, ids=["mode", "link", "owner", "pipe"])
def test_a_stream_that_another_user_may_have_written_is_left_out(
    program: Program,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    recording: bytearray,
    spoil: Callable[[Path, pytest.MonkeyPatch], None],
    why: str,
) -> None:
    folder = tmp_path / "streams"
    folder.mkdir()
    for name in ("a.stream", "b.stream"):
        (folder / name).write_bytes(recording)
        (folder / name).chmod(0o600)
    spoil(folder / "b.stream", monkeypatch)
    (folder / f"x.failed-{'9' * 100}").touch()
    (folder / f"x.failed-{'9' * 5}").touch()
    (folder / "x.failed-28").touch()
    result = program("record", "--streams", "streams", "-o", "job.json")
    assert result.status == 0, result.err
    assert "b.stream" in result.err
    assert why in result.err
    assert [line for line in result.err.splitlines() if "could not write its stream" in line] == [
        "collbench: a process could not write its stream: No space left on device; name another folder with --streams "
        "DIR"
    ]
    assert job_file.load(tmp_path / "job.json").ranks


# Numbers that lie about what follows them: memory is bounded in a process of its own, time by the test's.

LIMIT = 3 * 2**29  # of addresses, of which the libraries take half a GiB


def limited(tmp_path: Path, *args: str) -> str:
    """Run the program in 1.5 GiB; return its only line, with which it must end."""
    code = "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]),) * 2); del sys.argv[1]; "
    code += "from collbench.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, str(LIMIT), *args]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def kineto(events: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    groups = [{"pg_name": "0", "pg_desc": "world", "ranks": [0, 1]}]
    return {"traceEvents": events, "distributedInfo": {"rank": 0, "world_size": 2, "pg_config": groups}, **fields}


def call_row(number: object) -> dict[str, Any]:
    arguments = {"External id": number, "Process Group Name": "0", "Collective name": "allreduce", "dtype": "Float"}
    arguments |= {"In msg nelems": 8, "Out msg nelems": 8, "Group size": 2}
    return {"ph": "X", "name": "record_param_comms", "ts": 1.0, "args": arguments}


def kernel(number: object, **fields: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "kernel", "name": "ncclDevKernel", "args": {"External id": number}, "dur": 5.0, **fields}


def bomb(path: Path) -> None:
    path.write_bytes(gzip.compress(b'{"traceEvents": [') + 768 * gzip.compress(b" " * 2**20))


def many_members(path: Path) -> None:
    nodes = [noted("allreduce", 8, 8, number=n, group=str(n), places=(0, 1, 65536)) for n in range(3_000)]
    path.write_bytes(observed(nodes))


def many_ranks(path: Path) -> None:
    job = json.loads((DATA / "traces" / "ddp-job.json").read_text(encoding="utf-8"))
    path.write_text(json.dumps(job | {"world_size": 2**64}), encoding="utf-8")


GREEDY: list[tuple[Callable[[Path], None], str, str]] = [
    (bomb, "import lying.json", "MiB, which no real one of its kind and size has"),
    (many_members, "import lying-0.json", "its groups have more than 4,194,304 members together"),
    (many_ranks, "show lying.json", "job.world_size is 18446744073709551616, not 1 to 1,048,576 ranks"),
]


@pytest.mark.parametrize(("make", "command", "why"), GREEDY, ids=[make.__name__ for make, _, _ in GREEDY])
def test_a_number_in_a_file_asks_for_no_memory(
    tmp_path: Path, make: Callable[[Path], None], command: str, why: str
) -> None:
    make(tmp_path / command.rsplit(maxsplit=1)[-1])
    assert why in limited(tmp_path, *command.split())


def test_phases_that_share_bytes_are_no_stream(recording: bytearray) -> None:
    header = dict(streams.HEADER.fields or {})
    places = {name: struct.unpack_from("<Q", recording, header[name][1])[0] for name in ("phases_at", "arena_at")}
    phases = 4_000
    table = struct.pack("<6Q6I", 1, 0, *[places["arena_at"]] * 2, 0, 0, 2**15, *[0] * 5) * phases
    lying = recording[:] + table
    struct.pack_into("<Q", lying, header["phases_at"][1], len(recording))
    for name in ("phases", "phases_max"):
        struct.pack_into("<I", lying, header[name][1], phases)
    with pytest.raises(streams.StreamError, match="its parts overlap"):
        streams.parse(lying)


def test_a_tail_or_phase_that_would_be_searched_for_hours_is_no_stream(recording: bytearray) -> None:
    header = dict(streams.HEADER.fields or {})
    lying = recording[:] + bytes(2**22)
    struct.pack_into("<I", lying, header["tail_max"][1], 2**16)
    struct.pack_into("<Q", lying, header["tail_at"][1], len(recording))
    with pytest.raises(streams.StreamError, match="its tail is longer than it can be"):
        streams.parse(lying)
    lying = recording[:] + struct.pack("<6Q6I", 1, 0, *[4096] * 2, 0, 0, 2**16, *[0] * 5)
    struct.pack_into("<Q", lying, header["phases_at"][1], len(recording))
    for name in ("phases", "phases_max"):
        struct.pack_into("<I", lying, header[name][1], 1)
    with pytest.raises(streams.StreamError, match="more calls or samples than it can have"):
        streams.parse(lying)


def test_a_line_about_a_long_value_is_not_as_long(program: Program, tmp_path: Path) -> None:
    save_run(tmp_path / "run.json", gpus(4))
    text = (tmp_path / "run.json").read_text(encoding="utf-8")
    (tmp_path / "run.json").write_text(text.replace('"float32"', f'"{"x" * 10**6}"'), encoding="utf-8")
    assert len(program("show", "run.json").line) < 3_000


def test_numbers_made_to_have_one_hash_take_no_longer() -> None:
    prime = sys.hash_info.modulus
    alike = [kernel(prime * n + 7, ts=1.0) for n in range(1, 45_000)]  # took three minutes
    trace = parse(io.BytesIO(json.dumps(kineto([*alike, call_row(7)])).encode()), "0.json")
    assert len(trace.calls) == 1
    fields = b"".join(pickle.dumps(prime * n + 7, 2)[2:-1] + b"N" for n in range(1, 3))
    with pytest.raises(Unreadable, match="neither JSON nor a dump"):
        parse(io.BytesIO(b"\x80\x02}(" + fields + b"u."), "0.fr")


def test_a_kernel_without_a_moment_is_left_out_and_counted(program: Program, tmp_path: Path) -> None:
    events = [kernel(1), call_row(1), kernel(2, ts=3.0), call_row(2)]
    trace = parse(io.BytesIO(json.dumps(kineto(events)).encode()), "0.json")
    assert trace.left_out.total() == 1
    positions = [each for rank in job_of([trace]).ranks for phase in rank.phases for each in phase.positions]
    assert [each.gpu is None for each in positions].count(True) == 1
    (tmp_path / "0.json").write_text(json.dumps(kineto(events)), encoding="utf-8")
    result = program("import", "0.json", "-o", "job.json")
    assert result.status == 0
    assert "rows were left out: 1 × ncclDevKernel without a time" in result.err

    def refuse(word: str) -> None:
        pytest.fail(word)

    json.loads((tmp_path / "job.json").read_text(encoding="utf-8"), parse_constant=refuse)


def test_a_run_that_nobody_reads_from_a_pipe_is_not_called_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe(tmp_path / "pipe")
    run = keep(tmp_path / "run.json", 1)
    writer = run_file.RunWriter(run, tmp_path / "pipe", pytest.fail)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("collbench.runfile.atomic_write._send", interrupted)
    with pytest.raises(KeyboardInterrupt):
        writer.end()
    assert "nothing reads" in str(writer.failure)


# Mutated files: every command ends with a documented status and no traceback, and changes none of them.

SOME: tuple[Any, ...] = (0, -1, 1, 2, 9, 2**31, 2**60, 2**64, 10**40, 0.0, -0.5, 1e-15, 1e300, math.nan, math.inf)
SOME += (None, True, "", "x", "=1", "allreduce", "broadcast", "alltoallv", "ce-read", "host-all", "one-to-all")
SOME += ("window", "in-place", [], {}, [0, 0], [0, 1], [0, 9], [0, 1, 2], [[[]]], 9 * [0.5])


def mutated(chance: random.Random, data: Any) -> Any:
    """Return JSON's data with a value in it that is another's, gone, twice there, or one of some odd ones."""
    data = json.loads(json.dumps(data))
    at, steps = data, list[tuple[Any, Any]]()
    while isinstance(at, dict | list) and at:
        key = chance.choice(list(at) if isinstance(at, dict) else range(len(at)))
        steps.append((at, key))
        at = at[key]
    holder, key = chance.choice(steps)
    alike = [value for value in SOME if type(value) is type(holder[key])]
    match chance.randrange(6):
        case 0:
            holder.pop(key)
        case 1 if isinstance(holder, list):
            holder.append(holder[key])
        case 2:
            holder[key] = chance.choice(SOME)
        case _:
            holder[key] = chance.choice(alike or SOME)
    return data


def assert_harmless(program: Program, command: str) -> None:
    before = {path.name: path.read_bytes() for path in Path().glob("odd.json*")}
    result = program(*command.split())
    assert result.status in (0, 1, 2, 3, 4)
    assert "Traceback" not in result.err
    assert result.status != ExitStatus.BAD_INPUT or result.err.count("\n") == 1
    if "json" in command.replace(".json", ""):
        assert not re.search(r"\b(NaN|Infinity)\b", result.out)
    assert {path.name: path.read_bytes() for path in Path().glob("odd.json*")} == before


@pytest.mark.parametrize("kind", ["run", "job"])
def test_a_mutated_file_is_read_or_refused(program: Program, tmp_path: Path, kind: str) -> None:
    chance = random.Random(2)
    save_run(tmp_path / "run.json", gpus(4))
    (tmp_path / "job.json").write_bytes((DATA / "traces" / "moe-job.json").read_bytes())
    original = json.loads((tmp_path / f"{kind}.json").read_text(encoding="utf-8"))
    for _ in range(15):
        (tmp_path / "odd.json").write_text(json.dumps(mutated(chance, original)), encoding="utf-8")
        for command in (
            "show odd.json",
            "show --json odd.json",
            "check odd.json",
            "report run.json odd.json -o page.html --force",
        ):
            assert_harmless(program, command)


def test_mutated_traces_are_read_or_refused(program: Program, tmp_path: Path) -> None:
    chance = random.Random(3)
    original = json.loads(gzip.decompress((DATA / "traces" / "ddp-0.kineto.json.gz").read_bytes()))
    for _ in range(40):
        (tmp_path / "odd.json").write_text(json.dumps(mutated(chance, original)), encoding="utf-8")
        assert_harmless(program, "import odd.json -o made --force")
        if (tmp_path / "made").exists():
            job_file.load(tmp_path / "made")
            (tmp_path / "made").unlink()


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("runn.json", "run.json"),
        ("run.jsn", "run.json"),
        ("other/runn.json", "other/run.json"),
        ("zebra.json", ""),
        ("rum", "run.json"),
        ("rum.txt", ""),
    ],
)
def test_a_missing_file_is_named_with_the_one_that_was_probably_meant(
    program: Program, tmp_path: Path, typed: str, meant: str
) -> None:
    """Of the same folder; what two names share by their ending alone is no likeness."""
    (tmp_path / "other").mkdir()
    for folder in (tmp_path, tmp_path / "other"):
        save_run(folder / "run.json", gpus(2))
    for command in ("show", "check", "select 2"):
        result = program(*command.split(), typed)
        assert result.status == 2
        suggestion = (
            f"did you mean '{meant}'?" if meant else "'collbench runs' lists the saved runs: a number stands for a file"
        )
        assert result.line.endswith(f"cannot read run file {typed}: No such file or directory; {suggestion}")


@pytest.mark.parametrize("made", ["run", "job"])
def test_a_compressed_file_is_read_as_it_was(program: Program, tmp_path: Path, made: str) -> None:
    save_run(tmp_path / "run.json", gpus(2))
    (tmp_path / "job.json").write_bytes((DATA / "traces" / "ddp-job.json").read_bytes())
    plain = program("show", f"{made}.json")
    subprocess.run(["gzip", f"{made}.json"], cwd=tmp_path, check=True)
    assert plain.status == 0
    assert program("show", f"{made}.json.gz").out == plain.out.replace(f"{made}.json", f"{made}.json.gz")
    content = (tmp_path / f"{made}.json.gz").read_bytes()
    for damaged in (content[:-9], content[:40] + b"\0\0\0\0" + content[44:]):
        (tmp_path / f"{made}.json.gz").write_bytes(damaged)
        assert "cannot be decompressed" in program("show", f"{made}.json.gz").line
