"""`topo -m` and `topo -p2p` as people publish them (tests/data/README.md): read, else refused in one line.

The truth comes from the rows alone, in which labels are found by their letters: no header, no columns, no white space.
"""

from __future__ import annotations

import pathlib
import random
import re
from collections.abc import Callable
from itertools import combinations

import pytest

from collbench.choose.problem import choose_by_labels
from collbench.machine import nvidia_smi
from collbench.machine.nvidia_smi import facts, parse_p2p, parse_topology, read_p2p, read_topology
from collbench.model.errors import UsageError

TOPOLOGIES = pathlib.Path(__file__).parents[1] / "data" / "topologies"
SEEN = sorted((TOPOLOGIES / "seen").glob("*.txt"))
assert len(SEEN) == 48, "a loop over none would pass"
ESCAPE = re.compile(r"\x1b\[\d*m")
LABEL = re.compile(r"NV\d+|PIX|PXB|PHB|NODE|SYS|SOC|N/A|X")
ROW = re.compile(rf"[\s*]*(GPU\d+)\s*((?:{LABEL.pattern}).*)")
OLD = {"SOC": "SYS"}

Matrix = tuple[tuple[str, ...], ...]


def text_of(file: pathlib.Path) -> str:
    return file.read_text(encoding="utf-8")


def rows_of(text: str) -> dict[str, list[str]]:
    """Return each GPU's labels in the order of their columns, cards' too."""
    rows = {}
    for line in ESCAPE.sub("", text).splitlines():
        if row := ROW.fullmatch(line):
            before_affinity = re.split(r"\s\d", row[2])[0]
            rows[row[1]] = [OLD.get(label, label) for label in LABEL.findall(before_affinity)]
    return rows


def labels_of(text: str) -> Matrix:
    rows = rows_of(text)
    return tuple(tuple(labels[: len(rows)]) for labels in rows.values())


def affinities_of(text: str) -> list[tuple[str, str]]:
    """Return what follows each row's last label: CPU list and NUMA node."""
    found = []
    for line in ESCAPE.sub("", text).splitlines():
        if row := ROW.fullmatch(line):
            words = re.split(r"(?:N/A|[A-Z]+|NV\d+)\s+(?=\d)", row[2])[-1].split()
            found.append((words[0], words[1] if len(words) > 1 and words[1] != "N/A" else ""))
    return found


def square(read: nvidia_smi.Matrix) -> Matrix:
    return tuple(tuple("X" if a == b else read.cells[a, b] for b in read.gpus) for a in read.gpus)


def known_affinities(topology: nvidia_smi.Matrix) -> list[tuple[str, str]]:
    numa = [topology.numa_affinity.get(gpu, "").replace("N/A", "") for gpu in topology.gpus]
    return [*zip([topology.cpu_affinity.get(gpu, "") for gpu in topology.gpus], numa, strict=True)]


@pytest.mark.parametrize("file", SEEN, ids=lambda file: file.stem)
def test_every_published_text_is_read(file: pathlib.Path) -> None:
    topology, truth = read_topology(file), labels_of(text_of(file))
    assert square(topology) == truth
    assert topology.gpus == tuple(rows_of(text_of(file)))
    assert all(truth[i][j] == truth[j][i] for i, j in combinations(range(len(truth)), 2))  # of the truth itself
    assert known_affinities(topology) == affinities_of(text_of(file)) or "emptycpu" in file.stem


def wrapped(text: str, width: int) -> str:
    """Return what a narrow terminal leaves of a text once it was copied."""
    lines = (line.expandtabs(8) for line in text.splitlines())
    return "\n".join(line[i : i + width].rstrip() for line in lines for i in range(0, max(1, len(line)), width))


CHANGED: dict[str, Callable[[str], str]] = {
    "quoted": lambda text: "\n".join(f"> {line}" for line in text.splitlines()),
    "quoted twice": lambda text: "\n".join(f">> {line}" for line in text.splitlines()),
    "in Markdown": lambda text: f"Here it is:\n\n```\n$ nvidia-smi topo -m\n{text}```\n\nGPU0 is the slow one.\n",
    "tagged": lambda text: "\n".join(f"[0] {line}" for line in text.splitlines()),
    "tagged by mpirun": lambda text: "\n".join(f"[1,0]<stdout>:{line}" for line in text.splitlines()),
    "tagged by srun": lambda text: "\n".join(f"0: {line}" for line in text.splitlines()),
    "tagged by host": lambda text: "\n".join(f"node-7.rack: {line}" for line in text.splitlines()),
    "literal escapes": lambda text: re.sub(r"(GPU0)([^\n]*)", r"\\x1b[4m\1\2\\x1b[0m", text, count=1),
    "carriage returns": lambda text: text.replace("\n", "\r\n"),
    "expanded tabs": lambda text: text.expandtabs(8),
    "ended by another matrix": lambda text: f"{text}\n\tGPU0\tGPU1\nGPU0\tX\tOK\nGPU1\tOK\tX\n",
}


