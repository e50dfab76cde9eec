"""Types of the compiled extension (csrc/bindings.cpp)."""

from typing import ClassVar

class LibraryError(RuntimeError): ...

# `position`: the failing GPU's index in Gpus, -1 where only the caller knows it.
class CudaError(RuntimeError):
    position: int

class NcclError(RuntimeError):
    position: int
    code: int  # ncclResult_t

class HangError(RuntimeError):
    position: int

class LateError(HangError): ...

class PolicyError(RuntimeError):
    position: int

class DataError(RuntimeError):
    group: int
    rank: int
    offset: int
    wrong: int
    expected: float
    found: float

def list_gpus() -> list[str]: ...  # UUIDs, by ordinal
def node_memory_refusal(node: int, gpus: int) -> str: ...

class Engine:
    copy_engine: ClassVar[Engine]
    multiprocessors: ClassVar[Engine]

# Members have collbench's names of operations, dtypes and reductions; `Dtype(7)` is NCCL's number 7.
class Collective:
    __members__: ClassVar[dict[str, Collective]]
    def __init__(self, value: int) -> None: ...

class Dtype:
    __members__: ClassVar[dict[str, Dtype]]
    def __init__(self, value: int) -> None: ...

class Reduction:
    __members__: ClassVar[dict[str, Reduction]]
    def __init__(self, value: int) -> None: ...

class Registration:
    """Where a collective's messages lie: `none`, `buffer`, `window`."""

    __members__: ClassVar[dict[str, Registration]]
    def __init__(self, value: int) -> None: ...

class CopyRound:
    """Groups of transfers (source, destination): positions in Gpus, -1 for host memory, -2 - n on NUMA node n.

    Each of `batches` timed batches has `iterations` messages of `bytes` bytes; `warmup` untimed batches come before
    them, and each may take `deadline` seconds. `covered` times only each group's first transfer, while all others of
    the round run.
    """

    def __init__(
        self,
        *,
        groups: list[list[tuple[int, int]]],
        engine: Engine,
        pull: bool,
        bytes: int,
        iterations: int,
        batches: int,
        warmup: int,
        deadline: float,
        covered: bool = False,
    ) -> None: ...

class ChaseRound:
    """Links (reader, owner of the memory), as positions of `CopyRound`; `accesses` in each batch."""

    def __init__(
        self, *, links: list[tuple[int, int]], accesses: int, batches: int, warmup: int, deadline: float
    ) -> None: ...

class CollectiveRound:
    """Disjoint groups of ranks; `count` elements of the whole message, `launch_iterations` 0 for no launch loop.

    `single_launches` plain launches are timed one by one, 0 for none. For tests, the stream of `hold_rank`, a rank of
    the world, is held for `hold_nanoseconds` before each of them.
    """

    def __init__(
        self,
        *,
        groups: list[list[int]],
        operation: Collective,
        dtype: Dtype,
        reduction: Reduction,
        root: int,
        count: int,
        in_place: bool,
        verify: bool,
        iterations: int,
        batches: int,
        warmup: int,
        launch_iterations: int,
        launch_warmup: int,
        deadline: float,
        single_launches: int = 0,
        hold_rank: int = -1,
        hold_nanoseconds: int = 0,
        registration: Registration = ...,
        blocks: list[int] = ...,
        plain: list[bool] = ...,
    ) -> None: ...

class Coverage:
    moved: int
    verified: int

class Times:
    seconds: list[list[float]]  # [group][batch]
    coverage: list[Coverage]
    uncovered: list[int]  # in a covered round of copies: by group, a position whose copies ended first, else -1

class RankLaunches:
    """One rank's single launches: `arrived` and `left` in ns of the host's steady clock (CLOCK_MONOTONIC).

    All may be off together by `uncertainty` ns; `step` is the smallest step of the GPU's clock, `cost` what the stamps
    add to each `left - arrived`, in ns. `rank` is the one in the group.
    """

    group: int
    rank: int
    arrived: list[int]
    left: list[int]
    uncertainty: int
    step: int
    cost: int

class CollectiveTimes(Times):
    launch_seconds: list[float]
    singles: list[RankLaunches]  # of this process's ranks
    waits: list[list[float]]  # seconds by group, also of untimed batches; [] in a single process

class Gpus:
    cache_bytes: list[int]
    multicast_supported: list[int]  # 1 or 0
    def __init__(self, ordinals: list[int], ptx: bytes, peers: bool = True) -> None: ...
    def free_bytes(self) -> list[int]: ...
    def allocate(self, bytes: int, host_bytes: int = ...) -> None: ...
    def pin_host(self, links: list[tuple[int, int]]) -> None: ...
    def peer_access(self) -> list[list[bool]]: ...
    def peer_refusals(self) -> dict[tuple[int, int], str]: ...
    def time_copies(self, round: CopyRound) -> Times: ...
    def time_chase(self, round: ChaseRound) -> list[list[float]]: ...

class Nccl:
    version: int
    path: str
    def __init__(self, path: str) -> None: ...
    def unique_id(self) -> bytes: ...

class Collectives:
    # world_size 0: this process holds all ranks, one for each of its GPUs; otherwise it is one rank with one GPU.
    def __init__(
        self,
        gpus: Gpus,
        nccl: Nccl,
        rank: int = 0,
        world_size: int = 0,
        unique_id: bytes = b"",
    ) -> None: ...
    def prepare(self, groups: list[list[int]]) -> None: ...
    def time(self, round: CollectiveRound) -> CollectiveTimes: ...
    def close(self) -> None: ...

class HostSession:
    def __init__(self, cores: list[int], buffer_bytes: int) -> None: ...
    def time_copies(
        self, links: list[tuple[int, int]], pull: bool, size: int, iterations: int, batches: int, warmup: int
    ) -> list[list[float]]: ...
