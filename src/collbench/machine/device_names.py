"""Devices by name, read and written: CUDA_VISIBLE_DEVICES and --devices, and arguments of what starts jobs on them."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from collbench.model.errors import UsageError
from collbench.model.run import Device

# Which GPUs CUDA_VISIBLE_DEVICES leaves to a process, by CUDA's documented rules, as starting CUDA to ask takes 0.5 s
# [CUDA C++ Programming Guide, "CUDA Environment Variables"].

NAME = "CUDA_VISIBLE_DEVICES"
ORDER = "CUDA_DEVICE_ORDER"
_BY_BUS = "PCI_BUS_ID"  # nvidia-smi's order, too
_UUID = re.compile(r"GPU-[0-9a-f-]*")
_INDEX = re.compile(r"[0-9]{1,9}")
_LONGEST = 100  # characters of what was typed, in an error


class Seen(NamedTuple):
    """The GPUs that a list selects, in its order."""

    devices: tuple[Device, ...]
    problem: str = ""  # what is wrong with the list, "" if nothing is
    # False if the guide does not say, so that only CUDA knows: then `devices` are nvidia-smi's reading of the entries
    # before that.
    certain: bool = True


def visible(devices: Sequence[Device], setting: str | None, order: str | None) -> tuple[Device, ...] | None:
    """Return those of all `devices` that CUDA shows, in the order of `devices`; None where only CUDA knows.

    Arguments as in `read`. Raises UsageError for MIG devices.
    """
    mig = next((entry for entry in _entries(setting or "") if entry.startswith("MIG-")), None)
    if mig is not None:
        raise UsageError(
            f"{NAME} names the MIG device {mig}: MIG devices cannot talk P2P, and collbench chooses whole GPUs: "
            "name those, or unset it"
        )
    seen = read(devices, setting, order)
    return tuple(device for device in devices if device in seen.devices) if seen.certain else None


def read(devices: Sequence[Device], setting: str | None, order: str | None) -> Seen:
    """Return what the variable leaves of all `devices`, which are in nvidia-smi's order.

    `setting` and `order` are CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER, None if unset. What the guide does not say
    is not certain: indices among unlike GPUs, which CUDA numbers by its own guess of their speed, and entries that mix
    forms.
    """
    if setting is None:
        return Seen(tuple(devices))
    entries = _entries(setting)
    if entries in ([""], ["-1"]):
        return Seen(())
    by_uuid = entries[0].startswith("GPU-")
    alike = by_uuid or order == _BY_BUS or len({device.name for device in devices}) < 2
    return _read(devices, entries, by_uuid=by_uuid, alike=alike)


def _read(devices: Sequence[Device], entries: Sequence[str], *, by_uuid: bool, alike: bool) -> Seen:
    selected: list[Device] = []
    for entry in entries:
        if entry.startswith("MIG-"):
            return Seen(tuple(selected), f"'{entry}' is a part of a GPU (MIG), and collbench measures whole GPUs")
        # What may be an index after all, or a UUID behind one; "", "-1" and "NoDevFiles" end the list.
        may_mean_one = by_uuid or entry[:1].isdigit() or entry.startswith("GPU-")
        if may_mean_one and not (_UUID if by_uuid else _INDEX).fullmatch(entry):
            return Seen(tuple(selected), f"'{entry}' is {'not a UUID' if by_uuid else 'not an index'}", certain=False)
        named = _named(devices, entry)
        if len(named) != 1:
            why = f"'{entry}' {'fits several GPUs' if named else 'names no GPU here'}, and CUDA ignores the rest"
            return Seen(tuple(selected), why, certain=alike or not selected)
        if named[0] in selected:  # torch.cuda counts the same way
            return Seen((), f"'{entry}' names {named[0].tag} again, and CUDA then shows no GPU at all")
        selected += named
    return Seen(tuple(selected), certain=alike)


def _entries(setting: str) -> list[str]:
    return [entry.strip() for entry in setting.split(",")]


def _named(devices: Sequence[Device], entry: str) -> list[Device]:
    """Return the devices that an index means, or a UUID or its beginning."""
    if _INDEX.fullmatch(entry):
        return list(devices[int(entry) : int(entry) + 1])
    return [device for device in devices if _UUID.fullmatch(entry) and device.uuid.startswith(entry)]


# Which of the machine's devices the user means by --devices.


def select(devices: Sequence[Device], text: str | None) -> tuple[Device, ...]:
    """Return the devices that a comma list of indices or UUIDs names, in its order; all of them for None.

    A UUID may be shortened as in CUDA_VISIBLE_DEVICES. Raises UsageError.
    """
    if text is None:
        return tuple(devices)
    entries = [entry.strip() for entry in text.split(",")]
    if not all(entries):
        where = f"'{text}' has an empty entry next to a comma" if any(entries) else f"'{text}' names no device"
        raise UsageError(f"{where}: write {_accepted_names(devices)}, as in 0,2")
    chosen: list[Device] = []
    for entry in entries:
        device = _find(devices, entry)
        if device in chosen:
            raise UsageError(f"'{text}' names {device.tag} twice: name each device once")
        chosen.append(device)
    return tuple(chosen)


def check_enough(
    devices: Sequence[Device],
    present: Sequence[Device],
    fewest: int,
    *,
    hidden: bool = False,
    simulated: bool = False,
    withheld: str = "",
) -> None:
    """Raise UsageError where there are fewer than `fewest` devices of those present: none, or no pair to measure.

    `hidden`: CUDA_VISIBLE_DEVICES may leave out some of the machine's GPUs. `withheld`: others that it has, in words.
    """
    if len(devices) >= fewest:
        return
    names = ", ".join(device.tag for device in devices) or "none"
    needed = "two or more devices" if fewest == 2 else "a device"
    gpus = not any(device.is_core for device in present)
    advice = ["name more with --devices"] if len(present) > len(devices) else []
    advice += [f"check what {NAME} hides"] if (hidden or not present) and gpus and not simulated else []
    advice += [withheld] if withheld and gpus else []
    advice += ["measure this GPU's own links with 'collbench copies'"] if devices and gpus else []
    advice += ["measure CPU cores with --backend host"] if gpus and not simulated else []
    advice = advice or ["let this process use more cores"]
    text = f"measuring needs {needed}, and here there would be {len(devices)} ({names}): "
    raise UsageError(text + " or ".join(filter(None, (", ".join(advice[:-1]), advice[-1]))))


def _find(devices: Sequence[Device], entry: str) -> Device:
    if entry.isdecimal():
        matches = [device for device in devices if str(device.index) == (entry.lstrip("0") or "0")]
        if not matches:
            raise UsageError(f"device {entry[:_LONGEST]} is not available; these are: {_indices(devices)}")
        return matches[0]
    whole = [device for device in devices if entry.lower() in (device.uuid.lower(), device.tag.lower())]
    matches = whole or [device for device in devices if device.uuid.lower().startswith(entry.lower())]
    if len(matches) != 1:
        why = "is neither a device index nor the UUID of a device" if not matches else "fits more than one UUID"
        raise UsageError(f"device '{entry}' {why}: write {_accepted_names(devices)}")
    return matches[0]


def _indices(devices: Sequence[Device]) -> str:
    return ", ".join(str(device.index) for device in devices) or "none"


def _accepted_names(devices: Sequence[Device]) -> str:
    if devices and devices[0].is_core:
        return f"CPU numbers ({_indices(devices)})"
    return f"indices ({_indices(devices)}) or UUIDs from 'nvidia-smi -L'"


# CUDA in this process, for which setting the variable would come too late.

_NOT_INITIALIZED = 3  # CUDA_ERROR_NOT_INITIALIZED [cuda.h]: this process has not called cuInit


def check_cuda_is_down() -> None:
    """Raise UsageError if CUDA has started in this process: it reads CUDA_VISIBLE_DEVICES only at its start."""
    user = _cuda_user()
    if user:
        raise UsageError(
            f"collbench.select came too late: {user} in this process, and CUDA reads CUDA_VISIBLE_DEVICES only when it "
            "starts; call select before anything uses a GPU"
        )


def _cuda_user() -> str:
    """Return what started CUDA in this process, as a clause; "" if nothing did.

    torch.cuda.is_available() may start the driver without torch knowing. RTLD_NOLOAD finds the driver only if it is
    loaded, and querying the number of devices starts nothing.
    """
    import ctypes  # late: few calls choose for this process

    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "torch has started CUDA"
    try:
        driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return ""
    status = driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int()))
    return "" if status == _NOT_INITIALIZED else "CUDA has started"


# Devices as arguments or variables of what starts jobs on them: a shell, docker, apptainer, srun.

LIST = "list"
# GPU-…, MIG-…, MIG-GPU-…/1/0; "" of saved labels.
_SAFE_UUID = re.compile(r"[0-9A-Za-z/_-]*")


def device_line(output_format: str, devices: Sequence[Device]) -> str:
    """Return one line, without its end, for "list" or one of ACTING. Raises UsageError for CPU cores in the latter."""
    if output_format == LIST:
        return _comma_list(devices)
    wrong = next((device for device in devices if not _SAFE_UUID.fullmatch(device.uuid)), None)
    if wrong is not None:  # a shell evaluates the answer, and a run file may be a stranger's
        raise UsageError(f"{wrong.tag} has '{wrong.uuid}', which is not a UUID: write --format text, list or json")
    if any(device.is_core for device in devices):
        raise UsageError(f"--format {output_format} is for GPUs, and these are CPU cores: write --format list or json")
    return ACTING[output_format](devices)


def variables(devices: Sequence[Device]) -> dict[str, str]:
    """Return what makes CUDA see these GPUs alone, in this order; {} for CPU cores.

    They name GPUs by UUID, or, if a label file has none, by index, with the order in which CUDA counts like nvidia-smi.
    """
    if any(device.is_core for device in devices):
        return {}
    names = {NAME: ",".join(_names(devices))}
    return names if all(device.uuid for device in devices) else {ORDER: _BY_BUS, **names}


# These act on a machine, so the devices must be that machine's.
ACTING: dict[str, Callable[[Sequence[Device]], str]] = {
    # A command for eval in sh, bash or zsh.
    "env": lambda devices: "export " + " ".join(_assignments(variables(devices))),
    # docker reads the option's value as CSV, so a list needs double quotes that a shell must leave there, hence the
    # single ones [docs.nvidia.com, container toolkit, Specialized Configurations with Docker].
    "docker": lambda devices: f"--gpus '\"device={','.join(_names(devices))}\"'",
    # One --env per variable, so that its value may hold commas [apptainer 1.1, PR 413].
    "apptainer": lambda devices: " ".join(["--nv", *(f"--env {pair}" for pair in _assignments(variables(devices)))]),
    # One task per GPU. Cgroups would hide from bound tasks each other's GPUs, and NCCL could not use P2P (docs/p2p.md).
    # srun sets CUDA_VISIBLE_DEVICES anew in every step, so the command begins with env [srun(1)].
    "slurm": lambda devices: " ".join(
        [f"--nodes=1 --ntasks={len(devices)} --gpu-bind=none env", *_assignments(variables(devices))]
    ),
}


def _names(devices: Sequence[Device]) -> list[str]:
    return [device.uuid or str(device.index) for device in devices]


def _comma_list(devices: Sequence[Device]) -> str:
    return ",".join(str(device.index) for device in devices)


def _assignments(changes: Mapping[str, str]) -> list[str]:
    return [f"{name}={shlex.quote(value)}" for name, value in changes.items()]
