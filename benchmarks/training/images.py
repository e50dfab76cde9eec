"""A set of CIFAR-shaped images that a network can learn, but not easily: made from a seed, so nothing is downloaded.

A class is a few smooth textures. An image is one of them, shifted and sometimes mirrored, plus a texture of another
class with a random, mostly smaller weight, plus noise. A network has to learn which textures belong to one class,
wherever they are in the image. Its accuracy depends on the number of optimizer steps, as on CIFAR-10.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

CLASSES = 10  # as CIFAR-10
SIDE = 32  # pixels, likewise
TEXTURES = 4  # of each class
GRAIN = 8  # a texture is this many random points a side, smoothed to SIDE
SHIFT = 4  # pixels that a texture may be shifted in either direction, wrapping around the edge
OVERLAY = (0.1, 1.1)  # weight of the other class's texture; the right one has 1, so above 1 no network can be right
NOISE = 0.3  # standard deviation; that of a texture is 1
HELD_OUT_SEED = 1_000_003  # differs from the training images' seeds; the textures are the same
_CHUNK = 4096  # images made at once: 50 MB of float32


@dataclass(frozen=True, slots=True)
class Images:
    """Images, float32 of shape (n, 3, 32, 32) with mean about 0 and deviation 1, and their classes, int64."""

    pixels: Tensor
    classes: Tensor

    def to(self, device: torch.device) -> Images:
        """Return the same set on a device."""
        return Images(self.pixels.to(device), self.classes.to(device))


def make(count: int, *, seed: int, held_out: bool = False) -> Images:
    """Return `count` images. The same seed gives the same images on every machine and rank, made on the CPU."""
    textures = _textures(torch.Generator().manual_seed(seed))
    generator = torch.Generator().manual_seed(seed + (HELD_OUT_SEED if held_out else 1))
    classes = torch.randint(CLASSES, (count,), generator=generator)
    parts = [_draw(textures, chunk, generator) for chunk in torch.split(classes, _CHUNK)]
    return Images(torch.cat(parts), classes)


def _textures(generator: torch.Generator) -> Tensor:
    """Return textures of shape (CLASSES, TEXTURES, 3, SIDE, SIDE), each of mean 0 and deviation 1."""
    grain = torch.randn(CLASSES * TEXTURES, 3, GRAIN, GRAIN, generator=generator)
    smooth = functional.interpolate(grain, size=(SIDE, SIDE), mode="bicubic")
    smooth = smooth - smooth.mean(dim=(1, 2, 3), keepdim=True)
    smooth = smooth / smooth.std(dim=(1, 2, 3), keepdim=True)
    return smooth.reshape(CLASSES, TEXTURES, 3, SIDE, SIDE)


def _draw(textures: Tensor, classes: Tensor, generator: torch.Generator) -> Tensor:
    count = len(classes)
    other_classes = (classes + torch.randint(1, CLASSES, (count,), generator=generator)) % CLASSES
    low, high = OVERLAY
    overlay = low + (high - low) * torch.rand(count, 1, 1, 1, generator=generator)
    image = _placed(textures, classes, generator) + overlay * _placed(textures, other_classes, generator)
    image += NOISE * torch.randn(image.shape, generator=generator)
    return image / image.std()


def _placed(textures: Tensor, classes: Tensor, generator: torch.Generator) -> Tensor:
    """Return a random texture of each of these classes, shifted (wrapping around) and perhaps mirrored."""
    count = len(classes)
    chosen = textures[classes, torch.randint(TEXTURES, (count,), generator=generator)]
    pixels = torch.arange(SIDE)
    down, right = torch.randint(-SHIFT, SHIFT + 1, (2, count, 1), generator=generator)
    rows, columns = (pixels + down) % SIDE, (pixels + right) % SIDE
    mirrored = torch.rand(count, 1, generator=generator) < 0.5
    columns = torch.where(mirrored, columns.flip(1), columns)
    image_index = torch.arange(count)[:, None, None]
    # indices around a slice put the colors last: (count, SIDE, SIDE, 3)
    return chosen[image_index, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
