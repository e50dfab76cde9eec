"""Networks as communication sees them: tensors in forward's order, in the units FSDP gathers (docs/predict.md)."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import pairwise

from collbench.analysis.predict.assumptions import EqualBlocks, HeadShare, OfNetwork
from collbench.model.errors import UsageError


@dataclass(frozen=True, slots=True)
class Unit:
    """A part that is computed, and by FSDP gathered, as one.

    `tensors` are parameters of each tensor, in the order that the module registers them; `work` is the multiply-adds of
    its forward for a token or an image, attention's scores left out: only its share of the whole counts.
    """

    tensors: tuple[int, ...]
    work: float

    @property
    def parameters(self) -> int:
        """How many parameters it has."""
        return sum(self.tensors)


@dataclass(frozen=True, slots=True)
class Network:
    """A network as data: `first` (embeddings, stem), `blocks`, `last` (final norm, head), and the `source` of that.

    First and last are FSDP's root unit. A head that is tied to the embeddings counts once, in `first`, though `last`
    holds its work: its gradient is complete only at the end of backward. `assumed` is what is guessed.
    """

    name: str
    first: Unit
    blocks: tuple[Unit, ...]
    last: Unit
    source: str
    assumed: tuple[OfNetwork, ...] = ()

    @property
    def units(self) -> tuple[Unit, ...]:
        """All units in the order of forward."""
        return (self.first, *self.blocks, self.last)

    @property
    def parameters(self) -> int:
        """How many parameters it has."""
        return sum(unit.parameters for unit in self.units)

    def with_head(self, share: float) -> Network:
        """Return the network whose `last` unit takes this share of the GPU's time, below 1, instead of its work's.

        A loss over a large vocabulary moves more bytes than its multiply-adds tell, and a matrix whose side is not a
        multiple of eight gets slow kernels: of GPT-2's 50257 tokens 41 % instead of 31 [H200, bf16, torch 2.11].
        """
        others = sum(unit.work for unit in self.units) - self.last.work
        last = replace(self.last, work=others * share / (1 - share))
        return replace(self, last=last, assumed=(*self.assumed, HeadShare(share)))

    @property
    def root_parameters(self) -> int:
        """How many parameters FSDP's root unit holds: all that lies in no block."""
        return self.first.parameters + self.last.parameters


# The tensors of convolutional networks, as torchvision's modules register them, for 1000 classes.

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


# The tensors of transformers, family by family, as their modules register them.

_GPT2_VOCABULARY, _GPT2_POSITIONS = 50257, 1024
_BERT_VOCABULARY, _BERT_POSITIONS, _BERT_TYPES = 30522, 512, 2
_T5_VOCABULARY, _T5_DISTANCES = 32128, 32


def gpt2(name: str, width: int, blocks: int, source: str) -> Network:
    """Return a GPT-2; its head is the token embedding."""
    d = width
    norm, attention = (d, d), (3 * d * d, 3 * d, d * d, d)
    feed_forward = (4 * d * d, 4 * d, 4 * d * d, d)
    block = Unit((*norm, *attention, *norm, *feed_forward), 12 * d * d)
    first = Unit((_GPT2_VOCABULARY * d, _GPT2_POSITIONS * d), 0)
    return Network(name, first, (block,) * blocks, Unit(norm, _GPT2_VOCABULARY * d), source)


def bert(name: str, width: int, blocks: int, source: str) -> Network:
    """Return a BERT encoder with its pooler, without a task's head."""
    d = width
    square, norm = (d * d, d), (d, d)
    feed_forward = (4 * d * d, 4 * d, 4 * d * d, d)
    block = Unit((*square * 4, *norm, *feed_forward, *norm), 12 * d * d)
    first = Unit((_BERT_VOCABULARY * d, _BERT_POSITIONS * d, _BERT_TYPES * d, *norm), 0)
    return Network(name, first, (block,) * blocks, Unit(square, 0), source)


def llama(  # noqa: PLR0913  # the six numbers of its config
    name: str, width: int, blocks: int, inner: int, keys: int, vocabulary: int, source: str, *, tied: bool = False
) -> Network:
    """Return a Llama or Mistral: `inner` is the width of its gated feed-forward, `keys` that of keys and of values."""
    d = width
    matrices = (d * d, d * keys, d * keys, d * d, d * inner, d * inner, inner * d)
    block = Unit((*matrices, d, d), sum(matrices))
    head = vocabulary * d
    last = Unit((d,) if tied else (d, head), head)
    return Network(name, Unit((head,), 0), (block,) * blocks, last, source)


