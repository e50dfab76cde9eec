"""Cards near GPUs, from made-up PCI trees and NCCL's files: never a traceback, never a card that is not in them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.machine.doctor.findings import Level
from collbench.machine.network_affinity import NEARNESS, NetworkAffinity, nccl_choice, read_affinity
from collbench.machine.nvidia_smi import live_cards, parse_cards
from collbench.model.errors import UsageError
from tests.machine.doctor.described import machine, named

# Two sockets; a switch with two GPUs and a card, behind it a switch of its own for another card; one slot each side.
UP, PORTS = "pci0000:00/0000:00:01.0/0000:01:00.0", ("0000:02:00.0", "0000:02:01.0", "0000:02:02.0", "0000:02:03.0")
TREE = {
    "gpu0": (f"{UP}/{PORTS[0]}/0000:03:00.0", 0),
    "gpu1": (f"{UP}/{PORTS[1]}/0000:04:00.0", 0),
    "mlx5_0": (f"{UP}/{PORTS[2]}/0000:05:00.0", 0),
    "mlx5_1": (f"{UP}/{PORTS[3]}/0000:06:00.0/0000:07:00.0/0000:08:00.0", 0),
    "mlx5_2": ("pci0000:00/0000:00:02.0/0000:09:00.0", 0),
    "mlx5_3": ("pci0000:40/0000:40:01.0/0000:41:00.0", 0),
    "mlx5_4": ("pci0000:80/0000:80:01.0/0000:81:00.0", 1),
}
BUS_IDS = {0: "00000000:03:00.0", 1: "00000000:04:00.0"}
CARDS = tuple(name for name in TREE if name.startswith("mlx"))
TOPOLOGY = """<system version="1"><cpu numaid="0"><pci busid="0000:01:00.0">
<pci busid="0000:03:00.0"><gpu dev="0" rank="0"/></pci><pci busid="0000:04:00.0"><gpu dev="1" rank="1"/></pci>
<pci busid="0000:05:00.0"><nic><net name="mlx5_0" dev="0"/></nic></pci></pci>
<nic><net name="mlx5_4" dev="1"/></nic></cpu></system>"""


def graphs(*channels: str) -> str:
    inside = "".join(f"<channel>{channel}</channel>" for channel in channels)
    return f'<graphs version="1"><graph id="0">{inside}</graph></graphs>'


def ends(first: object, last: object, gpus: tuple[object, ...] = (0, 1)) -> str:
    inside = "".join(f'<gpu dev="{gpu}"/>' for gpu in gpus)
    return f'<net dev="{first}"/>{inside}<net dev="{last}"/>'


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, (bus_path, node) in TREE.items():
        device = tmp_path / "sys/devices" / bus_path
        device.mkdir(parents=True, exist_ok=True)
        (device / "numa_node").write_text(f"{node}\n")
        if name.startswith("gpu"):
            link = tmp_path / "sys/bus/pci/devices" / device.name
        else:
            link = tmp_path / "sys/class/infiniband" / name / "device"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(device)
    return tmp_path


def test_nearness_is_that_of_nvidia_smi(tree: Path) -> None:
    affinity = read_affinity(tree, BUS_IDS, CARDS, {})
    nearness = dict(zip(CARDS, NEARNESS, strict=True))
    assert affinity.near == {0: nearness, 1: nearness}
    assert affinity.nearest(0) == (("mlx5_0",), "PIX")
    assert not affinity.chosen


def test_what_firmware_does_not_say_is_left_out(tree: Path) -> None:
    (tree / "sys/devices" / TREE["mlx5_4"][0] / "numa_node").write_text("-1\n")
    (tree / "sys/class/infiniband/mlx5_0/device").unlink()
    affinity = read_affinity(tree, {**BUS_IDS, 2: "00000000:FF:00.0", 3: ""}, (*CARDS, "gone"), {})
    assert set(affinity.near[0]) == {"mlx5_1", "mlx5_2", "mlx5_3"}
    assert affinity.near[2] == affinity.near[3] == {}
    assert affinity.nearest(2) == ((), "")


@pytest.mark.parametrize(
    ("first", "last"), [(0, 1), ("0x100000000000000", "0x100000000000001"), (1 << 56, 1 + (1 << 56))]
)
def test_a_channel_joins_its_ends(first: object, last: object) -> None:
    """In whatever way NCCL writes ids: since 2.22 they have the system's number above."""
    system = int(str(first), 0) & ~1
    channel = ends(first, last, (system, system + 1))
    assert nccl_choice(TOPOLOGY, graphs(channel), BUS_IDS) == {0: ("mlx5_0",), 1: ("mlx5_4",)}


