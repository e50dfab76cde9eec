"""How long to measure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Effort:
    """Visits for every cell, more for those that decide, and seconds for all of it.

    A cell that is unsettled after its visits gets more until the time is up; `screening` visits are always made.
    `block_bytes` is how much one timed block of copies moves at least, and up to `longest_block_bytes` where few cells
    leave time for it, at about `rate` in B/s. `precision` replaces METHOD.md's ±1 % or ±3 %.
    """

    screening: int
    deciding: int
    budget_seconds: float
    block_bytes: int
    longest_block_bytes: int
    rate: float
    precision: float | None = None


# METHOD.md §4: three visits screen, at least five publish a tier; with seven the medians of six pairs on
# 4 × H200 stay within the 2 % of a tie. Blocks: on GPUs 128 MiB takes 0.34 ms at 400 GB/s, long against
# the event clock's 0.5 µs; cores are fifty times slower. Each block has a start and an end that are no copying: of
# 128 MiB they are 1 % (copy engine) to 3 % (kernels), of 1 GiB 0.3 %. nvbandwidth moves 16 messages: with
# as many, 8 GiB at 512 MiB, kernels' reads agree with it within 0.05 %, with four they are 0.2 % slower [2 × H200].
# A simulated machine is measured as a real one would be, by its own clock.
EFFORTS = {
    "cuda": Effort(
        screening=3, deciding=7, budget_seconds=2.3, block_bytes=128 * 2**20, longest_block_bytes=16 * 2**30, rate=3e11
    ),
    "sim": Effort(
        screening=3, deciding=7, budget_seconds=2.3, block_bytes=128 * 2**20, longest_block_bytes=16 * 2**30, rate=3e11
    ),
    "host": Effort(
        screening=3, deciding=7, budget_seconds=8.0, block_bytes=4 * 2**20, longest_block_bytes=4 * 2**20, rate=5e9
    ),
}
