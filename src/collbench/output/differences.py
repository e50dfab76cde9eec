"""The differences between two runs apart from their figures, as text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from collbench.analysis.compare import Difference, Subject
from collbench.model.run import Device
from collbench.model.units import counted, format_size

_TITLES = {
    Subject.NCCL: "NCCL",
    Subject.NCCL_PATH: "NCCL library",
    Subject.CUDA: "CUDA",
    Subject.KERNEL_IMAGE: "kernels",
    Subject.MULTICAST: "multicast (NVLS)",
    Subject.FABRIC: "simulated machine",
    Subject.WARMUP: "warm-up",
    Subject.VERIFY: "verification",
    Subject.NCCL_CONFIG: "NCCL config",
    Subject.MORE_LABELS: "more labels",
    Subject.FLAGS: "disturbed trials",
    Subject.FAILED: "data points that failed",
    Subject.VERSION: "collbench",
}


def _listed(values: Iterable[object]) -> str:
    return ", ".join(map(str, values)) or "none"


def _default(text_of: Callable[[Any], str]) -> Callable[[Any], str]:
    return lambda value: "default" if value is None else text_of(value)


def _yes(value: bool | None) -> str:
    return "unknown" if value is None else "yes" if value else "no"


_TEXTS: dict[Subject, Callable[[Any], str]] = {
    Subject.MULTICAST: _yes,
    Subject.QUICK: _yes,
    Subject.VERIFY: _yes,
    Subject.COMPLETE: _yes,
    Subject.VARIABLE: lambda value: "not set" if value is None else value,
    Subject.SIZES: lambda sizes: ", ".join(map(format_size, sizes or ())) or "default",
    Subject.COPIES: _listed,
    Subject.COLLECTIVES: _listed,
    Subject.LAYOUT: lambda layout: " ".join(map(str, layout)),
    Subject.PRECISION: _default("{:.2%}".format),
    Subject.BUDGET: _default("{:.1f} s".format),
    Subject.ITERATIONS: _default(str),
    Subject.WARMUP: _default(str),
    Subject.NCCL_CONFIG: lambda config: _listed(f"{name}={value}" for name, value in config),
    Subject.DEVICES: counted,
    Subject.MORE_LABELS: lambda count: "" if count is None else f"{count} others differ",
    Subject.FLAGS: lambda flags: _listed(f"{count} {kind}" for kind, count in flags),
}


def described(difference: Difference, devices: Sequence[Device]) -> tuple[str, str, str]:
    """Return what differs and its value in the base and in the new run, "" for none; `devices` are the base's."""
    title = difference.name or _TITLES.get(difference.subject, str(difference.subject))
    if difference.subject is Subject.LABEL:
        title = f"label of {'-'.join(devices[device].tag for device in difference.devices)}"
    text_of = _TEXTS.get(difference.subject, str)
    return title, text_of(difference.base), text_of(difference.new)
