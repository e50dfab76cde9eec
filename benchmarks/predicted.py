"""Compares what slower links cost a training step: predicted by `collbench predict`, measured by `collbench ablate`.

    python benchmarks/predicted.py CELLS.toml --json predicted.json
    python benchmarks/predicted.py --cell "DDP, 2 GPUs" FAST.json SLOW.json ABLATION.json --strategy ddp --gpus 2

FAST and SLOW are run files (several joined by commas) measured in the ablation's first and second arm: all-reduce,
all-gather, reduce-scatter or pairs. The compute of a step is what communication on FAST leaves of the first arm's
measured step, unless `compute_ms` gives it. The second arm's step is predicted from SLOW; its measured step is only
compared with. The list is TOML, with paths relative to it:

    [[cell]]
    label = "DDP bf16, 2 GPUs"
    fast = ["curves-2-p2p-allreduce.json"]
    slow = ["curves-2-nop2p-allreduce.json"]
    ablation = "ablate-ddp-2.json"
    strategy = "ddp"
    gpus = 2
    dtype = "bf16"       # as predict's options; also grad_dtype, model, micro_batches, bucket, shard, compute_ms
    gpu_time_ms = 12.0   # the step if the GPU never waited for the host
    host_phases = "14.1,15.2,6.0"       # as predict's --host-phases; also head_share
    gpu_time_source = "a profiled step" # source of these three

Where a cell has the GPU's time, the table also shows the prediction without it and the host's. The JSON has the
table's figures, in ms: "cells": [{"label", "strategy", "gpus", "compute_ms", "base_ms", "predicted_ms": {"low",
"middle", "high"}, "measured_ms": {…}, "error", "within_bar", "in_band", "gpu_time_ms", "host_phases", "head_share",
"gpu_time_source", "without_host": the same without the host}]; the last five are null without gpu_time_ms.
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

from collbench.choose.choice import Members
from collbench.jobs.predict import networks
from collbench.jobs.predict.predict import Predictor, Question
from collbench.jobs.predict.step import STRATEGIES, parse_phases
from collbench.jobs.predict.timing import Evidence, gather
from collbench.model.errors import CollbenchError, UsageError
from collbench.model.units import parse_size
from collbench.runfile import run_file

BAR = 0.25  # error of the extra time: small enough to know whether the links matter to a job
_BYTES_OF = {"bf16": 2, "fp16": 2, "fp32": 4}
_HOST_FIELDS = ("gpu_time_ms", "host_phases", "head_share", "gpu_time_source")


@dataclass(frozen=True)
class JobCell:
    """One cell of the list: files, and options of `predict`; `compute_ms` None computes it from the first arm."""

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
    def without_host(self) -> JobCell:
        """The same cell, for a GPU that never waits for its host."""
        return replace(self, gpu_time_ms=None, host_phases=None, head_share=None, gpu_time_source=None)

    def question(self) -> Question:
        if self.strategy not in STRATEGIES:
            raise UsageError(f"strategy '{self.strategy}' is none of {', '.join(STRATEGIES)}")
        if {self.dtype, self.grad_dtype or self.dtype} - _BYTES_OF.keys():
            raise UsageError(f"dtype and grad_dtype are one of {', '.join(_BYTES_OF)}")
        network = networks.find(self.model)
        return Question(
            network=network if self.head_share is None else network.with_head(self.head_share),
            strategies=(self.strategy,),
            gpus=(self.gpus,),
            parameter_bytes=_BYTES_OF[self.dtype],
            gradient_bytes=_BYTES_OF[self.grad_dtype or self.dtype],
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
    """An ablation: the first arm's step in ms, the extra ms of the second arm's, and each arm's device indices."""

    base_ms: float
    extra_ms: Span
    devices: tuple[Sequence[int], Sequence[int]]


@dataclass(frozen=True)
class Comparison:
    """Predicted and measured extra time of a step; `error` is predicted / measured − 1."""

    cell: JobCell
    compute_ms: float
    base_ms: float
    predicted_ms: Span
    measured_ms: Span
    without_host: Comparison | None = None

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
        fields = {name: getattr(self.cell, name) for name in ("label", "strategy", "gpus")}
        fields |= {"base_ms": self.base_ms, "measured_ms": vars(self.measured_ms)} | self._prediction()
        host_fields = {name: getattr(self.cell, name) for name in _HOST_FIELDS}
        return fields | host_fields | {"without_host": self.without_host and self.without_host._prediction()}

    def _prediction(self) -> dict[str, Any]:
        fields = {"compute_ms": self.compute_ms, "predicted_ms": vars(self.predicted_ms), "error": self.error}
        return fields | {"within_bar": self.within_bar, "in_band": self.in_band}


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


def compare(cell: JobCell, folder: Path) -> Comparison:
    """Return one cell's prediction and measurement. Raises CollbenchError."""
    arms = read_arms(folder / cell.ablation)
    compute, extra = predict(cell, folder, arms.base_ms, arms.devices)
    without_host = None if cell.gpu_time_ms is None else compare(cell.without_host, folder)
    return Comparison(cell, compute * 1e3, arms.base_ms, extra, arms.extra_ms, without_host)


