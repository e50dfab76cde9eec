"""Make the PTX that collbench ships from kernels.cu, with the NVRTC 11.8 of a wheel: no CUDA toolkit is needed.

`make ptx` runs it: python csrc/ptx.py csrc/kernels.cu src/collbench/kernels/kernels.ptx
It is a program, not a module: NVRTC leaves its thread in an ASCII locale, in which Python opens every file, and the
process with SA_RESTART on its signals, so that Ctrl-C no longer ends a call that waits.
"""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path

# The oldest target that NVRTC 11.8 accepts without a warning and that every GPU since P100 can run; its PTX ISA 7.8
# is read by every driver since r520.
OPTIONS = (b"--gpu-architecture=compute_60", b"--std=c++17")
WHEEL = "nvidia-cuda-nvrtc-cu11==11.8.89"


class NvrtcError(Exception):
    """NVRTC 11.8 is not installed, or does not accept the source."""


def find_nvrtc() -> Path:
    """Return the library that the wheel installed. Raises NvrtcError."""
    try:
        spec = importlib.util.find_spec("nvidia.cuda_nvrtc")
    except ModuleNotFoundError:
        spec = None
    for folder in (spec and spec.submodule_search_locations) or ():
        library = Path(folder, "lib", "libnvrtc.so.11.2")  # 11.2 is the ABI that 11.8 keeps
        if library.exists():
            return library
    raise NvrtcError(f"NVRTC 11.8 is not installed: pip install {WHEEL}")


def compile_ptx(source: bytes, headers: Mapping[str, bytes]) -> bytes:
    """Return the PTX of one CUDA source that includes these headers. Raises NvrtcError with the compiler's log."""
    nvrtc = ctypes.CDLL(str(find_nvrtc()))
    program = ctypes.c_void_p()
    # The name may end up in the PTX, so it is the same wherever the file lies.
    texts = (ctypes.c_char_p * len(headers))(*headers.values())
    names = (ctypes.c_char_p * len(headers))(*(name.encode() for name in headers))
    created = nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, b"kernels.cu", len(headers), texts, names)
    if created != 0:
        raise NvrtcError(f"nvrtcCreateProgram failed with status {created}")
    try:
        options = (ctypes.c_char_p * len(OPTIONS))(*OPTIONS)
        if nvrtc.nvrtcCompileProgram(program, len(OPTIONS), options) != 0:
            raise NvrtcError(f"NVRTC rejects the source:\n{_text(nvrtc, 'ProgramLog', program).decode()}")
        return _text(nvrtc, "PTX", program)
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def headers_beside(source: Path) -> dict[str, bytes]:
    """Return the device headers (*.cuh) in the source's folder, by the name that it includes them by."""
    return {header.name: header.read_bytes() for header in sorted(source.parent.glob("*.cuh"))}


def _text(nvrtc: ctypes.CDLL, what: str, program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    status = nvrtc[f"nvrtcGet{what}Size"](program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(max(size.value, 1))
    status = status or nvrtc[f"nvrtcGet{what}"](program, buffer)
    if status != 0:
        raise NvrtcError(f"nvrtcGet{what} failed with status {status}")
    return buffer.value


def main(arguments: list[str]) -> None:
    """Compile the first path's source and write the second path's PTX."""
    if len(arguments) != 2:
        raise SystemExit("usage: ptx.py SOURCE.cu OUTPUT.ptx")
    source, output = map(Path, arguments)
    try:
        ptx = compile_ptx(source.read_bytes(), headers_beside(source))
    except (NvrtcError, OSError) as error:
        raise SystemExit(f"{source}: {error}") from error
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_bytes(ptx)
    print(f"{output}: {len(ptx)} bytes from {source}")


if __name__ == "__main__":
    main(sys.argv[1:])
