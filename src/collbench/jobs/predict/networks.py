"""Networks as communication needs them: tensors in the order of forward, in FSDP's units (docs/predict.md)."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import pairwise

from collbench.jobs.predict.assumptions import EqualBlocks, HeadShare, OfNetwork
from collbench.model.errors import UsageError


@dataclass(frozen=True, slots=True)
class Unit:
    """A part that is computed, and by FSDP gathered, as one.

    `tensors` are the numbers of parameters of each tensor, in the order of registration. `work` is the multiply-adds of
    its forward for a token or an image, without attention's scores; only its share of the whole counts.
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
        multiple of eight gets slow kernels: of GPT-2's 50257 tokens 41% instead of 31 [H200, bf16, torch 2.11].
        """
        others = sum(unit.work for unit in self.units) - self.last.work
        last = replace(self.last, work=others * share / (1 - share))
        return replace(self, last=last, assumed=(*self.assumed, HeadShare(share)))

    @property
    def root_parameters(self) -> int:
        """How many parameters FSDP's root unit holds: all that lies in no block."""
        return self.first.parameters + self.last.parameters


# The tensors of transformers, family by family, as their modules register them.

_GPT2_VOCABULARY, _GPT2_POSITIONS = 50257, 1024
_BERT_VOCABULARY, _BERT_POSITIONS, _BERT_TYPES = 30522, 512, 2


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


# Well-known networks by name, and networks whose size is all that is known.

_PARAMETERS = re.compile(r"(\d{1,9}(?:\.\d{0,9})?)([KMBT]?)", re.IGNORECASE | re.ASCII)
_TIMES = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_MOST_PARAMETERS = 10**14
_USUAL_LAYERS = 24
PARAMS = "--params"  # the source of a network whose size is all that is known
# A transformer's block is twelve squares: 3 for queries, keys and values, 1 behind them, 4 and 4 for the feed-forward.
_SQUARES = (3, 1, 4, 4)

# The numbers are those of the named configurations; tests/jobs/predict compares the totals.
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
}
NAMES = tuple(_MODELS)


def find(name: str) -> Network:
    """Return the network of this name. Raises UsageError, with the names that look alike."""
    plain = name.strip().lower().replace("_", "-")
    for known in NAMES:
        if plain == known:
            return _MODELS[known](known)
    alike = get_close_matches(plain, NAMES, n=3, cutoff=0.5)
    meant = f"did you mean {' or '.join(alike)}?" if alike else f"known are {', '.join(NAMES)};"
    raise UsageError(f"--model '{name}' is unknown: {meant} For any other, give its size: --params 124M --layers 12")


def of_size(parameters: int, layers: int | None) -> Network:
    """Return a network of this many parameters in equal blocks, 24 by default."""
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
    if "." in match[1] and not match[2]:
        raise UsageError(f"--params {text} is not a whole number of parameters: write {text}B, or 25557032")
    if not 1 <= count <= _MOST_PARAMETERS:
        raise UsageError(f"--params {text} is not between 1 and 100T: write 124M, 1.5B or 25557032")
    return count
