"""A training step before there is a job: the messages that a network of this size sends. Loads no numpy."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from collbench.model.errors import UsageError
from collbench.model.operations import Operation

# What a parameter or a gradient is sent as, with its bytes.
BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}
MOST_LAYERS = 1000
_PARAMETERS = re.compile(r"(\d{1,9}(?:\.\d{0,9})?)([KMBT]?)", re.IGNORECASE | re.ASCII)
_TIMES = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_MOST_PARAMETERS = 10**14
# DDP's buckets: the first is small, so that communication starts early [torch.distributed, bucket_cap_mb=25].
_FIRST_BUCKET, _BUCKET = 2**20, 25 * 2**20


def parse_parameters(text: str) -> int:
    """Return how many parameters "124M", "1.5B" or "25557032" are, in powers of 1000. Raises UsageError."""
    match = _PARAMETERS.fullmatch(text.strip())
    count = 0 if match is None else round(float(match[1]) * _TIMES[match[2].upper()])
    if match is None or ("." in match[1] and not match[2]) or not 1 <= count <= _MOST_PARAMETERS:
        raise UsageError(f"--params '{text}' is not a number of parameters up to 100T: write 124M, 1.5B or 25557032")
    return count


def ddp(parameters: int, _layers: int, width: int) -> Counter[tuple[Operation, int]]:
    """Return an all-reduce for each bucket of gradients."""
    size = parameters * width
    first = min(size, _FIRST_BUCKET)
    full, rest = divmod(size - first, _BUCKET)
    sizes = Counter({first: 1}) + Counter({_BUCKET: full}) + Counter({rest: 1 if rest else 0})
    return Counter({(Operation.ALLREDUCE, bucket): count for bucket, count in sizes.items()})


def sharded(parameters: int, layers: int, width: int) -> Counter[tuple[Operation, int]]:
    """Return for each layer an all-gather before forward and before backward, and a reduce-scatter of gradients."""
    layer = -(-parameters * width // layers)
    return Counter({(Operation.ALLGATHER, layer): 2 * layers, (Operation.REDUCESCATTER, layer): layers})


# FSDP's fully_shard on every block sends what ZeRO-3 does.
STRATEGIES = {"ddp": ddp, "zero3": sharded, "fsdp": sharded}


@dataclass(frozen=True, slots=True)
class Step:
    """The training step that is asked about: a network of equal layers, its strategy, and what it sends numbers as."""

    parameters: int
    layers: int = 24
    strategy: str = "ddp"
    dtype: str = "bf16"

    @property
    def messages(self) -> Counter[tuple[Operation, int]]:
        """How often the step sends each message, by operation and size."""
        return STRATEGIES[self.strategy](self.parameters, self.layers, BYTES[self.dtype])

    @property
    def sent_bytes(self) -> int:
        """The sum of the messages' sizes, as docs/method/measuring.md 1 defines them."""
        return sum(size * count for (_, size), count in self.messages.items())