@pytest.mark.parametrize("change", CHANGED)
def test_what_pages_and_launchers_put_around_a_text_changes_nothing(change: str) -> None:
    for file in SEEN:
        assert square(parse_topology(CHANGED[change](text_of(file)))) == labels_of(text_of(file)), file


def read_or_refused(text: str) -> nvidia_smi.Matrix | None:
    try:
        return parse_topology(text)
    except UsageError:
        return None


@pytest.mark.parametrize("width", [40, 60, 72, 80, 100, 120, 132])
def test_a_wrapped_text_is_never_guessed(width: int) -> None:
    """Where no line was as long it is read, else refused."""
    for file in SEEN:
        text = text_of(file)
        longest = max(len(line.expandtabs(8).rstrip()) for line in ESCAPE.sub("", text).splitlines() if "GPU" in line)
        read = read_or_refused(wrapped(ESCAPE.sub("", text), width))
        assert (read is not None) == (longest <= width), file
        if read:
            assert square(read) == labels_of(text), file
            assert known_affinities(read) == known_affinities(read_topology(file)), file


def test_a_text_whose_lines_were_cut_is_never_a_smaller_machine() -> None:
    """As a pager or a narrow terminal shows it: the columns and the rows' ends are gone, and all rows are there."""
    for file in SEEN:
        lines = [line.expandtabs(8) for line in ESCAPE.sub("", text_of(file)).splitlines()]
        for width in range(8, max(map(len, lines)), 3):
            read = read_or_refused("\n".join(line[:width] for line in lines))
            assert read is None or square(read) == labels_of(text_of(file)), (file, width)


@pytest.mark.parametrize("file", SEEN, ids=lambda file: file.stem)
def test_damage_is_never_guessed(file: pathlib.Path) -> None:
    """White space lost or put in anywhere, a word or a line lost: the truth is read, or nothing."""
    text = ESCAPE.sub("", text_of(file)).expandtabs(8)
    draw = random.Random(file.stem)
    ends = [match.span() for match in re.finditer(r"[ ]+", text)]
    words = [match.span() for match in re.finditer(r"[^\s*]+", text)]
    for _ in range(10):
        start, end = draw.choice(ends)
        glued = text[:start] + text[end:]
        start, end = draw.choice(words)
        lost = text[:start] + " " * draw.choice([0, end - start]) + text[end:]
        cut = draw.randrange(start, end)
        broken = text[:cut] + draw.choice([" ", "\n"]) + text[cut:]
        without = text.splitlines()
        del without[draw.randrange(len(without))]
        for damaged in (glued, lost, broken, "\n".join(without)):
            read = read_or_refused(damaged)
            assert read is None or square(read) == labels_of(text), damaged


def test_rows_of_two_processes_are_kept_apart() -> None:
    """Lines of two nodes may come mixed: the first one's rows are read, and none of the other's."""
    one, other = "\tGPU0\tGPU1\nGPU0\tX\tNV4\nGPU1\tNV4\tX", "\tGPU0\tGPU1\nGPU0\tX\tSYS\nGPU1\tSYS\tX"
    pairs = zip(one.split("\n"), other.split("\n"), strict=True)
    mixed = "\n".join(f"[0] {a}\n[1] {b}" for a, b in pairs)
    assert square(parse_topology(mixed)) == (("X", "NV4"), ("NV4", "X"))


def test_nodes_of_gpu_memory_do_not_hide_the_node_of_the_cpus() -> None:
    """On Grace, NUMA affinity also lists the nodes of the GPU's own memory: GPU2 and GPU3 share a socket, GPU1 not."""
    devices, paths = facts(read_topology(TOPOLOGIES / "seen" / "gb200-nvl72-tray.txt"))
    assert [device.numa_node for device in devices] == [0, 0, 1, 1]
    assert choose_by_labels(devices, paths, 2, exclude=[0]).members == (2, 3)


