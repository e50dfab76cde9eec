"""Jobs in plain torch for recording.py and extra_time.py, a process per GPU: recorded_job.py JOB FOLDER [traces].

JOB is ddp, fsdp2, tp (tensor parallel), moe, graph, calls or killed; ddp, fsdp2 and tp also with a network after a
hyphen, such as ddp-gpt2-medium or tp-large.

Each rank writes what it sent into FOLDER, as JSON: `calls` (a list of [operation, bytes]), from torch's Flight Recorder
or listed by the script itself, and `step_ms`, the median time of a step. `killed` writes a line before each call, and
ends by SIGKILL. With `traces` three more steps run under torch's profiler; its trace and the Flight Recorder's dump,
which `collbench import` reads, are written to FOLDER.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

_STEPS, _WARMUP = 40, 10
_WIDTH, _LAYERS = 2048, 8
_CALLS_PER_STEP = 1000
_BATCH = 16  # sequences per rank
_BYTES = {"Byte": 1, "Char": 1, "Bool": 1, "Half": 2, "BFloat16": 2, "Int": 4, "Float": 4, "Long": 8, "Double": 8}


def _sizes(shapes: Any, dtypes: Any) -> list[int]:
    """Return tensors' bytes; a negative number, which equals no real size, for an unknown dtype."""
    sizes = []
    for shape, dtype in zip(shapes, dtypes, strict=False):
        elements = 1
        for length in shape:
            elements *= length
        sizes.append(elements * _BYTES.get(dtype, -1))
    return sizes


def calls_of(entry: dict[str, Any], ranks: int) -> list[list[Any]]:
    """Return the NCCL calls of one entry of a Flight Recorder dump, with sizes as in nccl-tests.

    An unknown entry keeps its own name, so that it equals no recorded call.
    """
    name = entry["profiling_name"].split(":", 1)[-1].split(" ")[0]
    input_bytes = _sizes(entry["input_sizes"], entry["input_dtypes"])
    output_bytes = _sizes(entry["output_sizes"], entry["output_dtypes"])
    if name in {"coalesced", "ALLGATHER_coalesced", "REDUCE_SCATTER_coalesced"}:
        return []  # the group's entry; each of its members has one, too
    if name in {"send", "recv"}:
        return [[name, size] for size in input_bytes]
    if name == "scatter":  # NCCL gets messages; a rank sends itself none
        return (
            [["send", size] for size in output_bytes[1:]]
            if len(output_bytes) > 1
            else [["recv", size] for size in input_bytes]
        )
    for prefix, operation, sizes in (
        ("all_reduce", "allreduce", input_bytes),
        ("allreduce", "allreduce", input_bytes),
        ("broadcast", "broadcast", input_bytes),
        ("_broadcast", "broadcast", input_bytes),
        ("all_gather", "allgather", [size * ranks for size in input_bytes]),
        ("_all_gather", "allgather", [size * ranks for size in input_bytes]),
        ("reduce_scatter", "reducescatter", [size * ranks for size in output_bytes]),
        ("_reduce_scatter", "reducescatter", [size * ranks for size in output_bytes]),
        ("all_to_all", "alltoall", input_bytes),
    ):
        if name.startswith(prefix):
            return [[operation, size] for size in sizes]
    return [[f"flight recorder's {name}", sum(input_bytes)]]


def _flight_recorder(ranks: int) -> list[list[Any]]:
    recorder: Any = torch._C._distributed_c10d  # the dump is only in builds with NCCL
    dump = recorder._dump_nccl_trace(True, False, False)  # collectives, no stacks, in any state
    entries = pickle.loads(dump)["entries"]  # noqa: S301  # made by this process
    return [call for entry in entries for call in calls_of(entry, ranks)]


