"""Ctrl-C at every line of a module that measures: the run so far must always be one that can be saved and read."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FrameType, ModuleType
from typing import Any

from collbench.model.run import Run
from collbench.runfile import run_file

# Of each line so many times, and the last: a sweep runs most of its lines for every trial.
_FIRST = 2


class _CtrlC:
    """Notes the lines of the module that run, and raises KeyboardInterrupt as a signal does, before the one at `at`."""

    def __init__(self, module: ModuleType, at: int | None = None) -> None:
        self._file, self._at = module.__file__, at
        self.lines: list[int] = []

    def __call__(self, frame: FrameType, event: str, _argument: object) -> Any:
        if frame.f_code.co_filename != self._file:
            return None
        if event == "line":
            self.lines.append(frame.f_lineno)
            if len(self.lines) - 1 == self._at:
                raise KeyboardInterrupt
        return self


def _traced(tracer: _CtrlC, measure: Callable[[], object]) -> bool:
    """Measure; return whether it was interrupted."""
    tracing = sys.gettrace()
    sys.settrace(tracer)
    try:
        measure()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(tracing)
    return False


def saved_after_ctrl_c(module: ModuleType, begin: Callable[[], tuple[Run, Callable[[], object]]]) -> Iterator[Run]:
    """Yield what a reader sees of the run, for an interrupt at each line that `module` runs, early and at last.

    `begin` returns a new run, and what measures into it, always by the same lines.
    """
    whole = _CtrlC(module)
    _traced(whole, begin()[1])
    times: dict[int, list[int]] = {}
    for at, line in enumerate(whole.lines):
        times.setdefault(line, []).append(at)
    for at in sorted({at for every in times.values() for at in (*every[:_FIRST], every[-1])}):
        run, measure = begin()
        assert _traced(_CtrlC(module, at), measure), f"line {whole.lines[at]} did not run again"
        yield run_file.loads(run_file.dumps(run), f"interrupted at line {whole.lines[at]}")
