"""Gives torch at once to torchrun as `train` starts it, which makes a folder before it would load torch itself."""

import sys
from pathlib import Path

if Path(sys.argv[0]).parts[-3:] == ("collbench", "launch", "agent.py"):
    import torch  # noqa: F401
