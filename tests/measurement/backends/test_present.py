"""One look at a machine: which GPUs are present, hidden or cut into MIG instances, and their states."""

from __future__ import annotations

import pytest

from collbench.machine.nvml import Nvml
from collbench.measurement.backends import cuda, factory
from collbench.model.errors import MachineError
from tests.machine import fake_nvml, machines


@pytest.fixture
def nvml_library(monkeypatch: pytest.MonkeyPatch) -> fake_nvml.FakeNvml:
    """Four H200s; asking CUDA fails the test."""
    nvml_library = machines.h200x4()
    monkeypatch.setattr("collbench.machine.nvml.Nvml", lambda: Nvml(nvml_library))
    monkeypatch.setattr(cuda, "list_gpus", lambda: pytest.fail("asked CUDA"))
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.delenv(name, raising=False)
    return nvml_library


def test_all_gpus_are_present_and_healthy(nvml_library: fake_nvml.FakeNvml) -> None:
    present = factory.look("auto")
    assert (present.backend, present.driver, present.among) == ("cuda", "580.159.04", "")
    assert [device.index for device in present.devices] == [0, 1, 2, 3]
    assert present.hidden == present.mig == ()
    assert set(present.states) == {device.uuid for device in present.devices}
    assert (nvml_library.opened, nvml_library.closed) == (1, 1)


def test_hidden_gpus_are_listed_with_their_states(
    nvml_library: fake_nvml.FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    present = factory.look("cuda")
    assert [device.index for device in present.devices] == [1, 3]
    assert [device.index for device in present.hidden] == [0, 2]
    assert present.among == "among the 2 that CUDA_VISIBLE_DEVICES shows"
    assert len(present.states) == 4


def test_cuda_is_queried_where_the_variable_is_ambiguous(
    nvml_library: fake_nvml.FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml_library.gpus[3].name = "NVIDIA T400"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr(cuda, "list_gpus", lambda: ("GPU-2",))
    assert [device.index for device in factory.look("cuda").devices] == [2]


def test_gpus_in_mig_mode_are_listed_separately(nvml_library: fake_nvml.FakeNvml) -> None:
    for gpu, modes in zip(nvml_library.gpus, ([0, 0], [1, 1], [0, 1], None), strict=True):  # current and pending
        gpu.answers["nvmlDeviceGetMigMode"] = modes
    present = factory.look("cuda")
    assert [device.index for device in present.mig] == [1]
    assert [device.index for device in present.devices] == [0, 2, 3]
    assert [device.index for device in present.every] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("title", "setting", "message"),
    [
        ("an empty list", "", "CUDA_VISIBLE_DEVICES='' hides every GPU"),
        ("Slurm's word for none", "NoDevFiles", "CUDA_VISIBLE_DEVICES='NoDevFiles' hides every GPU"),
    ],
)
def test_an_empty_list_of_gpus_is_one_line_that_says_what_to_do(
    nvml_library: fake_nvml.FakeNvml, monkeypatch: pytest.MonkeyPatch, title: str, setting: str, message: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", setting)
    with pytest.raises(MachineError, match=f"no GPU to use: {message}.*--backend host"):
        factory.look("auto")


def test_a_machine_without_gpus_and_one_that_lost_one_are_one_line(nvml_library: fake_nvml.FakeNvml) -> None:
    nvml_library.handle_errors[2] = fake_nvml.NVMLError("GPU is lost")
    with pytest.raises(MachineError, match="GPU 2 does not answer NVML: GPU is lost"):
        factory.look("cuda")
    nvml_library.gpus.clear()
    with pytest.raises(MachineError, match="the NVIDIA driver shows no GPU to this process; write --backend host"):
        factory.look("auto")
