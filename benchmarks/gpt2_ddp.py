#!/usr/bin/env python3
"""Trains GPT-2 for some steps and prints each step's time: what communication costs a real training job.

    collbench train --auto-select 2 benchmarks/gpt2_ddp.py --strategy ddp --dtype bf16
    collbench ablate --auto-select 2 --without p2p -- benchmarks/gpt2_ddp.py --strategy fsdp
    python benchmarks/gpt2_ddp.py --strategy none --tiny            # without GPUs, to see it run

The model is transformers' GPT-2, built from its configuration; the text is this project's pages, byte by byte. `--dtype
amp` is what most people train with: fp32 parameters, bf16 matrix products by autocast, so that DDP sends 4 bytes per
gradient (FSDP gathers bf16 and reduces fp32). `--dtype bf16` puts parameters, gradients and AdamW's state in bf16, so
that DDP sends 2 bytes. A step is forward, backward and optimizer, between two waits for the device. The first
`--warmup` steps, in which NCCL and DDP initialize, are printed without `step_time`. In the last line, `host_time` is
how long the host takes to launch a step without waiting for the device: as long as the step if the host limits it, much
shorter if the GPU does. `host_slowest` is the longest of all ranks; the other ranks wait for it in their collectives.
`--profile N` runs N more steps under torch's profiler and prints the `gpu_time` of each: how long at least one kernel
ran on rank 0, NCCL's included. `--compile` trains the model with torch.compile, whose graphs cost the host less. Two
strategies are for comparison: `local` is DDP that never exchanges gradients, on the same GPUs, so that ddp − local is
the exposed communication (and DDP's copies into its buckets); `none` is one process without a wrapper.
The job fails if the loss on held-out text does not fall or the ranks do not end with the same model.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from training import language, ranks
from training.language import NextToken
from training.ranks import RankProcess

if TYPE_CHECKING:
    from torch._C._distributed_c10d import GradBucket

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32, "amp": torch.float32}  # of the parameters
STRATEGIES = ("ddp", "fsdp", "local", "none")
LEARNING_RATE = 3e-4  # AdamW's usual one for a GPT-2 of this size
# Ranks compute the same held-out loss from the same weights; kernels may sum in another order.
SAME_LOSS = 1e-3


class JobError(Exception):
    """Why the job counts as failed, in one line."""


@dataclass(frozen=True, slots=True)
class HostSeconds:
    """Seconds of a step's parts on the host's clock, until each call returned; the device may still be working."""

    forward: float
    backward: float
    optimizer: float

    @property
    def total(self) -> float:
        """Seconds from the start of the step until its last call returned."""
        return self.forward + self.backward + self.optimizer


@dataclass(frozen=True, slots=True)
class Step:
    """One timed step: its seconds until the device finished, and the host's."""

    seconds: float
    host: HostSeconds


@dataclass(frozen=True, slots=True)
class Activity:
    """A kernel or a copy on the GPU: when it began and ended, in µs."""

    name: str
    begin: float
    end: float


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="GPT-2 124M, some training steps, each one's time")
    parser.add_argument("--model", choices=language.MODELS, default="gpt2", help="124M or 355M parameters [gpt2]")
    parser.add_argument("--strategy", choices=STRATEGIES, default="ddp", help="[ddp]")
    parser.add_argument("--dtype", choices=list(DTYPES), default="bf16", help="see above [bf16]")
    parser.add_argument("--batch", type=int, default=4, metavar="N", help="sequences per rank and step [4]")
    parser.add_argument("--sequence", type=int, default=512, metavar="N", help="tokens in each [512]")
    parser.add_argument("--steps", type=int, default=60, metavar="N", help="steps that are timed [60]")
    parser.add_argument("--warmup", type=int, default=10, metavar="N", help="steps before those [10]")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of weights, text and dropout [0]")
    parser.add_argument("--profile", type=int, default=0, metavar="N", help="more steps, for the GPU's own time [0]")
    parser.add_argument("--compile", action="store_true", help="train what torch.compile makes of the model")
    parser.add_argument("--tiny", action="store_true", help="a two-layer transformer instead of GPT-2: a dry run")
    parser.add_argument("--profile-buckets", action="store_true", help="print the messages that a step sends, in bytes")
    return parser.parse_args(argv)


