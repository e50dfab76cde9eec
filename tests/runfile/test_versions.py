"""Run files of version 1: every one that is kept is read, and its command line becomes settings."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from dataclasses import fields, replace
from functools import cache
from pathlib import Path

import pytest

from collbench.model.errors import RunFileError
from collbench.model.failures import Cause, Failure, FailureKind, died
from collbench.model.operations import Operation, Variant, Work
from collbench.model.run import CommandKind, FlagKind, InterferenceCheck, Layout, Run, Settings, SkipKind, Skipped
from collbench.report import sentences
from collbench.runfile import run_file
from tests.builders import gpus, in_words, left_out, measured, nvml_says, run_of, smi_says

ROOT = Path(__file__).parents[2]
# What version 1 had no field for.
ADDED = [field.name for field in fields(Settings)][13:]


PHASES = {"interference check": "audit", "trials": "visits"}


def texts() -> Iterator[tuple[str, str]]:
    """Yield every JSON file among the kept results and the tests' data, those in archives too."""
    for folder in (ROOT / "benchmarks" / "results", ROOT / "tests" / "data"):
        for path in sorted(folder.rglob("*.json")):
            yield path.name, path.read_text(encoding="utf-8")
        for path in sorted(folder.rglob("*.tar.gz")):
            with tarfile.open(path) as archive:
                for member in archive:
                    content = archive.extractfile(member) if member.name.endswith(".json") else None
                    if content is not None:
                        yield f"{path.name}/{member.name}", content.read().decode()


@cache
def kept() -> tuple[tuple[str, Run], ...]:
    """Return every kept run."""
    return tuple((name, run_file.loads(text, name)) for name, text in texts() if '"format": "collbench-run"' in text)


def test_every_kept_run_has_its_request() -> None:
    assert len(kept()) > 100
    assert {run.settings.kind for _, run in kept()} >= {
        CommandKind.PAIRS,
        CommandKind.COPIES,
        CommandKind.LATENCY,
        CommandKind.CHECK,
        CommandKind.COLLECTIVE,
    }
    assert [name for name, run in kept() if run.settings.command_name != run.settings.command[0]] == []


def test_every_kept_run_measured_its_request() -> None:
    mismatches = []
    for name, run in kept():
        settings, points = run.settings, [loaded.point for loaded in run.measurements]
        collectives = {point.work for point in points if point.operation.is_collective}
        copies = {point.variant for point in points if point.operation.is_copy}
        sizes = {point.size_bytes for point in points if point.variant is not Variant.HOST}
        sets = {point.members for point in points if point.operation.is_collective}
        pairs = len(run.devices) > 2 and bool(sets) and {len(members) for members in sets} == {2}
        together = {Layout.ALL: 1, Layout.SPLIT: settings.split}.get(settings.layout, len(sets))
        if settings.command_name == "nodes":  # pairs of hosts, in rounds
            pairs, together = False, len(sets)
        fits = (
            collectives == set(settings.collectives),
            copies == set(settings.copies),
            settings.chase == any(point.operation is Operation.CHASE for point in points),
            settings.requested_sizes is None or sizes - {8} <= set(settings.requested_sizes),
            not settings.devices or settings.devices == tuple(str(device.index) for device in run.devices),
            not pairs or settings.layout is not Layout.ALL,
            not sets or len(sets) == together,
        )
        mismatches += [] if all(fits) else [(name, settings.command, fits)]
    assert mismatches == []


def test_a_kept_run_that_is_saved_again_is_equal() -> None:
    names = [name for name, run in kept()[::10] if run_file.loads(run_file.dumps(run), name) != run]
    assert names == []


def of_version_1(run: Run) -> str:
    """Return the run's text as version 1 had it."""
    data = {**json.loads(run_file.dumps(run)), "format_version": 1}
    data["settings"] = {name: value for name, value in data["settings"].items() if name not in ADDED}
    data["settings"]["visits"] = data["settings"].pop("trials")
    data["audits"] = data.pop("interference_checks")
    data["phases"] = {PHASES.get(name, name): seconds for name, seconds in data["phases"].items()}
    data["measurements"] = [{"cell": measurement.pop("point")} | measurement for measurement in data["measurements"]]
    return json.dumps(data)


