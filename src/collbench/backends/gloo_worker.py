"""One gloo rank's process: `… -m collbench.backends.gloo_worker FD RANK WORLD_SIZE CORE FOLDER [HOST PORT PREFIX]`.

The ranks meet in FOLDER, or in the TCPStore at HOST. It answers tasks from the pipe FD until the pipe closes. Whatever
fails here ends the process with a traceback: the parent reads its last line.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import sys
from multiprocessing.connection import Connection

from collbench import lifeline
from collbench.backends.gloo_messages import Reply, Task


def main(arguments: list[str]) -> None:
    """Join the world and serve tasks until the parent closes the pipe, or is gone."""
    lifeline.leave_signals_to_parent()
    descriptor, rank, world_size, core = map(int, arguments[:4])
    folder = pathlib.Path(arguments[4])

    def clean_up() -> None:
        shutil.rmtree(folder, ignore_errors=True)

    # At any moment, in the middle of a collective too: the parent may be killed before it could clean up. It ends by
    # os._exit: FileStore's destructor would make its file anew, or abort where it cannot.
    lifeline.leave_with_parent(descriptor, clean_up)
    # Before torch comes, so that its threads, and gloo's, inherit the core.
    os.sched_setaffinity(0, {core})
    from collbench.backends.gloo_rank import GlooRank, file_store, tcp_store

    pipe: Connection[Reply, Task] = Connection(descriptor)
    try:
        match arguments[5:]:
            case [host, port, prefix]:
                store = tcp_store(host, int(port), prefix)
            case _:
                store = file_store(folder, world_size)
        member = GlooRank(rank, world_size, store)
        pipe.send(Reply(seconds=[], wrong=None))
        while True:
            pipe.send(member.perform(pipe.recv()))
    except (EOFError, ConnectionError):
        clean_up()
        os._exit(0)
    except RuntimeError:  # a peer is gone, perhaps killed together with our parent, who reads the traceback otherwise
        if lifeline.parent_is_gone(descriptor):
            clean_up()
        raise


if __name__ == "__main__":
    main(sys.argv[1:])
