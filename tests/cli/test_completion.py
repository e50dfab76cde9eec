"""What shells complete: in the real shells where they are installed, and through click's protocol."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from collbench.cli.completion import script_for
from collbench.launch import formats
from tests.cli.program import Program, collbench

SHELLS = ("bash", "zsh", "fish")
# (complete arguments, the one being typed, completions that must be offered, completions that must not)
LINES = [
    ((), "pa", {"pairs"}, {"copies"}),
    ((), "all", {"allreduce", "allgather", "alltoall"}, {"pairs"}),
    (("pairs",), "--ba", {"--backend"}, {"--budget"}),
    (("pairs", "--backend"), "", {"auto", "cuda", "host", "sim"}, set()),
    (("select", "2", "--format"), "", {"text", "json", *formats.ACTING}, set()),
    (("all-reduce",), "--siz", {"--sizes"}, {"--devices"}),
    (("train",), "--au", {"--auto-select"}, {"--devices"}),
    (("train", "--auto-select", "2", "--backend"), "", {"auto", "cuda", "host"}, {"sim"}),
    (("train", "--nnodes", "2", "--standalone"), "--ma", {"--max-age", "--max-restarts"}, set()),
    (("train", "-m"), "--red", {"--redirects"}, set()),
    (("train", "--auto-select", "2", "train.py"), "--au", set(), {"--auto-select"}),
    (("ablate", "--against", "2,3"), "--auto", {"--auto-select"}, set()),
    (("doctor", "--backend"), "", {"cuda", "host"}, {"sim"}),
    (("completion",), "", set(SHELLS), set()),
    (("no-such-command",), "--", set(), {"--sizes"}),
]


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A PATH on which `collbench` is this checkout's."""
    script = tmp_path / "bin" / "collbench"
    script.parent.mkdir()
    kept = [name for name in os.environ if name.startswith("COLLBENCH_TEST_") or name == "PYTHONPATH"]
    variables = " ".join(f"{name}={shlex.quote(os.environ[name])}" for name in kept)
    script.write_text(f'#!/bin/sh\n{variables} exec {sys.executable} -m collbench "$@"\n')
    script.chmod(0o755)
    return f"{script.parent}:{os.environ['PATH']}"


@pytest.fixture
def offered(program: Program, monkeypatch: pytest.MonkeyPatch) -> Callable[[tuple[str, ...], str], list[str]]:
    """Return click's answer lines for bash, such as "plain,pairs"; fails the test if stderr says anything."""

    def answer(args: tuple[str, ...], typed: str) -> list[str]:
        line = " ".join(("collbench", *args, typed))
        environment = {"COMP_WORDS": line, "COMP_CWORD": str(len(args) + 1), "_COLLBENCH_COMPLETE": "bash_complete"}
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        result = program()
        assert (result.status, result.err) == (0, "")
        return result.out.split()

    return answer


Offered = Callable[[tuple[str, ...], str], list[str]]


@pytest.mark.parametrize(("args", "typed", "expected", "unexpected"), LINES)
def test_what_may_follow(
    offered: Offered, args: tuple[str, ...], typed: str, expected: set[str], unexpected: set[str]
) -> None:
    offers = {line.removeprefix("plain,") for line in offered(args, typed)}
    assert expected <= offers
    assert not offers & unexpected


@pytest.mark.parametrize(
    "args",
    [("show",), ("check", "--topology"), ("train",), ("train", "--run"), ("train", "--tee", "3"), ("pairs", "--nccl"),
     ("pairs", "-o"), ("train", "--devices", "0,1", "train.py")],
)  # fmt: skip
def test_the_shell_completes_files_where_a_file_is_expected(offered: Offered, args: tuple[str, ...]) -> None:
    assert offered(args, "") == ["file,"]


