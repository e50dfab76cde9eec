"""The shipped PTX is what NVRTC 11.8 makes of csrc/kernels.cu, and suits every GPU and driver that we promise."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from csrc import ptx

ROOT = Path(__file__).parent.parent
KERNELS = ROOT / "csrc" / "kernels.cu"
HEADERS = ptx.headers_beside(KERNELS)
SOURCE = KERNELS.read_text(encoding="utf-8") + "".join(text.decode() for text in HEADERS.values())
SHIPPED = ROOT / "src" / "collbench" / "kernels" / "kernels.ptx"
PTXAS = shutil.which("ptxas", path=os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/local/cuda/bin")))


def require_nvrtc() -> None:
    try:
        ptx.find_nvrtc()
    except ptx.NvrtcError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))


def run(source: Path, output: Path) -> subprocess.CompletedProcess[str]:
    require_nvrtc()
    command = [sys.executable, ptx.__file__, str(source), str(output)]
    return subprocess.run(command, check=False, capture_output=True, text=True)


def test_shipped_ptx_is_byte_for_byte_what_nvrtc_makes_of_the_source(tmp_path: Path) -> None:
    output = tmp_path / "kernels.ptx"
    assert run(KERNELS, output).returncode == 0
    assert output.read_bytes() == SHIPPED.read_bytes(), "kernels.cu or a *.cuh has changed: run `make ptx`"


def test_rejected_source_is_reported_with_its_line(tmp_path: Path) -> None:
    source = tmp_path / "kernels.cu"
    source.write_text('extern "C" __global__ void k() {\n nonsense; }', encoding="utf-8")
    ended = run(source, tmp_path / "kernels.ptx")
    assert ended.returncode == 1
    assert re.search(r'kernels\.cu\(2\).*"nonsense" is undefined', ended.stderr)
    assert not (tmp_path / "kernels.ptx").exists()


def test_ptx_is_old_enough_for_every_driver_since_r520_and_every_gpu_since_p100() -> None:
    shipped = SHIPPED.read_text(encoding="utf-8")
    assert re.findall(r"^\.(version|target) (.+)$", shipped, re.MULTILINE) == [("version", "7.8"), ("target", "sm_60")]


def test_every_kernel_of_the_source_is_an_entry_under_its_own_name() -> None:
    kernels = re.findall(r'extern "C" __global__\s+(?:__launch_bounds__\(.*?\)\s+)?void\s+(\w+)\(', SOURCE)
    entries = re.findall(r"^\.visible \.entry (\w+)\(", SHIPPED.read_text(encoding="utf-8"), re.MULTILINE)
    assert SOURCE.count("__global__") == len(kernels) > 0
    assert sorted(entries) == sorted(kernels)


@pytest.mark.skipif(PTXAS is None, reason="no ptxas: the driver assembles this PTX on GPU machines")
@pytest.mark.parametrize("target", [70, 75, 90, 120], ids="sm_{}".format)
def test_ptx_assembles_for(target: int, tmp_path: Path) -> None:
    assert PTXAS is not None
    known = subprocess.run([PTXAS, "--help"], check=True, capture_output=True, text=True).stdout
    if f"sm_{target}'" not in known and f"sm_{target}," not in known:
        pytest.skip(f"{PTXAS} does not know sm_{target}")
    command = [PTXAS, f"--gpu-name=sm_{target}", str(SHIPPED), "--output-file", str(tmp_path / "kernels.cubin")]
    assembled = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (assembled.returncode, assembled.stderr) == (0, "")
