"""Scripts from command lines."""

from __future__ import annotations

from collections.abc import Sequence

from collbench.api.training import Script
from collbench.cli.calls import context_of
from collbench.cli.train import train_request


def script(words: Sequence[str]) -> Script:
    """Return what `collbench train` with these words starts."""
    return train_request(context_of("train", words).params).script
