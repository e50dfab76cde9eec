"""Makes a host late: each all-reduce of gloo's worker returns some time after it has ended there."""

import os
import sys
import time
from typing import Any

if any("gloo_worker" in argument for argument in sys.orig_argv):
    import torch.distributed as dist

    _all_reduce = dist.all_reduce

    def _late(*arguments: Any, **keywords: Any) -> Any:
        work = _all_reduce(*arguments, **keywords)
        time.sleep(float(os.environ["EMULATED_LATE_S"]))
        return work

    dist.all_reduce = _late
