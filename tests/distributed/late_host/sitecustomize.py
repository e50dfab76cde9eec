"""Makes a host late: each all-reduce of gloo's worker returns some time after it has ended there."""

import os
import sys
import time
from typing import Any

if any("gloo_worker" in word for word in sys.orig_argv):
    import torch.distributed as dist

    _all_reduce = dist.all_reduce

    def _late(*words: Any, **named: Any) -> Any:
        found = _all_reduce(*words, **named)
        time.sleep(float(os.environ["EMULATED_LATE_S"]))
        return found

    dist.all_reduce = _late
