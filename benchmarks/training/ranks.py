"""The ranks of a training benchmark: who this process is, its device, and what ranks say to each other."""

from __future__ import annotations

import gc
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among the ranks of its job; one process alone is rank 0 of 1."""

    rank: int
    world_size: int
    device: torch.device

    @property
    def leads(self) -> bool:
        """True on the rank that prints."""
        return self.rank == 0

    @property
    def name(self) -> str:
        """What the device is called, "NVIDIA H200" or "CPU"."""
        return torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "CPU"

    def say(self, line: str) -> None:
        """Print a line, at once and on rank 0 alone."""
        if self.leads:
            print(line, flush=True)

    def finish(self) -> None:
        """Wait until this rank's device has done all its work."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def meet(self) -> None:
        """Wait until every rank's device has done all its work."""
        self.finish()
        if self.world_size > 1:
            dist.barrier()

    def total(self, tensor: Tensor) -> Tensor:
        """Return the sum over ranks."""
        if self.world_size > 1:
            dist.all_reduce(tensor)
        return tensor

    def extremes(self, tensor: Tensor) -> tuple[Tensor, Tensor]:
        """Return the least and the largest over ranks, element by element."""
        low, high = tensor.clone(), tensor.clone()
        if self.world_size > 1:
            dist.all_reduce(low, op=dist.ReduceOp.MIN)
            dist.all_reduce(high, op=dist.ReduceOp.MAX)
        return low, high


def join() -> Ranks:
    """Join the job that torchrun started, by NCCL on GPUs and by gloo on CPU cores; without torchrun be rank 0 of 1."""
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if not torch.cuda.is_available():
        device = torch.device("cpu")
        if "RANK" in os.environ:
            dist.init_process_group("gloo")
    else:
        device = torch.device("cuda", local)
        torch.cuda.set_device(device)
        if "RANK" in os.environ:
            dist.init_process_group("nccl", device_id=device)
    return Ranks(rank, world_size, device)


def leave() -> None:
    """End the job's communication, if there was any."""
    gc.collect()  # DDP's reducer holds itself alive by a cycle; ended after its process group it may abort (torch 2.13)
    if dist.is_initialized():
        dist.destroy_process_group()


def checksums(model: nn.Module) -> Tensor:
    """Return a sum over the bits of each parameter, shape (parameters,), int64: equal where every bit is."""
    as_integers = {2: torch.int16, 4: torch.int32}
    return torch.stack(
        [p.detach().view(as_integers[p.element_size()]).sum(dtype=torch.int64) for p in model.parameters()]
    )


def same_model(model: nn.Module, here: Ranks) -> bool:
    """True when every rank holds the same parameters, bit by bit."""
    low, high = here.extremes(checksums(model))
    return torch.equal(low, high)
