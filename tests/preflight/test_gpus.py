"""The driver's facts from a fake NVML: what it reports is kept, what it does not support is None."""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from collbench.preflight.collect import read_driver
from tests.machine.fake_nvml import FakeNvml, NVMLError, NVMLErrorLibraryNotFound
from tests.machine.machines import bare_pcie, h200x4
from tests.machine.roots import write


class Fabric(ctypes.Structure):
    """The binding's structure, as far as it is read."""

    _fields_ = (("state", ctypes.c_uint8),)


def reported(nvml: FakeNvml, **answers: Any) -> FakeNvml:
    """Return the machine with these answers added to each GPU."""
    for gpu in nvml.gpus:
        gpu.answers.update(answers)
    return nvml


def on_the_bus(root: Path, *devices: tuple[str, str]) -> None:
    """Put PCI devices of (vendor, class) on a made-up bus."""
    for number, (vendor, kind) in enumerate(devices):
        folder = root / f"sys/bus/pci/devices/0000:{number:02x}:00.0"
        write(folder, {"vendor": f"{vendor}\n", "class": f"{kind}\n"})


def test_a_machine_that_reports_everything(tmp_path: Path) -> None:
    answers = {
        "nvmlDeviceGetComputeMode": 3,
        "nvmlDeviceGetPersistenceMode": 1,
        "nvmlDeviceGetMigMode": [1, 1],
        "nvmlDeviceGetRemappedRows": (0, 1, 1, 0),
        "nvmlDeviceGetTotalEccErrors": 2,
        "nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(pid=1), SimpleNamespace(pid=2)],
    }
    nvml = reported(h200x4(), **answers)
    nvml.gpus[0].answers["nvmlDeviceGetComputeRunningProcesses"] = []
    driver = read_driver(tmp_path, lambda: nvml)
    assert (driver.version, driver.cuda, driver.virtualization, driver.error) == (
        "580.159.04",
        "13.0",
        "pass-through",
        "",
    )
    assert [path.label for path in driver.paths] == ["NV18"] * 6
    first = driver.gpus[0]
    assert (first.compute_mode, first.persistence, first.mig, first.health.ecc_errors) == (3, True, True, 2)
    assert (first.repair_pending, first.repair_failed, first.links_up) == (True, False, 18)
    assert (first.health.processes, first.health.temperature) == (0, 38)
    assert nvml.closed == nvml.opened == 1


def test_a_machine_that_reports_nearly_nothing(tmp_path: Path) -> None:
    first = read_driver(tmp_path, bare_pcie).gpus[0]
    assert (first.compute_mode, first.persistence, first.mig, first.health.ecc_errors, first.repair_pending) == (
        None,
    ) * 5
    assert (first.repair_failed, first.fabric_state, first.links_up, first.health.processes) == (None, None, 0, None)


def test_the_fabric_is_read_where_the_binding_supports_it(tmp_path: Path) -> None:
    nvml = h200x4()
    nvml.c_nvmlGpuFabricInfo_t = Fabric  # type: ignore[attr-defined]

    def fill(_gpu: object, info: object) -> int:
        """As the driver does: through a pointer."""
        ctypes.cast(info, ctypes.POINTER(Fabric)).contents.state = 1  # type: ignore[arg-type]
        return 0

    nvml.nvmlDeviceGetGpuFabricInfo = fill  # type: ignore[attr-defined]
    assert [gpu.fabric_state for gpu in read_driver(tmp_path, lambda: nvml).gpus] == [1] * 4


@pytest.mark.parametrize(
    ("error", "missing", "message"),
    [
        (NVMLErrorLibraryNotFound("not found"), True, "libnvidia-ml.so.1 cannot be opened"),
        (NVMLError("Driver/library version mismatch"), False, "nvmlInit failed: Driver/library version mismatch"),
    ],
)
def test_without_a_driver_the_reason_is_kept(tmp_path: Path, error: Exception, missing: bool, message: str) -> None:
    driver = read_driver(tmp_path, lambda: FakeNvml([], init_error=error))
    assert message in driver.error
    assert (driver.missing, driver.gpus) == (missing, ())


def test_gpus_on_the_bus_are_counted_by_vendor_and_class(tmp_path: Path) -> None:
    others = (("0x10de", "0x068000"), ("0x10de", "0x040300"), ("0x8086", "0x030000"))  # NVSwitch, sound, another maker
    on_the_bus(tmp_path, ("0x10de", "0x030200"), ("0x10de", "0x030000"), *others)
    assert read_driver(tmp_path, h200x4).on_the_bus == 2


def test_no_bus_is_not_an_empty_one(tmp_path: Path) -> None:
    assert read_driver(tmp_path, h200x4).on_the_bus is None
