"""What `collbench predict` says that slower links cost a training step, beside what `collbench ablate` measured.

    python benchmarks/predicted.py CELLS.toml --json predicted.json
    python benchmarks/predicted.py --cell "DDP, 2 GPUs" FAST.json SLOW.json ABLATION.json --strategy ddp --gpus 2

FAST and SLOW are run files (several joined by commas) measured as the ablation's first and second arm ran: all-reduce,
all-gather, reduce-scatter or pairs. The compute of a step is what the first arm's measured step leaves on FAST, unless
`compute_ms` says it; the second arm's step is then predicted from SLOW, and nothing of it is used but to compare. The
list is TOML, its paths beside it:

    [[cell]]
    label = "DDP bf16, 2 GPUs"
    fast = ["curves-2-p2p-allreduce.json"]
    slow = ["curves-2-nop2p-allreduce.json"]
    ablation = "ablate-ddp-2.json"
    strategy = "ddp"
    gpus = 2
    dtype = "bf16"       # as predict's options; also grad_dtype, model, micro_batches, bucket, shard, compute_ms
    gpu_time_ms = 12.0   # the step if the GPU never waited for the host: predict's third lane
    host_phases = "14.1,15.2,6.0"       # as predict's --host-phases; also head_share
    gpu_time_source = "a profiled step" # of these three

Where a cell has the GPU's time, the prediction stands beside that of two lanes, which knows no host. The JSON holds
what the table does, in ms: "cells": [{"label", "strategy", "gpus", "compute_ms", "base_ms", "predicted_ms": {"low",
"middle", "high"}, "measured_ms": {…}, "error", "within_bar", "in_band", "gpu_time_ms", "host_phases", "head_share",
"gpu_time_source", "without_host": the same of two lanes}]; the last five are null without gpu_time_ms.
"""

from __future__ import annotations

import argparse
import json
import sys
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from collbench.analysis.choice import Members
from collbench.analysis.predict import networks
from collbench.analysis.predict.predict import Predictor, Question
from collbench.analysis.predict.step import STRATEGIES, parse_phases
from collbench.analysis.predict.timing import Evidence, gather
from collbench.model.errors import CollbenchError, UsageError
from collbench.model.units import parse_size
from collbench.runfile import run_file

BAR = 0.25  # the error of the extra time: enough to know whether the links matter to a job
_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}
_HOST = ("gpu_time_ms", "host_phases", "head_share", "gpu_time_source")


@dataclass(frozen=True)
class DataPoint:
    """One comparison, files and options as predict has them; `compute_ms` None takes it from the first arm."""

    label: str
    fast: Sequence[str]
    slow: Sequence[str]
    ablation: str
    strategy: str
    gpus: int
    model: str = "gpt2"
    dtype: str = "bf16"
    grad_dtype: str = ""
    micro_batches: int = 1
    bucket: str = "25M"
    shard: int | None = None
    compute_ms: float | None = None
    gpu_time_ms: float | None = None
    host_phases: str | None = None
    head_share: float | None = None
    gpu_time_source: str | None = None

    @property
    def without_host(self) -> DataPoint:
        """The same cell of a GPU that never waits for its host."""
        return replace(self, gpu_time_ms=None, host_phases=None, head_share=None, gpu_time_source=None)

    def question(self) -> Question:
        if self.strategy not in STRATEGIES:
            raise UsageError(f"strategy '{self.strategy}' is none of {', '.join(STRATEGIES)}")
        if {self.dtype, self.grad_dtype or self.dtype} - _BYTES.keys():
            raise UsageError(f"dtype and grad_dtype are one of {', '.join(_BYTES)}")
        network = networks.find(self.model)
        return Question(
            network=network if self.head_share is None else network.with_head(self.head_share),
            strategies=(self.strategy,),
            gpus=(self.gpus,),
            parameter_bytes=_BYTES[self.dtype],
            gradient_bytes=_BYTES[self.grad_dtype or self.dtype],
            micro_batches=self.micro_batches,
            bucket_bytes=parse_size(self.bucket),
            shards=self.shard,
            gpu_seconds=None if self.gpu_time_ms is None else self.gpu_time_ms / 1e3,
            host_phases=None if self.host_phases is None else parse_phases(self.host_phases),
        )


@dataclass(frozen=True)
class Span:
    """Milliseconds: low, middle, high."""

    low: float
    middle: float
    high: float

    def __str__(self) -> str:
        return f"{self.middle:.2f} ({self.low:.2f}–{self.high:.2f})"


