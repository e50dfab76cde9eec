"""What the ranks' introductions mean together: hosts, devices, addresses, and what does not fit. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from collbench.errors import UsageError
from collbench.model import Device, Path
from collbench.world.messages import Introduction, RankFacts
from collbench.world.wire import is_loopback

# What tables call the path between two hosts. nvidia-smi has no word for it; it sorts behind SYS.
NETWORK = "NET"


def host_names(ranks: Sequence[Introduction]) -> tuple[str, ...]:
    """Return each rank's host by name; hosts that share one are numbered, "localhost" and "localhost#2"."""
    keys: dict[str, list[str]] = {}
    for rank in ranks:
        known = keys.setdefault(rank.host, [])
        if rank.host_key not in known:
            known.append(rank.host_key)
    numbers = [keys[rank.host].index(rank.host_key) for rank in ranks]
    return tuple(f"{rank.host}#{n + 1}" if n else rank.host for rank, n in zip(ranks, numbers, strict=True))


def devices_of(ranks: Sequence[Introduction]) -> tuple[Device, ...]:
    """Return the ranks' devices, with their hosts where there are several."""
    hosts = host_names(ranks)
    if len(set(hosts)) == 1:
        return tuple(rank.device for rank in ranks)
    return tuple(replace(rank.device, host=host) for rank, host in zip(ranks, hosts, strict=True))


def check(ranks: Sequence[Introduction]) -> None:
    """Raise UsageError where the ranks cannot measure together: another backend or version, or a GPU twice."""
    hosts = host_names(ranks)
    for rank, found in enumerate(ranks):
        if found.backend != ranks[0].backend:
            raise UsageError(
                f"rank {rank} on {hosts[rank]} has the {found.backend} backend and rank 0 on {hosts[0]} the "
                f"{ranks[0].backend} one: name one with --backend"
            )
        if found.version != ranks[0].version:
            raise UsageError(
                f"rank {rank} on {hosts[rank]} runs collbench {found.version} and rank 0 on {hosts[0]} "
                f"{ranks[0].version}: install one version on all hosts"
            )
    if ranks[0].backend == "host":
        return  # two ranks on one core are slow, and right
    for uuid, count in Counter(found.device.uuid for found in ranks).items():
        if count > 1:
            sharing = [rank for rank, found in enumerate(ranks) if found.device.uuid == uuid]
            raise UsageError(
                f"ranks {' and '.join(map(str, sharing))} on {hosts[sharing[0]]} all have the same GPU, {uuid}: start "
                "one process for each GPU, or see what CUDA_VISIBLE_DEVICES and --gpus-per-task give to each"
            )


def check_libraries(ranks: Sequence[Introduction], facts: Sequence[RankFacts]) -> None:
    """Raise UsageError where the ranks have loaded different versions of NCCL: the times would be of neither."""
    hosts = host_names(ranks)
    for rank, found in enumerate(facts):
        if found.nccl != facts[0].nccl:
            raise UsageError(
                f"rank {rank} on {hosts[rank]} has NCCL {found.nccl} ({found.nccl_path}) and rank 0 on {hosts[0]} "
                f"{facts[0].nccl} ({facts[0].nccl_path}): name one with --nccl"
            )


def guides(ranks: Sequence[Introduction]) -> dict[int, tuple[int, ...]]:
    """Return each host's first rank, which knows the paths there, and all ranks of that host."""
    by_host: dict[str, list[int]] = {}
    for rank, found in enumerate(ranks):
        by_host.setdefault(found.host_key, []).append(rank)
    return {members[0]: tuple(members) for members in by_host.values()}


def all_paths(world_size: int, found: Mapping[tuple[int, ...], Sequence[Path]]) -> tuple[Path, ...]:
    """Return the path of each pair of ranks; `found` has, for the ranks of one host, the paths between their places."""
    known: dict[tuple[int, int], Path] = {}
    for members, paths in found.items():
        for path in paths:
            first, second = sorted(members[place] for place in path.devices)
            known[first, second] = replace(path, devices=(first, second))
    host_of = {rank: members for members in found for rank in members}
    pairs = [(a, b) for a in range(world_size) for b in range(a + 1, world_size)]
    between = {pair for pair in pairs if host_of[pair[0]] != host_of[pair[1]]}
    network = {pair: Path(pair, NETWORK) for pair in between}
    return tuple({**known, **network}[pair] for pair in pairs if pair in known or pair in network)


def addresses(ranks: Sequence[Introduction], ends: Mapping[int, tuple[str, str]]) -> tuple[str, ...]:
    """Return each rank's address for reaching other hosts; empty ones where all are on one host.

    `ends` are, of the connection between each other rank and rank 0, that rank's address and rank 0's own.
    """
    home = ranks[0].host_key
    abroad = [rank for rank, found in enumerate(ranks) if found.host_key != home]
    if not abroad:
        return ("",) * len(ranks)
    own = next((ends[rank][1] for rank in abroad if not is_loopback(ends[rank][1])), "")
    return tuple(ends[rank][0] if rank in abroad else own for rank in range(len(ranks)))
