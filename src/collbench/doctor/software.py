"""Facts about libraries: NCCL, the driver's CUDA library, torch. Torch is not imported: that takes seconds."""

from __future__ import annotations

import ctypes
import importlib.util
import pathlib
import re
from collections.abc import Callable
from importlib import metadata

from collbench.backends import nccl_library
from collbench.doctor.facts import Software
from collbench.errors import MachineError
from collbench.machine.numa import read

_TORCH_CUDA = re.compile(r"^cuda\b[^=\n]*= *['\"]([0-9.]+)['\"]", re.MULTILINE)
_NCCL_WHEEL = re.compile(r"nvidia_nccl_cu[0-9]+-([0-9.]+)\.dist-info")


def software(nccl: str | None) -> Software:
    """Return what is installed; `nccl` is the library that the user named, None where none was."""
    version, path, error = _nccl(nccl)
    wheel = nccl_library.wheel_library()
    libcuda, libcuda_error = _libcuda(ctypes.CDLL)
    torch, torch_cuda = torch_build()
    return Software(
        nccl=version,
        nccl_path=path,
        nccl_error=error,
        wheel="" if wheel is None else str(wheel),
        wheel_version=_wheel_version(wheel),
        libcuda=libcuda,
        libcuda_error=libcuda_error,
        torch=torch,
        torch_cuda=torch_cuda,
    )


def torch_build() -> tuple[str, str]:
    """Return torch's version and the CUDA that it was built with, "" where there is none; from its files alone."""
    try:
        version = metadata.version("torch")
        spec = importlib.util.find_spec("torch")
    except (metadata.PackageNotFoundError, ImportError, ValueError):
        return "", ""
    folder = pathlib.Path(spec.origin).parent if spec and spec.origin else pathlib.Path()
    found = _TORCH_CUDA.search(read(folder / "version.py"))
    return version, found[1] if found else ""


def _nccl(explicit: str | None) -> tuple[str, str, str]:
    """Return NCCL's version, path and error. It is opened as a measurement opens it, and asked for its version only."""
    try:
        found = nccl_library.find_nccl(explicit)
    except (MachineError, ImportError) as error:
        return "", "", str(error)
    return nccl_library.format_version(found.version), found.path, ""


def _wheel_version(wheel: pathlib.Path | None) -> str:
    """Return what pip calls the wheel that holds a library; "" where there is none, or several that would contradict.

    The folder's name says it: asking importlib.metadata would read every installed package.
    """
    packages = wheel.parents[3] if wheel else pathlib.Path()  # …/nvidia/nccl/lib/libnccl.so.2
    found = [match[1] for folder in packages.glob("*.dist-info") if (match := _NCCL_WHEEL.fullmatch(folder.name))]
    return found[0] if wheel and len(found) == 1 else ""


def _libcuda(opened: Callable[[str], ctypes.CDLL]) -> tuple[str, str]:
    """Return the CUDA version of libcuda.so.1, or why it cannot be opened. Opening it starts nothing."""
    version = ctypes.c_int()
    try:
        library = opened("libcuda.so.1")
        failed = library.cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError) as error:
        return "", str(error)
    return ("", f"cuDriverGetVersion: error {failed}") if failed else (_cuda_version(version.value), "")


def _cuda_version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"