@dataclass(frozen=True)
class Arms:
    """An ablation: the first arm's step in ms, what the second takes longer, and each arm's device indices."""

    base_ms: float
    extra_ms: Span
    devices: tuple[Sequence[int], Sequence[int]]


@dataclass(frozen=True)
class Compared:
    """Predicted beside measured extra time of a step; `error` is predicted over measured, minus one."""

    cell: DataPoint
    compute_ms: float
    base_ms: float
    predicted_ms: Span
    measured_ms: Span
    without_host: Compared | None = None

    @property
    def error(self) -> float:
        return self.predicted_ms.middle / self.measured_ms.middle - 1

    @property
    def within_bar(self) -> bool:
        return abs(self.error) <= BAR

    @property
    def in_band(self) -> bool:
        return self.predicted_ms.low <= self.measured_ms.middle <= self.predicted_ms.high

    def as_json(self) -> dict[str, Any]:
        reported = {name: getattr(self.cell, name) for name in ("label", "strategy", "gpus")}
        reported |= {"base_ms": self.base_ms, "measured_ms": vars(self.measured_ms)} | self._prediction()
        host = {name: getattr(self.cell, name) for name in _HOST}
        return reported | host | {"without_host": self.without_host and self.without_host._prediction()}

    def _prediction(self) -> dict[str, Any]:
        reported = {"compute_ms": self.compute_ms, "predicted_ms": vars(self.predicted_ms), "error": self.error}
        return reported | {"within_bar": self.within_bar, "in_band": self.in_band}


def read_arms(path: Path) -> Arms:
    """Read a file of `collbench ablate`. Raises UsageError where it holds no two steps to compare."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read ablation file {path}: {error}") from error
    if not isinstance(data, dict) or data.get("format") != "collbench-ablation":
        raise UsageError(f'{path} is not an ablation: it has no "format": "collbench-ablation"')
    if data.get("measure") != "step":
        raise UsageError(
            f"{path} timed a whole {data.get('measure')}, and a prediction is of one step: print step times"
        )
    if data.get("result") is None:
        raise UsageError(f"{path} is incomplete: it has no result")
    ratio = data["result"]["ratio"]
    base = data["result"]["arms"][0]["seconds"] * 1e3
    first, second = (arm["devices"] for arm in data["arms"])
    return Arms(base, Span(*(base * (ratio[end] - 1) for end in ("low", "middle", "high"))), (first, second))


def compare(cell: DataPoint, folder: Path) -> Compared:
    """Return one cell's prediction and measurement. Raises CollbenchError."""
    arms = read_arms(folder / cell.ablation)
    compute, extra = predict(cell, folder, arms.base_ms, arms.devices)
    beside = None if cell.gpu_time_ms is None else compare(cell.without_host, folder)
    return Compared(cell, compute * 1e3, arms.base_ms, extra, arms.extra_ms, beside)


def predict(cell: DataPoint, folder: Path, base_ms: float, devices: Sequence[Sequence[int]]) -> tuple[float, Span]:
    """Return a step's seconds of compute, and the extra ms of the second arm's, by the first arm's step alone."""
    fast, slow = (_evidence(folder, files) for files in (cell.fast, cell.slow))
    here, there = _members(cell, fast, devices[0]), _members(cell, slow, devices[1])
    compute = _compute(cell, fast, here, base_ms)
    before, after = _step_ms(cell, fast, here, compute), _step_ms(cell, slow, there, compute)
    low, middle, high = (b - a for a, b in zip(before, after, strict=True))
    return compute, Span(min(low, middle), middle, max(middle, high))


def _compute(cell: DataPoint, evidence: Evidence, members: Members, base_ms: float) -> float:
    """Return the seconds of a step's compute: as given, or what the first arm's step leaves."""
    given = base_ms if cell.compute_ms is None else cell.compute_ms
    if cell.gpu_time_ms is not None and cell.gpu_time_ms > given:
        raise UsageError(f"gpu_time_ms {cell.gpu_time_ms:g} is more than the step, {given:.2f} ms")
    question = replace(cell.question(), step_seconds=given / 1e3, measured_on_best=cell.compute_ms is None)
    return Predictor(evidence).compute(question, cell.strategy, members) or 0.0


