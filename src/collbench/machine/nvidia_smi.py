"""Reads what `nvidia-smi topo -m` and `topo -p2p r` print, live or saved."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import combinations, permutations
from typing import NamedTuple, Self, cast

from collbench import untrusted
from collbench.machine import labels as machine_labels
from collbench.model.errors import UsageError
from collbench.model.run import Device, Path, PeerStatus

# The text varies: underline codes around the header, tabs or (once pasted) runs of spaces, columns and rows of
# network cards, affinity columns that older drivers lack, comments and other output around it. It may be quoted, in a
# table of Markdown, or behind the tags that launchers put before each line. Only the rows of GPUs count. A row is read
# only if a label stands in each of its columns, so columns that were glued, cut or wrapped cannot move a label.

_TOPOLOGY_COMMAND = "nvidia-smi topo -m"
_PEER_COMMAND = "nvidia-smi topo -p2p r"
_MAX_BYTES = 2**20  # a matrix of 16 GPUs takes 4 KB; more than this is another file

_GPU = re.compile(r"GPU\d+")
# Escape codes as the terminal gets them, and as a web page, `cat -v` or a program's literal leaves them.
_UNDERLINE = re.compile(r"\x1b\[[\d;]*[A-Za-z]|(?:\^\[|\\x1b|\\033|\\e|\\u001b)?\[[\d;]+m", re.IGNORECASE)
# What quotes a line ("> ", "* "), or says whose it is ("[0] ", "[1,0]<stdout>:", "node7: ").
_TAG = re.compile(r"(?:\s*(?:[>*]+|\[[\w.,-]+\](?:<\w+>:)?|[\w.-]+:)(?=\s|GPU|$))*")
_AFFINITY = re.compile(r"(?:CPU|NUMA)\s+Affinity|GPU\s+NUMA\s+ID", re.IGNORECASE)
# What `nvidia-smi -L` prints of a GPU, and below it of its parts in MIG mode.
_PRODUCT = re.compile(r"\b(GPU) (\d+): (\S.*?) \(UUID: ")
_PART = re.compile(r"\bMIG \S+ +Device +\d+: \(UUID: MIG-")
# Where a terminal wrapped a wide header, or copied it, two names may have no space between them: "NIC8NIC9".
_NAME = r"(?:GPU|NIC|mlx\d+_)\d+(?=\s|$|GPU|NIC|mlx|CPU|NUMA)"
_COLUMN = re.compile(rf"{_AFFINITY.pattern}|{_NAME}|\S+", re.IGNORECASE)
_CELL = re.compile(rf"NV\d+|PIX|PXB|PHB|NODE|SYS|SOC|PSB|N/A|X|{'|'.join(machine_labels.PEER_STATES)}")
# A node, with those of the GPU's own memory behind it, as on Grace: "1,19-25,27-33"; "0-1" is no single one.
_NODE = re.compile(r"(\d+)(?:,|$)")
_GLUED = re.compile(rf"(?:{_CELL.pattern}){{2,}}")


@dataclass(frozen=True, slots=True)
class Matrix:
    """What `topo -m` or `topo -p2p r` shows: the GPUs' names, and the cell of each two of them, by row and column.

    The rest is `topo -m`'s, by GPU where it is known: affinities as they stand there, "0-23,48-71", "0-1", "N/A", and
    products, where the text also has what `nvidia-smi -L` prints. `parted` are the GPUs in MIG mode there.
    """

    gpus: tuple[str, ...]
    cells: Mapping[tuple[str, str], str]
    cpu_affinity: Mapping[str, str] = field(default_factory=dict)
    numa_affinity: Mapping[str, str] = field(default_factory=dict)
    products: Mapping[str, str] = field(default_factory=dict)
    parted: frozenset[str] = frozenset()


class _Source(NamedTuple):
    """Where the text came from, for messages: its name and the command that would write it."""

    name: str
    command: str

    def wrong(self, number: int, what: str) -> UsageError:
        return UsageError(
            f"cannot read {self.name}, line {number}: {what}; it should be what `{self.command}` prints, unedited"
        )


class _Row(NamedTuple):
    """One GPU's line: its cells by device, and what follows the last of them."""

    number: int
    cells: Mapping[str, str]
    rest: tuple[str, ...]


