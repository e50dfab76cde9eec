"""The tensors of convolutional networks, as torchvision's modules register them, for 1000 classes."""

from __future__ import annotations

import math
from collections.abc import Iterator

from collbench.cost.model import Network, Unit

_IMAGENET = 1000
# A stage of an EfficientNet-B0: expansion, kernel, stride, channels in and out, blocks [Tan & Le 2019, table 1].
_STAGES = (
    (1, 3, 1, 32, 16, 1),
    (6, 3, 2, 16, 24, 2),
    (6, 5, 2, 24, 40, 2),
    (6, 3, 2, 40, 80, 3),
    (6, 5, 1, 80, 112, 3),
    (6, 5, 2, 112, 192, 4),
    (6, 3, 1, 192, 320, 1),
)
_HEAD_WIDENS = 4  # the last convolution makes four times the last stage's channels


class _Part:
    """Tensors and multiply-adds while a unit is put together. Images are square, `side` pixels."""

    def __init__(self) -> None:
        self.tensors: list[int] = []
        self.work = 0.0

    def convolution(self, weights: int, channels: int, side: int) -> None:
        """Add a convolution without a bias whose output is `side` wide, and its batch norm."""
        self.tensors += [weights, channels, channels]
        self.work += weights * side * side

    def linear(self, inputs: int, outputs: int) -> None:
        """Add a layer with a bias, used once an image."""
        self.tensors += [inputs * outputs, outputs]
        self.work += inputs * outputs

    def unit(self) -> Unit:
        """Return what was put together."""
        return Unit(tuple(self.tensors), self.work)


def resnet50(name: str, source: str) -> Network:
    """Return a ResNet-50 for images of 224 pixels; its blocks are the bottlenecks."""
    first, last = _Part(), _Part()
    first.convolution(3 * 64 * 49, 64, 112)
    last.linear(2048, _IMAGENET)
    return Network(name, first.unit(), tuple(_bottlenecks()), last.unit(), source)


def _bottlenecks() -> Iterator[Unit]:
    inputs, side = 64, 56
    for width, count in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for number in range(count):
            part, outputs, before = _Part(), 4 * width, side
            side = side // 2 if number == 0 and width > 64 else side
            part.convolution(inputs * width, width, before)
            part.convolution(width * width * 9, width, side)
            part.convolution(width * outputs, outputs, side)
            if number == 0:
                part.convolution(inputs * outputs, outputs, side)
            inputs = outputs
            yield part.unit()


def efficientnet(name: str, wider: float, deeper: float, image: int, source: str) -> Network:
    """Return an EfficientNet with B0's widths and depths multiplied, for images of `image` pixels."""
    first, last = _Part(), _Part()
    stem, outputs = _channels(32, wider), _channels(320, wider)
    side = -(-image // 2)
    first.convolution(3 * stem * 9, stem, side)
    blocks, side = _inverted(wider, deeper, side)
    last.convolution(outputs * _HEAD_WIDENS * outputs, _HEAD_WIDENS * outputs, side)
    last.linear(_HEAD_WIDENS * outputs, _IMAGENET)
    return Network(name, first.unit(), blocks, last.unit(), source)


def _inverted(wider: float, deeper: float, side: int) -> tuple[tuple[Unit, ...], int]:
    """Return the inverted bottlenecks and how wide the image is behind them."""
    blocks = []
    for expansion, kernel, stride, inputs, outputs, count in _STAGES:
        for number in range(math.ceil(count * deeper)):
            into = _channels(outputs if number else inputs, wider)
            after = -(-side // stride) if number == 0 else side
            blocks.append(_inverted_block(expansion, kernel, into, _channels(outputs, wider), (side, after)))
            side = after
    return tuple(blocks), side


def _inverted_block(expansion: int, kernel: int, inputs: int, outputs: int, sides: tuple[int, int]) -> Unit:
    part, inside = _Part(), _divisible(inputs * expansion)
    squeezed = max(1, inputs // 4)
    if inside != inputs:
        part.convolution(inputs * inside, inside, sides[0])
    part.convolution(inside * kernel * kernel, inside, sides[1])
    part.linear(inside, squeezed)
    part.linear(squeezed, inside)
    part.convolution(inside * outputs, outputs, sides[1])
    return part.unit()


def _channels(channels: int, wider: float) -> int:
    return _divisible(channels * wider)


def _divisible(channels: float) -> int:
    """Return the nearest multiple of eight, never more than a tenth below [torchvision's _make_divisible]."""
    nearest = max(8, int(channels + 4) // 8 * 8)
    return nearest + 8 if nearest < 0.9 * channels else nearest