def vit(name: str, width: int, blocks: int, source: str, *, patch: int = 16, image: int = 224) -> Network:
    """Return a vision transformer for square images and 1000 classes."""
    d, tokens = width, (image // patch) ** 2
    norm, pixels = (d, d), 3 * patch * patch
    feed_forward = (4 * d * d, 4 * d, 4 * d * d, d)
    block = Unit((*norm, 3 * d * d, 3 * d, d * d, d, *norm, *feed_forward), (tokens + 1) * 12 * d * d)
    first = Unit((d, pixels * d, d, (tokens + 1) * d), tokens * pixels * d)
    last = Unit((*norm, d * _IMAGENET, _IMAGENET), d * _IMAGENET)
    return Network(name, first, (block,) * blocks, last, source)


def t5(name: str, width: int, blocks: int, inner: int, heads: int, head: int, source: str) -> Network:
    """Return a T5 of version 1.0: as many encoder as decoder blocks, `heads` of width `head`, one embedding for all.

    Encoder and decoder have a table of relative distances each, in their first block; here it is counted to `first`.
    """
    d = width
    attention = 4 * (d * heads * head,)
    feed_forward = (d * inner, inner * d)
    encoder = Unit((*attention, d, *feed_forward, d), sum(attention) + sum(feed_forward))
    decoder = Unit((*attention, d, *attention, d, *feed_forward, d), 2 * sum(attention) + sum(feed_forward))
    embedding, distances = _T5_VOCABULARY * d, _T5_DISTANCES * heads
    first = Unit((embedding, distances, distances), 0)
    return Network(name, first, (encoder,) * blocks + (decoder,) * blocks, Unit((d, d), embedding), source)


# Well-known networks by name, and networks of which only the size is known.

_PARAMETERS = re.compile(r"(\d{1,9}(?:\.\d{0,9})?)([KMBT]?)", re.IGNORECASE | re.ASCII)
_TIMES = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_MOST_PARAMETERS = 10**14
_USUAL_LAYERS = 24
PARAMS = "--params"  # the source of a network of which only the size is known
# A transformer's block is twelve squares: 3 for queries, keys and values, 1 behind them, 4 and 4 for the feed-forward.
_SQUARES = (3, 1, 4, 4)

# Built when asked for: the numbers are those of the configuration named, the totals those that tests/analysis compares.
_MODELS: dict[str, Callable[[str], Network]] = {
    "gpt2": lambda name: gpt2(name, 768, 12, "config of openai-community/gpt2"),
    "gpt2-medium": lambda name: gpt2(name, 1024, 24, "config of openai-community/gpt2-medium"),
    "gpt2-large": lambda name: gpt2(name, 1280, 36, "config of openai-community/gpt2-large"),
    "gpt2-xl": lambda name: gpt2(name, 1600, 48, "config of openai-community/gpt2-xl"),
    "bert-base": lambda name: bert(name, 768, 12, "config of google-bert/bert-base-uncased"),
    "bert-large": lambda name: bert(name, 1024, 24, "config of google-bert/bert-large-uncased"),
    "llama-2-7b": lambda name: llama(name, 4096, 32, 11008, 4096, 32000, "config of meta-llama/Llama-2-7b-hf"),
    "llama-2-13b": lambda name: llama(name, 5120, 40, 13824, 5120, 32000, "config of meta-llama/Llama-2-13b-hf"),
    "llama-3-8b": lambda name: llama(name, 4096, 32, 14336, 1024, 128256, "config of meta-llama/Meta-Llama-3-8B"),
    "llama-3-70b": lambda name: llama(name, 8192, 80, 28672, 1024, 128256, "config of meta-llama/Meta-Llama-3-70B"),
    "llama-3.2-1b": lambda name: llama(
        name, 2048, 16, 8192, 512, 128256, "config of meta-llama/Llama-3.2-1B", tied=True
    ),
    "mistral-7b": lambda name: llama(name, 4096, 32, 14336, 1024, 32000, "config of mistralai/Mistral-7B-v0.1"),
    "t5-base": lambda name: t5(name, 768, 12, 3072, 12, 64, "config of google-t5/t5-base"),
    "t5-3b": lambda name: t5(name, 1024, 24, 16384, 32, 128, "config of google-t5/t5-3b"),
    "vit-b/16": lambda name: vit(name, 768, 12, "torchvision's vit_b_16"),
    "vit-l/16": lambda name: vit(name, 1024, 24, "torchvision's vit_l_16"),
    "resnet50": lambda name: resnet50(name, "torchvision's resnet50"),
    "efficientnet-b0": lambda name: efficientnet(name, 1.0, 1.0, 224, "torchvision's efficientnet_b0"),
    "efficientnet-b7": lambda name: efficientnet(name, 2.0, 3.1, 600, "torchvision's efficientnet_b7"),
}
NAMES = tuple(_MODELS)


def find(name: str) -> Network:
    """Return the network of this name. Raises UsageError, with the names that look alike."""
    plain = name.strip().lower().replace("_", "-")
    for known in NAMES:
        if plain in (known, known.replace("/", "-")):
            return _MODELS[known](known)
    alike = get_close_matches(plain, NAMES, n=3, cutoff=0.5)
    meant = f"did you mean {' or '.join(alike)}?" if alike else f"known are {', '.join(NAMES)};"
    raise UsageError(f"--model '{name}' is unknown: {meant} Any other by its size: --params 124M --layers 12")


def of_size(parameters: int, layers: int | None) -> Network:
    """Return a network of so many parameters in so many equal blocks, 24 where nobody says."""
    count = layers or min(_USUAL_LAYERS, parameters)
    shares = [parameters * number // count for number in range(count + 1)]
    blocks = tuple(_block(after - before) for before, after in pairwise(shares))
    return Network(
        name=f"{parameters:,} parameters",
        first=Unit((), 0),
        blocks=blocks,
        last=Unit((), 0),
        source=PARAMS,
        assumed=(EqualBlocks(count, guessed=layers is None),),
    )


def _block(parameters: int) -> Unit:
    square = parameters // sum(_SQUARES)
    first, *rest = (square * share for share in _SQUARES)
    return Unit((first + parameters - square * sum(_SQUARES), *rest), parameters)


def parse_parameters(text: str) -> int:
    """Return how many parameters "124M", "1.5B" or "25557032" are, in powers of 1000. Raises UsageError."""
    match = _PARAMETERS.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"--params '{text}' is not a number of parameters: write 124M, 1.5B or 25557032")
    count = round(float(match[1]) * _TIMES[match[2].upper()])
    if not 1 <= count <= _MOST_PARAMETERS:
        raise UsageError(f"--params {text} is not between 1 and 100T: write 124M, 1.5B or 25557032")
    return count
