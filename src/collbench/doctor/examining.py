"""Gathers all facts about this machine: at most a second, no CUDA context, nothing changed."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from collbench.doctor import gpus, host
from collbench.doctor.facts import Driver, Facts, Folder, Software
from collbench.doctor.software import software, torch_build


def examine(
    backend: str,
    runs: Folder,
    environment: Mapping[str, str],
    nccl: str | None = None,
    root: pathlib.Path = pathlib.Path("/"),
    binding: Callable[[], Any] = gpus.binding,
) -> Facts:
    """Return the facts for the cuda or the host backend; `root` and `binding` (the module pynvml) are for tests."""
    driver = gpus.driver(root, binding) if backend == "cuda" else Driver()
    if backend == "cuda":
        libraries = software(nccl)
    else:
        version, cuda = torch_build()
        libraries = Software(torch=version, torch_cuda=cuda)
    return Facts(
        backend=backend,
        host=host.host(root, environment, [gpu.device for gpu in driver.gpus]),
        runs=runs,
        driver=driver,
        software=libraries,
        environment={name: environment[name] for name in environment if _counts(name)},
        configured=host.configured(root, environment) if backend == "cuda" else (),
    )


def _counts(name: str) -> bool:
    return name.startswith("NCCL_") or name in host.READ_BY_CUDA
