"""The language model that benchmarks/gpt2_ddp.py trains, and its text; nothing is downloaded."""

from __future__ import annotations

import importlib
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

ROOT = Path(__file__).parents[2]
# Differences to transformers' defaults, which are the smallest GPT-2's [openai-community/gpt2-medium, config.json].
# gpt2-wide is not a published size: it has half of GPT-3 XL's layers [Brown et al. 2020, table 2.1].
MODELS: dict[str, dict[str, int]] = {
    "gpt2": {},
    "gpt2-medium": {"n_embd": 1024, "n_layer": 24, "n_head": 16},
    "gpt2-wide": {"n_embd": 2048, "n_layer": 12, "n_head": 16},
}
# Of Llama 3.2 1B [meta-llama/Llama-3.2-1B, config.json].
LLAMA: dict[str, int | bool] = {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 128256,
    "tie_word_embeddings": True,
}
HELD_OUT = 0.1  # share of the text, at its end, that is never trained on


class NextToken(nn.Module):
    """A language model and its loss in one, so that a wrapper such as DDP sees one forward with one result.

    `blocks` are the layers that FSDP gathers one at a time.
    """

    def __init__(self, network: nn.Module, blocks: nn.ModuleList) -> None:
        super().__init__()
        self.network = network
        self._blocks = [blocks]  # in a list, so that torch does not register the parameters twice

    @property
    def blocks(self) -> nn.ModuleList:
        """The transformer's layers, in order."""
        return self._blocks[0]

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the mean loss in nats of each token of (batch, sequence + 1) given those before it."""
        logits = self.network(tokens[:, :-1])
        logits = getattr(logits, "logits", logits)  # transformers wraps them
        return functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())


class Tiny(nn.Module):
    """A transformer of two small layers, for dry runs: no figure of it is of GPT-2."""

    def __init__(self, vocabulary: int = 256, width: int = 64, positions: int = 1024) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(vocabulary, width), nn.Embedding(positions, width)
        layers = [nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True) for _ in range(2)]
        self.layers = nn.ModuleList(layers)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of the next token at every position."""
        length = tokens.shape[1]
        hidden = self.token(tokens) + self.position(torch.arange(length, device=tokens.device))
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=tokens.device, dtype=hidden.dtype)
        for layer in self.layers:
            hidden = layer(hidden, src_mask=mask, is_causal=True)
        logits: Tensor = self.head(hidden)
        return logits


def model(name: str = "gpt2", *, tiny: bool) -> NextToken:
    """Return transformers' GPT-2 in a size of MODELS or "llama", or the tiny model; weights from torch's seed.

    Raises ModuleNotFoundError where transformers is not installed.
    """
    if tiny:
        small = Tiny()
        return NextToken(small, small.layers)
    transformers = importlib.import_module("transformers")  # by name: it is no dependency of collbench
    if name == "llama":
        llama = transformers.LlamaForCausalLM(
            transformers.LlamaConfig(use_cache=False, attn_implementation="sdpa", **LLAMA)
        )
        return NextToken(llama, llama.model.layers)
    gpt2 = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(use_cache=False, attn_implementation="sdpa", **MODELS[name])
    )
    return NextToken(gpt2, gpt2.transformer.h)


def text() -> Tensor:
    """Return the project's own pages as tokens: one for each byte, so that a vocabulary of 256 is enough."""
    pages = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
    return torch.frombuffer(bytearray(b"\n".join(page.read_bytes() for page in pages)), dtype=torch.uint8).long()


def parts(tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Return the tokens to train on, and the held-out end."""
    split = int(len(tokens) * (1 - HELD_OUT))
    return tokens[:split], tokens[split:]


def windows(tokens: Tensor, shape: tuple[int, ...], length: int, seed: int) -> Tensor:
    """Return tokens of shape (*shape, length + 1): pieces of the text that begin at random positions."""
    begins = torch.randint(len(tokens) - length, shape, generator=torch.Generator().manual_seed(seed))
    return tokens[begins[..., None] + torch.arange(length + 1)]
