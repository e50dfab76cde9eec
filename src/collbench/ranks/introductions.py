"""What the ranks' introductions mean together: hosts, devices, addresses, and conflicts. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from collbench.measurement.backends.protocol import Facts
from collbench.model.capabilities import capabilities
from collbench.model.errors import UsageError
from collbench.model.run import Device, Path
from collbench.ranks.connection import is_loopback
from collbench.ranks.messages import Introduction

# What tables call the path between two hosts. nvidia-smi has no word for it; it sorts behind SYS.
NETWORK = "NET"

_Key = TypeVar("_Key", bound=Hashable)


def host_names(ranks: Sequence[Introduction]) -> tuple[str, ...]:
    """Return each rank's host by its first rank's name; hosts that share one are numbered, "node" and "node#2"."""
    names: dict[str, str] = {}  # by key
    alike: Counter[str] = Counter()
    for rank in ranks:
        if rank.host_key not in names:
            alike[rank.host] += 1
            names[rank.host_key] = f"{rank.host}#{alike[rank.host]}" if alike[rank.host] > 1 else rank.host
    return tuple(names[rank.host_key] for rank in ranks)


def devices_of(ranks: Sequence[Introduction]) -> tuple[Device, ...]:
    """Return the ranks' devices, with their hosts where there are several."""
    hosts = host_names(ranks)
    if len(set(hosts)) == 1:
        return tuple(rank.device for rank in ranks)
    return tuple(replace(rank.device, host=host) for rank, host in zip(ranks, hosts, strict=True))


def check(ranks: Sequence[Introduction]) -> None:
    """Raise UsageError if the ranks cannot measure together.

    They have different backends or versions, share a GPU, or have one NCCL_HOSTID on two machines.
    """
    hosts = host_names(ranks)
    for rank, facts in enumerate(ranks):
        if facts.backend != ranks[0].backend:
            raise UsageError(
                f"rank {rank} on {hosts[rank]} has the {facts.backend} backend and rank 0 on {hosts[0]} the "
                f"{ranks[0].backend} one: choose one with --backend"
            )
        if facts.version != ranks[0].version:
            raise UsageError(
                f"rank {rank} on {hosts[rank]} runs collbench {facts.version} and rank 0 on {hosts[0]} "
                f"{ranks[0].version}: install the same version on all hosts"
            )
    for host_ranks in _grouped(facts.host_key for facts in ranks).values():
        first = host_ranks[0]
        for rank in host_ranks[1:]:
            if ranks[rank].boot and ranks[first].boot and ranks[rank].boot != ranks[first].boot:
                raise UsageError(
                    f"ranks {first} and {rank} have the same NCCL_HOSTID on two machines, which NCCL takes for one "
                    "host: give each machine its own, or leave NCCL_HOSTID out (it may come from nccl.conf)"
                )
    if capabilities(ranks[0].backend).cores:
        return  # two ranks on one core are slow, and right
    for (_, uuid), sharing in _grouped((facts.host_key, facts.device.uuid) for facts in ranks).items():
        if len(sharing) > 1:
            raise UsageError(
                f"ranks {' and '.join(map(str, sharing))} on {hosts[sharing[0]]} all have the same GPU, {uuid}: start "
                "one process for each GPU, or check which GPUs CUDA_VISIBLE_DEVICES and --gpus-per-task give to each"
            )


def shared_gpus(ranks: Sequence[Introduction]) -> tuple[str, ...]:
    """Return a sentence on each GPU that ranks of several hosts share: NCCL allows it, and each rank gets a part."""
    if capabilities(ranks[0].backend).cores:
        return ()
    hosts = host_names(ranks)
    return tuple(
        f"ranks {', '.join(map(str, sharing))} ({', '.join(hosts[rank] for rank in sharing)}) share the GPU {uuid}: "
        "NCCL treats them as several hosts, and each rank uses a part of the GPU"
        for uuid, sharing in _grouped(facts.device.uuid for facts in ranks).items()
        if len(sharing) > 1
    )


def check_libraries(ranks: Sequence[Introduction], facts: Sequence[Facts]) -> None:
    """Raise UsageError if the ranks loaded different versions of NCCL: the times would describe neither."""
    hosts = host_names(ranks)
    for rank, fact in enumerate(facts):
        if fact.nccl != facts[0].nccl:
            raise UsageError(
                f"rank {rank} on {hosts[rank]} has NCCL {fact.nccl} ({fact.nccl_path}) and rank 0 on {hosts[0]} "
                f"{facts[0].nccl} ({facts[0].nccl_path}): name one with --nccl"
            )


def host_leaders(ranks: Sequence[Introduction]) -> dict[int, tuple[int, ...]]:
    """Return each host's first rank, which knows the paths there, and all ranks of that host."""
    return {host_ranks[0]: host_ranks for host_ranks in _grouped(facts.host_key for facts in ranks).values()}


def all_paths(
    world_size: int, paths_of: Mapping[tuple[int, ...], Sequence[Path]], *, between_hosts: bool = True
) -> tuple[Path, ...]:
    """Return the path of each pair of ranks. `paths_of` maps the ranks of one host to the paths between them.

    Paths `between_hosts` are all alike; 1,024 ranks have half a million of them.
    """
    paths_by_pair: dict[tuple[int, int], Path] = {}
    for host_ranks, paths in paths_of.items():
        for path in paths:
            first, second = sorted(host_ranks[index] for index in path.devices)
            paths_by_pair[first, second] = replace(path, devices=(first, second))
    if between_hosts:
        host_of = {rank: host_ranks[0] for host_ranks in paths_of for rank in host_ranks}
        pairs = ((a, b) for a in range(world_size) for b in range(a + 1, world_size))
        paths_by_pair.update({pair: Path(pair, NETWORK) for pair in pairs if host_of[pair[0]] != host_of[pair[1]]})
    return tuple(paths_by_pair[pair] for pair in sorted(paths_by_pair))


def addresses(ranks: Sequence[Introduction], ends: Mapping[int, tuple[str, str]]) -> tuple[str, ...]:
    """Return each rank's address for the other ranks; empty ones if all ranks can use loopback.

    `ends` has, for the connection of each other rank with rank 0, that rank's address and rank 0's.
    """
    home = ranks[0].network_key
    abroad = [rank for rank, facts in enumerate(ranks) if facts.network_key != home]
    if not abroad:
        return ("",) * len(ranks)
    host_0_address = next((ends[rank][1] for rank in abroad if not is_loopback(ends[rank][1])), "")
    return tuple(ends[rank][0] if rank in abroad else host_0_address for rank in range(len(ranks)))


def _grouped(keys: Iterable[_Key]) -> dict[_Key, tuple[int, ...]]:
    """Return the ranks of each key, in the order of their first ranks."""
    groups: dict[_Key, list[int]] = {}
    for rank, key in enumerate(keys):
        groups.setdefault(key, []).append(rank)
    return {key: tuple(ranks) for key, ranks in groups.items()}
