"""Every run that is kept is read, its request is known, and no time in it is impossible but those that are known."""

from __future__ import annotations

import gzip
import tarfile
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from collbench.judge.physics import impossible
from collbench.model.run import CommandKind, Run
from collbench.runfile import run_file
from tests.builders import smi_says

ROOT = Path(__file__).parents[2]


def texts() -> Iterator[tuple[str, str]]:
    """Yield (name, text) of every JSON file among the kept results and the tests' data, archives and gzip opened."""
    for folder in (ROOT / "benchmarks" / "results", ROOT / "tests" / "data"):
        for path in sorted(folder.rglob("*.json*")):
            content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
            yield str(path.relative_to(folder)), content.decode()
        for path in sorted(folder.rglob("*.tar.gz")):
            with tarfile.open(path) as archive:
                for member in archive:
                    inside = archive.extractfile(member) if member.name.endswith(".json") else None
                    if inside is not None:
                        yield f"{path.relative_to(folder)}:{member.name}", inside.read().decode(errors="replace")


@cache
def kept() -> tuple[tuple[str, Run], ...]:
    """Return every kept run."""
    return tuple((name, run_file.loads(text, name)) for name, text in texts() if '"collbench-run"' in text[:100])


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


def test_a_kept_run_that_is_saved_again_is_equal() -> None:
    names = [name for name, run in kept()[::10] if run_file.loads(run_file.dumps(run), name) != run]
    assert names == []


def test_every_kept_run_has_its_peer_access() -> None:
    reported = {
        str(p.peer_access) for _, run in kept() for p in run.paths if run.backend == "cuda" and p.label != "NET"
    }
    assert reported == {"OK"}
    assert {path.tool_peer_access for _, run in kept() for path in run.paths} == {(), smi_says("OK")}


def test_of_all_kept_runs_those_with_wrong_times_are_found_and_no_other() -> None:
    """Transfers that did not start at once in `copies`; reads of 16 and 64 MiB from a cache in `full.json`."""
    batches: dict[str, Counter[tuple[str, int]]] = {}
    for name, run in kept():
        for rate in impossible(run):
            batches.setdefault(name, Counter())[str(rate.point.work), rate.point.size_bytes] += rate.batches
    half = 512 * 2**20
    assert batches == {
        "2026-11-21-4xh200-peers/copies.json": {
            ("ce-write one-to-all", half): 24,
            ("ce-read one-to-all", half): 24,
            ("sm-write one-to-all", half): 13,
            ("sm-read all-to-one", half): 3,
        },
        "2026-11-21-4xh200-peers/runs.tar.gz:full.json": {("sm-read", 16 * 2**20): 72, ("sm-read", 64 * 2**20): 72},
    }
