"""`collbench completion`: shell completion and the manual pages, printed or installed."""

from __future__ import annotations

import os
import subprocess
from importlib.metadata import version
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from collbench.cli import manual, options
from collbench.cli.program import NAME, VARIABLE
from collbench.cli.terminal import echo
from collbench.model.errors import MachineError, UsageError
from collbench.runfile import atomic_write

_SHELLS = ("bash", "zsh", "fish")
_SAVE, _SAVE_PAGE = "save the completion as", "save the manual page"
# bash reads a user's completions by itself only with this package; Debian's place, and the older one of others.
_BASH_COMPLETION = ("/usr/share/bash-completion/bash_completion", "/etc/bash_completion")


class _Shell(click.Choice[str]):
    """One of the shells, refused in words instead of click's, which are for a choice with a name."""

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value not in self.choices:
            raise _unserved(f"the shell is '{value}'")
        return super().convert(value, param, ctx)


@click.command(short_help="Print or install shell completion and the manual.")
@click.argument("shell", required=False, type=_Shell(_SHELLS), metavar="[bash|zsh|fish]")
@click.option("--install", is_flag=True, help="Install it for this user, with the manual pages, instead of printing.")
@options.force
@click.pass_context
def completion(context: click.Context, shell: str | None, install: bool, force: bool) -> None:
    """Print the completion of collbench's commands, options and choices for a shell, or install it.

    Without a name, it is for the shell in $SHELL. --install writes it where that shell looks ($XDG_DATA_HOME or
    ~/.local/share; fish: $XDG_CONFIG_HOME or ~/.config), and installs the manual pages: 'man collbench'. It adds a line
    to ~/.zshrc, ~/.bashrc or fish's conf.d only if the shell or man does not look there by default. A second
    --install changes nothing.

    \b
    Examples:
      collbench completion --install
      collbench completion zsh > /usr/share/zsh/site-functions/_collbench
    """
    chosen = shell or _users_shell()
    script = script_for(chosen)
    if not install:
        echo(script, end="")
        return
    target, lines = _install_target(chosen)
    otherwise = f"collbench completion {chosen} >"
    folder = _data() / "man" / "man1"
    pages = manual.pages(context.find_root().command, version("collbench"))
    atomic_write.check(target, _SAVE, otherwise, force=force, ours=lambda text: VARIABLE.encode() in text)
    for name in pages:
        atomic_write.check(folder / name, _SAVE_PAGE, otherwise, force=force, ours=manual.is_ours)
    atomic_write.write(script, target, _SAVE, otherwise, force=True)
    echo(f"completion for {chosen}: {target}")
    for startup, line in lines:
        if _append_once(startup, line):
            echo(f"added to {startup}: {line}")
    for name, text in pages.items():
        atomic_write.write(text, folder / name, _SAVE_PAGE, otherwise, force=True)
    echo(f"manual: {len(pages)} pages in {folder}")
    _show_man(chosen, folder.parent)
    echo("open a new shell to use it")


def _show_man(shell: str, folder: Path) -> None:
    """Make man look for pages in a folder, where it does not: it goes by PATH, which may lack ~/.local/bin."""
    try:
        located = subprocess.run(["man", "-w", NAME], capture_output=True, stdin=subprocess.DEVNULL, check=False)
    except OSError:
        echo(f"man is not installed: 'man -M {folder} {NAME}' where it is, or {NAME} COMMAND --help")
        return
    if located.returncode == 0:
        return
    startup, line = _man_line(shell, folder)
    if _append_once(startup, line):
        echo(f"added to {startup}: {line}")


def _man_line(shell: str, folder: Path) -> tuple[Path, str]:
    """Return the startup file and the line; an empty part of MANPATH means man's default folders."""
    if shell == "fish":
        line = f"set -q MANPATH; or set MANPATH ''; set -gx MANPATH '{folder}' $MANPATH"
        return _base("XDG_CONFIG_HOME", ".config") / "fish" / "conf.d" / f"{NAME}.fish", line
    startup = _home() / ".bashrc" if shell == "bash" else _zshrc()
    return startup, f"export MANPATH='{folder}':\"$MANPATH\""


def _zshrc() -> Path:
    return Path(os.environ.get("ZDOTDIR") or _home()) / ".zshrc"


def script_for(shell: str) -> str:
    """Return the function that a shell needs, as click has it for this shell."""
    kind = get_completion_class(shell)
    assert kind is not None, shell  # noqa: S101 - _SHELLS are click's
    made = kind(click.Command(NAME), {}, NAME, VARIABLE)
    return made.source_template % made.source_vars()  # not .source(): it starts bash to ask for its version


def _users_shell() -> str:
    """Return the name of the user's shell. Raises UsageError for an unsupported one."""
    name = Path(os.environ.get("SHELL", "")).name
    if name not in _SHELLS:
        problem = f"$SHELL is '{name}'" if name else "$SHELL is not set"
        raise _unserved(problem)
    return name


def _unserved(problem: str) -> UsageError:
    return UsageError(f"{problem}, and completion is for {', '.join(_SHELLS)}: write collbench completion bash")


def _install_target(shell: str) -> tuple[Path, list[tuple[Path, str]]]:
    """Return the file that the shell looks for, and (startup file, line) that make it look."""
    if shell == "fish":
        return _base("XDG_CONFIG_HOME", ".config") / "fish" / "completions" / f"{NAME}.fish", []
    if shell == "bash":
        target = _data() / "bash-completion" / "completions" / NAME
        looks = any(Path(file).exists() for file in _BASH_COMPLETION)
        return target, [] if looks else [(_home() / ".bashrc", f". '{target}'")]
    folder = _data() / "zsh" / "site-functions"
    return folder / f"_{NAME}", [(_zshrc(), f"fpath=('{folder}' $fpath); autoload -Uz compinit; compinit")]


def _append_once(file: Path, line: str) -> bool:
    """Add a line at the end of a startup file unless it is there; return whether it was added. Raises MachineError."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        text = file.read_text(encoding="utf-8", errors="surrogateescape") if file.exists() else ""
        if line in text.splitlines():
            return False
        with file.open("a", encoding="utf-8", errors="surrogateescape") as opened:
            if text and not text.endswith("\n"):
                opened.write("\n")
            opened.write(f"{line}\n")
    except OSError as error:
        raise MachineError(f"cannot add a line to {file}: {error.strerror}; add it by hand: {line}") from error
    return True


def _data() -> Path:
    return _base("XDG_DATA_HOME", ".local/share")


def _base(variable: str, otherwise: str) -> Path:
    given = os.environ.get(variable)
    return Path(given) if given else _home() / otherwise


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError as error:
        raise UsageError("there is no home folder to install in: write collbench completion bash > FILE") from error
