"""Which GPUs CUDA_VISIBLE_DEVICES shows, according to CUDA's guide."""

from __future__ import annotations

from typing import Any

import pytest

from collbench.machine.device_names import NAME, check_enough, read, select, visible
from collbench.model.errors import UsageError
from collbench.model.run import Device

ALIKE = tuple(Device(index, f"GPU-{index}{index}a-{index}", "H200", f"00000000:0{index}:00.0") for index in range(4))
UNLIKE = (*ALIKE[:3], Device(3, "GPU-33a-3", "T400", "00000000:03:00.0"))


@pytest.mark.parametrize(
    ("title", "setting", "indices"),
    [
        ("unset", None, [0, 1, 2, 3]),
        ("empty", "", []),
        ("minus one", "-1", []),
        ("Slurm's word for a job without GPUs", "NoDevFiles", []),
        ("one index", "2", [2]),
        ("the guide's example", "0,2,-1,1", [0, 2]),
        ("an index that is too large ends the list", "0,7,1", [0]),
        ("an empty place ends the list", "0,,3", [0]),
        ("a UUID", "GPU-11a-1", [1]),
        ("UUIDs cut short", "GPU-3,GPU-0", [0, 3]),
        ("a UUID that nobody has ends the list", "GPU-0,GPU-9,GPU-1", [0]),
        ("a UUID twice", "GPU-1,GPU-11a-1", []),
        ("a UUID cut so short that it fits all", "GPU-", []),
    ],
)
def test_documented_values(title: str, setting: str | None, indices: list[int]) -> None:
    devices = visible(ALIKE, setting, None)
    assert devices is not None
    assert [device.index for device in devices] == indices, title


@pytest.mark.parametrize(
    ("title", "devices", "setting", "order"),
    [
        ("an index among unlike GPUs, which CUDA sorts by its guess of their speed", UNLIKE, "0", None),
        ("the same, said", UNLIKE, "0", "FASTEST_FIRST"),
        ("an index and a UUID", ALIKE, "0,GPU-1", None),
        ("a UUID and an index", ALIKE, "GPU-1,0", None),
        ("an index with something behind it", ALIKE, "1gpu", None),
        ("a UUID in capitals", ALIKE, "GPU-11A", None),
        ("a digit of another script", ALIKE, "²", None),
        ("an index that ends a list of unlike GPUs", UNLIKE, "0,9", None),
    ],
)
def test_what_only_cuda_can_decide(title: str, devices: tuple[Device, ...], setting: str, order: str | None) -> None:
    assert visible(devices, setting, order) is None, title


def test_unlike_gpus_can_be_reported_in_the_order_of_their_buses_by_uuid_or_all_hidden() -> None:
    assert visible(UNLIKE, "3", "PCI_BUS_ID") == UNLIKE[3:]
    assert visible(UNLIKE, "GPU-3", None) == UNLIKE[3:]
    assert visible(UNLIKE, "", None) == ()
    assert visible(UNLIKE, "9", None) == ()


@pytest.mark.parametrize("setting", ["MIG-GPU-11a-1/7/0", "MIG-0af7…", "0,MIG-x"])
def test_mig_devices_are_one_clear_line(setting: str) -> None:
    with pytest.raises(UsageError, match="MIG devices cannot talk P2P"):
        visible(ALIKE, setting, None)


@pytest.mark.parametrize(
    ("setting", "shown", "problem"),
    [
        ("2,0", (2, 0), ""),
        ("GPU-2,GPU-00a", (2, 0), ""),
        ("0,-1,1", (0,), "'-1' names no GPU here, and CUDA ignores the rest"),
        ("1,,2", (1,), "'' names no GPU here, and CUDA ignores the rest"),
        ("all", (), "'all' names no GPU here, and CUDA ignores the rest"),
        ("GPU-", (), "'GPU-' fits several GPUs, and CUDA ignores the rest"),
        ("0,1,0", (), "'0' names GPU0 again, and CUDA then shows no GPU at all"),
        ("0,MIG-GPU-1/1/0", (0,), "'MIG-GPU-1/1/0' is a part of a GPU (MIG), and collbench measures whole GPUs"),
        ("1,GPU-0", (1,), "'GPU-0' is not an index"),
        ("GPU-0,1", (0,), "'1' is not a UUID"),
    ],
)
def test_a_list_keeps_its_order_and_its_fault_is_described(
    setting: str | None, shown: tuple[int, ...], problem: str
) -> None:
    visible_devices = read(ALIKE, setting, None)
    assert tuple(device.index for device in visible_devices.devices) == shown
    assert visible_devices.problem == problem


def test_a_whole_uuid_is_its_device_even_where_another_begins_with_it() -> None:
    """As those of simulated machines do: GPU 1 and GPU 10."""
    devices = tuple(Device(index, f"SIM-random-{index}", "T4") for index in range(12))
    assert [device.index for device in select(devices, "SIM-random-1,sim-random-11")] == [1, 11]
    with pytest.raises(UsageError, match="fits more than one UUID"):
        select(devices, "SIM-random-")


CORES = tuple(Device(index, f"CPU-{index}", "Xeon") for index in range(2))
OWN = "measure this GPU's own links with 'collbench copies'"
ON_CORES = "measure CPU cores with --backend host"


@pytest.mark.parametrize(
    ("title", "present", "taken", "where", "advice"),
    [
        ("one was named", ALIKE, 1, {}, f"name more with --devices, {OWN} or {ON_CORES}"),
        ("a variable is set", ALIKE[:1], 1, {"hidden": True}, f"check what {NAME} hides, {OWN} or {ON_CORES}"),
        ("a container was given one", ALIKE[:1], 1, {"withheld": "PCI has more"}, f"PCI has more, {OWN} or {ON_CORES}"),
        ("no variable hides what is simulated", ALIKE[:1], 1, {"hidden": True, "simulated": True}, OWN),
        ("a core", CORES, 1, {"hidden": True}, "name more with --devices"),
        ("the only core", CORES[:1], 1, {}, "let this process use more cores"),
        ("none", (), 0, {}, f"check what {NAME} hides or {ON_CORES}"),
    ],
)
def test_too_few_devices_get_advice_that_can_be_followed(
    title: str, present: tuple[Device, ...], taken: int, where: dict[str, Any], advice: str
) -> None:
    with pytest.raises(UsageError) as refused:
        check_enough(present[:taken], present, 2, **where)
    assert str(refused.value).partition("): ")[2] == advice, title
    check_enough(ALIKE[:2], ALIKE, 2, **where)
