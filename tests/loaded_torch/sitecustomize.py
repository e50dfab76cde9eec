"""torchrun as `train` starts it makes a folder before it loads torch, which must not be done twice: it has torch at once."""

import sys
from pathlib import Path

if Path(sys.argv[0]).parts[-3:] == ("collbench", "launch", "agent.py"):
    import torch  # noqa: F401
