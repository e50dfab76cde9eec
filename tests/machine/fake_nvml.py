"""A fake pynvml: it answers for one described machine and refuses what that machine lacks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, TypeVar

T = TypeVar("T")

SWITCH = "switch"
HIDDEN_SWITCH_ID = "FFFFFFFF:FF:FF.0"

_LINK_COUNT, _SPEED_COMMON, _GET_SPEED = 91, 90, 164


class NVMLError(Exception):
    """Any refusal; the subclasses are the ones that are distinguished."""


class NVMLErrorLibraryNotFound(NVMLError):
    pass


class NVMLErrorNoPermission(NVMLError):
    pass


class NVMLLibraryMismatchError(Exception):
    pass


@dataclass
class FakeGpu:
    """One GPU. `links` says where each NVLink ends: a PCI id, SWITCH, or None for a link that is down."""

    uuid: str
    pci: str
    name: str = "NVIDIA H200"
    capability: tuple[int, int] = (9, 0)
    links: Sequence[str | None] = ()
    line_mbps: int | None = None
    common_mbps: int | None = None
    pcie: tuple[int, int] | None = (5, 16)
    memory_bytes: int = 143771 * 2**20
    cpu_words: Sequence[int] | None = (2**64 - 1,)
    node_words: Sequence[int] | None = (1,)
    virtualization: int | None = 1
    answers: dict[str, Any] = field(default_factory=dict)
    link_fields: dict[int, int] = field(default_factory=dict)
    link_counters: dict[int, int] = field(default_factory=dict)


class FakeNvml:
    """The functions of pynvml that collbench calls. A handle is the FakeGpu itself."""

    NVMLError = NVMLError
    NVMLError_LibraryNotFound = NVMLErrorLibraryNotFound
    NVMLError_NoPermission = NVMLErrorNoPermission
    NVMLLibraryMismatchError = NVMLLibraryMismatchError
    nvmlMemory_v2 = 2  # noqa: N815 - the binding's name

    def __init__(
        self,
        gpus: Sequence[FakeGpu],
        ancestor: int | None = 30,
        peers: dict[int, int] | None = None,
        init_error: Exception | None = None,
    ) -> None:
        self.gpus = list(gpus)
        self.ancestor = ancestor
        self.peers = {0: 0, 1: 0} if peers is None else peers
        self.init_error = init_error
        self.handle_errors: dict[int, NVMLError] = {}
        self.opened = self.closed = 0

    def __getattr__(self, name: str) -> Any:
        """Answer per-GPU getters from `FakeGpu.answers`; what is not there is not supported."""
        if not name.startswith("nvmlDeviceGet"):
            raise AttributeError(name)
        return lambda gpu, *args: _given(gpu.answers.get(name))

    def nvmlInit(self) -> None:  # noqa: N802
        if self.init_error is not None:
            raise self.init_error
        self.opened += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.closed += 1

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return "580.159.04"

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:  # noqa: N802
        return 13000

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:  # noqa: N802
        if index in self.handle_errors:
            raise self.handle_errors[index]
        return self.gpus[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> FakeGpu:  # noqa: N802
        return _given(next((gpu for gpu in self.gpus if gpu.uuid == uuid), None))

    def nvmlDeviceGetUUID(self, gpu: FakeGpu) -> str:  # noqa: N802
        return gpu.uuid

    def nvmlDeviceGetName(self, gpu: FakeGpu) -> bytes:  # noqa: N802
        return gpu.name.encode()  # as bindings before 11.5 answer

    def nvmlDeviceGetPciInfo(self, gpu: FakeGpu) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(busId=gpu.pci)

    def nvmlDeviceGetMemoryInfo(self, gpu: FakeGpu, version: int | None = None) -> SimpleNamespace:  # noqa: N802
        """Version 1 counts the driver's reserve (616 MiB on the H200) as used; version 2 does not."""
        return SimpleNamespace(total=gpu.memory_bytes, used=0 if version else 616 * 2**20)

    def nvmlDeviceGetCpuAffinity(self, gpu: FakeGpu, masks: int) -> list[int]:  # noqa: N802
        return _padded(gpu.cpu_words, masks)

    def nvmlDeviceGetMemoryAffinity(self, gpu: FakeGpu, masks: int, scope: int) -> list[int]:  # noqa: N802
        return _padded(gpu.node_words, masks)

    def nvmlDeviceGetCudaComputeCapability(self, gpu: FakeGpu) -> tuple[int, int]:  # noqa: N802
        return gpu.capability

    def nvmlDeviceGetMaxPcieLinkGeneration(self, gpu: FakeGpu) -> int:  # noqa: N802
        return _given(gpu.pcie)[0]

    def nvmlDeviceGetMaxPcieLinkWidth(self, gpu: FakeGpu) -> int:  # noqa: N802
        return _given(gpu.pcie)[1]

    def nvmlDeviceGetVirtualizationMode(self, gpu: FakeGpu) -> int:  # noqa: N802
        return _given(gpu.virtualization)

    def nvmlDeviceGetTopologyCommonAncestor(self, first: FakeGpu, second: FakeGpu) -> int:  # noqa: N802
        return _given(self.ancestor)

    def nvmlDeviceGetP2PStatus(self, first: FakeGpu, second: FakeGpu, index: int) -> int:  # noqa: N802
        return _given(self.peers.get(index))

    def nvmlDeviceGetNvLinkState(self, gpu: FakeGpu, link: int) -> int:  # noqa: N802
        return 0 if _link(gpu, link) is None else 1

    def nvmlDeviceGetNvLinkRemotePciInfo(self, gpu: FakeGpu, link: int) -> SimpleNamespace:  # noqa: N802
        end = _given(_link(gpu, link))
        return SimpleNamespace(busId=HIDDEN_SWITCH_ID if end == SWITCH else end)

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, gpu: FakeGpu, link: int) -> int:  # noqa: N802
        return 2 if _given(_link(gpu, link)) == SWITCH else 0

    def nvmlDeviceGetNvLinkErrorCounter(self, gpu: FakeGpu, link: int, counter: int) -> int:  # noqa: N802
        return _given(gpu.link_counters.get(counter))

    def nvmlDeviceGetFieldValues(self, gpu: FakeGpu, fields: list[tuple[int, int]]) -> list[SimpleNamespace]:  # noqa: N802
        """Like NVML, answer the call and refuse the field: its own return code says so."""
        known = {_LINK_COUNT: len(gpu.links) or None, _SPEED_COMMON: gpu.common_mbps, _GET_SPEED: gpu.line_mbps}
        return [_field_value({**gpu.link_fields, **known}.get(number)) for number, _ in fields]


def _field_value(value: int | None) -> SimpleNamespace:
    if value is None:
        return SimpleNamespace(nvmlReturn=3, valueType=0, value=SimpleNamespace(dVal=0.0))
    return SimpleNamespace(nvmlReturn=0, valueType=1, value=SimpleNamespace(uiVal=value))


def _link(gpu: FakeGpu, link: int) -> str | None:
    if link >= len(gpu.links):
        raise NVMLError("Not Supported")
    return gpu.links[link]


def _padded(masks: Sequence[int] | None, count: int) -> list[int]:
    return [*_given(masks), *[0] * count][:count]


def _given(answer: T | None) -> T:
    """Return an answer; None stands for what this machine does not support."""
    if answer is None:
        raise NVMLError("Not Supported")
    return answer
