"""A round that cannot be timed is refused with what is wrong with it, and nothing of it is queued."""

from __future__ import annotations

import pytest

from tests.native.fakes import Fakes

# What is wrong, the round, and the refusal, by what would time it.
REFUSED = {
    "copies, open_gpus()": [
        ("30 messages are too deep a queue", "[(0, 1)], iterations=30", "1 to 29 messages"),
        ("no message", "[(0, 1)], iterations=0", "1 to 29 messages"),
        ("a GPU that is not there", "[(0, 4)]", "no GPU at position 4"),
        ("host memory to other host memory", "[(-1, -2)]", "within host memory"),
        ("a NUMA node that no kernel has", "[(-1026, 0)]", "no NUMA node 1024"),
        ("15 messages, and as many again behind them", "[(0, 1)], iterations=15, covered=True", "1 to 14 messages"),
        ("host memory to itself", "[(-1, -1)]", "within host memory"),
        ("two links to one GPU", "[(0, 1), (2, 1)]", "share a GPU"),
        ("one GPU in two roles", "[(0, 1), (1, 2)]", "share a GPU"),
        ("a message larger than the buffers", "[(0, 1)], bytes=70000", "does not fit the buffers"),
        ("an empty message", "[(0, 1)], bytes=0", "does not fit the buffers"),
    ],
    "transfers, open_gpus()": [
        ("no transfer", "[[]]", "a group without transfers"),
        ("a GPU in two groups", "[[(0, 1), (1, 2)], [(2, 3)]]", "groups of a round share a GPU"),
        ("a GPU in two groups, with host memory", "[[(-1, 0)], [(0, 1)]]", "groups of a round share a GPU"),
        ("a message larger than host memory", "[[(-1, 0)]], bytes=70000", "does not fit the buffers"),
    ],
    "chase, open_gpus()": [
        ("no access", "[(0, 1)], accesses=0", "at least one access"),
        ("its own memory", "[(0, 0)]", "a reader and its own memory"),
        ("a GPU that is not there", "[(0, 4)]", "no GPU at position 4"),
        ("a reader that is not there", "[(-3, 0)]", "no GPU at position -3"),
        ("one reader twice", "[(0, 1), (0, -1)]", "links of a round share a reader"),
    ],
    "collective, session(open_gpus())": [
        ("33 collectives are too large a graph", "[[0, 1]], iterations=33", "a batch holds 1 to 32 collectives"),
        ("no collective", "[[0, 1]], iterations=0", "a batch holds 1 to 32 collectives"),
        ("no element", "[[0, 1]], count=0", "a collective of no elements"),
        ("a message larger than the buffers", "[[0, 1]], count=20000", "does not fit the buffers"),
        ("groups that overlap", "[[0, 1], [1, 2]]", "groups of a round share rank 1: time them in turn"),
        ("a rank that is not there", "[[0, 4]]", "a group names rank 4 of a world of 4"),
        ("no rank", "[[]]", "a group of no ranks"),
        (
            "blocks that are not equal",
            "[[0, 1, 2]], 'allgather', count=256",
            "a message of 256 elements does not split into 3 equal blocks",
        ),
    ],
}


@pytest.mark.parametrize("call", REFUSED)
def test_a_round_that_cannot_be_timed_is_refused(fakes: Fakes, call: str) -> None:
    texts = [f"failure({call}, {plan})['text']" for _, plan, _ in REFUSED[call]]
    done = fakes.script(f"report(texts=[{', '.join(texts)}])")

    for (title, _, refusal), text in zip(REFUSED[call], done.reported["texts"], strict=True):
        assert refusal in text, title
    assert not [line for line in done.log if line.startswith(("copy ", "chase ", "collective "))]
