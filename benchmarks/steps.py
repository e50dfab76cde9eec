#!/usr/bin/env python3
"""What `collbench predict` says of training steps, without and with the cost of overlap, beside what they took.

    python benchmarks/steps.py FOLDER --json steps.json

FOLDER is one of training.sh: its parts `curves` (curves-RANKS-ARM-OPERATION.json), `overlap`
(overlap-RANKS-ARM-OPERATION.json) and `steps` (steps-…-ARM.txt; of older sessions what part `bound` left), ARM p2p or
nop2p. A step's compute is the same job's that exchanges nothing, in the same arm; the step with communication is
predicted from the curves, once as if overlap cost nothing and once with the measured factors. Of the measured step
nothing is used but to compare.

The JSON holds what the table does, in ms: "rows": [{"model", "strategy", "ranks", "batch", "arm", "compute_ms",
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

from collbench.analysis.predict import contention, networks
from collbench.analysis.predict.contention import OverlapCurve
from collbench.analysis.predict.networks import Network, Unit
from collbench.analysis.predict.predict import Predictor, Question
from collbench.analysis.predict.timing import Evidence, gather
from collbench.model.errors import CollbenchError
from collbench.runfile import run_file

OPERATIONS = ("allreduce", "allgather", "reducescatter")
ARMS = {"p2p": "yes", "nop2p": "no"}
HOST_BOUND = 0.9  # of the step: then a host sets the pace, and its own time is not that of the local job
_BYTES = {"bf16": (2, 2), "fp32": (4, 4), "amp": (2, 4)}  # a parameter, a gradient
# Parameters and blocks of what `predict` has no name for.
_OF_SIZE = {"vit-b/16": (86_567_656, 12)}
# For dry runs: as many parameters as nobody trains, and no figure of it is one of a real network.
_TINY = Network("tiny", Unit((2**14,), 0), (Unit((2**14,), 2**14),) * 2, Unit((), 0), "a dry run")


@dataclass(frozen=True, slots=True)
class Predicted:
    """A predicted step, ms: as scheduled, with perfect overlap and with none; what compute loses beside transfers."""

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
        """True where a host sets the pace."""
        return self.host_share >= HOST_BOUND

    def error(self, predicted: Predicted) -> float:
        """Return what the prediction is off by, as a share of the measured step."""
        return (predicted.step_ms - self.measured_ms) / self.measured_ms

    def extra_error(self, predicted: Predicted) -> float:
        """Return what it is off by, as a share of what the step takes longer than its compute."""
        return (predicted.step_ms - self.measured_ms) / (self.measured_ms - self.compute_ms)


def overlap_curves(folder: Path, evidence: Evidence, ranks: int, arm: str) -> tuple[OverlapCurve, ...]:
    """Return the folder's factors for an arm; of the operations whose run can be used."""
    found: list[OverlapCurve] = []
    for file in (folder / f"overlap-{ranks}-{arm}-{operation}.json" for operation in OPERATIONS):
        if file.exists():
            try:
                found += contention.gather(evidence, [(file.name, run_file.load(file))])
            except CollbenchError as error:  # the other operations' factors are worth their figures
                print(f"steps: {error}", file=sys.stderr)
    return tuple(found)


def rows(folder: Path) -> Iterator[Row]:
    """Yield a row for each job and arm that has a local job beside it. Raises CollbenchError."""
    jobs = bound.named_pairs(folder, "steps") or bound.pairs(folder)
    local = {_key(pair): pair for pair in jobs if pair.fast["strategy"] == "local"}
    for arm in ARMS:
        for pair in jobs:
            alone = local.get(_key(pair))
            if alone is None or pair is alone:
                continue
            files = [folder / f"curves-{pair.fast['ranks']}-{arm}-{operation}.json" for operation in OPERATIONS]
            evidence = gather([(file.name, run_file.load(file)) for file in files if file.exists()])
            yield _row(pair, alone, arm, evidence, folder)


def _key(pair: Pair) -> tuple[str, ...]:
    return (_model(pair.fast), pair.fast["dtype"], *pair.size)


def _model(words: dict[str, str]) -> str:
    return words.get("model", "gpt2")


def _network(name: str) -> Network:
    if name.startswith("tiny"):
        return _TINY
    return networks.of_size(*_OF_SIZE[name]) if name in _OF_SIZE else networks.find(name)


