"""The ranks of a training benchmark: this process's rank and device, and what ranks exchange."""

from __future__ import annotations

import gc
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class RankProcess:
    """This process: its rank in the job, and its device. A process without torchrun is rank 0 of 1."""

    rank: int
    world_size: int
    device: torch.device

    @property
    def is_rank_0(self) -> bool:
        """True on the rank that prints."""
        return self.rank == 0

    @property
    def name(self) -> str:
        """The device's name, "NVIDIA H200" or "CPU"."""
        return torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "CPU"

    def print_on_rank_0(self, line: str) -> None:
        """Print a line at once, on rank 0 only."""
        if self.is_rank_0:
            print(line, flush=True)

    def wait_for_device(self) -> None:
        """Wait until this rank's device has done all its work."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def wait_for_all(self) -> None:
        """Wait until every rank's device has done all its work."""
        self.wait_for_device()
        if self.world_size > 1:
            dist.barrier()

    def total(self, tensor: Tensor) -> Tensor:
        """Return the sum over ranks."""
        if self.world_size > 1:
            dist.all_reduce(tensor)
        return tensor

    def extremes(self, tensor: Tensor) -> tuple[Tensor, Tensor]:
        """Return the smallest and the largest over ranks, element by element."""
        low, high = tensor.clone(), tensor.clone()
        if self.world_size > 1:
            dist.all_reduce(low, op=dist.ReduceOp.MIN)
            dist.all_reduce(high, op=dist.ReduceOp.MAX)
        return low, high


def join() -> RankProcess:
    """Join the job that torchrun started, with NCCL on GPUs and gloo on CPU cores; without torchrun be rank 0 of 1."""
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    if not torch.cuda.is_available():
        device = torch.device("cpu")
        if "RANK" in os.environ:
            dist.init_process_group("gloo")
    else:
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
        if "RANK" in os.environ:
            dist.init_process_group("nccl", device_id=device)
    return RankProcess(rank, world_size, device)


def leave() -> None:
    """End the job's communication, if there was any."""
    gc.collect()  # DDP's reducer is in a reference cycle; freed after its process group, it may abort (torch 2.13)
    if dist.is_initialized():
        dist.destroy_process_group()


def checksums(model: nn.Module) -> Tensor:
    """Return the sum of each parameter's bits as integers, shape (parameters,), int64: equal for equal models."""
    as_integers = {2: torch.int16, 4: torch.int32}
    return torch.stack(
        [p.detach().view(as_integers[p.element_size()]).sum(dtype=torch.int64) for p in model.parameters()]
    )


def same_model(model: nn.Module, process: RankProcess) -> bool:
    """True when every rank holds the same parameters, bit by bit."""
    low, high = process.extremes(checksums(model))
    return torch.equal(low, high)
