"""Which NCCL is timed: the order of the search, and what ends it."""

import pathlib
from importlib.machinery import ModuleSpec
from typing import cast

import pytest

from collbench import _native
from collbench.machine import nccl
from collbench.machine.nccl import find_nccl, wheel_library
from collbench.model.errors import MachineError
from collbench.model.operations import format_version

LOADED, SYSTEM = "", "libnccl.so.2"


class FakeLoader:
    """A fake loader that opens the paths in `present`, and refuses all others as the extension does."""

    def __init__(self, *present: str) -> None:
        self.present = present
        self.opened: list[str] = []

    def __call__(self, path: str) -> _native.Nccl:
        self.opened.append(path)
        if path not in self.present:
            raise _native.LibraryError(f"cannot open NCCL: {path or 'not in this process'}: no such file")
        return cast("_native.Nccl", f"NCCL from {path or 'this process'}")


@pytest.fixture
def wheel(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Install a wheel whose library is at the returned path."""
    file = tmp_path / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"")
    monkeypatch.setattr(nccl, "wheel_library", lambda: file)
    return str(file)


@pytest.fixture
def no_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl, "wheel_library", lambda: None)


def test_a_users_path_that_fails_is_an_error_and_never_a_fall_through(wheel: str) -> None:
    loader = FakeLoader(LOADED, wheel, SYSTEM)
    with pytest.raises(MachineError, match=r"/opt/nccl\.so: no such file; check --nccl and COLLBENCH_NCCL"):
        find_nccl("/opt/nccl.so", loader)
    assert loader.opened == ["/opt/nccl.so"]


def test_then_the_one_that_this_process_has_loaded(wheel: str) -> None:
    loader = FakeLoader(LOADED, wheel, SYSTEM)
    assert str(find_nccl(None, loader)) == "NCCL from this process"
    assert loader.opened == [LOADED]


def test_the_wheel_installed_with_torch_comes_next(wheel: str) -> None:
    loader = FakeLoader(wheel, SYSTEM)
    assert str(find_nccl(None, loader)) == f"NCCL from {wheel}"
    assert loader.opened == [LOADED, wheel]


def test_a_wheel_that_fails_is_an_error_for_the_job_would_load_it(wheel: str) -> None:
    loader = FakeLoader(SYSTEM)
    with pytest.raises(MachineError, match="reinstall nvidia-nccl, or name another with --nccl PATH"):
        find_nccl(None, loader)
    assert loader.opened == [LOADED, wheel]


@pytest.mark.usefixtures("no_wheel")
def test_then_the_systems() -> None:
    loader = FakeLoader(SYSTEM)
    assert str(find_nccl("", loader)) == f"NCCL from {SYSTEM}"  # an empty variable names nothing
    assert loader.opened == [LOADED, SYSTEM]


@pytest.mark.usefixtures("no_wheel")
def test_no_nccl_at_all_says_what_to_install() -> None:
    with pytest.raises(MachineError, match="install torch with CUDA or libnccl2, or name a file with --nccl PATH"):
        find_nccl(None, FakeLoader())


@pytest.mark.parametrize(
    ("title", "has_package", "has_file"),
    [("installed", True, True), ("without its library", True, False), ("not installed", False, False)],
)
def test_the_wheels_library(
    title: str, has_package: bool, has_file: bool, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "lib" / "libnccl.so.2"
    if has_file:
        file.parent.mkdir()
        file.write_bytes(b"")

    def find_spec(name: str) -> ModuleSpec | None:
        assert name == "nvidia.nccl"
        if not has_package:
            raise ModuleNotFoundError("No module named 'nvidia'")  # what the import system does without the parent
        spec = ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [str(tmp_path)]
        return spec

    monkeypatch.setattr("importlib.util.find_spec", find_spec)
    assert wheel_library() == (file if has_file else None)


@pytest.mark.parametrize(
    ("number", "text"), [(22809, "2.28.9"), (21801, "2.18.1"), (22005, "2.20.5"), (30100, "3.1.0")]
)
def test_versions_read_as_people_write_them(number: int, text: str) -> None:
    assert format_version(number) == text
