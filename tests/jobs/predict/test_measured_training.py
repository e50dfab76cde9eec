"""Predicted beside measured steps of GPT-2 on H200s: what two lanes cannot say, and what supports the explanation."""

import json
from pathlib import Path
from statistics import fmean

import pytest

from collbench.jobs.predict import networks
from collbench.jobs.predict.predict import Predictor, Question
from collbench.jobs.predict.step import Phases
from collbench.jobs.predict.timing import gather
from collbench.runfile import run_file

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
TRAINING, LANES = RESULTS / "2026-11-21-4xh200-training", RESULTS / "2026-11-21-2xh200-lanes"
OPERATIONS = ("allreduce", "allgather", "reducescatter")
BAR = 0.25  # of the extra time: enough to know whether the wires matter to a job
# Kernels but NCCL's of a profiled step with P2P, ms, and the head's and loss' share of them [README.md of LANES].
GPU_MS = {"ddp": 12.85, "fsdp": 12.79}
HEAD_SHARE = 5.27 / 12.85


def lanes(arm: str, strategy: str, batch: int = 4) -> list[dict[str, float]]:
    """Return the medians of each job, in ms, by name: host_forward, host_backward, host_optimizer, gpu_…, step."""
    found = []
    for line in (LANES / f"lanes-{arm}.txt").read_text(encoding="utf-8").splitlines():
        words = dict(word.split("=") for word in line.split()[1:])
        if (words["strategy"], words["batch"]) == (strategy, str(batch)):
            found.append({name: float(value.removesuffix("ms")) for name, value in words.items() if "ms" in value})
    return found


def phases(strategy: str) -> Phases:
    """Return what the host did with P2P."""
    names = ("host_forward", "host_backward", "host_optimizer")
    forward, backward, end = (fmean(one[name] for one in lanes("p2p", strategy)) for name in names)
    return Phases(forward, backward - forward, end - backward)


def extra_ms(strategy: str, gpus: int, step_ms: float, *, host: bool) -> float:
    """Return how much longer than this measured step the step without P2P is predicted to be."""
    fast, slow = (
        Predictor(gather([(o, run_file.load(TRAINING / f"curves-{gpus}-{arm}-{o}.json")) for o in OPERATIONS]))
        for arm in ("p2p", "nop2p")
    )
    network = networks.find("gpt2")
    asked = Question(
        network=network.with_head(HEAD_SHARE) if host else network,
        strategies=(strategy,),
        gpus=(gpus,),
        parameter_bytes=2,
        gradient_bytes=2,
        step_seconds=step_ms / 1e3,
        measured_on_best=True,
        gpu_seconds=GPU_MS[strategy] / 1e3 if host else None,
        host_phases=phases(strategy) if host else None,
    )
    members = tuple(range(gpus))
    compute = fast.compute(asked, strategy, members)
    before, after = (one.cost(asked, strategy, members, compute).step for one in (fast, slow))
    assert before is not None
    assert after is not None
    assert before[1] == pytest.approx(step_ms / 1e3)
    return (after[1] - before[1]) * 1e3


# Steps with P2P and what they took longer without, ms: ablate-ddp-*.json.
@pytest.mark.parametrize(("gpus", "step", "longer"), [(2, 16.67, 4.68), (4, 17.41, 7.34)])
def test_ddps_buckets_hide_less_behind_a_backward_that_begins_with_a_long_head(
    gpus: int, step: float, longer: float
) -> None:
    """Nothing of a step without P2P is known to the prediction; both measurements of the GPU and host were with it."""
    reported, two_lanes = (extra_ms("ddp", gpus, step, host=host) for host in (True, False))
    assert abs(reported / longer - 1) <= BAR
    assert abs(reported / longer - 1) < abs(two_lanes / longer - 1)


def test_at_a_batch_that_keeps_the_gpu_busy_ddp_needs_no_host() -> None:
    (with_p2p,), (without,) = lanes("p2p", "ddp", 32), lanes("nop2p", "ddp", 32)
    assert with_p2p["host_optimizer"] < with_p2p["step"] / 4
    longer = without["step"] - with_p2p["step"]
    assert abs(extra_ms("ddp", 2, with_p2p["step"], host=False) / longer - 1) <= BAR


# ablate-fsdp-*.json: 1.4 and 2.3 ms longer, intervals -0.6 to 3.5 and 1.2 to 3.5.
@pytest.mark.parametrize(("gpus", "step"), [(2, 37.47), (4, 37.90)])
def test_fsdps_wires_hide_behind_the_host(gpus: int, step: float) -> None:
    assert extra_ms("fsdp", gpus, step, host=True) == pytest.approx(0, abs=1e-6)
    assert extra_ms("fsdp", gpus, step, host=False) > 3


def test_what_fsdp_takes_longer_without_p2p_is_the_hosts_own_time() -> None:
    """The GPU ends with the host, with P2P and without: nothing that is sent is waited for at a step's end."""
    for arm in ("p2p", "nop2p"):
        for one in lanes(arm, "fsdp"):
            assert one["step"] - one["host_optimizer"] < 0.2
    for before, after in zip(lanes("p2p", "fsdp"), lanes("nop2p", "fsdp"), strict=True):
        host, step = (after[name] - before[name] for name in ("host_optimizer", "step"))
        assert step > 1.4
        assert host / step > 0.9


def test_the_steps_with_factors_of_overlap_are_those_of_the_results_page() -> None:
    """benchmarks/steps.py wrote the table; factors of the same settings bring every step nearer, none all the way."""
    folder = RESULTS / "2026-11-22-2xh200-steps"
    table = (folder / "steps.md").read_text(encoding="utf-8").splitlines()
    rows = [line for line in table if line.startswith(("| gpt2", "| vit"))]
    page = (RESULTS.parents[1] / "docs" / "results.md").read_text(encoding="utf-8")
    assert len(rows) == 24
    assert [row for row in rows if row not in page] == []
    for row in json.loads((folder / "steps.json").read_text(encoding="utf-8"))["rows"]:
        without, with_factors = (row[name]["step_ms"] for name in ("without", "with"))
        assert without < with_factors < row["measured_ms"]
