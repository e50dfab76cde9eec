"""One gloo rank's process: `… -m collbench.backends.gloo_worker FD RANK WORLD_SIZE CORE FOLDER [HOST PORT PREFIX]`.

The ranks meet in FOLDER, or in the TCPStore at HOST. It answers tasks from the pipe FD until the pipe closes. Whatever
fails here ends the process with a traceback: the parent reads its last line.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import signal
import sys
from multiprocessing.connection import Connection

from collbench.backends.gloo_messages import Reply, Task


def main(arguments: list[str]) -> None:
    """Join the world and serve tasks until the parent closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; the parent decides what it means
    descriptor, rank, world_size, core = map(int, arguments[:4])
    folder = pathlib.Path(arguments[4])
    # Before torch comes, so that its threads, and gloo's, inherit the core.
    os.sched_setaffinity(0, {core})
    from collbench.backends.gloo_rank import GlooRank, file_store, tcp_store

    parent = os.getppid()
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
        # The parent is gone, perhaps killed before it could clean up.
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)  # not sys.exit: FileStore's destructor would make its file anew, or abort where it cannot
    except RuntimeError:  # a peer is gone, perhaps killed together with our parent, who reads the traceback otherwise
        if os.getppid() != parent:
            shutil.rmtree(folder, ignore_errors=True)
        raise


if __name__ == "__main__":
    main(sys.argv[1:])