def _traced(step: Callable[[], object]) -> None:
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(3):
            step()
        torch.cuda.synchronize()
    name = f"{sys.argv[1]}-{dist.get_rank()}"
    profile.export_chrome_trace(str(Path(sys.argv[2]) / f"{name}.kineto.json.gz"))
    recorder: Any = torch._C._distributed_c10d
    (Path(sys.argv[2]) / f"{name}.fr").write_bytes(recorder._dump_nccl_trace(True, False, False))


def _timed(step: Callable[[], object]) -> float:
    for _ in range(_WARMUP):
        step()
    torch.cuda.synchronize()
    # Events instead of waiting at each step, so that the host runs ahead of its GPU, as in training.
    event: Any = torch.cuda.Event  # torch gives it no types
    ends = [event(enable_timing=True) for _ in range(_STEPS + 1)]
    for number, end in enumerate(ends):
        if number:
            step()
        end.record()
    torch.cuda.synchronize()
    times: list[float] = [before.elapsed_time(after) for before, after in pairwise(ends)]
    if "traces" in sys.argv[3:]:
        _traced(step)
    return statistics.median(times)


# Networks: the layers that FSDP gathers, and the loss of one training step.


@dataclass(frozen=True)
class Network:
    """A network to train: FSDP gathers its `layers` one at a time; `loss` computes the loss of a fixed batch."""

    module: nn.Module
    layers: Sequence[nn.Module]
    loss: Callable[[nn.Module], torch.Tensor]


def _linears() -> Network:
    layers = nn.Sequential(*[nn.Linear(_WIDTH, _WIDTH) for _ in range(_LAYERS)]).cuda()
    data = torch.randn(256, _WIDTH, device="cuda")
    return Network(layers, list(layers), lambda model: model(data).square().mean())


def _language(name: str) -> Network:
    from training import language

    with torch.device("cuda"):
        model = language.model(name, tiny=False).to(torch.bfloat16)
    length = 1024 if name == "llama" else 512
    tokens = language.windows(language.text(), (_BATCH,), length, dist.get_rank()).cuda()
    return Network(model, list(model.blocks), lambda trained: trained(tokens))


_NETWORKS: dict[str, Callable[[], Network]] = {
    "": _linears,
    **{name: partial(_language, name) for name in ("gpt2", "gpt2-medium", "gpt2-wide", "llama")},
}


def _network(name: str) -> Network:
    torch.manual_seed(1)
    return _NETWORKS[name]()


def _trainer(model: nn.Module, network: Network) -> Callable[[], None]:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def step() -> None:
        network.loss(model).backward()  # type: ignore[no-untyped-call]  # torch's
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def ddp(rank: int, ranks: int, name: str = "") -> tuple[list[list[Any]], float]:
    network = _network(name)
    model = nn.parallel.DistributedDataParallel(network.module, device_ids=[rank], bucket_cap_mb=25 if name else 40)
    step_ms = _timed(_trainer(model, network))
    return _flight_recorder(ranks), step_ms


def fsdp2(_rank: int, ranks: int, name: str = "") -> tuple[list[list[Any]], float]:
    from torch.distributed.fsdp import fully_shard

    network = _network(name)
    for layer in network.layers:
        fully_shard(layer)
    fully_shard(network.module)
    step_ms = _timed(_trainer(network.module, network))
    return _flight_recorder(ranks), step_ms


# Tensor-parallel jobs: width, blocks, tokens.
_BLOCKS = {"": (1024, 4, 2048), "small": (2048, 8, 4096), "large": (4096, 8, 8192)}


