"""Failures of the extension as collbench reports them: which device, and which rank caused them."""

from __future__ import annotations

import pytest

from collbench import _native
from collbench.measurement.backends.cuda import explained
from collbench.model.errors import Cause, Failure, FailureKind, PeerLost, StepFailed
from tests.builders import gpus


def _raise(kind: type[Exception], text: str, **attributes: int) -> None:
    error = kind(text)
    vars(error).update(attributes)
    with explained("timing", Cause.REFUSED, gpus(4), ours=gpus(4)[1:]):
        raise error


@pytest.mark.parametrize(("position", "where"), [(2, "failed on GPU3: text"), (-1, "failed: text")])
@pytest.mark.parametrize("kind", [_native.CudaError, _native.HangError])
def test_the_failing_device_is_named_where_it_is_known(kind: type[Exception], position: int, where: str) -> None:
    with pytest.raises(StepFailed, match=f"^timing {where}$") as caught:
        _raise(kind, "text", position=position)
    how = FailureKind.HANG if kind is _native.HangError else FailureKind.ERROR
    devices = (3,) if position == 2 else ()  # positions among all devices, not among those that this process has opened
    assert caught.value.failure == Failure(how, Cause.REFUSED, devices, detail="text")


@pytest.mark.parametrize(("code", "is_peer_lost"), [(6, True), (2, False), (1, False)])
def test_only_a_remote_error_means_that_a_peer_is_lost(code: int, is_peer_lost: bool) -> None:
    with pytest.raises(StepFailed) as failure:
        _raise(_native.NcclError, "text", position=0, code=code)
    assert isinstance(failure.value, PeerLost) is is_peer_lost