class _Header(NamedTuple):
    number: int
    tag: str
    devices: tuple[str, ...]
    affinities: tuple[str, ...]

    @property
    def gpus(self) -> tuple[str, ...]:
        return tuple(name for name in self.devices if _GPU.fullmatch(name))


def read_topology(file: str | pathlib.Path) -> Matrix:
    """Return the matrix saved in a file. Raises UsageError for a file that cannot be read or holds something else."""
    return parse_topology(_read_text(pathlib.Path(file), _TOPOLOGY_COMMAND), str(file))


def read_p2p(file: str | pathlib.Path) -> Matrix:
    """Return the peer-access matrix saved in a file. Raises UsageError as `read_topology` does."""
    return parse_p2p(_read_text(pathlib.Path(file), _PEER_COMMAND), str(file))


def parse_topology(text: str, name: str = "the topology") -> Matrix:
    """Return the matrix in the text of `nvidia-smi topo -m`; `name` is for messages. Raises UsageError."""
    source = _Source(name, _TOPOLOGY_COMMAND)
    header, rows = _matrix(text, source)
    cells = _checked(rows, source, machine_labels.is_label)
    for a, b in combinations(header.gpus, 2):
        if cells[a, b] != cells[b, a]:  # one of them is wrong, and we do not know which
            wrong = f"{a} and {b} have two different labels, {cells[a, b]} and {cells[b, a]}"
            raise source.wrong(rows[b].number, wrong)
    products = {kind + index: product for kind, index, product in _PRODUCT.findall(text)}
    affinities = _affinity("CPU", header, rows), _affinity("NUMA", header, rows)
    return Matrix(header.gpus, cells, *affinities, products, frozenset(_parted(text)))


def _parted(text: str) -> Iterator[str]:
    """Yield the GPUs below which `nvidia-smi -L` lists parts."""
    gpu = ""
    for line in text.splitlines():
        if product := _PRODUCT.search(line):
            gpu = product[1] + product[2]
        elif gpu and _PART.search(line):
            yield gpu


def parse_p2p(text: str, name: str = "the peer-access matrix") -> Matrix:
    """Return the matrix in the text of `nvidia-smi topo -p2p r` (or w, n, a, p). Raises UsageError."""
    source = _Source(name, _PEER_COMMAND)
    header, rows = _matrix(text, source)
    return Matrix(header.gpus, _checked(rows, source, lambda cell: cell in machine_labels.PEER_STATES))


def facts(topology: Matrix) -> tuple[tuple[Device, ...], tuple[Path, ...]]:
    """Return a topology in the program's nouns. No theory: a label does not name the GPU and its links' rate.

    A GPU in MIG mode has P2P with no other, over NVLinks neither [NVIDIA/k8s-device-plugin#296; MIG user guide].
    """
    devices = []
    for gpu in topology.gpus:
        node, cpus = _NODE.match(topology.numa_affinity.get(gpu, "")), topology.cpu_affinity.get(gpu, "")
        devices.append(
            Device(
                index=int(gpu.removeprefix("GPU")),
                uuid="",
                name=topology.products.get(gpu, ""),
                numa_node=int(node[1]) if node else None,
                cpu_affinity="" if cpus == machine_labels.UNKNOWN else cpus,
            )
        )
    paths = []
    for (i, a), (j, b) in combinations(enumerate(topology.gpus), 2):
        label = topology.cells[a, b]
        links = machine_labels.nvlink_count(label)
        ancestor = None if links or label == machine_labels.UNKNOWN else label
        apart = topology.parted.intersection((a, b))
        denied = (PeerStatus.NS, PeerStatus.NS) if apart else ()
        paths.append(Path((i, j), label, ancestor, links, tool_peer_access=denied))
    return tuple(devices), tuple(paths)


def _read_text(file: pathlib.Path, command: str) -> str:
    try:
        content = untrusted.read(file, _MAX_BYTES).decode("utf-8-sig")
        if "\0" in content:
            raise ValueError("binary")
        return content
    except (OSError, ValueError) as error:
        why = untrusted.unread(file, error) if isinstance(error, OSError) else "it is not plain text of a few lines"
        raise UsageError(f"cannot read topology file {file}: {why}; save one with: {command} > FILE") from error


