"""What the tools would say of a simulated machine: labels, limits, peer access, health."""

from dataclasses import replace
from pathlib import Path

import pytest

from collbench.machine import nvidia_smi
from collbench.model.run import PeerStatus
from collbench.sim import fabrics, network
from collbench.sim.fabrics import Bridge, Fabric, Fault, FaultKind, ReportedPath
from tests.sim.made import complete, faulty, tree

TOPOLOGIES = Path(__file__).parents[1] / "data" / "topologies"
SWITCHES = (
    Bridge("a", "root0", 20, 20),
    Bridge("b", "root0", 20, 20),
    Bridge("below-a", "a", 20, 20),
)


def label(fabric: Fabric, a: int, b: int) -> str:
    return next(path.label for path in network.paths(fabric) if path.devices == (a, b))


@pytest.mark.parametrize("name", ["dgx-1v", "titan-rtx-nv2"])
def test_labels_equal_the_published_matrix(name: str) -> None:
    published = nvidia_smi.read_topology(TOPOLOGIES / f"{name}.txt").cells
    label_of = {path.devices: path.label for path in network.paths(fabrics.load(name))}
    assert label_of == {(a, b): published[f"GPU{a}", f"GPU{b}"] for a, b in label_of}


@pytest.mark.parametrize(
    ("title", "bridge_of_gpu", "expected"),
    [
        ("one PCIe switch", ("a", "a"), "PIX"),
        ("a switch below the other's", ("a", "below-a"), "PXB"),
        ("both below the lower switch", ("below-a", "below-a"), "PIX"),
        ("two switches of one root", ("a", "b"), "PHB"),
        ("the root itself", ("root0", "root0"), "PHB"),
        ("two roots of one node", ("root0", "root1"), "NODE"),
        ("two nodes", ("root0", "root2"), "SYS"),
    ],
)
def test_pcie_labels_mean_what_nvidia_smi_says(title: str, bridge_of_gpu: tuple[str, str], expected: str) -> None:
    assert label(tree(bridge_of_gpu, SWITCHES), 0, 1) == expected, title


@pytest.mark.parametrize(
    ("title", "fault", "expected"),
    [
        ("healthy", None, ("NV2", 2, "NV2", 50.0)),
        ("one link down", Fault(FaultKind.LINKS_DOWN, (0, 1)), ("NV1", 1, "NV2", 25.0)),
        ("hidden", Fault(FaultKind.HIDDEN_NVLINK, (0, 1)), ("PHB", 0, "PHB", 31.5)),
        ("hidden at one GPU", Fault(FaultKind.HIDDEN_NVLINK, (1,)), ("PHB", 0, "PHB", 31.5)),
        ("hidden at another", Fault(FaultKind.HIDDEN_NVLINK, (2,)), ("NV2", 2, "NV2", 50.0)),
        ("not used", Fault(FaultKind.NVLINK_UNUSED, (0, 1)), ("NV2", 2, "NV2", 50.0)),
        ("another pair's fault", Fault(FaultKind.LINKS_DOWN, (0, 2)), ("NV2", 2, "NV2", 50.0)),
    ],
)
def test_faults_of_nvlinks_show_in_the_labels(title: str, fault: Fault | None, expected: tuple[object, ...]) -> None:
    fabric = complete(3, links=2)
    path = network.paths(faulty(fabric, fault) if fault else fabric)[0]
    assert (path.label, path.nvlinks, path.tool_label, path.theory_gbs) == expected, title


def test_a_file_may_say_what_the_tools_tell() -> None:
    telling = ReportedPath((1, 0), label="PIX", tool_label="SYS", tool_peer_access=PeerStatus.GNS, cuda_peers=False)
    (path,) = network.paths(replace(tree(("root0", "root0")), labels=(telling,)))
    assert (path.label, path.tool_label, path.tool_peer_access, path.cuda_peers) == (
        "PIX",
        "SYS",
        ("GNS", "GNS"),
        False,
    )
    assert path.ancestor == "PHB"


def test_health_tells_of_throttling_other_jobs_and_pcie() -> None:
    fabric = faulty(
        tree(("root0", "root0", "root1")),
        Fault(FaultKind.THROTTLED_GPU, (0,), factor=0.5, words="HW slowdown"),
        Fault(FaultKind.FOREIGN_LOAD, (1,), factor=0.5),
        Fault(FaultKind.PCIE_DEGRADED, (2,), generation=3, width=8),
    )
    throttled, shared, degraded = network.health(fabric)
    assert throttled.throttle == ("HW slowdown",)
    assert (shared.processes, shared.utilization, shared.throttle) == (1, 100, ())
    assert (degraded.pcie_generation, degraded.pcie_width, degraded.processes) == (3, 8, 0)


def test_no_device_could_be_taken_for_a_real_one() -> None:
    assert all(
        device.uuid.startswith("SIM-") for name in fabrics.names() for device in network.devices(fabrics.load(name))
    )
