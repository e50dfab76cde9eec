import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.machine.nvidia_smi import facts, parse_topology
from collbench.model.run import Device, Path
from collbench.report.topology import explain_pair, render_topology
from collbench.sim import fabrics
from collbench.sim.network import devices, paths
from tests.builders import nvml_says

H200 = "18 × 25 GB/s through an NVSwitch; line rate 26.562 GB/s, as NVML reports"


def _devices(count: int, cpus: str = "0-63", numa: int | None = 0) -> tuple[Device, ...]:
    return tuple(Device(index=i, uuid="", name="", numa_node=numa, cpu_affinity=cpus) for i in range(count))


@given(st.integers(1, 12), st.data())
def test_a_rendered_matrix_parses_to_the_same_labels(count: int, data: st.DataObject) -> None:
    labels = st.sampled_from(["NV1", "NV18", "PIX", "PXB", "PHB", "NODE", "SYS", "N/A"])
    paths = tuple(Path((i, j), data.draw(labels)) for i in range(count) for j in range(i + 1, count))
    devices = _devices(count, cpus=data.draw(st.sampled_from(["", "0-7", "0-23,48-71"])))
    _, parsed = facts(parse_topology(render_topology(devices, paths)))
    assert [(path.devices, path.label) for path in parsed] == [(path.devices, path.label) for path in paths]


@pytest.mark.parametrize(
    ("title", "path", "sentence"),
    [
        (
            "NVSwitch",
            Path((0, 1), "NV18", "PHB", 18, 450.0, H200, nvml_says("OK")),
            f"GPU0 and GPU1 are connected by 18 NVLinks (NV18): 450 GB/s each way in theory ({H200}); without NVLink "
            "the path would run through a PCIe host bridge, typically the CPU (PHB); peer access OK.",
        ),
        (
            "a single bridge",
            Path((0, 1), "PIX", "PIX", 0, 31.5, "PCIe gen 4 ×16", nvml_says("OK")),
            "GPU0 and GPU1 have no NVLink and connect through a single PCIe bridge (PIX): 31.5 GB/s each way in theory "
            "(PCIe gen 4 ×16); peer access OK.",
        ),
        (
            "peer access one way only",
            Path((1, 2), "PXB", "PXB", peer_access=nvml_says("TNS", "OK")),
            "GPU1 and GPU2 have no NVLink and connect through several PCIe bridges, below the host bridge (PXB); peer "
            "access incomplete (read TNS, write OK; TNS: topology not supported).",
        ),
    ],
)
def test_a_pair_in_a_sentence(title: str, path: Path, sentence: str) -> None:
    assert explain_pair(_devices(3), path) == sentence, title


def test_a_pair_is_named_by_nvidia_smis_numbers_not_by_position() -> None:
    devices = (Device(index=3, uuid="", name=""), Device(index=6, uuid="", name=""))
    assert explain_pair(devices, Path((0, 1), "NODE", "NODE")).startswith("GPU3 and GPU6 ")


@pytest.mark.parametrize("width", [40, 60, 80])
def test_what_stands_below_the_matrix_fits_a_narrow_terminal(width: int) -> None:
    machine = fabrics.load("dgx-1v")
    page = render_topology(devices(machine), paths(machine), width)
    matrix, _, below = page.partition("Legend:")
    assert 0.75 * width < max(map(len, below.splitlines())) <= width
    assert max(map(len, matrix.splitlines())) <= max(width, len("     GPU0 GPU1 GPU2 GPU3 GPU4 GPU5 GPU6 GPU7"))
    assert [line.split()[-1] for line in matrix.splitlines() if line.startswith("GPU")][-8:] == [*"00001111"]
