#!/usr/bin/env python3
"""Compares training steps that `collbench predict` predicts, without and with the cost of overlap, with measured ones.

    python benchmarks/steps.py FOLDER --json steps.json

FOLDER is one of training.sh, with the files of its parts `curves` (curves-RANKS-ARM-OPERATION.json), `overlap`
(overlap-RANKS-ARM-OPERATION.json) and `steps` (steps-…-ARM.txt; in older sessions those of `bound`), ARM p2p or nop2p.
A step's compute is the step of the same job and arm that exchanges nothing. The step with communication is predicted
from the curves, once as if overlap cost nothing and once with the measured factors. The measured step is only compared
with.

The JSON has the table's figures, in ms: "rows": [{"model", "strategy", "ranks", "batch", "arm", "compute_ms",
"measured_ms", "host_share", "without", "with"}], where `without` and `with` are {"step_ms",
"low_ms", "high_ms", "slowed_ms"} or null.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

from training import bound, results
from training.bound import Pair
from training.tables import markdown

from collbench.jobs.predict import contention, networks
from collbench.jobs.predict.contention import OverlapCurve
from collbench.jobs.predict.networks import Network, Unit
from collbench.jobs.predict.predict import Predictor, Question
from collbench.jobs.predict.timing import Evidence, gather
from collbench.model.errors import CollbenchError
from collbench.runfile import run_file

OPERATIONS = ("allreduce", "allgather", "reducescatter")
ARMS = {"p2p": "yes", "nop2p": "no"}
HOST_BOUND = 0.9  # share of the step from which on the host limits it; its time differs from the local job's
_BYTES = {"bf16": (2, 2), "fp32": (4, 4), "amp": (2, 4)}  # a parameter, a gradient
# Parameters and blocks of networks for which `predict` has no name.
_SIZES_OF = {"vit-b/16": (86_567_656, 12)}
# For dry runs: no figure of it is of a real network.
_TINY = Network("tiny", Unit((2**14,), 0), (Unit((2**14,), 2**14),) * 2, Unit((), 0), "a dry run")


@dataclass(frozen=True, slots=True)
class Predicted:
    """A predicted step, ms: as scheduled, with perfect overlap, with none; and how much transfers slow compute."""

    step_ms: float
    low_ms: float
    high_ms: float
    slowed_ms: float | None


@dataclass(frozen=True, slots=True)
class Row:
    """One job in one arm."""

    model: str
    strategy: str
    ranks: int
    batch: int
    arm: str
    compute_ms: float
    measured_ms: float
    host_share: float
    without: Predicted
    with_overlap: Predicted | None

    @property
    def host_bound(self) -> bool:
        """True where a host limits the step."""
        return self.host_share >= HOST_BOUND

    def error(self, predicted: Predicted) -> float:
        """Return the error of the prediction as a share of the measured step."""
        return (predicted.step_ms - self.measured_ms) / self.measured_ms

    def extra_error(self, predicted: Predicted) -> float:
        """Return the error as a share of the measured step's time beyond its compute."""
        return (predicted.step_ms - self.measured_ms) / (self.measured_ms - self.compute_ms)


def overlap_curves(folder: Path, evidence: Evidence, ranks: int, arm: str) -> tuple[OverlapCurve, ...]:
    """Return the folder's factors for an arm, for the operations whose run can be used."""
    curves: list[OverlapCurve] = []
    for file in (folder / f"overlap-{ranks}-{arm}-{operation}.json" for operation in OPERATIONS):
        if file.exists():
            try:
                curves += contention.gather(evidence, [(file.name, run_file.load(file))])
            except CollbenchError as error:  # the other operations' factors can still be used
                print(f"steps: {error}", file=sys.stderr)
    return tuple(curves)


def rows(folder: Path) -> Iterator[Row]:
    """Yield a row for each job and arm that has a local job to compare with. Raises CollbenchError."""
    jobs = bound.named_pairs(folder, "steps") or bound.pairs(folder)
    local_pairs = {_key(pair): pair for pair in jobs if pair.fast["strategy"] == "local"}
    for arm in ARMS:
        for pair in jobs:
            local_pair = local_pairs.get(_key(pair))
            if local_pair is None or pair is local_pair:
                continue
            files = [folder / f"curves-{pair.fast['ranks']}-{arm}-{operation}.json" for operation in OPERATIONS]
            evidence = gather([(file.name, run_file.load(file)) for file in files if file.exists()])
            yield _row(pair, local_pair, arm, evidence, folder)


def _key(pair: Pair) -> tuple[str, ...]:
    return (_model(pair.fast), pair.fast["dtype"], *pair.size)


def _model(summary: dict[str, str]) -> str:
    return summary.get("model", "gpt2")


def _network(name: str) -> Network:
    if name.startswith("tiny"):
        return _TINY
    return networks.of_size(*_SIZES_OF[name]) if name in _SIZES_OF else networks.find(name)