def test_doctor_warns_where_nccl_took_a_farther_card(tree: Path, tmp_path: Path) -> None:
    files = {"NCCL_TOPO_DUMP_FILE": TOPOLOGY, "NCCL_GRAPH_DUMP_FILE": graphs(ends(0, 1))}
    environment = {}
    for number, (name, text) in enumerate(files.items()):
        path = tmp_path / f"{number}.xml"
        path.write_text(text)
        environment[name] = str(path)
    affinity = read_affinity(tree, BUS_IDS, CARDS, environment)
    finding = named(machine(host={"network_affinity": affinity}), "network affinity")
    assert finding.level is Level.WARN
    assert finding.text == "NCCL sends GPU1's traffic over mlx5_4 (SYS), but mlx5_0 is nearer (PIX)"
    near = NetworkAffinity(affinity.near, {0: ("mlx5_0",)})
    finding = named(machine(host={"network_affinity": near}), "network affinity")
    assert (finding.level, finding.text) == (
        Level.OK,
        "nearest cards: GPU0 mlx5_0 PIX, GPU1 mlx5_0 PIX; NCCL uses these",
    )


def test_doctor_warns_of_gpus_without_a_card_on_their_socket() -> None:
    far = NetworkAffinity({0: {"mlx5_0": "PIX", "mlx5_1": "PIX"}, 1: {"mlx5_0": "SYS", "mlx5_1": "SYS"}})
    finding = named(machine(host={"network_affinity": far}), "network affinity")
    assert finding.level is Level.WARN
    assert "GPU1 reach cards only across sockets" in finding.text
    assert far.nearest(0) == (("mlx5_0", "mlx5_1"), "PIX"), "two at the same distance are both nearest"


@settings(max_examples=75)
@given(st.integers(0, 10**6), st.sampled_from([TOPOLOGY, graphs(ends(0, 1), ends(1, 0))]))
def test_damaged_files_name_no_card_that_is_not_in_them(seed: int, text: str) -> None:
    chance = random.Random(seed)
    damaged = list(text)
    for _ in range(chance.randrange(1, 6)):
        place = chance.randrange(len(damaged))
        damaged[place : place + chance.randrange(4)] = chance.choice(["", "<", '"', "9", "&", "\0", "</gpu>", "-1"])
    cut = "".join(damaged)[: chance.randrange(len(text) + 8)]
    pair = (cut, graphs(ends(0, 1))) if text is TOPOLOGY else (TOPOLOGY, cut)
    for gpu, cards in nccl_choice(*pair, BUS_IDS).items():
        assert gpu in BUS_IDS
        assert cards
        assert all(card and card in pair[0] for card in cards)


PAGE = """\t\x1b[4mGPU0\tGPU1\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\x1b[0m
GPU0\t X \tNV18\tPIX\tSYS\t0-47\t0
GPU1\tNV18\t X \tSYS\tPXB\t48-95\t1
NIC0\tPIX\tSYS\t X \tSYS\t\t
NIC1\tSYS\tPXB\tSYS\t X \t\t

Legend:

  X    = Self

NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_4
"""


def test_columns_of_cards_have_the_kernels_names() -> None:
    assert parse_cards(PAGE) == {0: {"mlx5_0": "PIX", "mlx5_4": "SYS"}, 1: {"mlx5_0": "SYS", "mlx5_4": "PXB"}}
    older = PAGE.partition("NIC Legend")[0].replace("NIC0", "mlx5_0").replace("NIC1", "mlx5_4")
    assert parse_cards(older) == parse_cards(PAGE)
    wrapped = PAGE.replace("GPU0\t X \tNV18\tPIX\tSYS", "GPU0  X NV18 PIXSYS 0").replace("0-47\t0", "")
    assert parse_cards(wrapped) == parse_cards(PAGE)
    with pytest.raises(UsageError, match=r"GPU0 has 3 of 4 columns"):
        parse_cards(wrapped.replace("PIXSYS 0", "PIXSY"))
    assert parse_cards(PAGE.replace("\n", "\n> ").replace("\t\x1b", "> \t\x1b")) == parse_cards(PAGE)


def test_nvidia_smi_fills_in_what_the_tree_does_not_show_and_a_dispute_is_named(tree: Path) -> None:
    (tree / "sys/devices" / TREE["mlx5_4"][0] / "numa_node").write_text("-1\n")
    affinity = read_affinity(tree, BUS_IDS, CARDS, {}, parse_cards(PAGE))
    assert affinity.near[0]["mlx5_4"] == "SYS"
    assert list(affinity.disputed()) == [(1, "mlx5_0", "PIX", "SYS")]
    finding = named(machine(host={"network_affinity": affinity}), "network affinity")
    assert (finding.level, finding.text) == (Level.WARN, "the PCI tree has mlx5_0 PIX from GPU1, nvidia-smi SYS")


@pytest.mark.parametrize("program", ["/nowhere/nvidia-smi", "/bin/false", "/bin/echo"])
def test_a_program_that_fails_says_nothing(program: str) -> None:
    assert live_cards(program, 5.0) == {}
