#!/usr/bin/env python3
"""Trains a vision transformer for some steps and prints each step's time, like gpt2_ddp.py with another network.

    collbench train --devices 0,1 benchmarks/vit_ddp.py --strategy ddp
    collbench train --devices 0,1 benchmarks/vit_ddp.py --strategy fsdp --batch 32

Trains torchvision's vit_b_16 in bf16 on images of 224 × 224 pixels made from a seed; an image's brightness is its
class. Strategies, the step and its times are gpt2_ddp.py's. Whether the network learns is not checked, because a step's
time does not depend on it. The job fails if the ranks do not end with the same model, or with `local`, if they do.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

import gpt2_ddp
import torch
from gpt2_ddp import JobError
from torch import Tensor, nn
from torch.nn import functional
from training import ranks
from training.ranks import RankProcess

CLASSES, SIDE, PATCH = 10, 224, 16


class Classified(nn.Module):
    """A network and its loss in one, so that a wrapper such as DDP sees one forward; `blocks` are its layers.

    An image's class is its brightness, so there are no labels.
    """

    def __init__(self, network: nn.Module, blocks: nn.ModuleList | nn.Sequential) -> None:
        super().__init__()
        self.network = network
        self._blocks = [blocks]  # in a list, so that torch does not register the parameters twice

    @property
    def blocks(self) -> nn.ModuleList | nn.Sequential:
        """The transformer's layers, in order."""
        return self._blocks[0]

    def forward(self, images: Tensor) -> Tensor:
        """Return the mean loss of uint8 images (batch, 3, side, side); the first byte of each is its class."""
        classes = images[:, 0, 0, 0].long() % CLASSES
        dtype = next(self.network.parameters()).dtype
        logits = self.network(images.to(dtype) / 128 - 1)
        return functional.cross_entropy(logits.float(), classes)


class Tiny(nn.Module):
    """A transformer of two small layers over patches, for dry runs."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, PATCH, PATCH)
        layers = [nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True) for _ in range(2)]
        self.layers = nn.ModuleList(layers)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of the classes."""
        hidden = self.patches(images).flatten(2).transpose(1, 2)
        for layer in self.layers:
            hidden = layer(hidden)
        logits: Tensor = self.head(hidden.mean(1))
        return logits


def network(*, tiny: bool) -> Classified:
    """Return the network; weights from torch's seed. Raises ModuleNotFoundError without torchvision."""
    if tiny:
        small = Tiny()
        return Classified(small, small.layers)
    vision = importlib.import_module("torchvision.models")  # by name: it is no dependency of collbench
    vit = vision.vit_b_16(num_classes=1000, image_size=SIDE)
    return Classified(vit, vit.encoder.layers)


def images(shape: tuple[int, ...], seed: int) -> Tensor:
    """Return uint8 images of shape (*shape, 3, side, side); all bytes of one are its class."""
    classes = torch.randint(CLASSES, shape, generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    return classes[..., None, None, None].expand(*shape, 3, SIDE, SIDE)


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="a vision transformer, some training steps, each one's time")
    parser.add_argument("--model", choices=("vit-b/16",), default="vit-b/16")
    parser.add_argument("--strategy", choices=("ddp", "fsdp", "local"), default="ddp", help="[ddp]")
    parser.add_argument("--dtype", choices=("bf16", "fp32"), default="bf16", help="[bf16]")
    parser.add_argument("--batch", type=int, default=32, metavar="N", help="images per rank and step [32]")
    parser.add_argument("--steps", type=int, default=30, metavar="N", help="steps that are timed [30]")
    parser.add_argument("--warmup", type=int, default=8, metavar="N", help="steps before those [8]")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of weights and images [0]")
    parser.add_argument("--tiny", action="store_true", help="two small layers instead: a dry run")
    return parser.parse_args(argv)


def run(options: argparse.Namespace, process: RankProcess) -> str:
    """Train and return the line that sums it up. Raises JobError."""
    torch.manual_seed(options.seed)  # the same weights on every rank
    with process.device:
        model = network(tiny=options.tiny).to(process.device, gpt2_ddp.DTYPES[options.dtype])
    parameters = sum(parameter.numel() for parameter in model.parameters())
    trained = gpt2_ddp.distribute(model, options.strategy, process, amp=False)  # type: ignore[arg-type]  # it has blocks
    seed = (options.seed + 1) * 100_003 + process.rank  # each rank has its own images and dropout
    batches = images((options.warmup + options.steps, options.batch), seed).to(process.device)
    torch.manual_seed(seed)
    messages = gpt2_ddp.Messages(trained, record=False)
    steps = gpt2_ddp.train(trained, batches, options, process, messages)
    # FSDP's ranks hold different shards of one model.
    same = options.strategy == "fsdp" or ranks.same_model(trained, process)
    if process.world_size > 1 and same != (options.strategy != "local"):
        raise JobError("the ranks hold the same model where nothing was exchanged, or another where it was")
    name = "tiny-vit" if options.tiny else options.model
    return (
        f"summary model={name} parameters={parameters} strategy={options.strategy} dtype={options.dtype} "
        f"ranks={process.world_size} batch={options.batch} steps={options.steps} "
        f"{gpt2_ddp.timing(steps, process, tokens=process.world_size * options.batch)} "
        f"device={process.name.replace(' ', '_')} torch={torch.__version__}"
    )


if __name__ == "__main__":
    tiny_note = "two small layers for a dry run; none of these figures is ViT-B/16's"
    sys.exit(gpt2_ddp.main("vit_ddp", arguments(sys.argv[1:]), run, tiny_note))
