"""The tensors of transformers, family by family, as their modules register them."""

from __future__ import annotations

from collbench.cost.model import Network, Unit

_GPT2_VOCABULARY, _GPT2_POSITIONS = 50257, 1024
_BERT_VOCABULARY, _BERT_POSITIONS, _BERT_TYPES = 30522, 512, 2
_T5_VOCABULARY, _T5_DISTANCES = 32128, 32
_IMAGENET = 1000


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