def check(options: argparse.Namespace, process: RankProcess, held_out: Tensor) -> None:
    """Raise JobError for options that cannot be used."""
    if options.strategy == "none" and process.world_size > 1:
        raise JobError(f"--strategy none is for one process, this job has {process.world_size}: write --strategy local")
    if options.strategy != "none" and not dist.is_initialized():
        raise JobError(f"--strategy {options.strategy} needs torchrun: start it by collbench train --auto-select K")
    if min(options.batch, options.steps, options.sequence) < 1 or min(options.warmup, options.profile) < 0:
        raise JobError("--batch, --sequence and --steps are 1 or more, --warmup and --profile 0 or more")
    if options.profile and process.device.type != "cuda":
        raise JobError("--profile times a GPU's kernels: without a GPU leave it out")
    if not options.sequence < min(1025, len(held_out)):
        raise JobError(f"--sequence {options.sequence} is more than GPT-2's 1024 positions")
    if options.profile_buckets and options.strategy not in {"ddp", "fsdp"}:
        raise JobError(f"--profile-buckets: strategy {options.strategy} sends no gradients; write --strategy ddp")


def distribute(model: NextToken, strategy: str, process: RankProcess, *, amp: bool) -> nn.Module:
    """Return the model as the strategy trains it. Raises JobError where torch is too old for FSDP2."""
    if strategy == "none":
        return model
    if strategy != "fsdp":
        return DistributedDataParallel(model, device_ids=[process.device] if process.device.type == "cuda" else None)
    try:
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    except ImportError as error:
        raise JobError(f"--strategy fsdp needs torch 2.6, this is {torch.__version__}: write --strategy ddp") from error
    mesh = dist.device_mesh.init_device_mesh(process.device.type, (process.world_size,))
    mixed = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    policy = mixed if amp else MixedPrecisionPolicy()
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model


class Messages:
    """The bytes of a step's messages, in order."""

    def __init__(self, model: nn.Module, *, record: bool) -> None:
        self._model, self._sent = model, list[int]()
        if record and isinstance(model, DistributedDataParallel):
            # a lambda, because DDP checks annotations and does not accept those that are strings
            model.register_comm_hook(None, lambda _, bucket: self._record(bucket))

    def begin(self) -> None:
        """Forget the previous step: DDP makes new buckets after the first."""
        self._sent.clear()

    def _record(self, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        self._sent.append(bucket.buffer().nbytes)
        return allreduce_hook(None, bucket)  # type: ignore[arg-type]  # None is the whole world, as its docstring says

    def lines(self) -> list[str]:
        """Return a line for each message: DDP's all-reduces; FSDP's units, which it gathers twice and scatters once."""
        if isinstance(self._model, DistributedDataParallel):
            return [f"bucket {number} bytes={size}" for number, size in enumerate(self._sent)]
        blocks = list(self._model.blocks)  # type: ignore[arg-type]  # NextToken's, which fully_shard made a subclass of
        in_blocks = {id(parameter) for block in blocks for parameter in block.parameters()}
        root = [parameter for parameter in self._model.parameters() if id(parameter) not in in_blocks]
        units = [("root", root), *((f"block {i}", list(block.parameters())) for i, block in enumerate(blocks))]
        return [f"unit {name} bytes={sum(p.numel() * p.element_size() for p in unit)}" for name, unit in units]


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, tokens: Tensor, *, local: bool, amp: bool
) -> tuple[Tensor, HostSeconds]:
    """Run one step on tokens (batch, sequence + 1); return its loss, still on the device, and the host's seconds."""
    times = [time.perf_counter()]
    with model.no_sync() if local and isinstance(model, DistributedDataParallel) else nullcontext():
        with torch.autocast(tokens.device.type, torch.bfloat16, enabled=amp):
            loss: Tensor = model(tokens)
        times.append(time.perf_counter())
        # On a GPU, autograd's own thread launches the kernels; this thread waits for that thread, not for the GPU.
        loss.backward()  # type: ignore[no-untyped-call]  # torch's
    times.append(time.perf_counter())
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    times.append(time.perf_counter())
    return loss.detach(), HostSeconds(*(later - earlier for earlier, later in pairwise(times)))


