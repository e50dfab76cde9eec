"""Figures that others published, and earlier ones, to compare new measurements with."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Language:
    """A GPT-2 job: its times with P2P and without, as its source gives them, and the ratio without / with."""

    job: str
    gpus: str
    fast: str
    slow: str
    ratio: float


@dataclass(frozen=True, slots=True)
class Image:
    """One row of a scaling table: seconds of training, accuracy in %."""

    gpus: int
    seconds: float
    accuracy: float


# The first is Hugging Face's (their page on training with several GPUs), a whole
# fine-tuning.
LANGUAGE = (
    Language("published: fine-tuning on wikitext, DDP, the whole run", "2 × TITAN RTX, NV2", "101 s", "131 s", 1.30),
    Language("before: DDP, bf16, random tokens", "2 × NVIDIA H200", "22.4 ms", "32.1 ms", 1.43),
    Language("before: DDP, fp32, random tokens", "2 × NVIDIA H200", "51.3 ms", "58.6 ms", 1.14),
)
# EfficientNet on CIFAR-10, 25 epochs, 8 × A100, as published.
_SECONDS = (707, 393, 276, 208, 172, 142, 122, 109)
_ACCURACY = (78.76, 74.82, 72.70, 70.72, 68.34, 69.44, 69.00, 68.82)
IMAGES = tuple(
    Image(gpus, seconds, accuracy)
    for gpus, (seconds, accuracy) in enumerate(zip(_SECONDS, _ACCURACY, strict=True), start=1)
)
