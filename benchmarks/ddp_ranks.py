"""A small DistributedDataParallel job whose ranks print their device. Start it with collbench train.

collbench train --auto-select 2 benchmarks/ddp_ranks.py
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS, WIDTH, BATCH = 20, 512, 64


def main() -> None:
    """Fit a linear map; every rank prints its device, rank 0 also the loss before and after."""
    rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo")
    device_name = (
        f"GPU-{torch.cuda.get_device_properties(device).uuid}" if on_gpu else f"cores {os.sched_getaffinity(0)}"
    )
    print(f"rank {rank} of {dist.get_world_size()}: device {local_rank} here is {device_name}", flush=True)

    torch.manual_seed(rank)  # each rank has its own data; DDP broadcasts rank 0's weights
    model = DistributedDataParallel(nn.Linear(WIDTH, WIDTH).to(device), device_ids=[local_rank] if on_gpu else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    losses = []
    for _ in range(STEPS):
        x = torch.randn(BATCH, WIDTH, device=device)
        loss = (model(x) - x.flip(1)).square().mean()  # learn to reverse the input
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    if rank == 0:
        print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f} in {STEPS} steps", flush=True)
    if losses[-1] >= losses[0]:
        raise SystemExit("the loss did not fall: gradients were not exchanged as they should")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
