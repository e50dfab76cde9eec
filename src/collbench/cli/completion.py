"""`collbench completion`: the shell's part of completion, and the manual pages, printed or installed."""

from __future__ import annotations

import os
from importlib.metadata import version
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from collbench import wholefile
from collbench.cli import manual
from collbench.cli.completing import NAME, VARIABLE
from collbench.errors import MachineError, UsageError

_SHELLS = ("bash", "zsh", "fish")
# bash reads a user's completions by itself only with this package; Debian's place, and the older one of others.
_BASH_COMPLETION = ("/usr/share/bash-completion/bash_completion", "/etc/bash_completion")


@click.command(short_help="Let the shell complete commands; install the manual.")
@click.argument("shell", required=False, type=click.Choice(_SHELLS), metavar="[bash|zsh|fish]")
@click.option("--install", is_flag=True, help="Install it for this user, with the manual pages, instead of printing.")
@click.pass_context
def completion(context: click.Context, shell: str | None, install: bool) -> None:
    """Print what lets a shell complete collbench's commands, options and choices; or install it.

    Without a name it is for the shell of $SHELL. --install writes it where the shell looks ($XDG_DATA_HOME or
    ~/.local/share; fish: $XDG_CONFIG_HOME or ~/.config), adds a line to ~/.zshrc or ~/.bashrc only where the shell
    would not look there by itself, and installs the manual pages: 'man collbench'. Doing it again changes nothing.

    \b
    Examples:
      collbench completion --install
      collbench completion zsh > /usr/share/zsh/site-functions/_collbench
    """
    chosen = shell or _users_shell()
    script = script_for(chosen)
    if not install:
        click.echo(script, nl=False)
        return
    place, lines = _place(chosen)
    wholefile.write(script, place, "save the completion as", f"collbench completion {chosen} >")
    click.echo(f"completion for {chosen}: {place}")
    for startup, line in lines:
        if _append_once(startup, line):
            click.echo(f"added to {startup}: {line}")
    folder = _data() / "man" / "man1"
    program = context.find_root().command
    pages = manual.pages(program, version("collbench"))
    for name, text in pages.items():
        wholefile.write(text, folder / name, "save the manual page", f"collbench completion {chosen} >")
    click.echo(f"manual: {len(pages)} pages in {folder}")
    click.echo("open a new shell to use it")


def script_for(shell: str) -> str:
    """Return the function that a shell needs, as click has it for this shell."""
    kind = get_completion_class(shell)
    assert kind is not None, shell  # noqa: S101 - _SHELLS are click's
    made = kind(click.Command(NAME), {}, NAME, VARIABLE)
    return made.source_template % made.source_vars()  # not .source(): it starts bash to ask for its version


def _users_shell() -> str:
    """Return the name of the user's shell. Raises UsageError for one that is not served."""
    name = Path(os.environ.get("SHELL", "")).name
    if name not in _SHELLS:
        told = f"$SHELL is '{name}'" if name else "$SHELL is not set"
        raise UsageError(f"{told}, and completion is for {', '.join(_SHELLS)}: write collbench completion bash")
    return name


def _place(shell: str) -> tuple[Path, list[tuple[Path, str]]]:
    """Return the file that the shell looks for, and (startup file, line) that make it look."""
    if shell == "fish":
        return _base("XDG_CONFIG_HOME", ".config") / "fish" / "completions" / f"{NAME}.fish", []
    if shell == "bash":
        place = _data() / "bash-completion" / "completions" / NAME
        looks = any(Path(file).exists() for file in _BASH_COMPLETION)
        return place, [] if looks else [(_home() / ".bashrc", f". '{place}'")]
    folder = _data() / "zsh" / "site-functions"
    startup = Path(os.environ.get("ZDOTDIR") or _home()) / ".zshrc"
    return folder / f"_{NAME}", [(startup, f"fpath=('{folder}' $fpath); autoload -Uz compinit; compinit")]


def _append_once(file: Path, line: str) -> bool:
    """Add a line at the end of a startup file unless it is there; return whether it was added. Raises MachineError."""
    try:
        text = file.read_text(encoding="utf-8", errors="surrogateescape") if file.exists() else ""
        if line in text.splitlines():
            return False
        with file.open("a", encoding="utf-8", errors="surrogateescape") as opened:
            opened.write(f"{'' if not text or text.endswith(chr(10)) else chr(10)}{line}\n")
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
