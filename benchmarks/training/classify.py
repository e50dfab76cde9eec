#!/usr/bin/env python3
"""Trains an EfficientNet-B0 on images.py's set under torchrun: seconds and held-out accuracy. scaling.py starts it.

The whole set lies on every GPU, so no loader is in the time. Each epoch's order is drawn from the seed, the same for
every number of ranks: step s takes the next `batch × ranks` images, each rank its share. So with the global batch fixed
all numbers of ranks see the same images in the same steps. BatchNorm normalises over a rank's own images, and DDP
hands rank 0's running averages to all, as it does by default (no SyncBatchNorm).
The learning rate rises to the same value for every batch, and falls to nothing, so that a job's last steps do not
decide how well it ends. The job fails where the loss does not fall or the ranks end apart.
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
from training.ranks import Ranks

IMAGES_SEED = 0
RISING = 0.1  # of all steps: AdamW's own averages are short of steps at first
WARM_UP = 10  # steps before the clock starts: cuDNN chooses, DDP makes its buckets; their effect is undone
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

    It is torchvision's but for both ends, which are made for 224 × 224 pixels and 1000 classes. The first layer keeps
    all pixels, as is usual for images of 32 × 32. The last begins at zero: as torchvision draws it, ten classes begin
    at twice the loss of a guess, and after 300 steps nothing is learnt (three quarters, from zero).
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


def order(count: int, options: argparse.Namespace, here: Ranks) -> Iterator[Tensor]:
    """Yield the indices of each step's images of this rank, all epochs long; an epoch's rest is left out."""
    step = options.batch * here.world_size
    generator = torch.Generator().manual_seed(options.seed)
    for _ in range(options.epochs):
        shuffled = torch.randperm(count, generator=generator)[: count - count % step].to(here.device)
        yield from shuffled.view(-1, here.world_size, options.batch)[:, here.rank]


def rate(step: int, *, steps: int) -> float:
    """Return the learning rate of a step (from 0) over its peak."""
    rising = max(1, round(RISING * steps))
    return min((step + 1) / rising, (steps - step) / (steps - rising + 1))


def loss_on(model: nn.Module, shown: Images, chosen: Tensor, *, amp: bool) -> Tensor:
    """Return the mean loss of the chosen images."""
    with torch.autocast(shown.pixels.device.type, torch.bfloat16, enabled=amp):
        scores = model(shown.pixels[chosen])
    return functional.cross_entropy(scores.float(), shown.classes[chosen])


def warm_up(model: nn.Module, shown: Images, options: argparse.Namespace) -> None:
    """Do some forwards and backwards, and undo what they did to BatchNorm."""
    before = {name: value.clone() for name, value in model.state_dict().items()}
    for _ in range(WARM_UP):
        loss_on(model, shown, torch.arange(options.batch, device=shown.pixels.device), amp=options.amp).backward()  # type: ignore[no-untyped-call]  # torch's
    model.zero_grad(set_to_none=True)
    model.load_state_dict(before)


def train(model: nn.Module, shown: Images, options: argparse.Namespace, here: Ranks) -> tuple[float, list[Tensor]]:
    """Train for all epochs; return the seconds, and the loss of each step on the device."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate, fused=True)
    steps = list(order(len(shown.classes), options, here))
    schedule = LambdaLR(optimizer, partial(rate, steps=len(steps)))
    model.train()
    warm_up(model, shown, options)
    torch.manual_seed(options.seed * 1000 + here.rank)  # dropout and dropped layers differ between ranks
    losses = []
    here.meet()
    begin = time.perf_counter()
    for chosen in steps:
        loss = loss_on(model, shown, chosen, amp=options.amp)
        loss.backward()  # type: ignore[no-untyped-call]  # torch's
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.detach())
    here.meet()
    return time.perf_counter() - begin, losses


@torch.no_grad()
def accuracy(model: nn.Module, held_out: Images, here: Ranks) -> float:
    """Return the share of held-out images that get their class, each rank judging its part, in fp32."""
    model.eval()
    mine = torch.arange(here.rank, len(held_out.classes), here.world_size, device=here.device)
    right = torch.zeros((), dtype=torch.int64, device=here.device)
    for chosen in torch.split(mine, _EVALUATED):
        right += (model(held_out.pixels[chosen]).argmax(dim=1) == held_out.classes[chosen]).sum()
    return here.total(right).item() / len(held_out.classes)


def run(options: argparse.Namespace, here: Ranks) -> dict[str, Any]:
    """Train, judge, and return the result as the JSON holds it. Raises JobError."""
    if options.images < options.batch * here.world_size:
        raise JobError(
            f"{options.images} images are no step of {here.world_size} × {options.batch}: write more --images"
        )
    torch.manual_seed(options.seed)
    plain = network(tiny=options.tiny).to(here.device)
    shown = images.make(options.images, seed=IMAGES_SEED).to(here.device)
    held_out = images.make(options.held_out, seed=IMAGES_SEED, held_out=True).to(here.device)
    # One rank has nothing to exchange: without the wrapper its time is the honest 1 of the speed-up.
    device_ids = [here.device] if here.device.type == "cuda" else None
    model = DistributedDataParallel(plain, device_ids=device_ids) if here.world_size > 1 else plain
    seconds, losses = train(model, shown, options, here)
    tenth = max(1, len(losses) // 10)
    first, last = (float(torch.stack(some).mean()) for some in (losses[:tenth], losses[-tenth:]))
    if not last < first:  # also NaN
        raise JobError(f"the loss did not fall: {first:.3f} in the first tenth of the steps, {last:.3f} in the last")
    if not ranks.same_model(plain, here):
        raise JobError("the ranks do not hold the same model: gradients were not exchanged as they should")
    return {
        "gpus": here.world_size,
        "batch_per_gpu": options.batch,
        "global_batch": options.batch * here.world_size,
        "steps": len(losses),
        "seconds": seconds,
        "step_ms": 1e3 * seconds / len(losses),
        "accuracy": accuracy(plain, held_out, here),
        "held_out": options.held_out,
        "losses": [first, last],
        "device": here.name,
        "torch": torch.__version__,
    }


def main(argv: Sequence[str]) -> int:
    """Train; return the exit status."""
    options = arguments(argv)
    here = ranks.join()
    try:
        result = run(options, here)
    except (JobError, ModuleNotFoundError) as error:
        advice = f" (pip install {error.name}, or --tiny)" if isinstance(error, ModuleNotFoundError) else ""
        print(f"classify: rank {here.rank}: {error}{advice}", file=sys.stderr, flush=True)
        return 1
    finally:
        ranks.leave()
    if here.leads and options.json:
        options.json.write_text(json.dumps(result), encoding="utf-8")
    here.say(
        f"{result['gpus']} ranks × {options.batch}: {result['steps']} steps in {result['seconds']:.2f} s, accuracy "
        f"{result['accuracy']:.2%} of {options.held_out}, loss {result['losses'][0]:.3f} -> {result['losses'][1]:.3f}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
