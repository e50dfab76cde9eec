"""Well-known networks by name, and networks of which only the size is known."""

from __future__ import annotations

import re
from collections.abc import Callable
from difflib import get_close_matches
from itertools import pairwise

from collbench.cost import convolutions, transformers
from collbench.cost.model import Network, Unit
from collbench.errors import UsageError

_PARAMETERS = re.compile(r"(\d{1,9}(?:\.\d{0,9})?)([KMBT]?)", re.IGNORECASE | re.ASCII)
_TIMES = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_MOST_PARAMETERS = 10**14
_USUAL_LAYERS = 24
PARAMS = "--params"  # the source of a network of which only the size is known
# A transformer's block is twelve squares: 3 for queries, keys and values, 1 behind them, 4 and 4 for the feed-forward.
_SQUARES = (3, 1, 4, 4)

# Built when asked for: the numbers are those of the configuration named, the totals those that tests/cost compares.
_MODELS: dict[str, Callable[[str], Network]] = {
    "gpt2": lambda name: transformers.gpt2(name, 768, 12, "config of openai-community/gpt2"),
    "gpt2-medium": lambda name: transformers.gpt2(name, 1024, 24, "config of openai-community/gpt2-medium"),
    "gpt2-large": lambda name: transformers.gpt2(name, 1280, 36, "config of openai-community/gpt2-large"),
    "gpt2-xl": lambda name: transformers.gpt2(name, 1600, 48, "config of openai-community/gpt2-xl"),
    "bert-base": lambda name: transformers.bert(name, 768, 12, "config of google-bert/bert-base-uncased"),
    "bert-large": lambda name: transformers.bert(name, 1024, 24, "config of google-bert/bert-large-uncased"),
    "llama-2-7b": lambda name: transformers.llama(
        name, 4096, 32, 11008, 4096, 32000, "config of meta-llama/Llama-2-7b-hf"
    ),
    "llama-2-13b": lambda name: transformers.llama(
        name, 5120, 40, 13824, 5120, 32000, "config of meta-llama/Llama-2-13b-hf"
    ),
    "llama-3-8b": lambda name: transformers.llama(
        name, 4096, 32, 14336, 1024, 128256, "config of meta-llama/Meta-Llama-3-8B"
    ),
    "llama-3-70b": lambda name: transformers.llama(
        name, 8192, 80, 28672, 1024, 128256, "config of meta-llama/Meta-Llama-3-70B"
    ),
    "llama-3.2-1b": lambda name: transformers.llama(
        name, 2048, 16, 8192, 512, 128256, "config of meta-llama/Llama-3.2-1B", tied=True
    ),
    "mistral-7b": lambda name: transformers.llama(
        name, 4096, 32, 14336, 1024, 32000, "config of mistralai/Mistral-7B-v0.1"
    ),
    "t5-base": lambda name: transformers.t5(name, 768, 12, 3072, 12, 64, "config of google-t5/t5-base"),
    "t5-3b": lambda name: transformers.t5(name, 1024, 24, 16384, 32, 128, "config of google-t5/t5-3b"),
    "vit-b/16": lambda name: transformers.vit(name, 768, 12, "torchvision's vit_b_16"),
    "vit-l/16": lambda name: transformers.vit(name, 1024, 24, "torchvision's vit_l_16"),
    "resnet50": lambda name: convolutions.resnet50(name, "torchvision's resnet50"),
    "efficientnet-b0": lambda name: convolutions.efficientnet(name, 1.0, 1.0, 224, "torchvision's efficientnet_b0"),
    "efficientnet-b7": lambda name: convolutions.efficientnet(name, 2.0, 3.1, 600, "torchvision's efficientnet_b7"),
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
    assumed = [] if layers else [f"{count} layers, as --layers says nothing"]
    assumed.append(f"all parameters lie in {count} equal blocks of a transformer's shape, none in embeddings")
    shares = [parameters * number // count for number in range(count + 1)]
    blocks = tuple(_block(after - before) for before, after in pairwise(shares))
    return Network(
        name=f"{parameters:,} parameters",
        first=Unit((), 0),
        blocks=blocks,
        last=Unit((), 0),
        source=PARAMS,
        assumed=tuple(assumed),
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
