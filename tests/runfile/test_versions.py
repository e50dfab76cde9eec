"""Run files of version 1: every one that is kept is read, and its command line becomes settings."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from dataclasses import fields, replace
from functools import cache
from pathlib import Path

import pytest

from collbench.model.operations import Operation, Variant
from collbench.model.run import CommandKind, FlagKind, Layout, Run, Settings, SkipKind, Skipped
from collbench.runfile import run_file
from tests.builders import gpus, left_out, measured, nvml_says, run_of, smi_says

ROOT = Path(__file__).parents[2]
# What version 1 had no field for.
ADDED = [field.name for field in fields(Settings)][13:]


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


def test_every_kept_run_says_what_was_asked_for() -> None:
    assert len(kept()) > 100
    assert {run.settings.kind for _, run in kept()} >= {
        CommandKind.PAIRS,
        CommandKind.COPIES,
        CommandKind.LATENCY,
        CommandKind.CHECK,
        CommandKind.COLLECTIVE,
    }
    assert [name for name, run in kept() if run.settings.command_name != run.settings.command[0]] == []


def test_what_a_kept_run_asked_for_is_what_it_measured() -> None:
    odd = []
    for name, run in kept():
        asked, cells = run.settings, [found.cell for found in run.measurements]
        collectives = {cell.work for cell in cells if cell.operation.is_collective}
        copies = {cell.variant for cell in cells if cell.operation.is_copy}
        sizes = {cell.size_bytes for cell in cells if cell.variant is not Variant.HOST}
        sets = {cell.members for cell in cells if cell.operation.is_collective}
        pairs = len(run.devices) > 2 and bool(sets) and {len(members) for members in sets} == {2}
        together = {Layout.ALL: 1, Layout.SPLIT: asked.split}.get(asked.layout, len(sets))
        fits = (
            collectives == set(asked.collectives),
            copies == set(asked.copies),
            asked.chase == any(cell.operation is Operation.CHASE for cell in cells),
            asked.requested_sizes is None or sizes - {8} <= set(asked.requested_sizes),
            not asked.devices or asked.devices == tuple(str(device.index) for device in run.devices),
            not pairs or asked.layout is not Layout.ALL,
            not sets or len(sets) == together,
        )
        odd += [] if all(fits) else [(name, asked.command, fits)]
    assert odd == []


def test_a_kept_run_that_is_saved_again_says_the_same() -> None:
    names = [name for name, run in kept()[::10] if run_file.loads(run_file.dumps(run), name) != run]
    assert names == []


def of_version_1(run: Run) -> str:
    """Return the run's text as version 1 had it."""
    data = {**json.loads(run_file.dumps(run)), "format_version": 1}
    data["settings"] = {name: value for name, value in data["settings"].items() if name not in ADDED}
    return json.dumps(data)


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ((), CommandKind.OTHER),
        (("rm", "-rf", "/"), CommandKind.OTHER),
        (("collective",), CommandKind.OTHER),
        (("pairs", "--sizes", "many", "-n"), CommandKind.PAIRS),
        (("allreduce", "--split", "-1", "-n", "0", "-w", "x", "--graph"), CommandKind.COLLECTIVE),
        (("copies", "--patterns", "sideways,in-place"), CommandKind.COPIES),
    ],
)
def test_a_strangers_command_line_does_no_harm(words: tuple[str, ...], kind: CommandKind) -> None:
    run = run_of(gpus(2), [measured(Operation.CE_WRITE, (0, 1), 300.0)])
    run.settings = replace(run.settings, command=words)
    found = run_file.loads(of_version_1(run), "old.json").settings
    assert (found.kind, found.split, found.iterations, found.warmup) == (kind, 1, None, None)
    assert Variant.IN_PLACE not in found.copies


@pytest.mark.parametrize(
    ("nvml", "smi", "found"),
    [
        (None, None, (None, ())),
        ("OK", "OK", (nvml_says("OK"), smi_says("OK"))),
        ("read TNS, write OK", "OK, GNS", (nvml_says("TNS", "OK"), smi_says("OK", "GNS"))),
        ("why not", "?", (nvml_says("U"), smi_says("U"))),
    ],
)
def test_words_on_peer_access_are_statuses(nvml: str | None, smi: str | None, found: tuple[object, object]) -> None:
    data = json.loads(of_version_1(run_of(gpus(2), [measured(Operation.CE_WRITE, (0, 1), 300.0)])))
    data["paths"][0] |= {"peer_access": nvml, "tool_peer_access": smi}
    path = run_file.loads(json.dumps(data), "old.json").paths[0]
    assert (path.peer_access, path.tool_peer_access) == found


def test_every_kept_run_has_its_peer_access() -> None:
    told = {str(path.peer_access) for _, run in kept() for path in run.paths if run.backend == "cuda"}
    assert told == {"OK"}
    assert {path.tool_peer_access for _, run in kept() for path in run.paths} == {(), smi_says("OK")}


def test_what_wrong_data_ended_is_known_by_its_kind() -> None:
    run = run_of(gpus(2), [measured(Operation.CE_WRITE, (0, 1), 300.0)])
    data = json.loads(of_version_1(run))
    data["skipped"] = [
        {"what": "all that was left", "reason": "wrong data on GPU1"},
        {"what": "sizes 8G", "reason": "no room"},
    ]
    found = run_file.loads(json.dumps(data), "old.json")
    assert found.skipped == [Skipped(SkipKind.WRONG_DATA, detail="wrong data on GPU1"), left_out("sizes 8G: no room")]
    assert FlagKind.OTHER not in {flag.kind for one in found.measurements for s in one.samples for flag in s.flags}