def train(
    model: nn.Module,
    batches: Tensor,
    options: argparse.Namespace,
    process: RankProcess,
    messages: Messages,
    profiled: int = 0,
) -> list[Step]:
    """Train on every batch and print each step; return the timed steps, without warm-up and the last `profiled`."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)
    autocast = options.dtype == "amp" and options.strategy != "fsdp"  # FSDP casts by its own policy
    model.train()
    steps = []
    timed_batches = len(batches) - profiled
    for number, tokens in enumerate(batches[:timed_batches]):
        messages.begin()
        process.wait_for_device()
        begin = time.perf_counter()
        loss, host = train_step(model, optimizer, tokens, local=options.strategy == "local", amp=autocast)
        process.wait_for_device()
        seconds = time.perf_counter() - begin
        if number < options.warmup:
            process.print_on_rank_0(f"warm-up {number} took {seconds * 1e3:.2f} ms, loss={loss.item():.3f}")
        else:
            steps.append(Step(seconds, host))
            process.print_on_rank_0(f"step {number} step_time={seconds * 1e3:.2f}ms loss={loss.item():.3f}")
    for tokens in batches[timed_batches:]:
        process.wait_for_device()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            process.wait_for_all()  # profilers do not start together; without it, ranks would wait in NCCL's kernels
            train_step(model, optimizer, tokens, local=options.strategy == "local", amp=autocast)
            process.wait_for_device()
        process.print_on_rank_0(
            f"profiled gpu_time={busy_seconds(after_barrier(kernels(profile), process)) * 1e3:.2f}ms"
        )
    return steps


def after_barrier(activities: Sequence[Activity], process: RankProcess) -> list[tuple[float, float]]:
    """Return begin and end of the activities after the barrier before the step, which is NCCL's first kernel."""
    barrier_end = (
        min((activity.end for activity in activities if "nccl" in activity.name), default=0.0)
        if process.world_size > 1
        else 0.0
    )
    return [(activity.begin, activity.end) for activity in activities if activity.begin >= barrier_end]


def kernels(profile: torch.profiler.profile) -> list[Activity]:
    """Return the GPU's kernels and copies, without annotations."""
    events = profile.events() or []  # type: ignore[no-untyped-call]  # torch's
    cuda = torch.autograd.DeviceType.CUDA  # type: ignore[attr-defined]  # torch's own, without a type
    kernel_events = (event for event in events if event.device_type == cuda and not event.is_user_annotation)
    return [Activity(event.name, event.time_range.start, event.time_range.end) for event in kernel_events]


def busy_seconds(intervals: Sequence[tuple[float, float]]) -> float:
    """Return the seconds covered by at least one of the intervals, which are in µs."""
    busy, busy_until = 0.0, float("-inf")
    for begin_us, end_us in sorted(intervals):
        busy += max(0.0, end_us - max(begin_us, busy_until))
        busy_until = max(busy_until, end_us)
    return busy / 1e6


@torch.no_grad()
def loss_on(model: nn.Module, tokens: Tensor) -> Tensor:
    """Return the loss, without dropout, on tokens that every rank has."""
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    inner.eval()
    loss: Tensor = inner(tokens)
    return loss.double()


def same_on_all(model: nn.Module, loss: Tensor, strategy: str, process: RankProcess) -> bool:
    """True when the ranks hold the same model: bit by bit, or for FSDP's shards by their joint loss."""
    if strategy != "fsdp":
        return ranks.same_model(model, process)
    low, high = process.extremes(loss)
    return bool(high - low <= SAME_LOSS * high)


def judge(before: float, after: float, *, same: bool, strategy: str, process: RankProcess) -> None:
    """Raise JobError where the training must have been wrong."""
    if not after < before:  # also NaN
        raise JobError(f"the loss on held-out text did not fall: {before:.3f} before, {after:.3f} after")
    if strategy == "local" and process.world_size > 1 and same:
        raise JobError("the ranks hold the same model although strategy local never exchanges gradients")
    if strategy != "local" and not same:
        raise JobError("the ranks do not hold the same model: gradients were not exchanged as they should")