def tp(_rank: int, ranks: int, name: str = "") -> tuple[list[list[Any]], float]:
    """Tensor-parallel layers with sequence-parallel ones between: all-gathers and reduce-scatters of activations."""
    from torch.distributed.tensor import Shard, parallel

    mesh = dist.device_mesh.init_device_mesh("cuda", (ranks,))
    width, block_count, tokens = _BLOCKS[name]
    blocks = [
        nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width))
        for _ in range(block_count)
    ]
    dtype = torch.bfloat16 if name else torch.float32
    model = nn.Sequential(*blocks).to("cuda", dtype)
    for block in blocks:
        plan = {
            "0": parallel.SequenceParallel(sequence_dim=0),
            "1": parallel.ColwiseParallel(input_layouts=Shard(0)),
            "2": parallel.RowwiseParallel(output_layouts=Shard(0)),
        }
        parallel.parallelize_module(block, mesh, plan)
    data = torch.randn(tokens // ranks, width, device="cuda", dtype=dtype)

    def step() -> None:
        model(data).square().mean().backward()
        model.zero_grad(set_to_none=True)

    step_ms = _timed(step)
    return _flight_recorder(ranks), step_ms


def moe(_rank: int, ranks: int) -> tuple[list[list[Any]], float]:
    """All-to-all of a mixture of experts: the counts, tokens to the experts, tokens back."""
    tokens = torch.randn(4096, 1024, device="cuda", dtype=torch.bfloat16)
    counts = torch.zeros(ranks, device="cuda", dtype=torch.int64)
    received, returned, received_counts = torch.empty_like(tokens), torch.empty_like(tokens), torch.empty_like(counts)
    sent: list[list[Any]] = []

    def step() -> None:
        for output, source in ((received_counts, counts), (received, tokens), (returned, received)):
            dist.all_to_all_single(output, source)
            sent.append(["alltoall", source.numel() * source.element_size()])

    step_ms = _timed(step)
    return sent, step_ms


def graph(_rank: int, _ranks: int) -> tuple[list[list[Any]], float]:
    """Replay a CUDA graph of two all-reduces; a profiler plugin sees them once, during the capture."""
    small, large = torch.ones(1 << 10, device="cuda"), torch.ones(1 << 20, device="cuda")
    sent: list[list[Any]] = []

    def all_reduce_both() -> None:
        for data in (small, large):
            dist.all_reduce(data)
            sent.append(["allreduce", data.numel() * 4])

    stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        all_reduce_both()
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        all_reduce_both()
    step_ms = _timed(captured.replay)
    return sent, step_ms


def many_calls(_rank: int, _ranks: int) -> tuple[list[list[Any]], float]:
    """Small all-reduces one after another, as fast as the host launches them; a step is a thousand."""
    data = torch.ones(2, device="cuda")
    sent: list[list[Any]] = []

    def step() -> None:
        for _ in range(_CALLS_PER_STEP):
            dist.all_reduce(data)
        sent.extend([["allreduce", 8]] * _CALLS_PER_STEP)

    step_ms = _timed(step)
    return sent, step_ms


def killed(rank: int, _ranks: int, folder: Path) -> None:
    """Send 501 all-reduces, writing a line before each, then kill this process."""
    sizes = [1 << 8, 1 << 12, 1 << 8, 1 << 16]
    data = torch.ones(1 << 16, device="cuda")
    with (folder / f"killed-{rank}.txt").open("w", buffering=1, encoding="utf-8") as log:
        for number in range(501):
            size = sizes[number % len(sizes)]
            log.write(f"allreduce {size * 4}\n")
            dist.all_reduce(data[:size])
    torch.cuda.synchronize()
    os.kill(os.getpid(), signal.SIGKILL)


_TRAINED = {"ddp": ddp, "fsdp2": fsdp2, "tp": tp}


def main() -> None:
    job, folder = sys.argv[1], Path(sys.argv[2])
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    if job == "killed":
        killed(rank, ranks, folder)
    kind, _, name = job.partition("-")
    if kind in _TRAINED:
        calls, step_ms = _TRAINED[kind](rank, ranks, name)
    else:
        calls, step_ms = {"moe": moe, "graph": graph, "calls": many_calls}[job](rank, ranks)
    torch.cuda.synchronize()
    text = json.dumps({"calls": calls, "step_ms": step_ms})
    (folder / f"{job}-{rank}.json").write_text(text, encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
