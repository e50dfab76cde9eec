"""Files of /proc, /sys and /etc below a made-up root."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def put(root: Path, name: str, text: str | bytes = "") -> Path:
    """Write one file, with the folders above it."""
    file = root / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def write(root: Path, files: Mapping[str, str]) -> Path:
    """Write files by their names, and return the root."""
    for name, text in files.items():
        put(root, name, text)
    return root