def _step_ms(cell: DataPoint, evidence: Evidence, members: Members, compute: float) -> list[float]:
    """Return the predicted step: least, middle, most."""
    step = Predictor(evidence).cost(cell.question(), cell.strategy, members, compute).step
    return [seconds * 1e3 for seconds in step or ()]


def _evidence(folder: Path, files: Sequence[str]) -> Evidence:
    return gather([(file, run_file.load(folder / file)) for file in files])


def _members(cell: DataPoint, evidence: Evidence, indices: Sequence[int]) -> Members:
    places = {device.index: position for position, device in enumerate(evidence.run.devices)}
    missing = sorted(set(indices) - places.keys())
    if missing or len(indices) != cell.gpus:
        wrong = f"GPU{missing[0]} is in none of its runs" if missing else f"the ablation ran on {len(indices)} GPUs"
        raise UsageError(f"{wrong}, the cell says {cell.gpus}")
    return tuple(sorted(places[index] for index in indices))


def table(found: Iterable[Compared]) -> list[str]:
    """Return the comparison as a markdown table; a cell with the GPU's own time has two rows, the first without it."""
    lines = [
        "| job | step, ms | of it compute | GPU's own | predicted extra, ms | measured extra, ms | error | verdict |",
        "|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    rows = [row for one in found for row in (one.without_host, one) if row]
    for one in rows:
        verdict = "within 25 %" if one.within_bar else "in the band" if one.in_band else "missed"
        own = "–" if one.cell.gpu_time_ms is None else f"{one.cell.gpu_time_ms:.2f}"
        lines.append(
            f"| {one.cell.label} | {one.base_ms:.2f} | {one.compute_ms:.2f} | {own} | {one.predicted_ms} "
            f"| {one.measured_ms} | {one.error:+.0%} | {verdict} |"
        )
    return lines + _sources([row.cell for row in rows if row.cell.gpu_time_ms is not None])


def _sources(cells: Sequence[DataPoint]) -> list[str]:
    """Return what was known of each cell's GPU and host, and whence, a line each."""
    lines = []
    for cell in cells:
        reported = f"GPU's own {cell.gpu_time_ms:.2f} ms"
        reported += f", the host's phases {cell.host_phases}" if cell.host_phases is not None else ""
        reported += f", the head's share {cell.head_share:.0%}" if cell.head_share is not None else ""
        lines.append(f"{cell.label}: {reported}: {cell.gpu_time_source or 'no source'}")
    return ["", *lines] if lines else []


def cells_of(path: Path) -> list[DataPoint]:
    """Read a list of cells from TOML. Raises UsageError."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        return [DataPoint(**cell) for cell in data["cell"]]
    except (OSError, tomllib.TOMLDecodeError, KeyError, TypeError) as error:
        raise UsageError(f"cannot read the cells in {path}: {error}") from error


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("cells", nargs="?", type=Path, metavar="CELLS.toml")
    parser.add_argument("--cell", nargs=4, action="append", default=[], metavar=("LABEL", "FAST", "SLOW", "ABLATION"))
    parser.add_argument("--strategy", default="ddp")
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--model", default="gpt2")
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--grad-dtype", default="")
    parser.add_argument("--compute-ms", type=float)
    parser.add_argument("--gpu-time-ms", type=float)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here, too")
    given = parser.parse_args(words)
    names = ("strategy", "gpus", "model", "dtype", "grad_dtype", "compute_ms", "gpu_time_ms")
    shared = {name: getattr(given, name) for name in names}
    try:
        cells = [(cell, given.cells.parent) for cell in cells_of(given.cells)] if given.cells else []
        for label, fast, slow, ablation in given.cell:
            cells.append((DataPoint(label, fast.split(","), slow.split(","), ablation, **shared), Path()))
        if not cells:
            raise UsageError("nothing to compare: name a CELLS.toml, or add --cell")
    except CollbenchError as error:
        raise SystemExit(f"predicted: {error}") from error
    found = []
    for cell, folder in cells:
        try:
            found.append(compare(cell, folder))
        except CollbenchError as error:  # the other cells are worth their figures
            print(f"predicted: {cell.label}: {error}", file=sys.stderr)
    print("\n".join(table(found)))
    if given.json is not None:
        reported = {"bar": BAR, "cells": [one.as_json() for one in found]}
        given.json.write_text(json.dumps(reported, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0 if len(found) == len(cells) else 1


if __name__ == "__main__":
    raise SystemExit(main())
