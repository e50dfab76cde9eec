"""The installed package: pins, contents, and an incremental build."""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from collections.abc import Callable
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import collbench

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = PROJECT["project"]["optional-dependencies"]
# `test` names the other extras through collbench itself: what those ask for is here under their own names.
REQUIREMENTS = [
    requirement
    for requirement in (
        *PROJECT["build-system"]["requires"],
        *PROJECT["project"]["dependencies"],
        *(requirement for extra in EXTRAS.values() for requirement in extra),
    )
    if not requirement.startswith("collbench[")
]
PIN = re.compile(r"([A-Za-z0-9_.-]+)==([A-Za-z0-9.]+)")


def pins() -> list[str]:
    return [
        line
        for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
        if line and not line.startswith("#")
    ]


def test_constraints_hold_exact_versions_and_nothing_else() -> None:
    assert [line for line in pins() if not PIN.fullmatch(line)] == []


def test_every_requirement_is_pinned_to_an_accepted_version() -> None:
    versions = {canonicalize_name(name): version for name, version in (line.split("==") for line in pins())}
    for required in map(Requirement, REQUIREMENTS):
        assert required.specifier.contains(versions[canonicalize_name(required.name)]), required


def test_the_version_and_the_command_are_those_of_the_source() -> None:
    installed = importlib.metadata.distribution("collbench")
    commands = {entry.name: entry.value for entry in installed.entry_points if entry.group == "console_scripts"}
    assert installed.version == collbench.__version__
    assert commands == {"collbench": "collbench.cli:entry"}


@pytest.mark.timeout(300)  # after `make build` nothing is compiled here; without it the whole extension
def test_a_wheel_needs_no_compiler(tmp_path: Path) -> None:
    """It is installed into an environment of its own, where its dependencies are those of this one."""
    tree, clean = tmp_path / "tree", tmp_path / "clean"
    ignored = shutil.ignore_patterns("*.so", "*.egg-info", "__pycache__")
    for folder in (
        "src",
        "csrc",
        *(str(build_folder.relative_to(ROOT)) for build_folder in ROOT.glob("build/native-*")),
    ):
        shutil.copytree(ROOT / folder, tree / folder, ignore=ignored)  # with objects, so that nothing is compiled again
    for name in ("setup.py", "pyproject.toml", "LICENSE", "README.md"):
        shutil.copy2(ROOT / name, tree)
    built = ["setup.py", "--quiet", "bdist_wheel", "--dist-dir", str(tmp_path)]
    subprocess.run([sys.executable, *built], cwd=tree, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    venv.create(clean)  # this environment's pip installs into it: to unpack one takes seconds
    bare_environment = {"PATH": str(clean / "bin"), "HOME": str(tmp_path), "NO_COLOR": "1"}

    def run(*command: str) -> str:
        done = subprocess.run(command, cwd=tmp_path, env=bare_environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert not shutil.which("cc", path=bare_environment["PATH"])
    assert not shutil.which("c++", path=bare_environment["PATH"])
    python, program = str(clean / "bin" / "python"), str(clean / "bin" / "collbench")
    pip = (sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check")
    run(*pip, "install", "--no-deps", "--no-index", "--no-compile", str(wheel))
    (packages,) = clean.glob("lib/python*/site-packages")
    # A folder that a .pth adds has its own .pth ignored: this environment's editable collbench stays out.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    shipped = {str(file.relative_to(ROOT / "src")) for file in (ROOT / "src" / "collbench").rglob("*.*")}
    installed = {str(file.relative_to(packages)) for file in (packages / "collbench").rglob("*.*")}
    left_out = re.compile(r"\.(so|pyc)$")
    assert {name for name in shipped - installed if not left_out.search(name)} == set()
    assert {"collbench/py.typed", "collbench/_profiler.so"} <= installed
    page = run(program, "pairs", "--backend", "sim", "--fabric", "nvlink-pairs-2x2", "--quick", "--sizes", "1M")
    assert "sim" in page.splitlines()[0]
    message = "import collbench as a, collbench._native as b; print(a.__version__, a.__file__, b.__file__)"
    version, *files = run(python, "-c", message).split()
    assert version == collbench.__version__
    assert wheel.name.startswith(f"collbench-{version}-")
    assert all(file.startswith(str(packages)) for file in files)


def test_the_extension_needs_no_cuda_nccl_mpi_or_torch_library() -> None:
    from collbench import _native

    needed = subprocess.run(["ldd", _native.__file__], check=True, capture_output=True, text=True).stdout
    libraries = {line.split()[0].split("/")[-1].split(".so")[0] for line in needed.splitlines()}
    system = {"linux-vdso", "libstdc++", "libm", "libgcc_s", "libc", "libdl", "libpthread", "ld-linux-x86-64"}
    assert libraries - system - {"ld-linux-aarch64"} == set()


Build = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Our setup.py over sources that compile quickly; only `one.cpp` includes the header."""
    for name in ("setup.py", "pyproject.toml", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("*.so", "*.egg-info", "__pycache__"))
    (tmp_path / "README.md").touch()
    (tmp_path / "csrc").mkdir()
    (tmp_path / "csrc" / "one.hpp").write_text("int one();\n")
    (tmp_path / "csrc" / "one.cpp").write_text('#include "one.hpp"\nint one() { return 1; }\n')
    (tmp_path / "csrc" / "two.cpp").write_text("int two() { return 2; }\n")
    return tmp_path


@pytest.fixture
def build(tree: Path) -> Build:
    def run(*args: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "setup.py", *args]
        return subprocess.run(
            command, check=False, cwd=tree, env=os.environ | environment, capture_output=True, text=True
        )

    return run


def compiled(tree: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in (tree / "build").glob("native-*/*.o")}


def test_a_rebuild_compiles_only_what_changed(tree: Path, build: Build) -> None:
    assert build("build_ext", "--inplace").returncode == 0
    for touched, again in (("README.md", set[str]()), ("csrc/two.cpp", {"two.o"}), ("csrc/one.hpp", {"one.o"})):
        before = compiled(tree)
        with (tree / touched).open("a") as source:
            source.write("// changed\n")
        assert build("build_ext", "--inplace").returncode == 0
        after = compiled(tree)
        assert set(after) == {"one.o", "two.o"}
        assert {name for name in after if after[name] != before[name]} == again, touched


def test_a_source_that_does_not_compile_fails_the_build_and_is_named(tree: Path, build: Build) -> None:
    (tree / "csrc" / "two.cpp").write_text("nonsense\n")
    failed = build("build_ext", "--inplace")
    assert failed.returncode != 0
    assert "csrc/two.cpp:1:1: error" in failed.stdout
    assert failed.stderr.splitlines()[-1].startswith("error: collbench._native was not built")


def test_what_is_installed_has_the_ptx_beside_the_code(tree: Path, build: Build) -> None:
    assert build("build_py", "--build-lib", "installed").returncode == 0
    shipped = (ROOT / "src/collbench/kernels/kernels.ptx").read_bytes()
    assert (tree / "installed/collbench/kernels/kernels.ptx").read_bytes() == shipped
