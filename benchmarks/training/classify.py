#!/usr/bin/env python3
"""Trains an EfficientNet-B0 on images.py's set under torchrun: seconds and held-out accuracy. scaling.py starts it.

Every GPU holds the whole set, so the time includes no data loader. The seed determines each epoch's order, the same for
every number of ranks: step s takes the next `batch × ranks` images, and each rank takes its share. So with a fixed
global batch, any number of ranks sees the same images in the same steps. BatchNorm normalizes over a rank's own images,
and DDP broadcasts rank 0's running averages, its default (no SyncBatchNorm).
The learning rate rises to the same value for every batch and then falls to zero, so that the last steps do not decide
the accuracy. The job fails where the loss does not fall or the ranks end with different models.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LambdaLR

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))  # torchrun puts this file's own folder there
from training import images, ranks
from training.images import Images
from training.ranks import RankProcess

IMAGES_SEED = 0
RISING = 0.1  # share of the steps in which the rate rises: AdamW's averages need some steps
WARM_UP = 10  # untimed steps in which cuDNN chooses kernels and DDP makes its buckets; their effect is undone
_EVALUATED = 1024  # images at once


class JobError(Exception):
    """Why the job counts as failed, in one line."""


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="EfficientNet-B0 on learnable synthetic images")
    parser.add_argument("--images", type=int, default=19_200, metavar="N", help="to train on [19200]")
    parser.add_argument("--held-out", type=int, default=9_600, metavar="N", help="for the accuracy [9600]")
    parser.add_argument("--epochs", type=int, default=4, metavar="N", help="[4]")
    parser.add_argument("--batch", type=int, default=96, metavar="N", help="images per GPU and step [96]")
    parser.add_argument("--learning-rate", type=float, default=1e-3, metavar="R", help="AdamW's, at its peak [0.001]")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of weights and order, not of images [0]")
    parser.add_argument("--amp", action="store_true", help="bf16 in the convolutions, by autocast")
    parser.add_argument("--tiny", action="store_true", help="three convolutions instead of EfficientNet: a dry run")
    parser.add_argument("--json", type=Path, metavar="FILE", help="rank 0 writes the result here")
    return parser.parse_args(argv)


def network(*, tiny: bool) -> nn.Module:
    """Return an EfficientNet-B0 with random weights, or a small network. Raises ModuleNotFoundError.

    It is torchvision's, made for 224 × 224 pixels and 1000 classes, except for its first and last layers. The first has
    stride 1, as is usual for images of 32 × 32. The last begins at zero: with torchvision's random weights the loss of
    ten classes begins at twice that of a guess, and 300 steps learn nothing (from zero: an accuracy of 75%).
    """
    if not tiny:
        net: Any = importlib.import_module("torchvision.models").efficientnet_b0(num_classes=images.CLASSES)
        net.features[0][0].stride = (1, 1)
        nn.init.zeros_(net.classifier[-1].weight)
        return net  # type: ignore[no-any-return]  # torchvision has no types
    layers: list[nn.Module] = []
    for inside, outside in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(inside, outside, 3, stride=2, padding=1), nn.BatchNorm2d(outside), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, images.CLASSES))


def order(count: int, options: argparse.Namespace, process: RankProcess) -> Iterator[Tensor]:
    """Yield the indices of this rank's images for each step of all epochs; an epoch's remainder is left out."""
    step_images = options.batch * process.world_size
    generator = torch.Generator().manual_seed(options.seed)
    for _ in range(options.epochs):
        shuffled = torch.randperm(count, generator=generator)[: count - count % step_images].to(process.device)
        yield from shuffled.view(-1, process.world_size, options.batch)[:, process.rank]


def rate(step: int, *, steps: int) -> float:
    """Return the learning rate of a step (counted from 0) as a share of its peak."""
    rising = max(1, round(RISING * steps))
    return min((step + 1) / rising, (steps - step) / (steps - rising + 1))


def loss_on(model: nn.Module, training_images: Images, chosen: Tensor, *, amp: bool) -> Tensor:
    """Return the mean loss of the chosen images."""
    with torch.autocast(training_images.pixels.device.type, torch.bfloat16, enabled=amp):
        scores = model(training_images.pixels[chosen])
    return functional.cross_entropy(scores.float(), training_images.classes[chosen])


def warm_up(model: nn.Module, training_images: Images, options: argparse.Namespace) -> None:
    """Run some forward and backward passes, and restore BatchNorm's averages."""
    saved_state = {name: value.clone() for name, value in model.state_dict().items()}
    for _ in range(WARM_UP):
        loss_on(
            model, training_images, torch.arange(options.batch, device=training_images.pixels.device), amp=options.amp
        ).backward()  # type: ignore[no-untyped-call]  # torch's
    model.zero_grad(set_to_none=True)
    model.load_state_dict(saved_state)