def _lines(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield (line number, tag, line) without escape codes and comments; carriage returns are white space anyway."""
    for number, raw in enumerate(text.split("\n"), 1):
        line = _UNDERLINE.sub("", raw).rstrip("\r")
        tag = cast("re.Match[str]", _TAG.match(line))[0]
        line = line[len(tag) :]
        if line.lstrip().startswith("|"):
            line = line.strip().strip("|").replace("|", "\t")
        if not line.lstrip().startswith("#"):
            yield number, "".join(tag.split()), line


def _matrix(text: str, source: _Source) -> tuple[_Header, dict[str, _Row]]:
    """Return the header and the row of each of its GPUs."""
    lines = _lines(text)
    header = _header(lines, source)
    rows: dict[str, _Row] = {}
    for number, tag, line in lines:
        fields = line.split()
        if tag != header.tag or not any(map(str.isalnum, line)):
            continue
        whole = len(rows) == len(header.gpus)
        if whole and _is_header(line):
            break  # of another matrix
        if not _GPU.fullmatch(fields[0]):
            if not whole and fields[0] not in header.devices:
                raise source.wrong(
                    number, f"'{fields[0][:40]}' stands between the rows; if a terminal wrapped them, make it wider"
                )
            continue
        if whole and not _CELL.match("".join(fields[1:2])):
            continue  # prose below the matrix
        if fields[0] not in header.gpus or fields[0] in rows:
            problem = f"a second row of {fields[0]}" if fields[0] in rows else f"{fields[0]} has no column"
            raise source.wrong(number, problem)
        rows[fields[0]] = _row(number, line, header, source)
    for gpu in header.gpus:
        if gpu not in rows:
            raise source.wrong(header.number, f"{gpu} has a column but no row")
    return header, {gpu: rows[gpu] for gpu in header.gpus}


def _is_header(line: str) -> bool:
    """Return whether a line begins with a GPU's name and has no label: a row that was cut before its X has others.

    N/A is no label here: an affinity below the matrix may be unknown.
    """
    columns = _COLUMN.findall(line)
    known = [column for column in columns if column != machine_labels.UNKNOWN]
    is_row = any(_CELL.fullmatch(column) or _GLUED.fullmatch(column) for column in known)
    return bool(columns) and _GPU.fullmatch(columns[0]) is not None and not is_row


def _header(lines: Iterator[tuple[int, str, str]], source: _Source) -> _Header:
    for number, tag, line in lines:
        if _is_header(line):
            columns = _COLUMN.findall(line)
            affinities = tuple(" ".join(column.split()).upper() for column in columns if _AFFINITY.fullmatch(column))
            header = _Header(number, tag, tuple(c for c in columns if not _AFFINITY.fullmatch(c)), affinities)
            if len(set(header.devices)) < len(header.devices):
                raise source.wrong(number, "two columns have the same name")
            return header
    raise UsageError(
        f"cannot read {source.name}: no line names the columns GPU0, GPU1, …; save one with: {source.command} > FILE"
    )


def _row(number: int, line: str, header: _Header, source: _Source) -> _Row:
    """Return a GPU's cells under today's names.

    Tabs keep empty cells apart; pasted text has lost them, and its cells hold no spaces: if it has fewer affinities
    than columns, nobody knows which.
    """
    width = 1 + len(header.devices)
    fields = _apart(field.strip() for field in line.split("\t"))
    if len(fields) < width or not all(field and " " not in field for field in fields[:width]):
        fields = _apart(line.split())
        if len(fields) < width + len(header.affinities):
            fields = fields[:width]
    if len(fields) < width:
        raise source.wrong(number, f"{fields[0]} has {len(fields) - 1} of {width - 1} columns")
    if any(_CELL.fullmatch(field) and field != machine_labels.UNKNOWN for field in fields[width:]):
        raise source.wrong(number, f"{fields[0]} has more labels than the {width - 1} columns")
    cells = dict(zip(header.devices, map(machine_labels.canonical, fields[1:width]), strict=True))
    return _Row(number, cells, tuple(fields[width:]))


def _apart(fields: Iterable[str]) -> list[str]:
    """Return the fields with those apart that consist of several labels: "NODENODE"."""
    return [cell for field in fields for cell in (_CELL.findall(field) if _GLUED.fullmatch(field) else (field,))]


def _checked(rows: Mapping[str, _Row], source: _Source, is_known: Callable[[str], bool]) -> dict[tuple[str, str], str]:
    """Return the cells of each two GPUs; raises UsageError for a word that does not belong where it stands."""
    for gpu, row in rows.items():
        for device, cell in row.cells.items():
            if not (cell == machine_labels.SELF if device == gpu else is_known(cell)):
                raise source.wrong(row.number, f"'{cell}' between {gpu} and {device} is not in its legend")
    return {(a, b): rows[a].cells[b] for a, b in permutations(rows, 2)}


def _affinity(kind: str, header: _Header, rows: Mapping[str, _Row]) -> dict[str, str]:
    """Return each GPU's text in the affinity column of that kind, if there is one."""
    column = f"{kind} AFFINITY"
    if column not in header.affinities:
        return {}
    index = header.affinities.index(column)
    return {gpu: row.rest[index] for gpu, row in rows.items() if index < len(row.rest)}


# Runs `nvidia-smi topo` in the background, while the driver starts.

_TOPOLOGY, _PEERS = ("topo", "-m"), ("topo", "-p2p", "r")
# Seconds from its start. It takes 0.1 to 1 s, without persistence mode several; opening the GPUs takes as long.
_LIMIT_S = 10.0


class LiveTools:
    """Some `nvidia-smi` in the background. Where the program is missing, fails or hangs, its facts stay unknown."""

    def __init__(
        self,
        limit_s: float = _LIMIT_S,
        commands: Sequence[tuple[str, ...]] = (_TOPOLOGY, _PEERS),
    ) -> None:
        """Start the program with the words of each command, and return at once."""
        self._deadline = time.monotonic() + limit_s
        path, self._processes = shutil.which("nvidia-smi"), list[subprocess.Popen[bytes]]()
        with suppress(OSError):  # it cannot be started
            for words in commands if path else ():
                self._processes.append(_start((str(path), *words)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def with_reports(self, devices: Sequence[Device], paths: Sequence[Path]) -> tuple[Path, ...]:
        """Return the paths with nvidia-smi's reports; waits for it until the time limit. Call it once."""
        read = dict[Callable[[str], Matrix], Matrix]()
        for parse, text in zip((parse_topology, parse_p2p), self.texts(), strict=False):
            with suppress(UsageError):
                read[parse] = parse(text)
        return with_reported(devices, paths, read.get(parse_topology), read.get(parse_p2p))

    def texts(self) -> list[str]:
        """Return what each printed, "" if it failed; nothing without the program. Waits until the time limit."""
        texts = [self._text(process) for process in self._processes]
        self.close()
        return texts

    def close(self) -> None:
        """End what still runs, without waiting for it long."""
        for process in self._processes:
            with suppress(OSError):
                process.kill()
            with suppress(subprocess.TimeoutExpired, OSError, ValueError):
                process.communicate(timeout=1)
        self._processes = []

    def _text(self, process: subprocess.Popen[bytes]) -> str:
        """Return what a process printed, "" if it failed or takes too long."""
        try:
            out, _ = process.communicate(timeout=max(0.0, self._deadline - time.monotonic()))
        except (subprocess.TimeoutExpired, OSError):
            return ""
        return out[:_MAX_BYTES].decode("utf-8", errors="replace") if process.returncode == 0 else ""


def with_reported(
    devices: Sequence[Device], paths: Sequence[Path], topology: Matrix | None, peers: Matrix | None
) -> tuple[Path, ...]:
    """Return the paths with what `topo -m` and `-p2p r` say; None and () if a text is missing or lacks the GPU.

    The texts number GPUs as nvidia-smi does, and so does Device.index.
    """
    labels, states = (matrix.cells if matrix else {} for matrix in (topology, peers))
    reported_paths = []
    for path in paths:
        a, b = (f"GPU{devices[position].index}" for position in path.devices)
        reported = tuple(PeerStatus(code) for code in (states.get((a, b)), states.get((b, a))) if code is not None)
        reported_paths.append(replace(path, tool_label=labels.get((a, b)), tool_peer_access=reported))
    return tuple(reported_paths)


def _start(command: tuple[str, ...]) -> subprocess.Popen[bytes]:
    """Start a command that reads nothing and whose errors are ignored. Raises OSError."""
    # Its words must be English, and the pipe must not fill: 16 GPUs with their cards take 10 KB of its 64.
    return subprocess.Popen(
        command,
        env={**os.environ, "LC_ALL": "C"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is ours to handle
    )
