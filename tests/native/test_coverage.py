"""A fault in any message of any batch is found, or its bytes count as unverified; and that count is exact."""

from __future__ import annotations

import pytest

from tests.native.fakes import Fakes

# Plants one fault at each of `places`, in a process each, and returns which were found.
EACH = """
def found(setting, places, run):
    names = []
    for place in places:
        child = os.fork()
        if child == 0:
            os.environ[setting] = place
            os._exit(3 if failure(run)["kind"] == "DataError" else 0)
        names.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3)
    return names
"""


@pytest.mark.parametrize(
    ("title", "slots", "changes"),
    [
        ("a slot for every message", 4, ""),
        ("two slots for four messages", 2, ""),
        ("three slots for four", 3, ""),
        ("one slot", 1, ""),
        ("two slots, by kernel", 2, "multiprocessors=True"),
        ("two slots, pulled", 2, "pull=True"),
    ],
)
def test_a_fault_in_any_copy_is_found_or_counted(fakes: Fakes, title: str, slots: int, changes: str) -> None:
    script = f"""
        plan = dict(iterations=4, batches=2, warmup=1, **dict({changes}))
        def run():
            return times(open_gpus(2, buffer={slots} * 1024), [[(0, 1)]], **plan)
        # The first copy wakes the link; of a batch's six the first two the engine.
        places = [f"{{1 + 6 * batch + 3 + message}}:9" for batch in range(3) for message in range(4)]
        faults = found("FAKE_CORRUPT_COPY", places, run)
        report(found=faults, coverage=coverage(run()))
    """
    reported = fakes.script(EACH + dedented(script)).reported
    batches = [reported["found"][at : at + 4] for at in (0, 4, 8)]

    assert batches == [[message >= 4 - slots for message in range(4)]] * 3, title
    assert reported["coverage"] == [[1024 * sum(reported["found"]), 1024 * len(reported["found"])]], title


@pytest.mark.parametrize(
    ("groups", "bytes_of"),
    [
        ("[[(0, 1), (1, 0)]]", [2]),
        ("[[(0, 1), (0, 2)]]", [2]),
        ("[[(1, 0), (2, 0), (3, 0)]]", [3]),
        ("[[(0, 1)], [(3, 2), (2, 3)]]", [1, 2]),
        ("[[(-1, 0), (0, -1)]]", [2]),
    ],
)
def test_every_transfer_of_a_group_counts(fakes: Fakes, groups: str, bytes_of: list[int]) -> None:
    # Twelve messages of 1000 bytes in a stride of 1024: all to one has room for four of each sender.
    script = (
        f"report(found=coverage(times(open_gpus(buffer=12 << 10), {groups}, bytes=1000, iterations=12, batches=3)))"
    )
    coverage = fakes.script(script).reported["found"]
    slots = 4 if groups.count(", 0)") == 3 else 12

    assert coverage == [[count * 3 * slots * 1000, count * 3 * 12 * 1000] for count in bytes_of]


@pytest.mark.parametrize(
    ("title", "slots", "operation", "sent"),
    [
        ("a slot for every collective", 4, "allreduce", 2048),
        ("two slots for four collectives", 2, "allreduce", 2048),
        ("one slot", 1, "broadcast", 2048),
        ("only at the root", 2, "reduce", 1024),
        ("in groups of sends", 3, "sendrecv", 2048),
        ("in halves", 2, "reducescatter", 1024),
    ],
)
def test_a_fault_in_any_collective_is_found_or_counted(
    fakes: Fakes, title: str, slots: int, operation: str, sent: int
) -> None:
    script = f"""
        def run():
            held = session(open_gpus(2, buffer={slots} * 1024))
            return collect(held, [[0, 1]], {operation!r}, batches=2, warmup=1)
        # The first collective connects the ranks.
        places = range({12 if slots == 4 else 13})
        faults = found("FAKE_CORRUPT_COLLECTIVE", [f"{{2 + place}}:9:0" for place in places], run)
        report(found=faults, coverage=coverage(run()))
    """
    reported = fakes.script(EACH + dedented(script)).reported
    messages = reported["found"]
    # Where messages share a slot, one is compared before the batches.
    before, batches = messages[:-12], [messages[at:][:4] for at in range(len(messages) - 12, len(messages), 4)]

    assert before == ([] if slots == 4 else [True]), title
    assert batches == [[message >= 4 - slots for message in range(4)]] * 3, title
    assert reported["coverage"] == [[sent * sum(messages), sent * len(messages)]], title


@pytest.mark.parametrize(
    ("title", "slots", "changes", "verified"),
    [
        # Four collectives in each of two batches; where they share slots, one is compared before.
        ("in place", 4, "in_place=True", [8 * 2048, 8 * 2048]),
        ("in place, on the results of others", 3, "in_place=True", [2048, 9 * 2048]),
        ("in place, where what should arrive is undefined", 4, "operation='alltoall', in_place=True", [0, 8 * 2048]),
        ("unverified", 4, "verify=False", [0, 8 * 2048]),
        ("with a launch loop", 4, "launch_iterations=5", [8 * 2048, 8 * 2048]),
    ],
)
def test_bytes_that_are_not_compared_do_not_count(
    fakes: Fakes, title: str, slots: int, changes: str, verified: list[int]
) -> None:
    held = f"session(open_gpus(2, buffer={slots} * 1024))"
    script = f"report(found=coverage(collect({held}, [[0, 1]], batches=2, **dict({changes}))))"

    assert fakes.script(script).reported["found"] == [verified], title


def dedented(script: str) -> str:
    return script.replace("\n        ", "\n")
