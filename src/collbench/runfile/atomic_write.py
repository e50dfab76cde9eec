"""Files that are written whole or not at all, and never over another one unless that was asked for.

This module decides what happens to a file that exists: it is refused before anything is measured or computed, and
again if it appeared meanwhile. `--force` replaces it; an empty one (mktemp's) is always replaced. A stream (a pipe, a
device, /dev/stdout) is written to. `doing` words the refusal, as "save the run as" does in "cannot save the run as
x.json: …; choose another place with --output FILE".
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from collbench.model.errors import RunFileError

# What link(2) gives on a file system that has no hard links.
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
_OWN_DESCRIPTORS = re.compile(r"/proc/(self|[0-9]+)/fd")
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# A folder must have room for this before a run starts: a disk without a free block is full.
_BLOCK = bytes(4096)
_FULL_DEVICE = os.makedev(1, 7)  # /dev/full

# Device, inode and size of a file when we last looked. Not its time, which NFS may set later.
Identity = tuple[int, int, int]


class Taken(RunFileError):
    """Another file is in the way: nothing was written."""


def write(content: str, path: Path, doing: str, *, force: bool = False, mode: int = 0o666) -> Identity | None:
    """Write text (UTF-8) so that a reader, or a crash, meets nothing, the old file or the new one.

    Returns the new file's identity, None for a stream. Raises Taken for a file that exists, unless `force` replaces it,
    and RunFileError for a folder that cannot be written and for a full disk; an old file is then untouched.
    """
    # A name from the system that is not UTF-8 holds lone surrogates: as \udcxx they are valid JSON.
    data = content.encode("utf-8", errors="backslashreplace")
    target = Path(os.path.realpath(path))
    temporary = _beside(target)
    try:
        if is_stream(path):
            _send(data, path)
            return None
        target.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(temporary, _NEW, mode), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            written = _identity(os.fstat(file.fileno()))
        if force:
            temporary.replace(target)
        elif not _claim(temporary, target):
            raise taken(path, doing)
        return written
    except OSError as error:
        raise refused(path, error, doing) from error
    finally:
        with contextlib.suppress(OSError):  # gone already, unless it was linked, or something failed
            temporary.unlink()


class OwnFile:
    """A file that one process writes again and again. A file that another process has put there meanwhile stays.

    Then, and if the first write finds a file that was not there before, the content goes to a new file next to it:
    `path` is that file, and `warn` reports it. `force` replaces an older file.
    """

    def __init__(
        self, path: Path, doing: str, warn: Callable[[str], None], *, force: bool = False, mode: int = 0o666
    ) -> None:
        self.path = path
        self._doing, self._warn, self._force, self._mode = doing, warn, force, mode
        self._written: Identity | None = None

    def write(self, content: str) -> None:
        """Write it whole. Raises RunFileError as the function `write`."""
        ours = self._force or (self._written is not None and identity(self.path) == self._written)
        try:
            self._written = write(content, self.path, self._doing, force=ours, mode=self._mode)
        except Taken:
            aside = another(self.path)
            self._written = write(content, aside, self._doing, mode=self._mode)
            self._warn(f"another process has written {self.path} in the meantime: this run is saved as {aside}")
            self.path = aside
        self._force = False


def check(path: Path, doing: str, *, force: bool = False, sources: Iterable[Path] = ()) -> None:
    """Raise RunFileError if `path` could not be written, Taken where a file is in the way. Ask before measuring.

    None of `sources`, the files that are read, is ever replaced.
    """
    try:
        if path.is_dir():
            raise RunFileError(f"cannot {doing} {path}: it is a folder; {_ELSEWHERE}")
        if is_stream(path):
            _check_stream(path)
            return
        target = Path(os.path.realpath(path))
        if target.exists():
            if any(source.exists() and source.samefile(target) for source in sources):
                raise Taken(f"cannot {doing} {path}: it is the input file; choose another with --output FILE")
            if not force and target.stat().st_size:
                raise taken(path, doing)
        if not os.path.lexists(target.parent):  # most often a typing mistake: it is not made
            raise RunFileError(f"cannot {doing} {path}: folder {path.parent} does not exist; make it, or {_ELSEWHERE}")
        try_folder(target.parent, target.name)
    except OSError as error:
        raise refused(path, error, doing) from error


def try_folder(folder: Path, name: str = "probe") -> None:
    """Write a block into a folder and remove it. Raises OSError if no file can be made or no space is left."""
    probe = _beside(folder / name)
    try:
        with os.fdopen(os.open(probe, _NEW, 0o600), "wb") as file:
            file.write(_BLOCK)
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()


def make_private(folder: Path) -> None:
    """Make a folder, and missing ones above it, for this user alone, as XDG's specification has it. Raises OSError.

    Folders that exist are left as they are.
    """
    for missing in reversed([parent for parent in (folder, *folder.parents) if not parent.exists()]):
        with contextlib.suppress(FileExistsError):  # made by another process meanwhile
            missing.mkdir(mode=0o700)


def identity(path: Path) -> Identity | None:
    """Return the identity of the file at a path; None if there is none."""
    try:
        return _identity(path.stat())
    except OSError:
        return None


def another(path: Path) -> Path:
    """Return an unused name in the folder of `path`."""
    return path.with_name(f"{path.stem}-{secrets.token_hex(4)}{path.suffix}")


def is_stream(path: Path) -> bool:
    """True for a device, a pipe or a socket, /dev/null say: root would replace it by a file.

    /dev/stdout is one even where it is a file, because that file is being written to.
    """
    return _descriptor(path) is not None or (path.exists() and not path.is_file() and not path.is_dir())


_ELSEWHERE = "choose another place with --output FILE"


def taken(path: Path, doing: str) -> Taken:
    """Return the error that says a file is in the way."""
    return Taken(f"cannot {doing} {path}: it exists; {_ELSEWHERE}, or add --force")


def refused(path: Path, error: OSError, doing: str) -> RunFileError:
    """Return the error that explains why `path` cannot be written."""
    return RunFileError(f"cannot {doing} {path}: {reason(error)}; {_ELSEWHERE}")


def reason(error: OSError) -> str:
    """Return why a file cannot be written."""
    blocked = isinstance(error, FileExistsError | NotADirectoryError)
    return "a part of that path is a file, not a folder" if blocked else str(error.strerror)


def _identity(status: os.stat_result) -> Identity:
    return status.st_dev, status.st_ino, status.st_size


def _beside(target: Path) -> Path:
    return target.with_name(f".{target.name}.{os.getpid()}-{secrets.token_hex(4)}.part")


def _claim(temporary: Path, target: Path) -> bool:
    """Give a new file its name unless another has it; an empty one gives way. Return whether it got it."""
    try:
        try:
            target.hardlink_to(temporary)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            os.close(os.open(target, _NEW, 0o600))
            temporary.replace(target)
    except FileExistsError:
        return _replace_empty(temporary, target)
    return True


def _replace_empty(temporary: Path, target: Path) -> bool:
    """Replace a file that is empty. The lock lets one process at a time look."""
    with target.open("rb+") as file:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        then, now = os.fstat(file.fileno()), target.stat()
        if (then.st_dev, then.st_ino) != (now.st_dev, now.st_ino) or now.st_size:
            return False
        temporary.replace(target)
        return True


def _descriptor(path: Path) -> int | None:
    """Return the number of this process's open file that a path like /dev/stdout means, None for any other path."""
    for _ in range(40):  # as many links as the kernel follows
        folder = os.path.realpath(path.parent)
        match = _OWN_DESCRIPTORS.fullmatch(folder)
        if match and match[1] in ("self", str(os.getpid())) and path.name.isdecimal():
            return int(path.name)
        try:
            path = Path(folder, path.readlink())
        except OSError:
            return None
    return None


def _send(data: bytes, path: Path) -> None:
    number = _descriptor(path)
    if number is None:
        with path.open("wb") as stream:
            stream.write(data)
        return
    sys.stdout.flush()  # what was printed before comes first
    with os.fdopen(os.dup(number), "wb") as stream:
        stream.write(data)


def _check_stream(path: Path) -> None:
    """Raise OSError if a stream cannot be written. It is not opened for that: the reader of a pipe would see it end."""
    if path.stat().st_rdev == _FULL_DEVICE:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    number = _descriptor(path)
    if number is not None:
        if fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    elif not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
