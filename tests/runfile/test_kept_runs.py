"""Every run that is kept is read, and its request is known."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from collbench.model.run import CommandKind, Run
from collbench.runfile import run_file
from tests.builders import smi_says

ROOT = Path(__file__).parents[2]


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


def test_a_kept_run_that_is_saved_again_is_equal() -> None:
    names = [name for name, run in kept()[::10] if run_file.loads(run_file.dumps(run), name) != run]
    assert names == []


def test_every_kept_run_has_its_peer_access() -> None:
    reported = {
        str(p.peer_access) for _, run in kept() for p in run.paths if run.backend == "cuda" and p.label != "NET"
    }
    assert reported == {"OK"}
    assert {path.tool_peer_access for _, run in kept() for path in run.paths} == {(), smi_says("OK")}
