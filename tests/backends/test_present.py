"""One look at a machine: who is there, who is hidden, who is cut into MIG instances, and how all are."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from collbench.backends import cuda, factory
from collbench.machine.nvml import Nvml
from collbench.model.errors import MachineError
from tests.machine import fake_nvml, machines


@pytest.fixture
def lib(monkeypatch: pytest.MonkeyPatch) -> fake_nvml.FakeNvml:
    """Four H200s; asking CUDA fails the test."""
    found = machines.h200x4()
    monkeypatch.setattr(factory, "Nvml", lambda: Nvml(found))
    monkeypatch.setattr(cuda, "list_gpus", lambda: pytest.fail("asked CUDA"))
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.delenv(name, raising=False)
    return found


def test_all_are_there_and_well(lib: fake_nvml.FakeNvml) -> None:
    found = factory.look("auto")
    assert (found.backend, found.driver, found.among) == ("cuda", "580.159.04", "")
    assert [device.index for device in found.devices] == [0, 1, 2, 3]
    assert found.hidden == found.mig == ()
    assert set(found.states) == {device.uuid for device in found.devices}
    assert (lib.opened, lib.closed) == (1, 1)


def test_hidden_ones_are_known_and_their_state_too(lib: fake_nvml.FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    found = factory.look("cuda")
    assert [device.index for device in found.devices] == [1, 3]
    assert [device.index for device in found.hidden] == [0, 2]
    assert found.among == "among the 2 that CUDA_VISIBLE_DEVICES shows"
    assert len(found.states) == 4


def test_what_the_variable_leaves_open_cuda_is_asked(lib: fake_nvml.FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    lib.gpus[3].name = "NVIDIA T400"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr(cuda, "list_gpus", lambda: [SimpleNamespace(uuid="GPU-2")])
    assert [device.index for device in factory.look("cuda").devices] == [2]


def test_those_in_mig_mode_are_set_apart(lib: fake_nvml.FakeNvml) -> None:
    for gpu, modes in zip(lib.gpus, ([0, 0], [1, 1], [0, 1], None), strict=True):  # current and pending
        gpu.answers["nvmlDeviceGetMigMode"] = modes
    found = factory.look("cuda")
    assert [device.index for device in found.mig] == [1]
    assert [device.index for device in found.devices] == [0, 2, 3]
    assert [device.index for device in found.every] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("title", "setting", "says"),
    [
        ("an empty list", "", "CUDA_VISIBLE_DEVICES='' hides every GPU"),
        ("Slurm's word for none", "NoDevFiles", "CUDA_VISIBLE_DEVICES='NoDevFiles' hides every GPU"),
    ],
)
def test_a_list_of_nothing_is_one_line_with_the_way_out(
    lib: fake_nvml.FakeNvml, monkeypatch: pytest.MonkeyPatch, title: str, setting: str, says: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", setting)
    with pytest.raises(MachineError, match=f"no GPU to train on: {says}.*--backend host"):
        factory.look("auto")


def test_a_machine_without_gpus_and_one_that_lost_one_are_one_line(lib: fake_nvml.FakeNvml) -> None:
    lib.handle_errors[2] = fake_nvml.NVMLError("GPU is lost")
    with pytest.raises(MachineError, match="GPU 2 does not answer NVML: GPU is lost"):
        factory.look("cuda")
    lib.gpus.clear()
    with pytest.raises(MachineError, match="the NVIDIA driver shows no GPU to this process; write --backend host"):
        factory.look("auto")
