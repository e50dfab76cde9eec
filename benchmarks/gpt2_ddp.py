#!/usr/bin/env python3
"""Trains GPT-2 for some steps, and prints each step's time: what communication costs a real training job.

    collbench train --auto-select 2 benchmarks/gpt2_ddp.py --strategy ddp --dtype bf16
    collbench ablate --auto-select 2 --without p2p -- benchmarks/gpt2_ddp.py --strategy fsdp
    python benchmarks/gpt2_ddp.py --strategy none --tiny            # without GPUs, to see it run

The model is transformers' own from its configuration, the text this project's pages, byte by byte. `--dtype amp` is
what most people train with: fp32 parameters, bf16 in the products by autocast, so that DDP sends 4 bytes a gradient
(FSDP gathers bf16 and reduces fp32). `--dtype bf16` puts parameters, gradients and AdamW's state in bf16: 2 bytes.
A step is forward, backward and optimizer, between two waits for the device; the first `--warmup` steps, in which NCCL
and DDP settle, are printed without `step_time`. The last line's `host_time` is what the host needs to launch a step,
without waiting for the device: as long as the step where the host bounds it, much shorter where the GPU does.
`host_slowest` is that of the rank whose host needs most, for which the others wait in their collectives.
`--profile N` takes N more steps under torch's profiler and prints the `gpu_time` of each: how long some kernel ran, on
rank 0, NCCL's included. `--compile` runs the model through torch.compile, whose graphs cost the host less. Two
strategies are for comparison: `local` is DDP that never exchanges gradients, on the same GPUs, so that ddp − local is
the exposed communication (and DDP's copies into its buckets); `none` is one process without any wrapper.
The job fails where the loss on held-out text does not fall or the ranks do not end with the same model.
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
from training.ranks import Ranks

if TYPE_CHECKING:
    from torch._C._distributed_c10d import GradBucket

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32, "amp": torch.float32}  # of the parameters
STRATEGIES = ("ddp", "fsdp", "local", "none")
LEARNING_RATE = 3e-4  # AdamW's usual one for a GPT-2 of this size
# Ranks compute the same held-out loss from the same weights; kernels may add in another order.
SAME_LOSS = 1e-3


class JobError(Exception):
    """Why the job counts as failed, in one line."""


@dataclass(frozen=True, slots=True)
class Host:
    """Seconds of a step's parts on the host's clock, until each call returned: the device may still have work."""

    forward: float
    backward: float
    optimizer: float

    @property
    def total(self) -> float:
        """Seconds from the step's begin until its last call returned."""
        return self.forward + self.backward + self.optimizer


@dataclass(frozen=True, slots=True)
class Step:
    """One step that counts: its seconds until the device had done it, and the host's share."""

    seconds: float
    host: Host


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


def check(options: argparse.Namespace, here: Ranks, held_out: Tensor) -> None:
    """Raise JobError for what cannot be run."""
    if options.strategy == "none" and here.world_size > 1:
        raise JobError(f"--strategy none is for one process, this job has {here.world_size}: write --strategy local")
    if options.strategy != "none" and not dist.is_initialized():
        raise JobError(f"--strategy {options.strategy} needs torchrun: start it by collbench train --auto-select K")
    if min(options.batch, options.steps, options.sequence) < 1 or min(options.warmup, options.profile) < 0:
        raise JobError("--batch, --sequence and --steps are 1 or more, --warmup and --profile 0 or more")
    if options.profile and here.device.type != "cuda":
        raise JobError("--profile shows what a GPU works: without one leave it out")
    if not options.sequence < min(1025, len(held_out)):
        raise JobError(f"--sequence {options.sequence} is more than GPT-2's 1024 positions")
    if options.profile_buckets and options.strategy not in {"ddp", "fsdp"}:
        raise JobError(f"--profile-buckets: strategy {options.strategy} sends no gradients; write --strategy ddp")


def distribute(model: NextToken, strategy: str, here: Ranks, *, amp: bool) -> nn.Module:
    """Return the model as the strategy trains it. Raises JobError where torch is too old for FSDP2."""
    if strategy == "none":
        return model
    if strategy != "fsdp":
        return DistributedDataParallel(model, device_ids=[here.device] if here.device.type == "cuda" else None)
    try:
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    except ImportError as error:
        raise JobError(f"--strategy fsdp needs torch 2.6, this is {torch.__version__}: write --strategy ddp") from error
    mesh = dist.device_mesh.init_device_mesh(here.device.type, (here.world_size,))
    mixed = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    policy = mixed if amp else MixedPrecisionPolicy()
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model


