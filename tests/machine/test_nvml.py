import os
import pathlib
from types import SimpleNamespace

import pytest

from collbench.machine.nvidia_smi import read_topology
from collbench.machine.nvml import Nvml
from collbench.model.errors import MachineError
from collbench.model.run import Device, Health
from tests.machine import fake_nvml, machines

DATA = pathlib.Path(__file__).parents[1] / "data"
NOWHERE = pathlib.Path("/nonexistent")


def test_h200x4_devices_are_what_nvidia_smi_showed() -> None:
    with Nvml(machines.h200x4(), NOWHERE) as nvml:
        devices = nvml.devices()
    assert devices[0] == Device(
        index=0,
        uuid="GPU-0",
        name="NVIDIA H200",
        pci_bus_id="00000000:00:06.0",
        memory_bytes=143771 * 2**20,
        numa_node=0,
        cpu_affinity="0-63",
        pcie_generation=5,
        pcie_width=16,
    )
    assert [device.pci_bus_id[-4:] for device in devices] == ["06.0", "07.0", "08.0", "09.0"]


def test_h200x4_paths_agree_with_the_recorded_matrix() -> None:
    recorded = read_topology(DATA / "h200x4" / "nvidia-smi-topo-m.txt")
    with Nvml(machines.h200x4(), NOWHERE) as nvml:
        paths = nvml.paths(nvml.devices())
    assert [path.devices for path in paths] == [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
    for path in paths:
        i, j = path.devices
        assert path.label == recorded.cells[f"GPU{i}", f"GPU{j}"]
        assert (path.nvlinks, path.ancestor, str(path.peer_access), path.theory_gbs) == (18, "PHB", "OK", 450.0)
        assert "through an NVSwitch" in path.theory_source


def test_dgx1_paths_agree_with_the_published_matrix() -> None:
    published = read_topology(DATA / "topologies" / "dgx-1v.txt")
    labels = [[published.cells.get((a, b), "X") for b in published.gpus] for a in published.gpus]
    links = [[int(label[2:]) if label.startswith("NV") else 0 for label in row] for row in labels]
    with Nvml(machines.v100_mesh(links), NOWHERE) as nvml:
        paths = nvml.paths(nvml.devices())
    assert {path.devices: path.label for path in paths} == {
        (i, j): labels[i][j] for i in range(8) for j in range(i + 1, 8)
    }
    theory = {path.label: path.theory_gbs for path in paths}
    assert theory == {"NV1": 25.0, "NV2": 50.0, "SYS": 15.75}
    assert not any("NVSwitch" in path.theory_source for path in paths)


def test_a_machine_that_supports_nearly_nothing_still_answers() -> None:
    with Nvml(machines.bare_pcie(), NOWHERE) as nvml:
        devices = nvml.devices()
        (path,) = nvml.paths(devices)
        health = nvml.health(devices[0])
        assert nvml.virtualization() == ""
    assert [(device.numa_node, device.cpu_affinity) for device in devices] == [(None, ""), (None, "")]
    assert (path.label, path.ancestor, path.nvlinks, str(path.peer_access)) == ("PHB", "PHB", 0, "GNS")
    assert (path.theory_gbs, path.theory_source) == (15.75, "PCIe gen 4 ×8")
    assert health == Health(memory_used=0)


def test_a_path_that_the_driver_does_not_name() -> None:
    machine = machines.bare_pcie()
    machine.ancestor, machine.peers, machine.gpus[0].pcie, machine.gpus[1].pcie = None, {}, None, None
    with Nvml(machine, NOWHERE) as nvml:
        (path,) = nvml.paths(nvml.devices())
    assert (path.label, path.ancestor, path.theory_gbs, path.peer_access) == ("N/A", None, None, None)


@pytest.mark.parametrize(
    ("level", "label"), [(0, "PIX"), (10, "PIX"), (20, "PXB"), (30, "PHB"), (40, "NODE"), (50, "SYS"), (77, "N/A")]
)
def test_pcie_labels_follow_the_common_ancestor(level: int, label: str) -> None:
    machine = machines.bare_pcie()
    machine.ancestor = level
    with Nvml(machine, NOWHERE) as nvml:
        (path,) = nvml.paths(nvml.devices())
    assert path.label == label


@pytest.mark.parametrize(
    ("title", "peers", "message"),
    [
        ("both fine", {0: 0, 1: 0}, "OK"),
        ("topology", {0: 3, 1: 3}, "TNS"),
        ("registry key", {0: 4, 1: 4}, "DR"),
        ("not supported", {0: 5, 1: 5}, "NS"),
        ("reading and writing differ", {0: 1, 1: 0}, "read CNS, write OK"),
        ("writing is not reported", {0: 0}, "OK"),
        ("a code of the future", {0: 99, 1: 99}, "U"),
    ],
)
def test_peer_access_has_the_statuses_of_nvidia_smi(title: str, peers: dict[int, int], message: str) -> None:
    machine = machines.bare_pcie()
    machine.peers = peers
    with Nvml(machine, NOWHERE) as nvml:
        (path,) = nvml.paths(nvml.devices())
    assert str(path.peer_access) == message, title


@pytest.mark.parametrize(("text", "node"), [("1\n", 1), ("-1\n", None), ("", None)])
def test_the_host_node_comes_from_the_kernel_where_nvml_is_silent(
    tmp_path: pathlib.Path, text: str, node: int | None
) -> None:
    (tmp_path / "10000:02:00.0").mkdir()
    (tmp_path / "10000:02:00.0" / "numa_node").write_text(text)
    with Nvml(machines.bare_pcie(), tmp_path) as nvml:
        assert [device.numa_node for device in nvml.devices()] == [None, node]


def test_health_in_the_units_of_the_model() -> None:
    machine = machines.h200x4()
    machine.gpus[0].answers |= {
        "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=37),
        "nvmlDeviceGetCurrentClocksEventReasons": 0x1 | 0x4 | 0x20,
        "nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(pid=os.getpid()), SimpleNamespace(pid=1)],
        "nvmlDeviceGetCurrPcieLinkGeneration": 4,
        "nvmlDeviceGetCurrPcieLinkWidth": 8,
    }
    machine.gpus[0].link_fields = {161: 2, 162: 0, 163: 1}
    with Nvml(machine, NOWHERE) as nvml:
        health = nvml.health(nvml.devices()[0])
    assert health == Health(
        sm_clock=1980,
        memory_clock=1980,
        temperature=38,
        power=90.0,
        throttle=("SW power cap", "SW thermal slowdown"),
        utilization=37,
        memory_used=0,
        nvlink_replays=18 * 2,
        nvlink_errors=18 * 1,
        ecc_errors=0,
        processes=1,
        pcie_generation=4,
        pcie_width=8,
    )


def test_older_drivers_count_link_errors_by_another_call() -> None:
    machine = machines.v100_mesh([[0, 2], [2, 0]])
    machine.gpus[0].link_counters = {0: 5, 1: 1, 2: 10}
    machine.gpus[0].answers = {"nvmlDeviceGetCurrentClocksThrottleReasons": 0x8}
    with Nvml(machine, NOWHERE) as nvml:
        health = nvml.health(nvml.devices()[0])
    assert (health.nvlink_replays, health.nvlink_errors, health.throttle) == (2 * 5, 2 * 11, ("HW slowdown",))


def test_nvml_is_closed_even_after_an_error() -> None:
    machine = machines.h200x4()
    machine.handle_errors[0] = fake_nvml.NVMLError("GPU is lost")
    with pytest.raises(MachineError, match=r"GPU 0 .*GPU is lost"), Nvml(machine, NOWHERE) as nvml:
        nvml.devices()
    assert (machine.opened, machine.closed) == (1, 1)


@pytest.mark.parametrize(
    ("title", "error", "words"),
    [
        ("no library", fake_nvml.NVMLErrorLibraryNotFound("not found"), "libnvidia-ml.so.1 cannot be opened"),
        ("module not loaded", fake_nvml.NVMLError("Driver Not Loaded"), "Driver Not Loaded"),
    ],
)
def test_no_driver_is_one_clear_line(title: str, error: fake_nvml.NVMLError, words: str) -> None:
    with pytest.raises(MachineError) as caught, Nvml(fake_nvml.FakeNvml([], init_error=error)):
        pass
    message = str(caught.value)
    assert message.startswith("no NVIDIA driver: libnvidia-ml.so.1"), title
    assert words in message
    assert "\n" not in message


def test_in_a_container_the_line_says_how_it_gets_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    missing = fake_nvml.NVMLErrorLibraryNotFound("not found")
    with pytest.raises(MachineError, match=r"in the pod.s spec"), Nvml(fake_nvml.FakeNvml([], init_error=missing)):
        pass


def test_a_gpu_of_another_container_is_left_out_and_keeps_its_number() -> None:
    machine = machines.h200x4()
    machine.handle_errors[1] = fake_nvml.NVMLErrorNoPermission("Insufficient Permissions")
    with Nvml(machine, NOWHERE) as nvml:
        assert [device.index for device in nvml.devices()] == [0, 2, 3]


def test_a_gpu_that_is_not_here_is_named() -> None:
    with Nvml(machines.h200x4(), NOWHERE) as nvml, pytest.raises(MachineError, match=r"GPU 7 .GPU-elsewhere."):
        nvml.health(Device(index=7, uuid="GPU-elsewhere", name=""))