def run(options: argparse.Namespace, process: RankProcess) -> str:
    """Train and return the line that sums it up. Raises JobError."""
    training, held_out = language.parts(language.text())
    check(options, process, held_out)
    torch.manual_seed(options.seed)  # the same weights on every rank
    with process.device:  # weights are made on the device: in less than a second on a GPU, in two on a CPU core
        model = language.model(options.model, tiny=options.tiny).to(process.device, DTYPES[options.dtype])
    parameters = sum(parameter.numel() for parameter in model.parameters())
    held_out_batch = language.windows(held_out, (options.batch,), options.sequence, options.seed).to(process.device)
    # Before FSDP: its root would keep the parameters gathered in a forward without gradients, and train on those.
    loss_before = loss_on(model, held_out_batch).item()
    trained = distribute(model, options.strategy, process, amp=options.dtype == "amp")
    if options.compile:
        trained.compile()
    messages = Messages(trained, record=options.profile_buckets)
    shape = (options.warmup + options.steps + options.profile, options.batch)
    seed = (options.seed + 1) * 100_003 + process.rank  # each rank has its own text and dropout
    batches = language.windows(training, shape, options.sequence, seed).to(process.device)
    torch.manual_seed(seed)
    steps = train(trained, batches, options, process, messages, options.profile)
    loss_after = loss_on(trained, held_out_batch)
    same = same_on_all(trained, loss_after, options.strategy, process)
    judge(loss_before, loss_after.item(), same=same, strategy=options.strategy, process=process)
    if options.profile_buckets:
        process.print_on_rank_0("\n".join(messages.lines()))
    return (
        f"summary model={'tiny' if options.tiny else options.model} parameters={parameters} "
        f"strategy={options.strategy} dtype={options.dtype} "
        f"ranks={process.world_size} batch={options.batch} sequence={options.sequence} "
        f"steps={options.steps} {timing(steps, process, tokens=process.world_size * options.batch * options.sequence)} "
        f"held_out_loss={loss_before:.3f}->{loss_after.item():.3f} same_model={'yes' if same else 'no'} "
        f"device={process.name.replace(' ', '_')} torch={torch.__version__}"
    )


def timing(steps: Sequence[Step], process: RankProcess, *, tokens: int) -> str:
    """Return the summary's fields about time: medians over the steps, in ms. Each step trained on `tokens` tokens."""
    host_seconds = statistics.median(step.host.total for step in steps)
    _, slowest = process.extremes(torch.tensor(host_seconds, dtype=torch.float64, device=process.device))
    median_seconds = statistics.median(step.seconds for step in steps)
    parts = {
        "host_time": [step.host.total for step in steps],
        "host_forward": [step.host.forward for step in steps],
        "host_backward": [step.host.backward for step in steps],
        "host_optimizer": [step.host.optimizer for step in steps],
    }
    host = " ".join(f"{name}={statistics.median(seconds) * 1e3:.2f}ms" for name, seconds in parts.items())
    return (
        f"median_step={median_seconds * 1e3:.2f}ms tokens_per_second={tokens / median_seconds:.0f} {host} "
        f"host_slowest={slowest.item() * 1e3:.2f}ms"
    )


def main(
    job: str, options: argparse.Namespace, run: Callable[[argparse.Namespace, RankProcess], str], tiny: str
) -> int:
    """Run a job, print its summary line, and return the exit status; `tiny` describes what --tiny trains."""
    process = ranks.join()
    if options.tiny:
        process.print_on_rank_0(f"tiny: {tiny}")
    try:
        process.print_on_rank_0(run(options, process))
    except (JobError, ModuleNotFoundError) as error:
        advice = f" (pip install {error.name}, or --tiny)" if isinstance(error, ModuleNotFoundError) else ""
        print(f"{job}: rank {process.rank}: {error}{advice}", file=sys.stderr, flush=True)
        return 1
    finally:
        ranks.leave()
    return 0


if __name__ == "__main__":
    tiny_note = "a two-layer transformer for a dry run; none of these figures is GPT-2's"
    sys.exit(main("gpt2_ddp", arguments(sys.argv[1:]), run, tiny_note))