def train(
    model: nn.Module, training_images: Images, options: argparse.Namespace, process: RankProcess
) -> tuple[float, list[Tensor]]:
    """Train for all epochs; return the seconds, and the loss of each step, still on the device."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate, fused=True)
    steps = list(order(len(training_images.classes), options, process))
    schedule = LambdaLR(optimizer, partial(rate, steps=len(steps)))
    model.train()
    warm_up(model, training_images, options)
    torch.manual_seed(options.seed * 1000 + process.rank)  # dropout and dropped layers differ between ranks
    losses = []
    process.wait_for_all()
    begin = time.perf_counter()
    for chosen in steps:
        loss = loss_on(model, training_images, chosen, amp=options.amp)
        loss.backward()  # type: ignore[no-untyped-call]  # torch's
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.detach())
    process.wait_for_all()
    return time.perf_counter() - begin, losses


@torch.no_grad()
def accuracy(model: nn.Module, held_out: Images, process: RankProcess) -> float:
    """Return the share of held-out images classified correctly, in fp32; each rank classifies its part."""
    model.eval()
    indices = torch.arange(process.rank, len(held_out.classes), process.world_size, device=process.device)
    correct = torch.zeros((), dtype=torch.int64, device=process.device)
    for chosen in torch.split(indices, _EVALUATED):
        correct += (model(held_out.pixels[chosen]).argmax(dim=1) == held_out.classes[chosen]).sum()
    return process.total(correct).item() / len(held_out.classes)


def run(options: argparse.Namespace, process: RankProcess) -> dict[str, Any]:
    """Train, evaluate, and return the result as written to JSON. Raises JobError."""
    if options.images < options.batch * process.world_size:
        raise JobError(
            f"{options.images} images are no step of {process.world_size} × {options.batch}: write more --images"
        )
    torch.manual_seed(options.seed)
    net = network(tiny=options.tiny).to(process.device)
    training_images = images.make(options.images, seed=IMAGES_SEED).to(process.device)
    held_out = images.make(options.held_out, seed=IMAGES_SEED, held_out=True).to(process.device)
    # One rank has nothing to exchange: its time without the wrapper is what speed-ups are relative to.
    device_ids = [process.device] if process.device.type == "cuda" else None
    model = DistributedDataParallel(net, device_ids=device_ids) if process.world_size > 1 else net
    seconds, losses = train(model, training_images, options, process)
    tenth = max(1, len(losses) // 10)
    first, last = (float(torch.stack(losses_of_part).mean()) for losses_of_part in (losses[:tenth], losses[-tenth:]))
    if not last < first:  # also NaN
        raise JobError(f"the loss did not fall: {first:.3f} in the first tenth of the steps, {last:.3f} in the last")
    if not ranks.same_model(net, process):
        raise JobError("the ranks do not hold the same model: gradients were not exchanged as they should")
    return {
        "gpus": process.world_size,
        "batch_per_gpu": options.batch,
        "global_batch": options.batch * process.world_size,
        "steps": len(losses),
        "seconds": seconds,
        "step_ms": 1e3 * seconds / len(losses),
        "accuracy": accuracy(net, held_out, process),
        "held_out": options.held_out,
        "losses": [first, last],
        "device": process.name,
        "torch": torch.__version__,
    }


def main(argv: Sequence[str]) -> int:
    """Train; return the exit status."""
    options = arguments(argv)
    process = ranks.join()
    try:
        result = run(options, process)
    except (JobError, ModuleNotFoundError) as error:
        advice = f" (pip install {error.name}, or --tiny)" if isinstance(error, ModuleNotFoundError) else ""
        print(f"classify: rank {process.rank}: {error}{advice}", file=sys.stderr, flush=True)
        return 1
    finally:
        ranks.leave()
    if process.is_rank_0 and options.json:
        options.json.write_text(json.dumps(result), encoding="utf-8")
    process.print_on_rank_0(
        f"{result['gpus']} ranks × {options.batch}: {result['steps']} steps in {result['seconds']:.2f} s, accuracy "
        f"{result['accuracy']:.2%} of {options.held_out}, loss {result['losses'][0]:.3f} -> {result['losses'][1]:.3f}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
