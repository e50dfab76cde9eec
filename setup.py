"""Build `collbench._native` and the NCCL profiler plugin with ninja; CXX, CXXFLAGS and LDFLAGS apply.

Nothing runs at import.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import subprocess
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

# A plain shared library, which NCCL loads and Python never does.
PLUGIN = "collbench._profiler"
# It only converts arguments and results, and its templates take a compiler as long as all other sources together.
LITTLE_OPTIMIZED = "csrc/bindings.cpp"


def extension_graph(sources: Sequence[str], output: Path, link_flags: str = "") -> str:
    """Return the ninja file that compiles each source and links them to `output`; the compiler lists the headers."""
    import pybind11  # not at the top: reading the metadata needs no pybind11

    compiler = os.environ.get("CXX", "c++")
    folders = (sysconfig.get_path("include"), sysconfig.get_path("platinclude"), pybind11.get_include())
    includes = " ".join(f"-isystem {shlex.quote(folder)}" for folder in dict.fromkeys(folders))
    flags = f"-std=c++17 $optimize -fPIC -fvisibility=hidden -pthread -Wall -Wextra {os.environ.get('CXXFLAGS', '')}"
    objects = {source: output.parent / f"{Path(source).stem}.o" for source in sources}
    compiles = "\n".join(
        f"build {compiled}: compile {source}\n  optimize = {'-O1' if source == LITTLE_OPTIMIZED else '-O2'}"
        for source, compiled in objects.items()
    )
    return f"""
rule compile
  command = {compiler} -MMD -MF $out.d {flags} {includes} -c $in -o $out
  depfile = $out.d
  deps = gcc
rule link
  command = {compiler} -shared -pthread $in -o $out {link_flags} {os.environ.get("LDFLAGS", "")} -ldl
{compiles}
build {output}: link {" ".join(map(str, objects.values()))}
"""


def run_ninja(folder: Path, graph: str) -> bool:
    """Bring a graph's outputs, which lie in `folder`, up to date. Return whether it worked."""
    import ninja  # not at the top: reading the metadata needs no ninja

    folder.mkdir(parents=True, exist_ok=True)
    build_file = folder / "build.ninja"
    build_file.write_text(f"builddir = {folder}\n{graph}", encoding="utf-8")
    return subprocess.run([Path(ninja.BIN_DIR, "ninja"), "--quiet", "-f", build_file], check=False).returncode == 0


class NinjaBuild(build_ext):  # type: ignore[misc]  # setuptools ships no types
    """Compiles in folders that outlive pip's temporary ones, so that only what changed is compiled again."""

    def run(self) -> None:
        """Build, one process at a time: the build that make began while pip installed may still run."""
        Path("build").mkdir(exist_ok=True)
        with Path("build", "lock").open("w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            super().run()

    def build_extension(self, ext: Extension) -> None:
        """Compile, link and put the extension where setuptools wants it."""
        output = Path(self.get_ext_fullpath(ext.name))
        folder = Path("build", f"native-{sysconfig.get_config_var('SOABI')}")
        # NCCL unloads a plugin with its last communicator, and loads it again for the next one: -z nodelete lets the
        # second one find what the first one recorded.
        plugin = ext.name == PLUGIN
        linked = folder / "profiler" / "_profiler.so" if plugin else folder / "_native.so"
        if not run_ninja(linked.parent, extension_graph(ext.sources, linked, "-Wl,-z,nodelete" if plugin else "")):
            raise CompileError(f"{ext.name} was not built: see the compiler's message above (C++17 is needed)")
        output.parent.mkdir(parents=True, exist_ok=True)
        self.copy_file(str(linked), str(output))

    def get_ext_filename(self, name: str) -> str:
        """Return a file name without Python's ABI for the plugin, which does not use Python."""
        plain = name.rpartition(".")[2] == PLUGIN.rpartition(".")[2]
        return f"{name.replace('.', '/')}.so" if plain else str(super().get_ext_filename(name))


if __name__ == "__main__":
    sources = {"collbench._native": "*.cpp", PLUGIN: "recorder/*.cpp"}
    found = {name: sorted(map(str, Path("csrc").glob(pattern))) for name, pattern in sources.items()}
    # While pip installs for make, make compiles.
    compiled = os.environ.get("COLLBENCH_COMPILE") != "no"
    extensions = [Extension(name, files) for name, files in found.items() if files and compiled]
    setup(ext_modules=extensions, cmdclass={"build_ext": NinjaBuild})
