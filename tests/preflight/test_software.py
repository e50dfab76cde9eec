"""Which libraries are installed, from their files: torch is never imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from collbench.preflight import collect


@pytest.mark.parametrize(
    ("folders", "version"),
    [
        (("nvidia_nccl_cu12-2.27.5.dist-info",), "2.27.5"),
        ((), ""),
        (("nvidia_nccl_cu12-2.27.5.dist-info", "nvidia_nccl_cu13-2.28.9.dist-info"), ""),
        (("nvidia_cublas_cu12-12.8.4.1.dist-info",), ""),
    ],
)
def test_the_wheels_version_is_its_metadata_folders(tmp_path: Path, folders: tuple[str, ...], version: str) -> None:
    for folder in folders:
        (tmp_path / folder).mkdir()
    assert collect._wheel_version(tmp_path / "nvidia/nccl/lib/libnccl.so.2") == version
    assert collect._wheel_version(None) == ""


@pytest.mark.parametrize(
    ("line", "cuda"),
    [("cuda: Optional[str] = '12.8'", "12.8"), ('cuda = "11.8"', "11.8"), ("cuda: Optional[str] = None", ""), ("", "")],
)
def test_torchs_cuda_is_read_from_its_version_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, cuda: str
) -> None:
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')\n")
    (package / "version.py").write_text(f"from typing import Optional\n__version__ = '2.9.0'\n{line}\nhip = None\n")
    info = tmp_path / "torch-2.9.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.9.0\n")
    code = "from collbench.preflight.collect import torch_build; print(*torch_build(), sep=',')"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"2.9.0,{cuda}\n"
