"""Files that somebody else may have made: only regular files are read, and no more of them than a real one can have.

A pipe may never end, and /dev/zero never does; what a folder holds beside a file need not be of who wrote that file.
"""

from __future__ import annotations

import errno
import gzip
import io
import os
import re
import stat
import zlib
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from collbench.model.errors import nearest
from collbench.model.values import one_line

_PIECE = 2**20
# gzip makes a trace 10 to 30 times smaller, and zeros 1,000 times.
_MAX_COMPRESSED, _MIN_BYTES = 100, 2**26
# A pipe that the shell gave to this process: `nvidia-smi topo -m | collbench topo --topology /dev/stdin`, <(…).
_OWN_PIPE = re.compile(r"/dev/stdin|(/dev|/proc/self)/fd/[0-9]+")
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_KINDS = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


class Refused(OSError):
    """A file that is not read; `strerror` says why, as it does where the system refuses."""

    def __init__(self, why: str) -> None:
        super().__init__(errno.EINVAL, why)


def read(path: Path, most: int, owners: Collection[int] | None = None) -> bytes:
    """Return the bytes of a regular file, decompressed if it is gzipped. Raises OSError as `opened` does."""
    with opened(path, most, owners) as stream:
        return unpacked(stream, os.fstat(stream.fileno()).st_size, most).read()


def unpacked(stream: IO[bytes], size: int, most: int) -> io.BufferedReader[Any]:
    """Return a stream of at most so many bytes, decompressed if it is gzipped; `size` are its own bytes.

    Reading raises Refused.
    """
    plain: io.BufferedReader[Any] = io.BufferedReader(_Bounded(stream, most), _PIECE)
    if plain.peek(2)[:2] != b"\x1f\x8b":
        return plain
    most = min(most, max(_MIN_BYTES, _MAX_COMPRESSED * size))
    return io.BufferedReader(_Bounded(gzip.GzipFile(fileobj=plain), most), _PIECE)


class _Bounded(io.RawIOBase):
    """At most so many bytes of a stream."""

    def __init__(self, stream: Any, most: int) -> None:
        self._stream, self._most, self._left = stream, most, most

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            piece = self._stream.read(len(buffer))
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise Refused(f"it cannot be decompressed: {error}") from error
        self._left -= len(piece)
        if self._left < 0:
            raise _too_long(self._most)
        buffer[: len(piece)] = piece
        return len(piece)


def opened(path: Path, most: int, owners: Collection[int] | None = None) -> IO[bytes]:
    """Open a regular file. Raises Refused for one of another kind or of more than `most` bytes.

    With `owners`, also refuses a link, and a file that a user who is none of these may have written. Raises OSError.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    try:
        number = os.open(path, flags if owners is None else flags | os.O_NOFOLLOW)
    except OSError as error:
        if owners is not None and error.errno == errno.ELOOP:
            raise Refused("it is a link") from error
        raise
    try:
        status = os.fstat(number)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if stat.S_ISFIFO(status.st_mode) and owners is None and _OWN_PIPE.fullmatch(str(path)):
            os.set_blocking(number, True)
        elif not stat.S_ISREG(status.st_mode):
            raise Refused(f"it is {_KINDS.get(stat.S_IFMT(status.st_mode), 'of another kind')}, not a regular file")
        if owners is not None and (why := doubt(status, owners)):
            raise Refused(why)
        if status.st_size > most:
            raise _too_long(most)
        return os.fdopen(number, "rb", buffering=0)
    except OSError:
        os.close(number)
        raise


def read_text(path: Path, most: int) -> str:
    """Return the text of a file in UTF-8. Raises OSError as `read` does, and UnicodeDecodeError."""
    return read(path, most).decode()


def unread(path: Path, error: OSError) -> str:
    """Return why a file could not be read: if there is none, with the one beside it whose name is nearly the same."""
    near = ""
    if isinstance(error, FileNotFoundError):
        with suppress(OSError):
            beside = {file.stem: file for file in path.parent.iterdir() if _of_kind(path.suffix, file.suffix)}
            if found := beside.get(nearest(path.stem, beside)):
                near = f"; did you mean '{one_line(str(found))}'?"
    return f"{error.strerror}{near}"


def _of_kind(typed: str, suffix: str) -> bool:
    """Return whether this may be the suffix that was meant by another, or left out."""
    return typed in ("", suffix) or bool(nearest(typed, (suffix,)))


def _too_long(most: int) -> Refused:
    return Refused(f"it has more than {most >> 20} MiB, which no real one of its kind and size has")


def doubt(status: os.stat_result, owners: Collection[int]) -> str:
    """Return why a user who is none of `owners` may have written a file or folder; "" if none can have."""
    if status.st_uid not in owners:
        return f"it belongs to another user (uid {status.st_uid})"
    return "others can write it" if status.st_mode & _OTHERS_WRITE else ""
