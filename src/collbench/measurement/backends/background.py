"""Work on a thread of its own, beside what this one waits for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Result = TypeVar("Result")


class Background(Generic[Result]):
    """Work that begins at once. A thread that hangs in a library's call does not keep the process from its end."""

    def __init__(self, work: Callable[[], Result]) -> None:
        self._work, self._results = work, list[Result]()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._results.append(self._work())
        except BaseException as error:  # noqa: BLE001  # raised again in `result`
            self._failure = error

    def stand_by(self, timeout_s: float) -> None:
        """Wait for the end, successful or not, at most this long."""
        self._thread.join(max(0.0, timeout_s))

    @property
    def succeeded(self) -> bool:
        """Whether it has ended with a result."""
        return bool(self._results)

    def result(self) -> Result:
        """Wait for the end, and return the work's result. Raises the work's error."""
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        return self._results[0]
