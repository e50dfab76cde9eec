"""The prototypes and constants that csrc/ declares are those of the real cuda.h and nccl.h, where installed."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sysconfig
from pathlib import Path

import pytest

from collbench.model.units import DTYPE_BYTES, REDOPS

_SOURCE = Path(__file__).parents[2] / "csrc"
_PACKAGES = Path(sysconfig.get_path("purelib")) / "nvidia"
_TOOLKITS = sorted(Path("/usr/local").glob("cuda*/include"))
_SYSTEM = Path("/usr/include")
# Tables of functions that not every NCCL has, and the minor version of NCCL 2 that brought them.
_SINCE = {"NEWER_": 28, "BUFFER_": 19, "WINDOW_": 27}
_OLDEST = 12010  # declares every name that csrc/ uses
# Ours take int for every enum, and void* where a caller passes only null.
_COMPARISON = """
#include <type_traits>
template <class Ours, class Theirs>
constexpr bool alike = std::is_same_v<Ours, Theirs>
    || (std::is_same_v<Ours, int> && std::is_enum_v<Theirs> && sizeof(Theirs) == sizeof(int))
    || (std::is_same_v<Ours, void*> && std::is_pointer_v<Theirs>);
template <class Ours, class Theirs>
struct Alike : std::false_type {};
template <class R, class... A, class S, class... B>
struct Alike<R (*)(A...), S (*)(B...)> {
  static constexpr bool all() {
    if constexpr (sizeof...(A) == sizeof...(B)) return (alike<A, B> && ... && alike<R, S>);
    return false;
  }
  static constexpr bool value = all();
};
"""


def _folder(header: str, *folders: Path) -> Path | None:
    return next((folder for folder in folders if (folder / header).is_file()), None)


_CUDA = _folder("cuda.h", _PACKAGES / "cuda_runtime" / "include", *_TOOLKITS, *_PACKAGES.glob("cu1*/include"), _SYSTEM)
_NCCL = _folder("nccl.h", _PACKAGES / "nccl" / "include", *_TOOLKITS, _SYSTEM)


def _constants(header: str) -> dict[str, tuple[str, str]]:
    """Return our constants: the value, and the name in the vendor's header."""
    matches = re.findall(
        r"^constexpr \w+ (\w+) = (-?\d+); +// (\w+(?: \| \w+)*)$", (_SOURCE / header).read_text(), re.MULTILINE
    )
    return {our_name: (value, vendor_name) for our_name, value, vendor_name in matches}


def _functions(header: str, table: str) -> list[tuple[str, str, str]]:
    """Return name, result and parameters of a table's functions."""
    text = (_SOURCE / header).read_text().replace("\\\n", " ")
    line = re.search(rf"^#define {table}\(X\) (.*)$", text, re.MULTILINE)
    assert line is not None, table
    entries = re.findall(r"X\((\w+),\s*([\w\s*]*?),?\s*\(([^()]*)\)\)", line[1])
    return [(name, result.strip() or "CUresult", parameters) for name, result, parameters in entries]


def _compiles(code: str, *folders: Path) -> str:
    """Return the compiler's errors."""
    command = [os.environ.get("CXX", "c++"), "-std=c++17", "-fsyntax-only", "-x", "c++", "-"]
    command += [f"-I{folder}" for folder in folders]
    return subprocess.run(command, input=code, capture_output=True, text=True, check=False).stderr


def _asserts(functions: list[tuple[str, str, str]], constants: dict[str, tuple[str, str]]) -> list[str]:
    lines = [
        f'static_assert(Alike<{result} (*)({parameters}), decltype(&::{name})>::value, "{name}");'
        for name, result, parameters in functions
    ]
    return [
        *lines,
        *(
            f'static_assert({value} == ({vendor_name}), "{our_name}");'
            for our_name, (value, vendor_name) in constants.items()
        ),
    ]


def _driver() -> tuple[list[tuple[str, str, str]], dict[str, tuple[str, str]]]:
    return _functions("driver.hpp", "COLLBENCH_DRIVER_FUNCTIONS"), _constants("driver.hpp")


def _need_cuda() -> Path:
    if _CUDA is None:
        if os.environ.get("CI") == "true":
            raise FileNotFoundError("cuda.h: the wheel nvidia-cuda-runtime-cu12 brings it")
        pytest.skip("needs cuda.h: pip install nvidia-cuda-runtime-cu12, or a CUDA toolkit")
    version = re.search(r"^#define CUDA_VERSION (\d+)", (_CUDA / "cuda.h").read_text(), re.MULTILINE)
    if version is None or int(version[1]) < _OLDEST:
        pytest.skip(f"{_CUDA}/cuda.h is older than CUDA 12.1, which knows of multicast")
    return _CUDA


