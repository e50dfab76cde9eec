"""Opens what benchmarks/results holds: folders, archives, and sessions of versus_peers.py as if they ran again."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from peers.bench import Bench

RESULTS = Path(__file__).parents[1] / "results"


@contextmanager
def unpacked(archive: str) -> Iterator[Path]:
    """Yield a folder with the files of an archive below benchmarks/results, without the archive's folders."""
    with tempfile.TemporaryDirectory() as name, tarfile.open(RESULTS / archive) as files:
        for member in files:
            source = files.extractfile(member)
            if source is not None:
                with source, (Path(name) / Path(member.name).name).open("wb") as target:
                    shutil.copyfileobj(source, target)
        yield Path(name)


def text(name: str) -> str:
    """Return a text file below benchmarks/results; a .gz is unpacked."""
    data = (RESULTS / name).read_bytes()
    return (gzip.decompress(data) if name.endswith(".gz") else data).decode()


def rows(name: str) -> list[dict[str, str]]:
    """Return the rows of a CSV file below benchmarks/results."""
    return list(csv.DictReader(io.StringIO(text(name))))


def json_lines(name: str) -> list[dict[str, Any]]:
    """Return the objects of a file with one in each line, without those that describe the session."""
    objects = [json.loads(line) for line in text(name).splitlines() if line.strip()]
    return [one for one in objects if "hosts" in one]


def numbers(name: str, pattern: str) -> tuple[float, ...]:
    """Return the groups of the pattern's first match in a text file. Raises ValueError if there is none."""
    match = re.search(pattern, text(name), re.MULTILINE)
    if match is None:
        raise ValueError(f"{name} has no {pattern}")
    return tuple(float(group.replace(",", "")) for group in match.groups())


class Session(Bench):
    """A kept session of versus_peers.py: each command prints what it printed then, and nothing runs."""

    def run_collbench(self, name: str, command: str, members: tuple[int, ...], *options: str) -> Any:
        """Return the run that the command saved."""
        self._wall(name)
        return super().run_collbench(name, command, members, *options)

    def _run(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> str | None:
        self._wall(name)
        return (self.out / "raw" / f"{name}.txt").read_text(encoding="utf-8")

    def _wall(self, name: str) -> None:
        log = (self.out / "raw" / "commands.txt").read_text(encoding="utf-8")
        match = re.search(rf"^([\d.]+) s, exit 0: {re.escape(name)}: ", log, re.MULTILINE)
        if match is None:
            raise ValueError(f"{name} did not end well in this session")
        self.walls[name] = float(match[1])


@contextmanager
def session(source: str, gpus: int, repeats: int) -> Iterator[Session]:
    """Yield the session of versus_peers.py that an archive, or a folder with its raw files, has kept."""
    with tempfile.TemporaryDirectory() as name:
        raw = Path(name) / "raw"
        if source.endswith(".tar.gz"):
            with unpacked(source) as folder:
                shutil.copytree(folder, raw)
        else:
            shutil.copytree(RESULTS / source, raw)
        devices = tuple(str(index) for index in range(gpus))
        yield Session(Path(name), (), Path(), Path(), devices, repeats)
