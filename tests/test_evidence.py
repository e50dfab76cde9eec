"""The figures of the README, of benchmarks/README.md and of the results page are computed from kept raw files."""

from __future__ import annotations

import gzip
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "benchmarks" / "evidence.py"
_COMPUTED = re.compile(r"<!-- evidence: [\w-]+ -->\n.*?<!-- end -->", re.DOTALL)
_PRINTED = re.compile(r"^ {4}.*$", re.MULTILINE)  # transcripts are compared in test_readme.py
# A rate, a time, a share, a ratio, an outcome of so many trials.
_FIGURE = re.compile(r"\d(?: ?%| (?:GB/s|µs|ns|ms)\b|×)|\b\d[\d,]* of \d[\d,]*\b|\b[01]\.\d{2,}")
_DEFINITIONS = ("95% confidence intervals",)


def test_the_pages_say_what_the_kept_files_give() -> None:
    result = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def contents(file: Path) -> Iterator[tuple[str, bytes]]:
    """Yield (name, text) of a kept file, of an archive each member's."""
    if not file.name.endswith((".tar.gz", ".tgz")):
        yield file.name, gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        return
    with tarfile.open(file) as archive:
        for member in archive:
            if (inside := archive.extractfile(member)) is not None:
                yield f"{file.name}:{member.name}", inside.read()


def test_no_kept_file_has_a_path_of_the_machine() -> None:
    own = re.compile(rb"/(?:root|work|home)\b")  # a search for what may stand before it takes ten times as long
    inner = re.compile(rb"[\w.~/-]")
    names = subprocess.check_output(["git", "ls-files", "-z", "benchmarks/results"], cwd=ROOT, text=True).split("\0")
    found = {
        name: match[0]
        for file in names
        if file
        for name, text in contents(ROOT / file)
        for match in own.finditer(text)
        if not inner.fullmatch(text[max(0, match.start() - 1) : match.start()])
    }
    assert found == {}


def test_no_table_of_the_results_is_empty() -> None:
    assert "Not measured yet" not in (ROOT / "docs" / "results.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["README.md", "benchmarks/README.md"])
def test_no_figure_stands_outside_the_computed_parts(name: str) -> None:
    page = (ROOT / name).read_text(encoding="utf-8")
    written = _PRINTED.sub("", _COMPUTED.sub("", page))
    for words in _DEFINITIONS:
        written = written.replace(words, "")
    assert _COMPUTED.search(page)
    assert _FIGURE.findall(written) == []
