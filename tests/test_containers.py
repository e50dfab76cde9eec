"""The Dockerfile and Apptainer's definition, without a builder: what they copy is there, and the same."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parent.parent
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
DEFINITION = (ROOT / "collbench.def").read_text(encoding="utf-8")


def copied_by_docker() -> set[str]:
    lines = [
        line.split()[1:-1] for line in DOCKERFILE.splitlines() if line.startswith("COPY ") and "--from" not in line
    ]
    return {name for names in lines for name in names}


def section(name: str) -> str:
    (text,) = re.findall(rf"^%{name}\n(.*?)(?=^%|\Z)", DEFINITION, re.DOTALL | re.MULTILINE)
    return str(text)


def test_both_copy_the_same_files_which_the_repository_has_and_the_context_sends() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").split() if line.startswith("!")}
    names = copied_by_docker()
    assert names == sent == {line.split()[0] for line in section("files").strip().splitlines()}
    assert all(any(file == name or file.startswith(f"{name}/") for file in tracked) for name in names)


def test_the_build_has_all_that_the_package_needs() -> None:
    """What pyproject.toml and setup.py read at build time, and the pins."""
    assert {
        "pyproject.toml",
        "setup.py",
        "README.md",
        "LICENSE",
        "csrc",
        "src",
        "constraints.txt",
    } == copied_by_docker()


def test_dependencies_are_pinned_and_the_image_runs_without_root() -> None:
    for text in (DOCKERFILE, section("post")):
        joined = text.replace("\\\n", " ")
        installs = re.findall(r"pip install[^&\n]*", joined)
        assert installs
        assert all("--constraint constraints.txt" in install for install in installs)
    final = DOCKERFILE.rsplit("\nFROM ", 1)[1]
    assert re.findall(r"^USER (\w+)$", final, re.MULTILINE) == ["collbench"]
    assert "g++" not in final
