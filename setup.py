"""Build `collbench._native` with ninja and, where an nvcc is found, a fatbin of its kernels. Nothing runs at import.

Environment: CXX, CXXFLAGS and LDFLAGS as everywhere; COLLBENCH_NO_NVCC=1 leaves the fatbin out.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

KERNELS = Path("csrc", "kernels.cu")
# GPUs that people train on. For any other, the driver compiles the shipped PTX.
ARCHITECTURES = (70, 75, 80, 86, 89, 90, 100, 103, 120)


class NvccError(Exception):
    """The nvcc that was found cannot build the fatbin; collbench works without one."""


def find_nvcc() -> Path | None:
    """Return the real nvcc of the toolkit on PATH or in /usr/local/cuda, None where there is none. Raises NvccError.

    The nvcc on PATH may be a wrapper script, so the toolkit's folder is what nvcc itself says it is.
    """
    search = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/local/cuda/bin"))
    command = shutil.which("nvcc", path=search)
    if command is None:
        return None
    for line in ask(command, "--dryrun", str(KERNELS), "-o", os.devnull).splitlines():
        if line.startswith("#$ TOP="):
            return Path(line.removeprefix("#$ TOP="), "bin", "nvcc").resolve()
    raise NvccError(f"{command} --dryrun names no TOP")


def ask(*command: str) -> str:
    """Return what a command prints on both streams. Raises NvccError."""
    try:
        return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout
    except OSError as error:
        raise NvccError(f"{command[0]}: {error.strerror}") from error
    except subprocess.CalledProcessError as error:
        last = (error.stdout.strip().splitlines() or ["no message"])[-1]
        raise NvccError(f"{shlex.join(command[:2])} failed: {last}") from error


def gencode_flags(nvcc: Path) -> list[str]:
    """Return machine code for every wanted architecture that nvcc lists, and PTX of the newest. Raises NvccError."""
    listed = ask(str(nvcc), "--list-gpu-arch").split()
    chosen = [arch for arch in ARCHITECTURES if f"compute_{arch}" in listed]
    if not chosen:
        raise NvccError(f"{nvcc} lists none of the architectures {ARCHITECTURES}")
    codes = [(arch, f"sm_{arch}") for arch in chosen] + [(chosen[-1], f"compute_{chosen[-1]}")]
    return [f"-gencode=arch=compute_{arch},code={code}" for arch, code in codes]


def fatbin_graph(nvcc: Path, output: Path) -> str:
    """Return the ninja file that makes `output` from the kernels. Raises NvccError."""
    flags = " ".join(("-fatbin -std=c++17 -O3 --threads 0 -Wno-deprecated-gpu-targets", *gencode_flags(nvcc)))
    return f"""
rule fatbin
  command = {shlex.quote(str(nvcc))} {flags} $in -o $out
build {output}: fatbin {KERNELS} | {" ".join(map(str, sorted(KERNELS.parent.glob("*.cuh"))))}
"""


def extension_graph(sources: Sequence[str], output: Path) -> str:
    """Return the ninja file that compiles each source and links them to `output`; the compiler lists the headers."""
    import pybind11  # not at the top: metadata alone is read without it

    compiler = os.environ.get("CXX", "c++")
    folders = (sysconfig.get_path("include"), sysconfig.get_path("platinclude"), pybind11.get_include())
    includes = " ".join(f"-isystem {shlex.quote(folder)}" for folder in dict.fromkeys(folders))
    flags = f"-std=c++17 -O2 -fPIC -fvisibility=hidden -pthread -Wall -Wextra {os.environ.get('CXXFLAGS', '')}"
    objects = {source: output.parent / f"{Path(source).stem}.o" for source in sources}
    compiles = "\n".join(f"build {compiled}: compile {source}" for source, compiled in objects.items())
    return f"""
rule compile
  command = {compiler} -MMD -MF $out.d {flags} {includes} -c $in -o $out
  depfile = $out.d
  deps = gcc
rule link
  command = {compiler} -shared -pthread $in -o $out {os.environ.get("LDFLAGS", "")} -ldl
{compiles}
build {output}: link {" ".join(map(str, objects.values()))}
"""


def run_ninja(folder: Path, graph: str) -> bool:
    """Bring a graph's outputs, which lie in `folder`, up to date. Return whether it worked."""
    import ninja  # not at the top: metadata alone is read without it

    folder.mkdir(parents=True, exist_ok=True)
    build_file = folder / "build.ninja"
    build_file.write_text(f"builddir = {folder}\n{graph}", encoding="utf-8")
    return subprocess.run([Path(ninja.BIN_DIR, "ninja"), "--quiet", "-f", build_file], check=False).returncode == 0


class NinjaBuild(build_ext):  # type: ignore[misc]  # setuptools ships no types
    """Compiles in folders that outlive pip's temporary ones, so that only what changed is compiled again."""

    wants_fatbin = False

    def run(self) -> None:
        # In place (an editable install too) the fatbin would lie in the source tree and outlive changes of the kernels.
        self.wants_fatbin = not self.inplace and os.environ.get("COLLBENCH_NO_NVCC") != "1"
        super().run()

    def build_extension(self, ext: Extension) -> None:
        """Build the extension, which must work, and the fatbin, which need not."""
        output = Path(self.get_ext_fullpath(ext.name))
        linked = Path("build", f"native-{sysconfig.get_config_var('SOABI')}", "_native.so")
        if not run_ninja(linked.parent, extension_graph(ext.sources, linked)):
            raise CompileError("collbench._native was not built: see the compiler's message above (C++17 is needed)")
        output.parent.mkdir(parents=True, exist_ok=True)
        self.copy_file(str(linked), str(output))
        self.build_fatbin(output.parent / "kernels" / "kernels.fatbin")

    def build_fatbin(self, output: Path) -> None:
        """Put a fatbin beside the shipped PTX in the build tree, or say in one line why there is none."""
        output.unlink(missing_ok=True)  # an earlier build's
        try:
            nvcc = find_nvcc() if self.wants_fatbin else None
            if nvcc is None:
                return
            made = Path("build", "fatbin", "kernels.fatbin")
            if not run_ninja(made.parent, fatbin_graph(nvcc, made)):
                raise NvccError(f"{nvcc} cannot compile {KERNELS}, see above")
        except NvccError as error:
            self.warn(f"no fatbin, the shipped PTX will be used: {error}")
            return
        output.parent.mkdir(parents=True, exist_ok=True)
        self.copy_file(str(made), str(output))


if __name__ == "__main__":
    sources = sorted(str(path) for path in Path("csrc").glob("*.cpp"))
    setup(ext_modules=[Extension("collbench._native", sources)], cmdclass={"build_ext": NinjaBuild})