@pytest.mark.parametrize(
    ("args", "kind"),
    [
        ((), CommandKind.OTHER),
        (("rm", "-rf", "/"), CommandKind.OTHER),
        (("collective",), CommandKind.OTHER),
        (("pairs", "--sizes", "many", "-n"), CommandKind.PAIRS),
        (("allreduce", "--split", "-1", "-n", "0", "-w", "x", "--graph"), CommandKind.COLLECTIVE),
        (("copies", "--patterns", "sideways,in-place"), CommandKind.COPIES),
    ],
)
def test_an_unknown_command_line_does_no_harm(args: tuple[str, ...], kind: CommandKind) -> None:
    run = run_of(gpus(2), [measured(Operation.CE_WRITE, (0, 1), 300.0)])
    run.settings = replace(run.settings, command=args)
    settings = run_file.loads(of_version_1(run), "old.json").settings
    assert (settings.kind, settings.split, settings.iterations, settings.warmup) == (kind, 1, None, None)
    assert Variant.IN_PLACE not in settings.copies


@pytest.mark.parametrize(
    ("nvml", "smi", "statuses"),
    [
        (None, None, (None, ())),
        ("OK", "OK", (nvml_says("OK"), smi_says("OK"))),
        ("read TNS, write OK", "OK, GNS", (nvml_says("TNS", "OK"), smi_says("OK", "GNS"))),
        ("why not", "?", (nvml_says("U"), smi_says("U"))),
    ],
)
def test_texts_on_peer_access_are_statuses(nvml: str | None, smi: str | None, statuses: tuple[object, object]) -> None:
    data = json.loads(of_version_1(run_of(gpus(2), [measured(Operation.CE_WRITE, (0, 1), 300.0)])))
    data["paths"][0] |= {"peer_access": nvml, "tool_peer_access": smi}
    path = run_file.loads(json.dumps(data), "old.json").paths[0]
    assert (path.peer_access, path.tool_peer_access) == statuses


def test_fields_that_had_other_names_are_read() -> None:
    run = run_of(gpus(2), [measured(Operation.CE_WRITE, (0, 1), 300.0)])
    run.interference_checks = [
        InterferenceCheck(Operation.CE_WRITE, (0, 1), "SYS", 10.0, 5.5, 0.55, 0.02, trusted=False)
    ]
    run.phases = {"warm-up": 1.0, "interference check": 2.0, "trials": 3.0, "timed": 2.5}
    loaded = run_file.loads(of_version_1(run), "old.json")
    assert (loaded.measurements, loaded.interference_checks) == (run.measurements, run.interference_checks)
    assert (loaded.phases, loaded.settings.trials) == (run.phases, run.settings.trials)
    renamed = [name for name in loaded.phases if name in PHASES]
    assert renamed == ["interference check", "trials"]  # the same on every page, whatever Python's hash seed


def test_every_kept_run_has_its_peer_access() -> None:
    reported = {
        str(p.peer_access) for _, run in kept() for p in run.paths if run.backend == "cuda" and p.label != "NET"
    }
    assert reported == {"OK"}
    assert {path.tool_peer_access for _, run in kept() for path in run.paths} == {(), smi_says("OK")}


def test_what_wrong_data_ended_is_known_by_its_kind() -> None:
    run = run_of(gpus(2), [measured(Operation.CE_WRITE, (0, 1), 300.0)])
    data = json.loads(of_version_1(run))
    data["skipped"] = [
        {"what": "all that was left", "reason": "wrong data on GPU1"},
        {"what": "sizes 8G", "reason": "no room"},
    ]
    loaded = run_file.loads(json.dumps(data), "old.json")
    assert loaded.skipped == [Skipped(SkipKind.WRONG_DATA, detail="wrong data on GPU1"), left_out("sizes 8G: no room")]
    assert FlagKind.OTHER not in {
        flag.kind for measurement in loaded.measurements for s in measurement.samples for flag in s.flags
    }


NO_PEERS = "no peer access, so a kernel cannot address the other GPU's memory"
FREE = "free now: GPU0 1.5 GiB, GPU1 12 GiB, shared by three buffers beside NCCL's own"
SMALL = Skipped(SkipKind.SMALL_ELEMENT, Work(Operation.ALLREDUCE), sizes=(1, 2))
ROOM = Skipped(SkipKind.ROOM, sizes=(2**33, 2**34), limit_bytes=512 * 2**20, free_bytes=(3 * 2**29, 12 * 2**30))
BUFFER = Skipped(
    SkipKind.CONCURRENT_ROOM, Work(Operation.SM_READ, Variant.ALL_TO_ONE), sizes=(2**30,), limit_bytes=2**31, count=3
)