def test_the_tables_are_read_whole() -> None:
    functions, constants = _driver()
    tables = [_functions("nccl.hpp", f"COLLBENCH_NCCL_{kind}FUNCTIONS") for kind in ("", *_SINCE)]

    for header, listed in (("driver.hpp", functions), ("nccl.hpp", [*itertools.chain(*tables)])):
        assert [name for name, _, _ in listed] == re.findall(
            r"^  X\((\w+),", (_SOURCE / header).read_text(), re.MULTILINE
        )
    named = {**constants, **_constants("nccl.hpp")}
    every = {
        name
        for file in ("driver", "nccl")
        for name in re.findall(r"\b(k[A-Z]\w+) =", (_SOURCE / f"{file}.hpp").read_text())
    }
    assert every - named.keys() == {"kOldestNcclVersion"}


def test_driver_functions_and_constants_are_those_of_cuda_h() -> None:
    include = _need_cuda()
    numbers = re.findall(
        r"^using (\w+) = (int|unsigned long long);$", (_SOURCE / "driver.hpp").read_text(), re.MULTILINE
    )
    types = [f"static_assert(alike<{ours}, ::{name}>);" for name, ours in numbers]
    types += ["static_assert(sizeof(::CUuuid) == 16);"]

    assert _compiles("\n".join(["#include <cuda.h>", _COMPARISON, *_asserts(*_driver()), *types]), include) == ""


@pytest.mark.parametrize(
    ("title", "name", "wrong"),
    [
        ("a parameter too many", "cuInit", "unsigned, int"),
        ("a narrower number", "cuMemAlloc_v2", "CUdeviceptr*, unsigned"),
        ("another handle", "cuStreamQuery", "CUevent"),
        ("a whole number for a pointer", "cuMemFreeHost", "CUdeviceptr"),
    ],
)
def test_a_wrong_prototype_is_noticed(title: str, name: str, wrong: str) -> None:
    include = _need_cuda()
    code = ["#include <cuda.h>", _COMPARISON, *_asserts([(name, "CUresult", wrong)], {})]

    assert name in _compiles("\n".join(code), include), title


def test_nccl_functions_and_constants_are_those_of_nccl_h() -> None:
    include = _need_cuda()
    if _NCCL is None:
        pytest.skip("needs nccl.h, which comes with the wheel of NCCL (nvidia-nccl-cu12, 300 MB) and with libnccl-dev")
    version = re.search(
        r"^#define NCCL_VERSION_CODE (\d+)|^#define NCCL_MINOR (\d+)", (_NCCL / "nccl.h").read_text(), re.MULTILINE
    )
    minor = int(version[2] or int(version[1]) // 100 % 100) if version else 0
    functions = _functions("nccl.hpp", "COLLBENCH_NCCL_FUNCTIONS")
    for kind, since in _SINCE.items():
        functions += _functions("nccl.hpp", f"COLLBENCH_NCCL_{kind}FUNCTIONS") if minor >= since else []
    dtypes = list(DTYPE_BYTES) if minor >= 24 else list(DTYPE_BYTES)[:10]  # 8-bit floats came with 2.24
    constants = _constants("nccl.hpp")
    if minor < _SINCE["WINDOW_"]:
        del constants["kWindowSymmetric"]
    names = [name.removesuffix("fn").replace("_", "").capitalize() for name in dtypes]
    constants |= {name: (str(index), f"nccl{name}") for index, name in enumerate(names)}
    constants |= {name: (str(index), f"nccl{name.capitalize()}") for index, name in enumerate(REDOPS)}
    # By value: as large as theirs, and of bytes.
    same = "struct NcclUniqueId { char internal[128]; }; static_assert(sizeof(::ncclUniqueId) == sizeof(NcclUniqueId));"
    asserts = [line.replace("NcclUniqueId", "ncclUniqueId") for line in _asserts(functions, constants)]

    code = ["#include <nccl.h>", "#include <cstddef>", "using CUstream = cudaStream_t;", _COMPARISON, *asserts, same]

    assert _compiles("\n".join(code), _NCCL, include, _SOURCE) == ""