class Messages:
    """The bytes of what a step sends, in order."""

    def __init__(self, model: nn.Module, *, wanted: bool) -> None:
        self._model, self._sent = model, list[int]()
        if wanted and isinstance(model, DistributedDataParallel):
            # a lambda: DDP looks at annotations, and does not know those that are strings
            model.register_comm_hook(None, lambda _, bucket: self._note(bucket))

    def begin(self) -> None:
        """Forget the step before: DDP makes its buckets anew after the first."""
        self._sent.clear()

    def _note(self, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        self._sent.append(bucket.buffer().nbytes)
        return allreduce_hook(None, bucket)  # type: ignore[arg-type]  # None is the whole world, as its docstring says

    def lines(self) -> list[str]:
        """Return a line for each message: an all-reduce of DDP; what FSDP gathers twice and scatters once."""
        if isinstance(self._model, DistributedDataParallel):
            return [f"bucket {number} bytes={size}" for number, size in enumerate(self._sent)]
        blocks = list(self._model.blocks)  # type: ignore[arg-type]  # NextToken's, which fully_shard made a subclass of
        inside = {id(parameter) for block in blocks for parameter in block.parameters()}
        root = [parameter for parameter in self._model.parameters() if id(parameter) not in inside]
        units = [("root", root), *((f"block {i}", list(block.parameters())) for i, block in enumerate(blocks))]
        return [f"unit {name} bytes={sum(p.numel() * p.element_size() for p in unit)}" for name, unit in units]


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, tokens: Tensor, *, local: bool, amp: bool
) -> tuple[Tensor, Host]:
    """Do one step on tokens (batch, sequence + 1); return its loss, still on the device, and the host's seconds."""
    times = [time.perf_counter()]
    with model.no_sync() if local and isinstance(model, DistributedDataParallel) else nullcontext():
        with torch.autocast(tokens.device.type, torch.bfloat16, enabled=amp):
            loss: Tensor = model(tokens)
        times.append(time.perf_counter())
        # On a GPU its own thread launches, and this one waits for it, not for the GPU.
        loss.backward()  # type: ignore[no-untyped-call]  # torch's
    times.append(time.perf_counter())
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    times.append(time.perf_counter())
    return loss.detach(), Host(*(after - before for before, after in pairwise(times)))


def train(
    model: nn.Module, batches: Tensor, options: argparse.Namespace, here: Ranks, messages: Messages, profiled: int = 0
) -> list[Step]:
    """Train on every batch; print each step; return those that count: after the warm-up, before the last `profiled`."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)
    autocast = options.dtype == "amp" and options.strategy != "fsdp"  # which casts by its own policy
    model.train()
    steps = []
    counted = len(batches) - profiled
    for number, tokens in enumerate(batches[:counted]):
        messages.begin()
        here.finish()
        begin = time.perf_counter()
        loss, host = train_step(model, optimizer, tokens, local=options.strategy == "local", amp=autocast)
        here.finish()
        taken = time.perf_counter() - begin
        if number < options.warmup:
            here.say(f"warm-up {number} took {taken * 1e3:.2f} ms, loss={loss.item():.3f}")
        else:
            steps.append(Step(taken, host))
            here.say(f"step {number} step_time={taken * 1e3:.2f}ms loss={loss.item():.3f}")
    for tokens in batches[counted:]:
        here.finish()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            here.meet()  # a profiler starts sooner on one rank than on the other, which then waits in NCCL's kernels
            train_step(model, optimizer, tokens, local=options.strategy == "local", amp=autocast)
            here.finish()
        here.say(f"profiled gpu_time={busy_seconds(after_meeting(kernels(profile), here)) * 1e3:.2f}ms")
    return steps


def after_meeting(activities: Sequence[Activity], here: Ranks) -> list[tuple[float, float]]:
    """Return when each of the activities began and ended, without the barrier before a step: NCCL's first kernel."""
    met = min((one.end for one in activities if "nccl" in one.name), default=0.0) if here.world_size > 1 else 0.0
    return [(one.begin, one.end) for one in activities if one.begin >= met]


def kernels(profile: torch.profiler.profile) -> list[Activity]:
    """Return the GPU's activities; a label over some is none."""
    events = profile.events() or []  # type: ignore[no-untyped-call]  # torch's
    cuda = torch.autograd.DeviceType.CUDA  # type: ignore[attr-defined]  # torch's own, without a type
    real = (event for event in events if event.device_type == cuda and not event.is_user_annotation)
    return [Activity(event.name, event.time_range.start, event.time_range.end) for event in real]


def busy_seconds(intervals: Sequence[tuple[float, float]]) -> float:
    """Return how long at least one of some intervals in µs lasted, in seconds."""
    busy, end = 0.0, float("-inf")
    for first, last in sorted(intervals):
        busy += max(0.0, last - max(first, end))
        end = max(end, last)
    return busy / 1e6


@torch.no_grad()
def loss_on(model: nn.Module, tokens: Tensor) -> Tensor:
    """Return the loss on tokens that every rank has, without dropout."""
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    inner.eval()
    loss: Tensor = inner(tokens)
    return loss.double()