def _row(pair: Pair, alone: Pair, arm: str, evidence: Evidence, folder: Path) -> Row:
    words, its = (pair.fast, alone.fast) if arm == "p2p" else (pair.slow, alone.slow)
    ranks, strategy = int(words["ranks"]), words["strategy"]
    compute, measured = results.step_ms(its), results.step_ms(words)
    curves = overlap_curves(folder, evidence, ranks, arm)
    parameter, gradient = _BYTES[words["dtype"]]
    name = _model(words)
    asked = Question(
        network=_network(name),
        strategies=(strategy,),
        gpus=(ranks,),
        parameter_bytes=parameter,
        gradient_bytes=gradient,
        step_seconds=compute / 1e3,
    )
    both = [_predicted(evidence, one, asked, strategy, tuple(range(ranks)), compute) for one in ((), curves)]
    share = float(words.get("host_slowest", words["host_time"]).removesuffix("ms")) / measured
    return Row(
        name, strategy, ranks, int(words["batch"]), arm, compute, measured, share, both[0], both[1] if curves else None,
    )  # fmt: skip


def _predicted(
    evidence: Evidence,
    curves: Sequence[OverlapCurve],
    asked: Question,
    strategy: str,
    members: tuple[int, ...],
    compute_ms: float,
) -> Predicted:
    cost = Predictor(evidence, curves).cost(asked, strategy, members, compute_ms / 1e3)
    assert cost.step is not None  # noqa: S101  # it has a step time
    low, middle, high = (1e3 * end for end in cost.step)
    return Predicted(middle, low, high, None if cost.slowed is None else 1e3 * cost.slowed)


def _plain(row: Row) -> dict[str, object]:
    return {("with" if name == "with_overlap" else name): value for name, value in asdict(row).items()}


def table(found: Sequence[Row]) -> list[str]:
    """Return the comparison in markdown, and what to know of its rows."""
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
    lines = markdown(head, [_cells(row) for row in found])
    if any(row.host_bound for row in found):
        lines += ["", "(h) a host's own time is nine tenths of the step or more."]
    return [*lines, "", *_summary(found)]


def _cells(row: Row) -> tuple[str, ...]:
    def shown(one: Predicted | None) -> str:
        return "–" if one is None else f"{one.step_ms:.2f}, {row.error(one):+.1%}"

    extra = [
        "–" if one is None or row.measured_ms <= row.compute_ms else f"{row.extra_error(one):+.0%}"
        for one in (row.without, row.with_overlap)
    ]
    return (
        f"{row.model} {row.strategy}{' (h)' if row.host_bound else ''}",
        str(row.batch),
        ARMS[row.arm],
        f"{row.compute_ms:.2f}",
        f"{row.measured_ms:.2f}",
        shown(row.without),
        shown(row.with_overlap),
        " / ".join(extra),
    )


def _summary(found: Sequence[Row]) -> Iterator[str]:
    """Yield the mean error of the step, of the rows that the method is meant for and of the others."""
    for title, host_bound in (("the GPU sets the pace", False), ("(h)", True)):
        fit = [(row, row.with_overlap) for row in found if row.with_overlap and row.host_bound is host_bound]
        if not fit:
            continue
        before = fmean(abs(row.error(row.without)) for row, _ in fit)
        after = fmean(abs(row.error(one)) for row, one in fit)
        worse = sum(abs(row.error(one)) > abs(row.error(row.without)) for row, one in fit)
        yield (
            f"- Mean |error| of the step, {title}: {before:.1%} as if overlap cost nothing, {after:.1%} with factors; "
            f"{worse} of {len(fit)} became worse."
        )


def main(argv: Sequence[str]) -> int:
    """Print the table; return the exit status."""
    parser = argparse.ArgumentParser(description="predicted beside measured steps, without and with overlap's cost")
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here, too")
    asked = parser.parse_args(argv)
    try:
        found = list(rows(asked.folder))
    except (CollbenchError, OSError) as error:
        print(f"steps: {error}", file=sys.stderr)
        return 2
    if not found:
        print(f"steps: {asked.folder} has no jobs beside a local one: run training.sh's part steps", file=sys.stderr)
        return 2
    print("\n".join(table(found)))
    if asked.json is not None:
        text = json.dumps({"rows": [_plain(row) for row in found]}, indent=1, ensure_ascii=False)
        asked.json.write_text(f"{text}\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
