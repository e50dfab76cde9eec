"""Figures that others published, to compare new measurements with."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Image:
    """One row of a scaling table: seconds of training, accuracy in %."""

    gpus: int
    seconds: float
    accuracy: float


# EfficientNet on CIFAR-10, 25 epochs, 8 × A100, as published.
_SECONDS = (707, 393, 276, 208, 172, 142, 122, 109)
_ACCURACY = (78.76, 74.82, 72.70, 70.72, 68.34, 69.44, 69.00, 68.82)
IMAGES = tuple(
    Image(gpus, seconds, accuracy)
    for gpus, (seconds, accuracy) in enumerate(zip(_SECONDS, _ACCURACY, strict=True), start=1)
)