def same_on_all(model: nn.Module, loss: Tensor, strategy: str, here: Ranks) -> bool:
    """True when the ranks hold the same model: bit by bit, or for FSDP's shards by the loss that they give together."""
    if strategy != "fsdp":
        return ranks.same_model(model, here)
    low, high = here.extremes(loss)
    return bool(high - low <= SAME_LOSS * high)


def judge(before: float, after: float, *, same: bool, strategy: str, here: Ranks) -> None:
    """Raise JobError where the training cannot have been right."""
    if not after < before:  # also NaN
        raise JobError(f"the loss on held-out text did not fall: {before:.3f} before, {after:.3f} after")
    if strategy == "local" and here.world_size > 1 and same:
        raise JobError("the ranks hold the same model although strategy local never exchanges gradients")
    if strategy != "local" and not same:
        raise JobError("the ranks do not hold the same model: gradients were not exchanged as they should")


def run(options: argparse.Namespace, here: Ranks) -> str:
    """Train and return the line that sums it up. Raises JobError."""
    training, held_out = language.parts(language.text())
    check(options, here, held_out)
    torch.manual_seed(options.seed)  # the same weights on every rank
    with here.device:  # weights drawn where they are used: a GPU needs no second for it, a CPU core two
        model = language.model(options.model, tiny=options.tiny).to(here.device, DTYPES[options.dtype])
    parameters = sum(parameter.numel() for parameter in model.parameters())
    common = language.windows(held_out, (options.batch,), options.sequence, options.seed).to(here.device)
    # Before FSDP: its root keeps what it gathers in a forward without gradients, and would train on that.
    before = loss_on(model, common).item()
    trained = distribute(model, options.strategy, here, amp=options.dtype == "amp")
    if options.compile:
        trained.compile()
    messages = Messages(trained, wanted=options.profile_buckets)
    shape = (options.warmup + options.steps + options.profile, options.batch)
    seed = (options.seed + 1) * 100_003 + here.rank  # other text and dropout on each rank
    batches = language.windows(training, shape, options.sequence, seed).to(here.device)
    torch.manual_seed(seed)
    steps = train(trained, batches, options, here, messages, options.profile)
    after = loss_on(trained, common)
    same = same_on_all(trained, after, options.strategy, here)
    judge(before, after.item(), same=same, strategy=options.strategy, here=here)
    if options.profile_buckets:
        here.say("\n".join(messages.lines()))
    return (
        f"summary model={'tiny' if options.tiny else options.model} parameters={parameters} "
        f"strategy={options.strategy} dtype={options.dtype} "
        f"ranks={here.world_size} batch={options.batch} sequence={options.sequence} "
        f"steps={options.steps} {timing(steps, here, tokens=here.world_size * options.batch * options.sequence)} "
        f"held_out_loss={before:.3f}->{after.item():.3f} same_model={'yes' if same else 'no'} "
        f"device={here.name.replace(' ', '_')} torch={torch.__version__}"
    )


def timing(steps: Sequence[Step], here: Ranks, *, tokens: int) -> str:
    """Return the summary's words about time: medians over the steps, in ms, each of which trained so many tokens."""
    own = statistics.median(step.host.total for step in steps)
    _, slowest = here.extremes(torch.tensor(own, dtype=torch.float64, device=here.device))
    middle = statistics.median(step.seconds for step in steps)
    parts = {
        "host_time": [step.host.total for step in steps],
        "host_forward": [step.host.forward for step in steps],
        "host_backward": [step.host.backward for step in steps],
        "host_optimizer": [step.host.optimizer for step in steps],
    }
    host = " ".join(f"{name}={statistics.median(seconds) * 1e3:.2f}ms" for name, seconds in parts.items())
    return (
        f"median_step={middle * 1e3:.2f}ms tokens_per_second={tokens / middle:.0f} {host} "
        f"host_slowest={slowest.item() * 1e3:.2f}ms"
    )


def main(job: str, options: argparse.Namespace, run: Callable[[argparse.Namespace, Ranks], str], tiny: str) -> int:
    """Run a job, print the line that it returns, and return the exit status; `tiny` says what --tiny trains."""
    here = ranks.join()
    if options.tiny:
        here.say(f"tiny: {tiny}")
    try:
        here.say(run(options, here))
    except (JobError, ModuleNotFoundError) as error:
        advice = f" (pip install {error.name}, or --tiny)" if isinstance(error, ModuleNotFoundError) else ""
        print(f"{job}: rank {here.rank}: {error}{advice}", file=sys.stderr, flush=True)
        return 1
    finally:
        ranks.leave()
    return 0


if __name__ == "__main__":
    said = "a two-layer transformer for a dry run; none of these figures is GPT-2's"
    sys.exit(main("gpt2_ddp", arguments(sys.argv[1:]), run, said))