@pytest.mark.parametrize(("affinity", "node"), [("1", 1), ("0-1", None), ("N/A", None), ("1,19-25,27-33", 1)])
def test_a_range_of_nodes_is_no_node(affinity: str, node: int | None) -> None:
    text = f"\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \t0-63\t{affinity}\n"
    assert facts(parse_topology(text))[0][0].numa_node == node


def test_sixteen_gpus_are_read_and_refused_where_a_report_left_rows_out() -> None:
    """A DGX-2 as NVIDIA/nccl-tests#78 shows it, whose rows below GPU4 are written here as the ones above."""
    gpus = [f"GPU{at}" for at in range(16)]
    head = "        " + "".join(f"{name:<8}" for name in (*gpus, "mlx5_0", "mlx5_1")) + "CPU Affinity"
    rows = [
        f"{name:<8}"
        + "".join(f"{' X' if other == name else 'NV6':<8}" for other in gpus)
        + "PIX     PXB     0-23,48-71"
        for name in gpus
    ]
    assert {*parse_topology("\n".join([head, *rows])).cells.values()} == {"NV6"}
    with pytest.raises(UsageError, match="GPU5 has a column but no row"):
        parse_topology("\n".join([head, *rows[:5]]))


# `nvidia-smi -L` of GPU0 as the help pages of JASMIN's notebooks show it; the other lines are written like these.
_IN_PARTS = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-2927d07e-3fe9-7904-9e08-b08b82d9a37d)
  MIG 1g.10gb     Device  0: (UUID: MIG-6e95ef19-5145-571b-b040-7e731f1c1af3)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-1)
  MIG 1c.3g.20gb  Device  0: (UUID: MIG-1)
  MIG 1c.3g.20gb  Device  1: (UUID: MIG-2)
GPU 2: NVIDIA A100-SXM4-40GB (UUID: GPU-2)
GPU 3: NVIDIA A100-SXM4-40GB (UUID: GPU-3)
"""


def test_gpus_in_mig_mode_are_no_peers_whatever_their_label() -> None:
    """MIG devices have no P2P, not even over NVLinks (NVIDIA/k8s-device-plugin#296), and topo -m does not say so."""
    head = "\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\n"
    rows = "".join(
        f"GPU{i}" + "".join(f"\t{'X' if i == j else 'NV12'}" for j in range(4)) + "\t0-63\n" for i in range(4)
    )
    topology = parse_topology(f"{_IN_PARTS}\n{head}{rows}")
    assert topology.parted == {"GPU0", "GPU1"}
    devices, paths = facts(topology)
    assert choose_by_labels(devices, paths, 2).members == (2, 3)
    assert choose_by_labels(*facts(parse_topology(head + rows)), 2).members == (0, 1)
    three = choose_by_labels(devices, paths, 3)
    assert "every set includes a pair without P2P" in three.reason


@pytest.mark.parametrize(
    ("title", "text", "named"),
    [
        ("a row wrapped", "\tGPU0\tGPU1\nGPU0\tX\tNV1\n0-23\nGPU1\tNV1\tX\n", "line 3: '0-23' stands between the rows"),
        ("the header wrapped", "\tGPU0\tGPU1\nCPU Affinity\nGPU0\tX\tNV1\n", "line 2: 'CPU' stands between the rows"),
        ("a column without a name", "\tGPU0\nGPU0\tX\tNV1\tNV1\n", "line 2: GPU0 has more labels than the 1 columns"),
        ("a row below, without a column", "\tGPU0\nGPU0\tX\t0-7\nGPU1\tX\t0-7\n", "line 3: GPU1 has no column"),
        ("a glued label and CPU list", "\tGPU0\tGPU1\nGPU0 X NV10-7\nGPU1 NV1 X 0-7\n", "line 2: 'NV10-7' between"),
    ],
)
def test_a_refusal_names_the_line(title: str, text: str, named: str) -> None:
    with pytest.raises(UsageError, match=re.escape(named)):
        parse_topology(text)


@pytest.mark.parametrize(
    ("stem", "state"), [("axolotl-3132", "NS"), ("club-1125", "NS"), ("club-1229", "GNS"), ("club-922", "OK")]
)
def test_every_published_peer_text_is_read(stem: str, state: str) -> None:
    file = TOPOLOGIES / f"p2p-{stem}.txt"
    for access in (read_p2p(file), *(parse_p2p(change(text_of(file))) for change in CHANGED.values())):
        assert square(access) == (("X", state), (state, "X"))
    glued = parse_p2p(text_of(file).replace(f"X       {state}", f"X{state}"))
    assert square(glued) == (("X", state), (state, "X"))
