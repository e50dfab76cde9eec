"""Results of earlier calls that are delivered again are found: of every operation, wherever its data is verified."""

from __future__ import annotations

import pytest

from tests.native.fakes import Fakes
from tests.native.test_coverage import EACH, dedented

_UNDEFINED_IN_PLACE = ("alltoall", "alltoallv", "sendrecv")


@pytest.mark.parametrize("slots", [4, 1], ids=["a slot for each message", "one slot for four messages"])
@pytest.mark.parametrize("how", ["", "in_place=True", "plain=[True]", "in_place=True, plain=[True]"])
def test_a_library_that_delivers_earlier_results_fails_the_first_trial(fakes: Fakes, how: str, slots: int) -> None:
    script = f"""
        names = [name for name in OPERATIONS if "in_place" not in {how!r} or name not in {_UNDEFINED_IN_PLACE}]
        def run(name):
            return lambda: collect(session(open_gpus(2, buffer={slots} * 1024)), [[0, 1]], name, batches=2, {how})
        report(healthy=[failure(run(name))["kind"] for name in names],
               found={{name: found("FAKE_STALE", ["first", "previous"], run(name)) for name in names}})
    """
    reported = fakes.script(EACH + dedented(script)).reported

    assert set(reported["healthy"]) == {"none"}
    assert len(reported["found"]) == (7 if "in_place" in how else 10)
    assert set(map(tuple, reported["found"].values())) == {(True, True)}, reported["found"]


@pytest.mark.parametrize(
    ("title", "first", "changes"),
    [
        # One collective connects the ranks.
        ("a graph", 2, ""),
        ("plain launches", 2, "plain=[True]"),
        ("in place", 2, "in_place=True"),
        ("of blocks", 2, "operation='alltoallv'"),
    ],
)
def test_one_message_of_any_batch_of_any_trial_that_is_late_by_a_batch_is_found(
    fakes: Fakes, title: str, first: int, changes: str
) -> None:
    script = f"""
        def run():
            held = session(open_gpus(2, buffer=1 << 14))
            for trial in range(2):
                collect(held, [[0, 1]], batches=2, warmup=1, iterations=3, **dict({changes}))
        report(found=found("FAKE_STALE", [str({first} + place) for place in range(18)], run))
    """
    found = fakes.script(EACH + dedented(script)).reported["found"]
    # Of the first message in a slot there is no earlier result; the first slot's was garbage when the ranks connected.
    assert found == [True, False, False] + [True] * 15, title


@pytest.mark.parametrize("stale", ["first", "previous"])
@pytest.mark.parametrize(
    ("title", "groups", "changes"),
    [
        ("a link", "[[(0, 1)]]", ""),
        ("pulled", "[[(0, 1)]]", "pull=True"),
        ("by kernel", "[[(0, 1)]]", "multiprocessors=True"),
        ("both ways", "[[(0, 1), (1, 0)]]", ""),
        ("to host memory", "[[(0, -1)]]", ""),
        ("from host memory", "[[(-1, 0)]]", ""),
        ("within a GPU", "[[(0, 0)]]", ""),
    ],
)
def test_copies_that_deliver_earlier_bytes_are_found_in_the_second_batch(
    fakes: Fakes, title: str, groups: str, changes: str, stale: str
) -> None:
    # One slot: every batch writes where the one before did.
    script = f"""
        gpus = open_gpus(2, buffer=1024)
        plan = dict(iterations=1, **dict({changes}))
        report(one=failure(times, gpus, {groups}, **plan)["kind"], two=failure(times, gpus, {groups}, **plan)["kind"])
    """
    assert fakes.script(script, stale_copy=stale).reported == {"one": "none", "two": "DataError"}, title


def test_copies_from_all_displacements_arrive(fakes: Fakes) -> None:
    script = """
        gpus = open_gpus(3, buffer=4096)
        for groups in ([[(0, 1)]], [[(1, 0), (2, 0)]], [[(0, -1)]], [[(-1, 0)]]):
            times(gpus, groups, bytes=1000, batches=17)
    """
    fakes.script(script)