def predict(cell: JobCell, folder: Path, base_ms: float, devices: Sequence[Sequence[int]]) -> tuple[float, Span]:
    """Return a step's seconds of compute, and the predicted extra ms of the second arm's step."""
    fast, slow = (_evidence(folder, files) for files in (cell.fast, cell.slow))
    fast_members, slow_members = _members(cell, fast, devices[0]), _members(cell, slow, devices[1])
    compute = _compute(cell, fast, fast_members, base_ms)
    fast_ms, slow_ms = _step_ms(cell, fast, fast_members, compute), _step_ms(cell, slow, slow_members, compute)
    low, middle, high = (
        slow_step_ms - fast_step_ms for fast_step_ms, slow_step_ms in zip(fast_ms, slow_ms, strict=True)
    )
    return compute, Span(min(low, middle), middle, max(middle, high))


def _compute(cell: JobCell, evidence: Evidence, members: Members, base_ms: float) -> float:
    """Return the seconds of a step's compute: `compute_ms`, or what communication leaves of the first arm's step."""
    step_ms = base_ms if cell.compute_ms is None else cell.compute_ms
    if cell.gpu_time_ms is not None and cell.gpu_time_ms > step_ms:
        raise UsageError(f"gpu_time_ms {cell.gpu_time_ms:g} is more than the step, {step_ms:.2f} ms")
    question = replace(cell.question(), step_seconds=step_ms / 1e3, measured_on_best=cell.compute_ms is None)
    return Predictor(evidence).compute(question, cell.strategy, members) or 0.0


def _step_ms(cell: JobCell, evidence: Evidence, members: Members, compute: float) -> list[float]:
    """Return the predicted step in ms: least, middle, most."""
    step = Predictor(evidence).cost(cell.question(), cell.strategy, members, compute).step
    return [seconds * 1e3 for seconds in step or ()]


def _evidence(folder: Path, files: Sequence[str]) -> Evidence:
    return gather([(file, run_file.load(folder / file)) for file in files])


def _members(cell: JobCell, evidence: Evidence, indices: Sequence[int]) -> Members:
    position_of = {device.index: position for position, device in enumerate(evidence.run.devices)}
    missing = sorted(set(indices) - position_of.keys())
    if missing or len(indices) != cell.gpus:
        problem = f"GPU{missing[0]} is in none of its runs" if missing else f"the ablation ran on {len(indices)} GPUs"
        raise UsageError(f"{problem}, the cell says {cell.gpus}")
    return tuple(sorted(position_of[index] for index in indices))


def table(comparisons: Iterable[Comparison]) -> list[str]:
    """Return the comparisons as a markdown table; a cell with the GPU's time has two rows, the first without it."""
    lines = [
        "| job | step, ms | of it compute | GPU's own | predicted extra, ms | measured extra, ms | error | verdict |",
        "|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    rows = [row for comparison in comparisons for row in (comparison.without_host, comparison) if row]
    for row in rows:
        verdict = "within 25%" if row.within_bar else "in the band" if row.in_band else "missed"
        gpu_ms = "–" if row.cell.gpu_time_ms is None else f"{row.cell.gpu_time_ms:.2f}"
        lines.append(
            f"| {row.cell.label} | {row.base_ms:.2f} | {row.compute_ms:.2f} | {gpu_ms} | {row.predicted_ms} "
            f"| {row.measured_ms} | {row.error:+.0%} | {verdict} |"
        )
    return lines + _sources([row.cell for row in rows if row.cell.gpu_time_ms is not None])


def _sources(cells: Sequence[JobCell]) -> list[str]:
    """Return a line for each cell with the known times of GPU and host, and their source."""
    lines = []
    for cell in cells:
        source = f"GPU's own {cell.gpu_time_ms:.2f} ms"
        source += f", the host's phases {cell.host_phases}" if cell.host_phases is not None else ""
        source += f", the head's share {cell.head_share:.0%}" if cell.head_share is not None else ""
        lines.append(f"{cell.label}: {source}: {cell.gpu_time_source or 'no source'}")
    return ["", *lines] if lines else []


def cells_of(path: Path) -> list[JobCell]:
    """Read a list of cells from TOML. Raises UsageError."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        return [JobCell(**cell) for cell in data["cell"]]
    except (OSError, tomllib.TOMLDecodeError, KeyError, TypeError) as error:
        raise UsageError(f"cannot read the cells in {path}: {error}") from error


def main(argv: Sequence[str] | None = None) -> int:
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
    options = parser.parse_args(argv)
    names = ("strategy", "gpus", "model", "dtype", "grad_dtype", "compute_ms", "gpu_time_ms")
    shared = {name: getattr(options, name) for name in names}
    try:
        cells = [(cell, options.cells.parent) for cell in cells_of(options.cells)] if options.cells else []
        for label, fast, slow, ablation in options.cell:
            cells.append((JobCell(label, fast.split(","), slow.split(","), ablation, **shared), Path()))
        if not cells:
            raise UsageError("nothing to compare: name a CELLS.toml, or add --cell")
    except CollbenchError as error:
        raise SystemExit(f"predicted: {error}") from error
    comparisons = []
    for cell, folder in cells:
        try:
            comparisons.append(compare(cell, folder))
        except CollbenchError as error:  # the other cells can still be compared
            print(f"predicted: {cell.label}: {error}", file=sys.stderr)
    print("\n".join(table(comparisons)))
    if options.json is not None:
        document = {"bar": BAR, "cells": [comparison.as_json() for comparison in comparisons]}
        options.json.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0 if len(comparisons) == len(cells) else 1


if __name__ == "__main__":
    raise SystemExit(main())
