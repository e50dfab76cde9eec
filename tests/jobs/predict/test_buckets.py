"""DDP's messages: those that PyTorch makes of the same tensors."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.jobs.predict import networks
from collbench.jobs.predict.networks import Network, Unit
from collbench.jobs.predict.step import BUCKET_BYTES, buckets, gradients

MIB = 2**20
unit_sizes = st.lists(st.integers(1, 5 * MIB), min_size=1, max_size=4)


def test_gpt2_in_bf16_makes_the_buckets_that_ddp_made_of_it() -> None:
    """Recorded by a communication hook: torch 2.13, transformers' GPT2LMHeadModel in bf16, from the second step on.

    The last holds the token embedding, 77 MB that are complete only when backward ends: the head is the same tensor.
    """
    found = buckets(networks.find("gpt2"), 2, BUCKET_BYTES)
    recorded = [4723200, 28351488, 28351488, 28351488, 28351488, 28351488, 102398976]
    assert [bucket.size_bytes for bucket in found] == recorded
    assert found[-1].ready == 1.0


@settings(max_examples=15)
@given(st.lists(unit_sizes, min_size=1, max_size=4), st.sampled_from([MIB, 3 * MIB, 25 * MIB]))
def test_buckets_are_torchs(units: list[list[int]], cap: int) -> None:
    import torch
    import torch.distributed

    assign = vars(torch.distributed)["_compute_bucket_assignment_by_size"]  # what DDP itself calls
    network = Network("any", Unit((), 0), tuple(Unit(tuple(unit), 1) for unit in units), Unit((), 1), "")
    backwards = [size for unit in reversed(units) for size in reversed(unit)]
    places, _ = assign([torch.empty(size, dtype=torch.int8) for size in backwards], [MIB, cap])
    expected = [sum(backwards[place] for place in bucket) for bucket in places]
    assert [bucket.size_bytes for bucket in buckets(network, 1, cap)] == expected


@pytest.mark.parametrize("name", networks.NAMES)
def test_every_gradient_is_sent_once_in_the_order_of_backward(name: str) -> None:
    network = networks.find(name)
    found = buckets(network, 4, BUCKET_BYTES)
    assert sum(bucket.size_bytes for bucket in found) == 4 * network.parameters
    ready = [place for _, place in gradients(network)]
    assert ready == sorted(ready)
    assert 0 <= ready[0] <= ready[-1] == pytest.approx(1.0)
    assert all(bucket.size_bytes >= BUCKET_BYTES for bucket in found[1:-1])
