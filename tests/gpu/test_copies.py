"""Every kind of copy between real GPUs arrives byte for byte; the native layer raises DataError where one does not."""

from __future__ import annotations

import itertools

import pytest

from collbench import _native
from tests.gpu.machine import need_gpus, open_gpus

ORDINALS = need_gpus(2)
_MIB = 2**20
_SIZES = (1, 3, 7, 255, 4097, 65537, _MIB + 13)
_LINKS = tuple(itertools.permutations(range(len(ORDINALS)), 2))


@pytest.fixture(scope="module")
def gpus() -> _native.Gpus:
    return open_gpus(ORDINALS, 16 * _MIB)


@pytest.mark.parametrize("pull", [False, True], ids=["write", "read"])
@pytest.mark.parametrize("multiprocessors", [False, True], ids=["copy-engine", "multiprocessors"])
@pytest.mark.parametrize("shift", [0, 1, 3, 8, 16])
def test_odd_sizes_at_odd_places(gpus: _native.Gpus, shift: int, multiprocessors: bool, pull: bool) -> None:
    for source, target in _LINKS:
        if multiprocessors and not gpus.peer_access()[target if pull else source][source if pull else target]:
            continue  # a kernel cannot reach the other GPU's memory
        for size in _SIZES:
            (seconds,) = gpus.time_copies(
                links=[(source, target)],
                multiprocessors=multiprocessors,
                pull=pull,
                bytes=size,
                shift=shift,
                iterations=5,
                blocks=2,
                warmup=1,
            )
            assert len(seconds) == 2
            assert min(seconds) > 0


@pytest.mark.parametrize("multiprocessors", [False, True], ids=["copy-engine", "multiprocessors"])
def test_disjoint_links_at_once(gpus: _native.Gpus, multiprocessors: bool) -> None:
    links: list[tuple[int, ...]] = [(i, i + 1) for i in range(0, len(ORDINALS) - 1, 2)]
    if multiprocessors and not all(gpus.peer_access()[i][j] for i, j in links):
        pytest.skip("needs peer access between GPUs 0-1, 2-3, …")
    seconds = gpus.time_copies(
        links=links,
        multiprocessors=multiprocessors,
        pull=False,
        bytes=_MIB + 13,
        shift=0,
        iterations=31,
        blocks=3,
        warmup=1,
    )
    assert [len(blocks) for blocks in seconds] == [3] * len(links)
    assert min(itertools.chain.from_iterable(seconds)) > 0


def test_a_message_as_large_as_the_buffer(gpus: _native.Gpus) -> None:
    (seconds,) = gpus.time_copies(
        links=[(0, 1)],
        multiprocessors=False,
        pull=False,
        bytes=16 * _MIB,
        shift=255,
        iterations=3,
        blocks=1,
        warmup=0,
    )
    assert seconds[0] > 0
