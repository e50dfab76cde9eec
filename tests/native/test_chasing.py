"""The pointer chase on simulated GPUs: the ring, its times, its check."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.native.fakes import Fakes

_PRECISION = 1e-6  # the driver gives single-precision milliseconds
_SOURCE = Path(__file__).parents[2] / "csrc" / "pointer_chase.cpp"
_LINES = 16384  # of 128 bytes: 2 MiB, which nvbandwidth's latency tests take [nvbandwidth.cpp]


@pytest.mark.parametrize(
    ("title", "links", "settings", "nanoseconds"),
    [
        ("another GPU's memory", "[(0, 1)]", {"hop": 8e-7}, [800]),
        ("each direction has its own", "[(0, 1)]", {"hop": "8e-7,0>1=9e-7"}, [900]),
        ("the way back", "[(1, 0)]", {"hop": "8e-7,0>1=9e-7"}, [800]),
        ("two links at once", "[(3, 2), (0, 1)]", {"hop": "8e-7,3>2=6e-7"}, [600, 800]),
        ("both ways at once", "[(0, 1), (1, 0)]", {"hop": "8e-7,0>1=9e-7"}, [900, 800]),
        ("host memory", "[(2, -1)]", {"hop": "8e-7,2>-1=12e-7"}, [1200]),
        ("host memory, named first", "[(-1, 2)]", {"hop": "8e-7,2>-1=12e-7"}, [1200]),
    ],
)
def test_a_chase_time_is_that_of_one_access(
    fakes: Fakes, title: str, links: str, settings: dict[str, object], nanoseconds: list[float]
) -> None:
    script = f"report(seconds=chase(open_gpus(), {links}, accesses=1000, batches=3, warmup=1))"
    done = fakes.script(script, **settings)

    assert len(done.lines("chase ")) == 5 * len(nanoseconds), title  # first, each ring is followed once, untimed
    for link, expected in zip(done.reported["seconds"], nanoseconds, strict=True):
        assert link == pytest.approx([expected * 1e-9] * 3, rel=_PRECISION), title


def test_the_ring_visits_every_line_before_it_repeats() -> None:
    multiplier, increment = (
        int(re.findall(rf"{name} = (\d+);", _SOURCE.read_text())[0]) for name in ("kMultiplier", "kIncrement")
    )
    line, visited = 0, set()
    while line not in visited:
        visited.add(line)
        line = (line * multiplier + increment) % _LINES

    assert len(visited) == _LINES


@pytest.mark.parametrize("accesses", [1, 100, _LINES - 1, _LINES, 3 * _LINES + 1])
def test_a_chase_that_misses_one_access_ends_in_the_wrong_place(fakes: Fakes, accesses: int) -> None:
    script = f"report(**failure(chase, open_gpus(), [(2, 3), (0, 1)], accesses={accesses}, batches=2)); gc.collect()"
    # Two readers each make one untimed chase and two batches; the fault is in the second batch of one.
    done = fakes.script(script, lose_hop=6)
    reported = done.reported

    assert reported["kind"] == "DataError"
    assert reported["group"] in {0, 1}  # which stream the fakes run first is their choice
    assert reported["expected"] == reported["offset"] != reported["found"]
    assert reported["expected"] % 128 == reported["found"] % 128 == 0
    assert done.leaks() == []


def test_rings_are_made_once_one_for_each_owner(fakes: Fakes) -> None:
    script = """
        gpus = open_gpus()
        for trial in range(2):
            chase(gpus, [(0, 1), (2, 1), (3, -1)])
    """
    done = fakes.script(script)

    assert [line.split()[1:4] for line in done.lines("launch write_ring")] == [
        ["write_ring", "gpu", "1"],
        ["write_ring", "gpu", "3"],
    ]


def test_without_peer_access_another_gpus_memory_is_not_read(fakes: Fakes) -> None:
    reported = fakes.script("report(**failure(chase, open_gpus(), [(0, 1)]))", no_peer=1).reported

    assert reported["text"] == "a kernel cannot read from a GPU without peer access"


def test_a_chase_that_never_ends_is_given_up_at_the_deadline(fakes: Fakes) -> None:
    script = "report(**failure(chase, open_gpus(2), [(1, 0)], deadline=3.0)); gc.collect()"
    # Each reading of the clock takes a second.
    done = fakes.script(script, {"LD_PRELOAD": str(fakes.folder / "libclock.so")}, hang="chase")

    assert (done.reported["kind"], done.reported["position"]) == ("HangError", 1)
    assert done.reported["text"] == "GPU 1 did not finish its work in 3 s"
    assert done.leaks() == []
