"""Failures of the extension as collbench tells them: which device, and whose fault."""

from __future__ import annotations

import pytest

from collbench import _native
from collbench.backends.cuda import explained
from collbench.model.errors import PeerLost, StepFailed
from tests.builders import gpus


def _raise(kind: type[Exception], text: str, **attributes: int) -> None:
    error = kind(text)
    vars(error).update(attributes)
    with explained("timing", ours=gpus(3)):
        raise error


@pytest.mark.parametrize(("position", "where"), [(2, "failed on GPU2: text"), (-1, "failed: text")])
@pytest.mark.parametrize("kind", [_native.CudaError, _native.HangError])
def test_the_failing_device_is_named_where_it_is_known(kind: type[Exception], position: int, where: str) -> None:
    with pytest.raises(StepFailed, match=f"^timing {where}$"):
        _raise(kind, "text", position=position)


@pytest.mark.parametrize(("code", "lost"), [(6, True), (2, False), (1, False)])
def test_only_a_remote_error_is_somebody_elses(code: int, lost: bool) -> None:
    with pytest.raises(StepFailed) as failure:
        _raise(_native.NcclError, "text", position=0, code=code)
    assert isinstance(failure.value, PeerLost) is lost
