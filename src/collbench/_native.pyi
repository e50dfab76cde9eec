"""Types of the compiled extension (csrc/bindings.cpp)."""

class LibraryError(RuntimeError): ...
class CudaError(RuntimeError): ...
class NcclError(RuntimeError): ...
class HangError(RuntimeError): ...

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

class Gpus:
    image: int
    def __init__(self, ordinals: list[int], images: list[bytes]) -> None: ...
    def free_bytes(self) -> list[int]: ...
    def allocate(self, bytes: int) -> None: ...
    def peer_access(self) -> list[list[bool]]: ...
    def time_copies(
        self,
        links: list[tuple[int, ...]],
        multiprocessors: bool,
        pull: bool,
        bytes: int,
        shift: int,
        iterations: int,
        blocks: int,
        warmup: int,
    ) -> list[list[float]]: ...

class Nccl:
    version: int
    path: str
    def __init__(self, path: str) -> None: ...

class Collectives:
    def __init__(self, gpus: Gpus, nccl: Nccl) -> None: ...
    def time(
        self,
        groups: list[list[int]],
        broadcast: bool,
        dtype: int,
        reduction: int,
        root: int,
        count: int,
        width: int,
        iterations: int,
        blocks: int,
        warmup: int,
        launch_iterations: int,
    ) -> tuple[list[list[float]], list[float]]: ...
    def close(self) -> None: ...

class HostSession:
    def __init__(self, cores: list[int], buffer_bytes: int) -> None: ...
    def time_copies(
        self, links: list[tuple[int, int]], pull: bool, size: int, iterations: int, blocks: int, warmup: int
    ) -> list[list[float]]: ...
