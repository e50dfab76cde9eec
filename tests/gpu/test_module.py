"""The shipped PTX on real GPUs, and the primary context that collbench shares with torch."""

from __future__ import annotations

import pytest

from collbench import _native
from collbench.measurement.backends.cuda import shipped_ptx
from tests.gpu.machine import need_gpus, open_gpus

ORDINALS = need_gpus(2)


def _copy(gpus: _native.Gpus) -> float:
    engine = _native.Engine.multiprocessors if gpus.peer_access()[0][1] else _native.Engine.copy_engine
    times = gpus.time_copies(
        _native.CopyRound(
            groups=[[(0, 1)]],
            engine=engine,
            pull=False,
            bytes=65537,
            iterations=4,
            batches=1,
            warmup=1,
            deadline=30.0,
        )
    )
    return times.seconds[0][0]


def test_the_shipped_ptx_loads_and_copies() -> None:
    gpus = open_gpus(ORDINALS, 2**20)
    assert _copy(gpus) > 0


def test_buffers_larger_than_the_memory_are_refused_by_name() -> None:
    gpus = _native.Gpus(ORDINALS, shipped_ptx())
    with pytest.raises(_native.CudaError, match="CUDA_ERROR_OUT_OF_MEMORY"):
        gpus.allocate(max(gpus.free_bytes()))


def test_torch_keeps_its_tensors_in_the_same_context() -> None:
    torch = pytest.importorskip("torch", reason="needs torch, to share its context")
    if not torch.cuda.is_available():
        pytest.skip("needs a torch with CUDA")
    tensors_before = [torch.arange(1000, device=f"cuda:{i}") for i in range(2)]
    gpus = open_gpus([0, 1], 2**20)
    tensors_after = [torch.arange(1000, device=f"cuda:{i}") for i in range(2)]
    assert _copy(gpus) > 0
    del gpus
    for tensor in (*tensors_before, *tensors_after):
        assert int(tensor.sum()) == 499500  # 0 + 1 + … + 999
