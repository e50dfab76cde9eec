"""What the program does differently in a launch, as one of several processes. An annex does it, loaded in a launch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib import import_module
from typing import TYPE_CHECKING, NoReturn, Protocol, cast

from collbench.machine.launchers import LaunchEnvironment

if TYPE_CHECKING:
    from collbench.api.notices import Notices
    from collbench.measurement.plan import Request
    from collbench.measurement.session import Ranks


class Launched(Protocol):
    """The functions of the annex's module, whose docstrings say what each does."""

    def run_together(self, launch: LaunchEnvironment, arguments: list[str], invoke: Callable[[], object]) -> int:
        """Run the command line in a launch; return the exit status."""

    def open_ranks(
        self, launch: LaunchEnvironment, request: Request, notices: Notices
    ) -> AbstractContextManager[Ranks]:
        """Return the launch's processes for rank 0, which is this one."""

    def serve_rank_0(self, launch: LaunchEnvironment, request: Request) -> NoReturn:
        """Measure this rank's part for rank 0."""


def launched() -> Launched:
    """Return the annex's functions."""
    return cast("Launched", import_module("collbench.ranks.nonzero"))
