"""Types of the compiled extension (csrc/bindings.cpp)."""

class LibraryError(RuntimeError): ...

# `position`: the failing GPU's place in Gpus, -1 where only the caller can know it.
class CudaError(RuntimeError):
    position: int

class NcclError(RuntimeError):
    position: int
    code: int  # ncclResult_t

class HangError(RuntimeError):
    position: int

class PolicyError(RuntimeError):
    position: int

class DataError(RuntimeError):
    group: int
    rank: int
    offset: int
    wrong: int
    expected: float
    found: float

class GpuIdentity:
    ordinal: int
    uuid: str
    pci_bus_id: str
    name: str
    memory_bytes: int

def list_gpus() -> list[GpuIdentity]: ...
def node_memory_refusal(node: int) -> str: ...

class Coverage:
    moved: int
    verified: int

class Times:
    seconds: list[list[float]]
    coverage: list[Coverage]

class CollectiveTimes(Times):
    launch_seconds: list[float]

class Gpus:
    image: int
    cache_bytes: list[int]
    multicast_supported: list[bool]
    def __init__(self, ordinals: list[int], images: list[bytes], peers: bool = True) -> None: ...
    def free_bytes(self) -> list[int]: ...
    def allocate(self, bytes: int) -> None: ...
    def peer_access(self) -> list[list[bool]]: ...
    def time_copies(
        self,
        groups: list[list[tuple[int, int]]],
        multiprocessors: bool,
        pull: bool,
        bytes: int,
        shift: int,
        iterations: int,
        blocks: int,
        warmup: int,
        deadline: float,
    ) -> Times: ...
    def time_chase(
        self, links: list[tuple[int, int]], accesses: int, blocks: int, warmup: int, deadline: float
    ) -> list[list[float]]: ...

class Nccl:
    version: int
    path: str
    def __init__(self, path: str) -> None: ...
    def unique_id(self) -> bytes: ...

class Collectives:
    # world_size 0: this process holds all ranks, one for each of its GPUs; otherwise it is one rank with one GPU.
    def __init__(self, gpus: Gpus, nccl: Nccl, rank: int = 0, world_size: int = 0, unique_id: bytes = b"") -> None: ...
    def prepare(self, groups: list[list[int]]) -> None: ...
    def time(
        self,
        groups: list[list[int]],
        operation: int,
        dtype: int,
        reduction: int,
        root: int,
        count: int,
        width: int,
        in_place: bool,
        verify: bool,
        iterations: int,
        blocks: int,
        warmup: int,
        launch_iterations: int,
        launch_warmup: int,
        deadline: float,
    ) -> CollectiveTimes: ...
    def close(self) -> None: ...

class HostSession:
    def __init__(self, cores: list[int], buffer_bytes: int) -> None: ...
    def time_copies(
        self, links: list[tuple[int, int]], pull: bool, size: int, iterations: int, blocks: int, warmup: int
    ) -> list[list[float]]: ...