def _row(pair: Pair, local_pair: Pair, arm: str, evidence: Evidence, folder: Path) -> Row:
    summary, local_summary = (pair.fast, local_pair.fast) if arm == "p2p" else (pair.slow, local_pair.slow)
    ranks, strategy = int(summary["ranks"]), summary["strategy"]
    compute, measured = results.step_ms(local_summary), results.step_ms(summary)
    curves = overlap_curves(folder, evidence, ranks, arm)
    parameter, gradient = _BYTES[summary["dtype"]]
    name = _model(summary)
    question = Question(
        network=_network(name),
        strategies=(strategy,),
        gpus=(ranks,),
        parameter_bytes=parameter,
        gradient_bytes=gradient,
        step_seconds=compute / 1e3,
    )
    predictions = [
        _predicted(evidence, overlap_curves, question, strategy, tuple(range(ranks)), compute)
        for overlap_curves in ((), curves)
    ]
    host_share = float(summary.get("host_slowest", summary["host_time"]).removesuffix("ms")) / measured
    return Row(
        name, strategy, ranks, int(summary["batch"]), arm, compute, measured, host_share,
        predictions[0], predictions[1] if curves else None,
    )  # fmt: skip


def _predicted(
    evidence: Evidence,
    curves: Sequence[OverlapCurve],
    question: Question,
    strategy: str,
    members: tuple[int, ...],
    compute_ms: float,
) -> Predicted:
    cost = Predictor(evidence, curves).cost(question, strategy, members, compute_ms / 1e3)
    assert cost.step is not None  # noqa: S101  # it has a step time
    low, middle, high = (1e3 * end for end in cost.step)
    return Predicted(middle, low, high, None if cost.slowed is None else 1e3 * cost.slowed)


def _as_json(row: Row) -> dict[str, object]:
    return {("with" if name == "with_overlap" else name): value for name, value in asdict(row).items()}


def table(rows: Sequence[Row]) -> list[str]:
    """Return the comparison in markdown, with notes on its rows."""
    head = (
        "job",
        "batch per GPU",
        "P2P",
        "step that exchanges nothing, ms",
        "measured step, ms",
        "predicted, overlap free: step, error",
        "with factors: step, error",
        "error of the extra time, before / with",
    )
    lines = markdown(head, [_cells(row) for row in rows])
    if any(row.host_bound for row in rows):
        lines += ["", "(h) a host's own time is nine tenths of the step or more."]
    return [*lines, "", *_summary(rows)]


def _cells(row: Row) -> tuple[str, ...]:
    def text(predicted: Predicted | None) -> str:
        return "–" if predicted is None else f"{predicted.step_ms:.2f}, {row.error(predicted):+.1%}"

    extra = [
        "–" if predicted is None or row.measured_ms <= row.compute_ms else f"{row.extra_error(predicted):+.0%}"
        for predicted in (row.without, row.with_overlap)
    ]
    return (
        f"{row.model} {row.strategy}{' (h)' if row.host_bound else ''}",
        str(row.batch),
        ARMS[row.arm],
        f"{row.compute_ms:.2f}",
        f"{row.measured_ms:.2f}",
        text(row.without),
        text(row.with_overlap),
        " / ".join(extra),
    )


def _summary(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the mean error of the step, for rows that the GPU limits (the method's purpose) and for the others."""
    for title, host_bound in (("the GPU sets the pace", False), ("(h)", True)):
        predicted_rows = [(row, row.with_overlap) for row in rows if row.with_overlap and row.host_bound is host_bound]
        if not predicted_rows:
            continue
        before = fmean(abs(row.error(row.without)) for row, _ in predicted_rows)
        after = fmean(abs(row.error(predicted)) for row, predicted in predicted_rows)
        worse = sum(abs(row.error(predicted)) > abs(row.error(row.without)) for row, predicted in predicted_rows)
        yield (
            f"- Mean |error| of the step, {title}: {before:.1%} as if overlap cost nothing, {after:.1%} with factors; "
            f"{worse} of {len(predicted_rows)} became worse."
        )


def main(argv: Sequence[str]) -> int:
    """Print the table; return the exit status."""
    parser = argparse.ArgumentParser(
        description="compare predicted with measured steps, without and with overlap's cost"
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here, too")
    options = parser.parse_args(argv)
    try:
        found_rows = list(rows(options.folder))
    except (CollbenchError, OSError) as error:
        print(f"steps: {error}", file=sys.stderr)
        return 2
    if not found_rows:
        print(f"steps: {options.folder} has no jobs beside a local one: run training.sh's part steps", file=sys.stderr)
        return 2
    print("\n".join(table(found_rows)))
    if options.json is not None:
        text = json.dumps({"rows": [_as_json(row) for row in found_rows]}, indent=1, ensure_ascii=False)
        options.json.write_text(f"{text}\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
