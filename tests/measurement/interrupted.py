"""Ctrl-C at every line of a module that measures: the run so far must always be one that can be saved and read."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from types import FrameType, ModuleType
from typing import Any

from collbench.model.run import Run
from collbench.runfile import run_file


class _CtrlC:
    """Raises KeyboardInterrupt as a signal does: before line number `at` of the module, counted as lines run."""

    def __init__(self, module: ModuleType, at: int) -> None:
        self._file, self._left = module.__file__, at

    def __call__(self, frame: FrameType, event: str, _argument: object) -> Any:
        if frame.f_code.co_filename != self._file:
            return None
        if event == "line":
            self._left -= 1
            if self._left == 0:
                raise KeyboardInterrupt
        return self


def saved_after_ctrl_c(module: ModuleType, begin: Callable[[], tuple[Run, Callable[[], object]]]) -> Iterator[Run]:
    """Yield what a reader sees of the run, for an interrupt at each line that `module` runs, until one comes too late.

    `begin` returns a new run, and what measures into it.
    """
    tracing = sys.gettrace()
    for at in itertools.count(1):
        run, measure = begin()
        try:
            sys.settrace(_CtrlC(module, at))
            measure()
        except KeyboardInterrupt:
            pass
        else:
            return
        finally:
            sys.settrace(tracing)
        yield run_file.loads(run_file.dumps(run), f"interrupted at line {at}")
