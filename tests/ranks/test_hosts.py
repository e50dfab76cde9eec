"""What the introductions of all ranks say together: hosts, GPUs, paths, addresses."""

import itertools
from collections import Counter
from dataclasses import replace

import pytest

from collbench.measurement.backends.cuda import spans_hosts
from collbench.measurement.backends.protocol import BackendFacts, Step, Timing, slowest
from collbench.model.errors import UsageError
from collbench.model.operations import Operation, Work
from collbench.model.run import Machine, Path
from collbench.ranks import factory
from collbench.ranks.messages import Introduction
from tests.builders import gpus


def rank(number: int, host: str = "a", **changes: object) -> Introduction:
    """Return a rank on the GPU of its number; `host` is its host's name and key."""
    default = Introduction(
        host, f"key {host}", f"net {host}", "cuda", "1.0", gpus(8)[number], Machine(host, "Linux", "CPU")
    )
    return replace(default, **changes)  # type: ignore[arg-type]


FOUR = (rank(0), rank(1), rank(2, "b"), rank(3, "b"))


@pytest.mark.parametrize(
    ("title", "ranks", "names", "tags"),
    [
        ("one host", (rank(0), rank(1)), ("a", "a"), ("GPU0", "GPU1")),
        ("two hosts", FOUR, ("a", "a", "b", "b"), ("a:GPU0", "a:GPU1", "b:GPU2", "b:GPU3")),
        ("two hosts of one name", (rank(0), rank(1, host_key="another")), ("a", "a#2"), ("a:GPU0", "a#2:GPU1")),
        (
            "two containers that NCCL_HOSTID makes one host",
            (rank(0), rank(1, "b", host_key="key a"), rank(2, "c")),
            ("a", "a", "c"),
            ("a:GPU0", "a:GPU1", "c:GPU2"),
        ),
        (
            "three hosts of one name, whose ranks come in turn",
            (rank(0), rank(1, host_key="x"), rank(2, host_key="y"), rank(3), rank(4, host_key="x")),
            ("a", "a#2", "a#3", "a", "a#2"),
            ("a:GPU0", "a#2:GPU1", "a#3:GPU2", "a:GPU3", "a#2:GPU4"),
        ),
    ],
)
def test_hosts_are_named_where_there_are_several(
    title: str, ranks: tuple[Introduction, ...], names: tuple[str, ...], tags: tuple[str, ...]
) -> None:
    assert factory.host_names(ranks) == names
    assert tuple(device.tag for device in factory.devices_of(ranks)) == tags


@pytest.mark.parametrize(
    ("title", "ranks", "message"),
    [
        ("the same GPU", (rank(0), rank(1), replace(rank(2), device=gpus(1)[0])), "ranks 0 and 2 on a all have"),
        (
            "cores and GPUs",
            (rank(0), rank(1, "b", backend="host")),
            "rank 1 on b has the host backend and rank 0 on a the",
        ),
        ("two versions", (rank(0), rank(1, version="2.0")), "rank 1 on a runs collbench 2.0"),
        (
            "one NCCL_HOSTID on two machines",
            (rank(0, "b", boot="x"), rank(1, boot="x"), rank(2, boot="y", network_key="net b")),
            "ranks 1 and 2 have the same NCCL_HOSTID on two machines",
        ),
    ],
)
def test_ranks_that_cannot_measure_together_are_refused(
    title: str, ranks: tuple[Introduction, ...], message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        factory.check_ranks(ranks)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("title", "boots"), [("one kernel", ("x", "x")), ("unknown of one", ("x", "")), ("unknown of all", ("", ""))]
)
def test_ranks_of_one_host_on_one_kernel_or_an_unknown_one_measure_together(title: str, boots: tuple[str, str]) -> None:
    factory.check_ranks([rank(number, boot=boot) for number, boot in enumerate(boots)])


def test_a_gpu_is_a_duplicate_on_one_host_only() -> None:
    """NCCL refuses a duplicate on one host, and takes ranks of another host to have other GPUs."""
    ranks = (rank(0), replace(rank(1, "b"), device=gpus(1)[0]), rank(1))
    factory.check_ranks(ranks)
    (message,) = factory.shared_gpus(ranks)
    assert message.startswith(f"ranks 0, 1 (a, b) share the GPU {gpus(1)[0].uuid}: ")
    with pytest.raises(UsageError, match="ranks 0 and 1 on a all have the same GPU"):
        factory.check_ranks([ranks[0], replace(ranks[1], host_key="key a")])
    assert factory.shared_gpus(FOUR) == ()
    assert factory.shared_gpus([rank(0, backend="host"), rank(0, "b", backend="host")]) == (), "cores may be"


def test_ranks_that_are_shown_fewer_gpus_than_their_host_uses_have_no_p2p_with_the_others() -> None:
    """As under srun --gpus-per-task=1, or in pods of one GPU each."""
    bound = tuple(replace(one, shown=1) for one in FOUR)
    (message,) = factory.unseen_gpus(bound)
    assert message.startswith(
        "rank 0 on a is shown 1 of the 2 GPUs that ranks there use (3 others likewise): NCCL cannot use P2P with the "
        "rest; srun --gpu-bind=none"
    )
    (message,) = factory.unseen_gpus((*FOUR[:3], bound[3]))
    assert message.startswith("rank 3 on b is shown 1 of the 2 GPUs that ranks there use: ")
    assert factory.unseen_gpus(tuple(replace(one, shown=2) for one in FOUR)) == ()
    assert factory.unseen_gpus(FOUR) == (), "cores"
    assert factory.unseen_gpus((bound[0], bound[2])) == (), "one on each host"