@pytest.mark.parametrize(
    ("what", "reason", "skipped"),
    [
        ("sm-write GPU0 → GPU1", NO_PEERS, Skipped(SkipKind.NO_PEERS, Work(Operation.SM_WRITE), (0, 1))),
        ("sizes 8G, 16G", f"the fullest device has room for messages of 512 MiB; {FREE}", ROOM),
        ("allreduce of 1 B, 2 B", "smaller than one float32, which takes 4 bytes", SMALL),
        ("sm-read all-to-one of 1G", "3 messages at once do not fit the 2 GiB of a buffer", BUFFER),
        ("host copies by NUMA node", "it is forbidden", Skipped(SkipKind.NUMA, detail="it is forbidden")),
        ("sizes many", f"the fullest device has room for messages of 512 MiB; {FREE}", None),
        ("sm-write GPU0 → GPU7", NO_PEERS, None),
        ("what", "nobody knows", None),
    ],
)
def test_skips_of_the_first_version_are_read_or_kept_as_text(what: str, reason: str, skipped: Skipped | None) -> None:
    data = json.loads(of_version_1(run_of(gpus(2), [measured(Operation.CE_WRITE, (0, 1), 300.0)])))
    data["skipped"] = [{"what": what, "reason": reason}]
    loaded = run_file.loads(json.dumps(data), "old.json")
    assert loaded.skipped == [skipped or left_out(f"{what}: {reason}")]
    if skipped not in (ROOM, BUFFER):  # these have another text today
        assert sentences.skipped(loaded.skipped[0], loaded) == f"{what}: {reason}"


@pytest.mark.parametrize(
    ("text", "kind", "failure"),
    [
        (
            "hang: no answer within 5.13 s, so the worker process was killed",
            "hang",
            Failure(FailureKind.HANG, Cause.NO_ANSWER, seconds=5.13),
        ),
        ("crash: the worker process died (signal 9, SIGKILL): Killed (9)", "crash", died(-9, "Killed (9)")),
        ("crash: the worker process died (exit status 1): Error", None, replace(died(1, "Error"), kind=None)),
        ("ce-write of 1K failed: CUDA", "error", in_words("ce-write of 1K failed: CUDA", FailureKind.ERROR)),
        ("", None, None),
    ],
)
def test_failures_of_the_first_version_are_read_or_kept_as_text(
    text: str, kind: str | None, failure: Failure | None
) -> None:
    data = json.loads(of_version_1(run_of(gpus(2), [measured(Operation.CE_WRITE, (0, 1), 300.0)])))
    data["measurements"][0] |= {"failure": text, "failure_kind": kind}
    read = run_file.loads(json.dumps(data), "old.json").measurements[0].failure
    assert read == failure
    assert read is None or sentences.failure(read, gpus(2)) == text


@pytest.mark.parametrize(
    "failure",
    [
        {"kind": "hang", "cause": "no answer", "devices": [7]},
        {"kind": "hang", "cause": "no answer", "groups": [[0, 7]]},
        {"kind": "hang", "cause": "no worker process"},
        "hang",
    ],
)
def test_a_meaningless_failure_is_refused(failure: object) -> None:
    data = json.loads(run_file.dumps(run_of(gpus(2), [measured(Operation.CE_WRITE, (0, 1), 300.0)])))
    data["measurements"][0]["failure"] = failure
    with pytest.raises(RunFileError, match=r"run\.measurements\[0\]\.failure"):
        run_file.loads(json.dumps(data), "damaged.json")


def test_failures_that_led_to_each_other_a_thousand_times_are_refused() -> None:
    text = run_file.dumps(run_of(gpus(2), [measured(Operation.CE_WRITE, (0, 1), 300.0)]))
    chain = '{"kind": "hang", "cause": "no answer", "because": ' * 900 + "null" + "}" * 900
    with pytest.raises(RunFileError, match="damaged"):
        run_file.loads(text.replace('"failure": null', f'"failure": {chain}', 1), "damaged.json")
