"""How uneven the blocks of an all-to-all are, as people name it: "zipf:1.2", or a file with a matrix."""

from __future__ import annotations

import math
import re
from pathlib import Path

from collbench import untrusted
from collbench.model.errors import UsageError
from collbench.model.skew import BLOCK_UNIT, LARGEST_EXPONENT, Blocks, Skew, SkewKind

_MAX_MATRIX_BYTES = 2**26  # two thousand ranks, each block in 16 digits
_SEED = re.compile(r"\d{1,9}", re.ASCII)


def parse_skew(text: str) -> Skew | None:
    """Return the skew that `text` names: "uniform" (None), "zipf:EXPONENT[:SEED]" or a matrix file. Raises UsageError.

    The seed says which ranks are popular. It defaults to 0, not to the run's seed, so that runs compare. The file is as
    NCCL_TESTS_ALLTOALLV_MATRIX_FILE names one for nccl-tests: a row of the matrix on each line, in bytes, separated by
    blanks; each is cut to whole units of 16 bytes.
    """
    kind, colon, parameters = text.strip().partition(":")
    if kind.lower() == "uniform" and not colon:
        return None
    if kind.lower() == SkewKind.ZIPF:
        number, colon, seed = parameters.partition(":")
        try:
            exponent = float(number)
        except ValueError:
            exponent = math.nan
        if not 0 <= exponent <= LARGEST_EXPONENT:
            raise UsageError(f"--skew {text}: write an exponent from 0 to {LARGEST_EXPONENT}, as zipf:1.2")
        if colon and _SEED.fullmatch(seed) is None:
            raise UsageError(f"--skew {text}: '{seed}' is not a seed: write a whole number, as in zipf:1.2:7")
        return Skew(SkewKind.ZIPF, exponent, int(seed or 0)) if exponent else None
    return Skew(SkewKind.MATRIX, matrix=_read_matrix(text))


def _read_matrix(name: str) -> Blocks:
    try:
        lines = untrusted.read_text(Path(name), _MAX_MATRIX_BYTES).splitlines()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UsageError(
            f"--skew {name} is not uniform or zipf:EXPONENT, and no matrix can be read from it: {reason}"
        ) from error
    rows = [tuple(_block_bytes(name, value) for value in line.split()) for line in lines if line.strip()]
    if not rows:
        raise UsageError(f"--skew {name}: the file holds no matrix: write a row of bytes for each rank")
    for number, row in enumerate(rows, start=1):
        if len(row) != len(rows):
            raise UsageError(f"--skew {name}: row {number} of {len(rows)} has {len(row)} values: write a square matrix")
    if not any(map(any, rows)):
        raise UsageError(f"--skew {name}: no value reaches 16 bytes, the smallest block: nothing would be sent")
    return tuple(rows)


def _block_bytes(name: str, text: str) -> int:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < 2**62:  # not a number is none of these
        raise UsageError(f"--skew {name}: '{text}' is not a number of bytes: write 0 or more")
    return int(value) // BLOCK_UNIT * BLOCK_UNIT
