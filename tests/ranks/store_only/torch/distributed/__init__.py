"""The store's classes, which are torch's own."""

from torch import _C

_C._c10d_init()

from torch._C._distributed_c10d import PrefixStore, TCPStore  # noqa: E402  # there only now

DistStoreError = _C._DistStoreError

__all__ = ["DistStoreError", "PrefixStore", "TCPStore"]
