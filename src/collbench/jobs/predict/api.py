"""The Python call of `collbench predict`: what the collectives of a training step take, before there is a job."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from collbench.api import keywords
from collbench.jobs.predict.step import BYTES, MOST_LAYERS, STRATEGIES, Step, parse_parameters
from collbench.model.errors import UsageError
from collbench.model.run import Run

if TYPE_CHECKING:
    from collbench.jobs.predict.training import Prediction


def predict(
    runs: Run | Iterable[Run],
    *,
    params: int | str,
    layers: int = 24,
    strategy: str = "ddp",
    dtype: str = "bf16",
    gpus: int | Iterable[int] | None = None,
) -> Prediction:
    """Return what the collectives of a training step take on the fastest and the slowest measured GPUs of these runs.

    The keywords are the options of `collbench predict`. Raises Error.
    """
    # Late: numpy and scipy take as long to load as the rest of the program.
    from collbench.jobs.predict.links import Links
    from collbench.jobs.predict.training import predict_step

    all_runs = keywords.several(runs)
    for run in all_runs:
        keywords.check_run(run, "predict")
    if not all_runs:
        raise UsageError("no run to predict from: collbench.load returns one")
    step = Step(
        parse_parameters(str(params)),
        keywords.whole("layers", layers, least=1, most=MOST_LAYERS),
        keywords.named("strategy", strategy, STRATEGIES),
        keywords.named("dtype", dtype, BYTES),
    )
    counts = None
    if gpus is not None:
        counts = tuple(keywords.whole("gpus", count, least=2) for count in keywords.several(gpus))
    links = Links([(f"run {number}", run) for number, run in enumerate(all_runs, 1)])
    return predict_step(links, step, counts)