@pytest.mark.parametrize("question", ["bash_complete", "bash_nonsense", "tcsh_complete", "nonsense", "zsh_complete"])
def test_a_malformed_completion_request_fails_silently(question: str) -> None:
    done = subprocess.run(
        collbench(), env=os.environ | {"_COLLBENCH_COMPLETE": question}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")


def test_bash_itself_completes(path: str, tmp_path: Path) -> None:
    script = tmp_path / "completion.bash"
    script.write_text(script_for("bash"))
    for args, typed, expected, unexpected in LINES[:5] + LINES[6:9]:
        line = ["collbench", *args, typed]
        commands = (
            f"source {script}; complete -p collbench >&2 || exit 9; COMP_WORDS=({' '.join(line[:-1])} '{typed}');"
            f"COMP_CWORD={len(args) + 1}; _collbench_completion collbench; printf '%s\\n' \"${{COMPREPLY[@]}}\""
        )
        done = subprocess.run(
            ["bash", "--norc", "-c", commands], env={"PATH": path}, capture_output=True, text=True, check=True
        )
        offers = set(done.stdout.split())
        assert expected <= offers, line
        assert not offers & unexpected, line


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_itself_completes(path: str, tmp_path: Path) -> None:
    script = tmp_path / "collbench.fish"
    script.write_text(script_for("fish"))
    for args, typed, expected, unexpected in LINES[:5] + LINES[6:8]:
        commands = f"source {script}; complete -C '{' '.join(('collbench', *args, typed))}'"
        done = subprocess.run(
            ["fish", "--no-config", "-c", commands], env={"PATH": path, "HOME": str(tmp_path)}, capture_output=True,
            text=True, check=True,
        )  # fmt: skip
        offers = {line.partition("\t")[0] for line in done.stdout.splitlines()}
        assert expected <= offers, (args, done.stderr)
        assert not offers & unexpected


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_itself_completes(path: str, tmp_path: Path) -> None:
    """In a terminal, as zsh completes nowhere else: Tab after "pairs --pre" writes "--precision"."""
    folder = tmp_path / "functions"
    folder.mkdir()
    (folder / "_collbench").write_text(script_for("zsh"))
    commands = f"""
        zmodload zsh/zpty
        zpty shell zsh -f -i
        zpty -w shell "PS1=; fpath=({folder} \\$fpath); autoload -Uz compinit; compinit -u -D; print -r READY"
        zpty -r -m shell out '*READY*READY*'
        zpty -w -n shell "collbench pairs --pre"$'\\t'
        zpty -r -m shell out '*--precision*' && print -r DONE
        zpty -d shell
    """
    done = subprocess.run(
        ["zsh", "-f", "-c", commands], env={"PATH": path, "HOME": str(tmp_path), "TERM": "dumb"}, capture_output=True,
        text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1:] == ["DONE"], (done.stdout, done.stderr)


def installed(program: Program, monkeypatch: pytest.MonkeyPatch, home: Path, *args: str) -> tuple[str, list[str]]:
    """Install into a home folder; return stdout and the files there."""
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "ZDOTDIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(home))
    result = program("completion", *args, "--install")
    assert (result.status, result.err) == (0, "")
    return result.out, sorted(str(file.relative_to(home)) for file in home.rglob("*") if file.is_file())


@pytest.mark.parametrize(
    ("shell", "place"),
    [
        ("bash", ".local/share/bash-completion/completions/collbench"),
        ("zsh", ".local/share/zsh/site-functions/_collbench"),
        ("fish", ".config/fish/completions/collbench.fish"),
    ],
)
def test_one_command_installs_completion_and_manual_for_the_users_shell(
    program: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shell: str, place: str
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("SHELL", f"/usr/bin/{shell}")
    _, files = installed(program, monkeypatch, home)
    assert (home / place).read_text() == script_for(shell)
    assert {".local/share/man/man1/collbench.1", ".local/share/man/man1/collbench-pairs.1"} <= set(files)


def test_a_startup_file_gets_its_line_once_and_keeps_the_rest(
    program: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / ".zshrc").write_bytes(b"setopt autocd # caf\xe9")
    result, _ = installed(program, monkeypatch, tmp_path, "zsh")
    first = (tmp_path / ".zshrc").read_bytes()
    assert first.startswith(b"setopt autocd # caf\xe9\nfpath=(")
    assert "added to" in result
    result, _ = installed(program, monkeypatch, tmp_path, "zsh")
    assert (tmp_path / ".zshrc").read_bytes() == first
    assert "added to" not in result


# The shell that a user opens next, and what reads its startup file.
FRESH = {"bash": ("bash", "-i", "-c"), "zsh": ("zsh", "-i", "-c"), "fish": ("fish", "-i", "-c")}


@pytest.mark.skipif(shutil.which("man") is None, reason="man is not installed")
@pytest.mark.parametrize("shell", FRESH)
@pytest.mark.parametrize("own", ["", "/opt/man"])
def test_man_finds_the_pages_whatever_path_has_and_still_all_others(
    program: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shell: str, own: str
) -> None:
    """man-db derives its folders from PATH: it searches ~/.local/share/man only if ~/.local/bin is on PATH."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    monkeypatch.setenv("PATH", "/usr/local/bin:/usr/bin:/bin")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.delenv("MANPATH", raising=False)
    installed(program, monkeypatch, tmp_path, shell)
    installed(program, monkeypatch, tmp_path, shell)
    environment = os.environ | ({"MANPATH": f"{own}:"} if own else {})

    def ask_shell(args: str) -> str:
        done = subprocess.run([*FRESH[shell], args], env=environment, capture_output=True, text=True, check=False)
        return done.stdout

    assert ask_shell("man -w collbench") == f"{tmp_path}/.local/share/man/man1/collbench.1\n"
    searched = ask_shell("manpath -q").strip().split(":")
    assert searched.count(f"{tmp_path}/.local/share/man") == 1
    assert "/usr/share/man" in searched


def test_where_man_looks_already_no_startup_file_is_touched(
    program: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "man").write_text("#!/bin/sh\nexit 0\n")
    (tmp_path / "bin" / "man").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    result, files = installed(program, monkeypatch, tmp_path / "home", "fish")
    assert "MANPATH" not in result
    assert not [file for file in files if "conf.d" in file]


def test_without_man_the_message_names_help(program: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    result, _ = installed(program, monkeypatch, tmp_path / "home", "fish")
    assert "man is not installed" in result
    assert "--help" in result


@pytest.mark.parametrize(
    ("shell", "args", "message"),
    [
        ("/bin/tcsh", (), "$SHELL is 'tcsh'"),
        ("", (), "$SHELL is not set"),
        ("/bin/bash", ("csh",), "the shell is 'csh', and completion is for bash, zsh, fish: write"),
    ],
)
def test_a_shell_that_is_not_served_is_one_line(
    program: Program, monkeypatch: pytest.MonkeyPatch, shell: str, args: tuple[str, ...], message: str
) -> None:
    monkeypatch.setenv("SHELL", shell)
    result = program("completion", *args)
    assert (result.status, message in result.line) == (2, True)


def test_a_home_that_cannot_be_written_is_one_line(
    program: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / ".local").write_text("a file in the way")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    result = program("completion", "bash", "--install")
    assert result.status == 2
    assert "cannot save the completion as" in result.line


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_the_scripts_are_valid(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    script = tmp_path / "script"
    script.write_text(script_for(shell))
    subprocess.run([shell, "-n", str(script)], check=True)