def test_hosts_of_one_network_have_paths_over_it_and_meet_on_loopback() -> None:
    ranks = (rank(0), rank(1, "b", network_key="net a"))
    assert factory.host_leaders(ranks) == {0: (0,), 1: (1,)}
    assert factory.all_paths(2, {(0,): [], (1,): []}) == (Path((0, 1), "NET"),)
    assert factory.addresses(ranks, {1: ("127.0.0.1", "127.0.0.1")}) == ("", "")


def test_one_host_of_two_networks_needs_addresses() -> None:
    ranks = (rank(0), rank(1, host_key="key a", network_key="net b"))
    assert factory.host_names(ranks) == ("a", "a")
    assert factory.addresses(ranks, {1: ("10.0.0.2", "10.0.0.1")}) == ("10.0.0.1", "10.0.0.2")


def test_ranks_may_share_a_core_and_good_ranks_pass() -> None:
    factory.check_ranks(FOUR)
    factory.check_ranks([rank(0, backend="host"), rank(0, backend="host")])


def test_two_nccls_are_refused() -> None:
    facts = [BackendFacts((), 1, nccl="2.28.9", nccl_path="/x"), BackendFacts((), 1, nccl="2.27.5", nccl_path="/y")]
    factory.check_libraries(FOUR[:2], facts[:1] * 2)
    with pytest.raises(UsageError, match=r"rank 1 on a has NCCL 2\.27\.5 \(/y\)"):
        factory.check_libraries(FOUR[:2], facts)


def test_paths_are_each_hosts_own_and_the_network_between() -> None:
    assert factory.host_leaders(FOUR) == {0: (0, 1), 2: (2, 3)}
    reported: dict[tuple[int, ...], list[Path]] = {(0, 1): [Path((0, 1), "NV18")], (2, 3): [Path((0, 1), "SYS")]}
    labels = {path.devices: path.label for path in factory.all_paths(4, reported)}
    assert labels == {(0, 1): "NV18", (2, 3): "SYS", (0, 2): "NET", (0, 3): "NET", (1, 2): "NET", (1, 3): "NET"}


def test_paths_of_ranks_that_alternate_between_hosts() -> None:
    labels = {path.devices: path.label for path in factory.all_paths(4, {(0, 2): [Path((0, 1), "PIX")], (1, 3): []})}
    assert labels == {(0, 2): "PIX", (0, 1): "NET", (0, 3): "NET", (1, 2): "NET", (2, 3): "NET"}, "1-3 is not reported"


@pytest.mark.parametrize(
    ("title", "ranks", "ends", "expected"),
    [
        ("one host", FOUR[:2], {1: ("127.0.0.1", "127.0.0.1")}, ("", "")),
        (
            "two hosts: rank 0's address is the one that the others reach",
            FOUR,
            {1: ("127.0.0.1", "127.0.0.1"), 2: ("10.0.0.2", "10.0.0.1"), 3: ("10.0.0.2", "10.0.0.1")},
            ("10.0.0.1", "10.0.0.1", "10.0.0.2", "10.0.0.2"),
        ),
    ],
)
def test_ranks_are_reached_at_the_address_they_connected_from(
    title: str, ranks: tuple[Introduction, ...], ends: dict[int, tuple[str, str]], expected: tuple[str, ...]
) -> None:
    assert factory.addresses(ranks, ends) == expected


@pytest.mark.timeout(60)
def test_the_paths_of_many_ranks_take_no_longer_than_their_number() -> None:
    """512 ranks on 64 hosts; rebuilding a table for each pair would take hours."""
    hosts = [tuple(range(first, first + 8)) for first in range(0, 512, 8)]
    inside = {members: [Path((a, b), "NV18") for a in range(8) for b in range(a + 1, 8)] for members in hosts}
    paths = factory.all_paths(512, inside)
    assert [path.devices for path in paths] == list(itertools.combinations(range(512), 2))
    assert Counter(path.label for path in paths) == {"NV18": 64 * 28, "NET": 512 * 511 // 2 - 64 * 28}
    listed = factory.all_paths(512, inside, between_hosts=False)
    assert [path.devices for path in listed] == [path.devices for path in paths if path.label == "NV18"]


def test_only_groups_of_several_hosts_are_timed_by_plain_launches() -> None:
    devices = factory.devices_of(FOUR)
    assert [spans_hosts(devices, group) for group in ((0, 1), (0, 2), (2, 3), (0, 1, 2, 3))] == [
        False,
        True,
        False,
        True,
    ]
    assert not spans_hosts(gpus(2), (0, 1))


def test_plain_launches_are_reported_for_their_group_only() -> None:
    step = Step(Work(Operation.ALLREDUCE), ((0, 1), (2, 3)), 8, 1, 1)
    plain, replays = Timing(((1.0,), (1.0,)), plain=(True, False)), Timing(((1.0,), (1.0,)))
    assert slowest(step, [plain] * 4).plain == (True, False)
    assert slowest(step, [replays] * 4).plain == ()
