#!/usr/bin/env python3
"""Prints docs/results.md's tables from the files of a session of training.sh, or writes them into the page.

    python benchmarks/results_tables.py benchmarks/results/DATE-MACHINE
    python benchmarks/results_tables.py benchmarks/results/DATE-MACHINE --update docs/results.md

In the page a table is between `<!-- figure: NAME -->` and `<!-- end -->`; `<!-- results: FOLDER -->` names the folder
that the tables were made from.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from training.results import ResultError
from training.tables import blocks

from collbench.model.errors import CollbenchError

_BLOCK = re.compile(r"(<!-- figure: ([\w-]+) -->\n).*?(\n<!-- end -->)", re.DOTALL)
_FOLDER = re.compile(r"<!-- results: .*? -->")


def filled(page: str, folder: Path) -> str:
    """Return the page with its tables replaced by those of a folder. Raises ResultError for an unknown table name."""
    tables = blocks(folder)
    unknown = sorted({match[2] for match in _BLOCK.finditer(page)} - tables.keys())
    if unknown:
        raise ResultError(f"the page asks for figure '{unknown[0]}', there are {', '.join(tables)}")
    page = _FOLDER.sub(f"<!-- results: {folder.as_posix()} -->", page)
    return _BLOCK.sub(lambda match: f"{match[1]}{tables[match[2]]}{match[3]}", page)


def main(argv: Sequence[str]) -> int:
    """Print or write the tables; return the exit status."""
    parser = argparse.ArgumentParser(description="docs/results.md's tables, from a session's files")
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--update", type=Path, metavar="PAGE", help="write them into this page")
    options = parser.parse_args(argv)
    try:
        if not options.folder.is_dir():
            raise ResultError(f"{options.folder} is no folder: name one that training.sh wrote")
        if options.update is None:
            print("\n\n".join(f"{name}\n\n{table}" for name, table in blocks(options.folder).items()))
        else:
            page = options.update.read_text(encoding="utf-8")
            options.update.write_text(filled(page, options.folder), encoding="utf-8")
    except (ResultError, CollbenchError, OSError) as error:
        print(f"results_tables: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
