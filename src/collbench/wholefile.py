"""Files that are written whole or not at all, and the line that says why one cannot be.

`doing` and `option` word that line: "cannot save the run as x.json: …; choose another place with --output FILE".
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from pathlib import Path

from collbench.errors import RunFileError


def write(content: str | bytes, path: Path, doing: str, option: str) -> None:
    """Write text (UTF-8) or bytes so that a reader, or a crash, meets either the old file or the new one.

    What is no file but a stream is written to. Raises RunFileError for a folder that cannot be written and for a full
    disk; the old file is then untouched.
    """
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".{target.name}.{os.getpid()}.part")
    # A name from the system that is not UTF-8 holds lone surrogates: as \udcxx they are valid JSON.
    data = content if isinstance(content, bytes) else content.encode("utf-8", errors="backslashreplace")
    try:
        if is_stream(path):
            with path.open("wb") as stream:
                stream.write(data)
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except OSError as error:
        raise refused(path, error, doing, option) from error
    finally:
        with contextlib.suppress(OSError):  # gone already, unless something failed or was interrupted
            temporary.unlink()


def check(path: Path, doing: str, option: str) -> None:
    """Raise RunFileError if `path` could not be written; an existing file there is left alone. Ask before measuring."""
    try:
        if path.is_dir():
            raise RunFileError(f"cannot {doing} {path}: it is a folder; choose another place with {option} FILE")
        if is_stream(path):
            if not os.access(path, os.W_OK):  # not by opening it: whoever reads a pipe would see it end
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return
        target = Path(os.path.realpath(path))
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=target.parent):
            pass
    except OSError as error:
        raise refused(path, error, doing, option) from error


def is_stream(path: Path) -> bool:
    """True for a device, a pipe or a socket, /dev/null say: root would replace it by a file."""
    return path.exists() and not path.is_file() and not path.is_dir()


def refused(path: Path, error: OSError, doing: str, option: str) -> RunFileError:
    """Return the error that explains why `path` cannot be written."""
    blocked = isinstance(error, FileExistsError | NotADirectoryError)
    why = "a part of that path is a file, not a folder" if blocked else error.strerror
    return RunFileError(f"cannot {doing} {path}: {why}; choose another place with {option} FILE")
