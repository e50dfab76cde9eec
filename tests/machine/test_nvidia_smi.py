import contextlib
import pathlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.machine.nvidia_smi import facts, parse_p2p, parse_topology, read_p2p, read_topology
from collbench.model.errors import UsageError

PASTED_WITH_NICS = """\
$ nvidia-smi topo -m
        [4mGPU0    GPU1    NIC0    CPU Affinity    NUMA Affinity   GPU NUMA ID[0m
GPU0     X      NV4     PXB     0       0-1             N/A
GPU1    NV4      X      SYS     1       2               N/A
NIC0    PXB     SYS      X

Legend:

  X    = Self
NIC Legend:

  NIC0: mlx5_0
GPU0 is fine.
"""


HEAD = "\tGPU0\tGPU1\n"


@pytest.mark.parametrize(
    ("title", "text", "named"),
    [
        ("empty", "", "no line names the columns GPU0"),
        ("rows without a header", "GPU0\t X \tNV1\nGPU1\tNV1\t X \n", "no line names the columns GPU0"),
        ("cut off", HEAD + "GPU0\t X \tNV1\n", "line 1: GPU1 has a column but no row"),
        ("a short row", HEAD + "GPU0\t X \tNV1\nGPU1\tNV1\n", "line 3: GPU1 has 1 of 2 columns"),
        ("an unknown label", HEAD + "GPU0\t X \tFOO\nGPU1\tFOO\t X \n", "line 2: 'FOO' between GPU0 and GPU1"),
        ("an X off the diagonal", HEAD + "GPU0\t X \tX\nGPU1\tX\t X \n", "line 2: 'X' between GPU0 and GPU1"),
        ("a label on the diagonal", HEAD + "GPU0\tNV1\tNV1\nGPU1\tNV1\t X \n", "line 2: 'NV1' between GPU0 and GPU0"),
        (
            "two labels for one pair",
            HEAD + "GPU0\t X \tNV1\nGPU1\tSYS\t X \n",
            "line 3: GPU0 and GPU1 have two different labels",
        ),
        ("a row twice", HEAD + "GPU0\t X \tNV1\nGPU0\t X \tNV1\n", "line 3: a second row of GPU0"),
    ],
)
def test_malformed_text_names_the_line_and_the_command(title: str, text: str, named: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_topology(text, "saved.txt")
    message = str(caught.value)
    assert named in message, title
    assert message.startswith("cannot read saved.txt")
    assert "nvidia-smi topo -m" in message
    assert "\n" not in message


def test_a_file_that_is_missing_or_a_folder_is_one_clear_line(tmp_path: pathlib.Path) -> None:
    for file in (tmp_path / "absent.txt", tmp_path):
        with pytest.raises(UsageError, match=r"cannot read topology file .*; save one with: nvidia-smi topo -m > FILE"):
            read_topology(file)


def test_a_mig_enabled_gpu_keeps_its_row_and_other_rows_do_not_count() -> None:
    """MIG instances have no rows of their own: a GPU in MIG mode is a GPU, and its peer access is not supported."""
    read = parse_p2p("\tGPU0\tGPU1\nGPU0\tX\tNS\nGPU1\tNS\tX\nMIG 1g.10gb\tX\tX\n")
    assert read.cells == {("GPU0", "GPU1"): "NS", ("GPU1", "GPU0"): "NS"}


@pytest.mark.parametrize("parse", [parse_topology, parse_p2p])
@given(text=st.text(st.sampled_from("GPU012 \tXNVSYPIOKTH/A\r\n\x1b[4m\x00#é"), max_size=200))
def test_any_text_is_parsed_or_refused(parse: Callable[[str], object], text: str) -> None:
    with contextlib.suppress(UsageError):
        parse(text)


@given(st.binary(max_size=300))
def test_any_file_is_parsed_or_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    file = tmp_path_factory.getbasetemp() / "any.txt"
    file.write_bytes(content)
    for read in (read_topology, read_p2p):
        with pytest.raises(UsageError) as caught:
            read(file)
        assert str(file) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_missing_peer_file_names_its_own_command(tmp_path: pathlib.Path) -> None:
    with pytest.raises(UsageError, match=r"save one with: nvidia-smi topo -p2p r > FILE"):
        read_p2p(tmp_path / "absent.txt")


def test_peer_access_of_labels_is_refused() -> None:
    with pytest.raises(UsageError, match=r"line 2: 'NV1' .*topo -p2p r"):
        parse_p2p(HEAD + "GPU0\t X \tNV1\nGPU1\tNV1\t X \n")


def test_facts_use_the_programs_nouns() -> None:
    devices, paths = facts(parse_topology(PASTED_WITH_NICS))
    assert [(device.index, device.numa_node, device.cpu_affinity) for device in devices] == [
        (0, None, "0"),
        (1, 2, "1"),
    ]
    assert [(path.devices, path.label, path.nvlinks, path.ancestor) for path in paths] == [((0, 1), "NV4", 4, None)]
    assert paths[0].theory_gbs is None
