"""Manual pages of every command from the same help that --help prints. `python -m collbench.cli.manual FOLDER`.

click-man does not find commands that are loaded late, and leaves click's marks and quotes in the text.
"""

from __future__ import annotations

import inspect
import re
import sys
from importlib.metadata import version
from pathlib import Path

import click

_FOLDER = Path("build/man")  # what `make man` makes
_HELP = ["-h", "--help"]
# What man would draw as a typographer's sign, and a shell would not take back: names of the plain ones.
_PLAIN = str.maketrans({"\\": "\\e", "-": "\\-", '"': "\\(dq", "'": "\\(aq", "`": "\\(ga", "^": "\\(ha", "~": "\\(ti"})


def pages(program: click.Command, release: str) -> dict[str, str]:
    """Return each page's text by its file name: the program's, and one a command."""
    context = click.Context(program, info_name="collbench", help_option_names=_HELP)
    pages_by_name = {"collbench.1": _page(context, release)}
    if isinstance(program, click.Group):
        for name in program.list_commands(context):
            command = program.get_command(context, name)
            if command is not None:
                inner = click.Context(command, info_name=name, parent=context)
                pages_by_name[f"collbench-{name}.1"] = _page(inner, release)
    return pages_by_name


def is_ours(content: bytes) -> bool:
    """Return whether a file is a page that some version of this made: then it may be overwritten."""
    return content.startswith(b'.TH "COLLBENCH')


def _page(context: click.Context, release: str) -> str:
    command, name = context.command, context.command_path.replace(" ", "-")
    usage = " ".join(command.collect_usage_pieces(context))
    lines = [
        f'.TH "{name.upper()}" "1" "" "collbench {_escaped(release)}" "collbench"',
        ".SH NAME",
        f"{_escaped(name)} \\- {_escaped(_short(command))}",
        ".SH SYNOPSIS",
        f"\\fB{_escaped(context.command_path)}\\fR {_escaped(usage)}",
        ".SH DESCRIPTION",
        *_paragraphs(inspect.cleandoc(command.help or "")),
        *_options(context),
        *_commands(context),
        *_epilog(command),
        ".SH SEE ALSO",
        "torchrun, \\fBnvidia\\-smi\\fR(1)" if name != "collbench" else "\\fBnvidia\\-smi\\fR(1), torchrun",
    ]
    return "\n".join(lines) + "\n"


def _short(command: click.Command) -> str:
    text = command.short_help or (command.help or "").partition("\n")[0]
    return f"{text[:1].lower()}{text[1:]}".rstrip(".")


def _paragraphs(text: str) -> list[str]:
    """Return help text as man's paragraphs; what follows click's mark \\b keeps its lines."""
    lines: list[str] = []
    for paragraph in re.split(r"\n\s*\n", text):
        if paragraph.lstrip("\n").startswith("\b"):
            kept = paragraph.replace("\b", "").strip("\n").splitlines()
            lines += [".PP", ".nf", *map(_line, kept), ".fi"]
        elif paragraph.strip():
            lines += [".PP", *map(_line, paragraph.strip().splitlines())]
    return lines[1:] if lines[1:2] != [".nf"] else lines  # a paragraph right after its heading is one already


def _options(context: click.Context) -> list[str]:
    options = [param for param in context.command.get_params(context) if isinstance(param, click.Option)]
    records = [option.get_help_record(context) for option in options]
    lines = [".SH OPTIONS"] if any(records) else []
    for record in filter(None, records):
        lines += [".TP", f"\\fB{_escaped(record[0])}\\fR", *map(_line, record[1].strip().splitlines())]
    return lines


def _commands(context: click.Context) -> list[str]:
    command = context.command
    if not isinstance(command, click.Group):
        return []
    lines = [".SH COMMANDS"]
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        if inner is not None:
            lines += [".TP", f"\\fBcollbench\\-{_escaped(name)}\\fR(1)", _line(_short(inner))]
    return lines


def _epilog(command: click.Command) -> list[str]:
    return [".SH NOTES", *_paragraphs(inspect.cleandoc(command.epilog))] if command.epilog else []


def _line(text: str) -> str:
    """Return a line of text that begins no request, as a dot at its beginning would."""
    return f"\\&{_escaped(text)}" if text.startswith(".") else _escaped(text)


def _escaped(text: str) -> str:
    """Return text escaped for groff and mandoc: non-ASCII characters by number."""
    return "".join(char if char.isascii() else f"\\[u{ord(char):04X}]" for char in text.translate(_PLAIN))


def main(arguments: list[str]) -> int:
    """Write all pages into a folder, build/man unless named; return the exit status."""
    from collbench.cli.program import cli  # late: it imports every command's module in turn

    folder = Path(arguments[0]) if arguments else _FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages(cli, version("collbench")).items():
        (folder / name).write_text(text, encoding="ascii")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
