"""Made-up ablations with round numbers."""

from __future__ import annotations

from collections.abc import Sequence

from collbench.ablations.ablation import Ablation, AllReduce, Arm, Measure, TrainingRun, judge, measure_of


def run(
    repeat: int, order: int, steps: Sequence[float] = (), runtime: float | None = None, **more: float
) -> TrainingRun:
    """Return one successful run; `wall` is its total time in seconds."""
    return TrainingRun(repeat, order, int(more.get("status", 0)), more.get("wall", 40.0), tuple(steps), runtime)


def ablation(
    with_steps: Sequence[float],
    without_steps: Sequence[float],
    names: tuple[str, str] | None = None,
    lacking: tuple[str, ...] = ("p2p",),
) -> Ablation:
    """Return a finished ablation whose runs have ten steps of one length each, after three slow ones."""
    first, second = names or ("with p2p", "without p2p")
    allreduce = ((8, 0.0, 5.5e-6), (2**26, 320.5, 2.1e-4)), ((8, 0.0, 12e-6), (2**26, 35.25, 1.9e-3))
    changes: tuple[dict[str, str], dict[str, str]] = ({}, {"NCCL_P2P_DISABLE": "1"} if names is None else {})
    arms = []
    for number, (name, values) in enumerate(((first, with_steps), (second, without_steps))):
        runs = [run(repeat, 2 * repeat + number, (1.0,) * 3 + (value,) * 10) for repeat, value in enumerate(values)]
        sizes = tuple(AllReduce(*sample) for sample in allreduce[number])
        arms.append(Arm(name, changes[number], (0, 1), ("GPU-a", "GPU-b"), sizes, runs, lacking if number else ()))
    finished = Ablation(
        collbench="0.1.0",
        started="2026-11-21T10:00:00Z",
        hostname="vm",
        gpus=("NVIDIA H200", "NVIDIA H200"),
        command=("train.py", "--epochs", "1"),
        measure=Measure.STEP,
        arms=(arms[0], arms[1]),
        environment={"NCCL_NVLS_ENABLE": "0"},
        repeats=len(with_steps),
        seed=4,
    )
    finished.measure = measure_of(finished.made, None)
    finished.result = judge(finished)
    return finished
