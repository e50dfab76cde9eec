"""The GPU facts, read through the real nvidia-ml-py from a simulated NVML."""

from __future__ import annotations

from typing import Any

import pytest

from tests.native.fakes import Fakes

_FACTS = """
    from dataclasses import asdict
    from collbench.machine.nvml import Nvml
    with Nvml() as nvml:
        devices = nvml.devices()
        report(devices=[asdict(d) for d in devices], paths=[asdict(p) for p in nvml.paths(devices)],
               health=[asdict(nvml.health(d)) for d in devices], driver=nvml.driver_version(), cuda=nvml.cuda_version(),
               virtualization=nvml.virtualization())
"""


def _facts(fakes: Fakes, **settings: object) -> dict[str, Any]:
    return fakes.script(_FACTS, **settings).reported


def test_an_nvswitch_machine_reads_as_the_real_one_did(fakes: Fakes) -> None:
    facts = _facts(fakes)

    assert (facts["driver"], facts["cuda"], facts["virtualization"]) == ("580.159.04", "13.0", "pass-through")
    assert facts["devices"][1] == {
        "index": 1,
        "uuid": "GPU-fa4e0100-0000-0000-0000-000000000001",
        "name": "Fake GPU (sim)",
        "pci_bus_id": "00000000:02:00.0",
        "memory_bytes": 1 << 30,
        "numa_node": 0,
        "cpu_affinity": "0-63",
        "host": "",
        "pcie_generation": 5,
        "pcie_width": 16,
    }
    assert len(facts["paths"]) == 6
    # [docs/method/verdicts.md 1]: NV18 by 18 links to a switch, HOSTBRIDGE as the common ancestor.
    assert {(path["label"], path["ancestor"], *path["peer_access"].values()) for path in facts["paths"]} == {
        ("NV18", "PHB", "OK", "OK")
    }


def test_a_library_that_writes_beyond_its_buffers_does_no_harm(fakes: Fakes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's debug allocator checks beyond each block that is freed, and ends the process if that was overwritten."""
    monkeypatch.setenv("PYTHONMALLOC", "debug")
    health = _facts(fakes, gpus=2, nvlink_errors="0,1=7")["health"]

    assert [state["nvlink_errors"] for state in health] == [0, 7]


def test_a_driver_that_does_not_answer_is_one_clear_error(fakes: Fakes) -> None:
    # nvml.h: NVML_ERROR_DRIVER_NOT_LOADED is 9.
    reported = fakes.script(
        "from collbench.machine.nvml import Nvml\nreport(**failure(Nvml().__enter__))", fail="nvmlInitWithFlags:9:1"
    ).reported

    assert reported["kind"] == "MachineError"
    assert reported["text"].startswith("no NVIDIA driver")


@pytest.mark.parametrize("function", ["nvmlDeviceGetFieldValues", "nvmlDeviceGetTopologyCommonAncestor"])
def test_an_unsupported_query_never_stops_the_others(fakes: Fakes, function: str) -> None:
    # nvml.h: NVML_ERROR_NOT_SUPPORTED is 3.
    facts = _facts(fakes, gpus=2, fail=f"{function}:3:1")

    assert len(facts["devices"]) == 2
    assert len(facts["paths"]) == 1
