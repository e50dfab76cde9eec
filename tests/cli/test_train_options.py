"""Where the script begins, and whether each argument before it is collbench's or torchrun's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from collbench.api.training import SHORT, TORCHRUN_FLAGS, TORCHRUN_VALUES, Script, TrainRequest, passed_on
from collbench.cli.calls import context_of
from collbench.cli.train import train_request
from collbench.model.errors import UsageError
from tests.api.torchrun.made import script


def split(words: Sequence[str]) -> TrainRequest:
    return train_request(context_of("train", words).params)


TWO = TrainRequest(count=2, script=Script(("train.py",)))

OWN_OPTIONS = {
    "the shortest form": ("--auto-select 2 train.py", TWO),
    "a value after an equals sign": ("--auto-select=2 train.py", TWO),
    "devices by hand": ("--devices 0,3 train.py", replace(TWO, count=0, devices="0,3")),
    "every own option": (
        "--auto-select 2 --run-file r.json --max-age 12h --backend cuda --nccl /n.so train.py",
        replace(TWO, run="r.json", max_age=timedelta(hours=12), backend="cuda", nccl="/n.so"),
    ),
    "fresh": ("--fresh --auto-select 2 train.py", replace(TWO, fresh=True)),
    "the last of two wins, as in torchrun": ("--auto-select 3 --auto-select 2 train.py", TWO),
    "a double dash before the script is dropped": ("--auto-select 2 -- train.py", TWO),
    "a script that looks like an option, after a double dash": (
        "--auto-select 2 -- --fresh",
        replace(TWO, script=Script(("--fresh",))),
    ),
    "own options after the script are the script's": (
        "--auto-select 2 train.py --devices 9 -- -h --nnodes 4 --fresh",
        replace(TWO, script=Script(("train.py", "--devices", "9", "--", "-h", "--nnodes", "4", "--fresh"))),
    ),
    "an option whose value looks like a script": (
        "--run-file train.py --auto-select 2 train.py",
        replace(TWO, run="train.py"),
    ),
}

TORCHRUN_OPTIONS = {
    "a value in the next word": ("--max-restarts 3", [("--max-restarts", "3")]),
    "a value after an equals sign": ("--max-restarts=3", [("--max-restarts", "3")]),
    "an equals sign inside a value": ("--rdzv-conf=timeout=9", [("--rdzv-conf", "timeout=9")]),
    "an empty value": ("--log-dir=", [("--log-dir", "")]),
    "a negative value": ("--monitor-interval -1", [("--monitor-interval", "-1")]),
    "underscores": ("--nproc_per_node 2 --no_python", [("--nproc-per-node", "2"), ("--no-python", None)]),
    "short options, apart and glued": ("-t 3 -r1 -m", [("--tee", "3"), ("--redirects", "1"), ("--module", None)]),
    "a short option with an equals sign": ("-t=0:1,1:2", [("--tee", "0:1,1:2")]),
    "flags take no word": ("--standalone", [("--standalone", None)]),
}

REFUSED = {
    "nothing at all": ("", "no script"),
    "no script": ("--auto-select 2", "no script"),
    "no script after torchrun's options": ("--auto-select 2 --max-restarts 3", "no script"),
    "neither a number nor devices": ("train.py", "no GPUs asked for"),
    "both a number and devices": ("--auto-select 2 --devices 0,1 train.py", "use only one"),
    "zero GPUs": ("--auto-select 0 train.py", "0 is not in the range"),
    "fewer than zero": ("--auto-select -1 train.py", "-1 is not in the range"),
    "a word for a number": ("--auto-select two train.py", "'two' is not a valid integer"),
    "a value missing at the end": ("--auto-select", "requires an argument"),
    "the help": ("--auto-select 2 --help", "option '--help' is neither"),
    "an option where a value belongs": ("--run-file --fresh train.py", "'--run-file' needs a value"),
    "an option where torchrun's value belongs": ("--auto-select 2 -r -t 3 train.py", "'--redirects' needs a value"),
    "a value for a flag": ("--auto-select 2 --standalone=1 train.py", "'--standalone' does not take a value"),
    "a script's option before the script": ("--auto-select 2 --lr 0.1 train.py", "after the script"),
    "an abbreviation torchrun would take": ("--auto-select 2 --max-r 3 train.py", "write --max-restarts in full"),
    "a misspelt own option": ("--auto_select 2 train.py", "write --auto-select"),
    "dashes and underscores mixed, as torchrun refuses them": ("--nproc-per_node 2 x.py", "write --nproc-per-node"),
    "an unknown backend": ("--auto-select 2 --backend tpu train.py", "'auto', 'cuda', 'host'"),
    "a run to use and to ignore": ("--auto-select 2 --run-file r.json --fresh train.py", "use only one"),
    "a module that is no Python": ("--auto-select 2 -m --no-python train", "use only one"),
}


@pytest.mark.parametrize(("line", "expected"), OWN_OPTIONS.values(), ids=OWN_OPTIONS)
def test_own_options_are_read_up_to_the_script(line: str, expected: TrainRequest) -> None:
    assert split(line.split()) == expected


@pytest.mark.parametrize(("line", "expected"), TORCHRUN_OPTIONS.values(), ids=TORCHRUN_OPTIONS)
def test_torchrun_options_are_kept_in_order(line: str, expected: list[tuple[str, str | None]]) -> None:
    read = script(["--auto-select", "2", *line.split(), "train.py"])
    assert [*read.torchrun.items()] == expected
    assert read.options == tuple(word for option in expected for word in option if word is not None)
    assert read.program == ("train.py",)


@pytest.mark.parametrize(("line", "message"), REFUSED.values(), ids=REFUSED)
def test_bad_lines_get_one_clear_line(line: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        split(line.split())
    assert "\n" not in str(caught.value)


@given(st.lists(st.text()))
def test_whatever_follows_the_script_is_untouched(args: list[str]) -> None:
    assume("--dry-run" not in args)
    assert script(["--auto-select", "2", "train.py", *args]).program == ("train.py", *args)


def test_the_table_is_torchruns_own_parser() -> None:
    """New options of torch must be added to the table, or a script could be taken for a value."""
    torchrun = pytest.importorskip("torch.distributed.run", reason="torch is absent: its parser cannot be asked")
    long = {letter: name for name, letter in SHORT.items()}
    flags, values = set(TORCHRUN_FLAGS | {"--help"}), set(TORCHRUN_VALUES)
    for action in torchrun.get_args_parser()._actions:
        for spelling in action.option_strings:
            name = {"-h": "--help", **long}.get(spelling, spelling.replace("_", "-"))
            table = TORCHRUN_FLAGS | {"--help"} if action.nargs == 0 else TORCHRUN_VALUES
            assert name in table, f"{spelling} takes {'no' if action.nargs == 0 else 'a'} value in torch"
            (flags if action.nargs == 0 else values).discard(name)
    assert not flags | values, "options that torch does not know"


def test_a_dry_run_after_the_script_starts_nothing_and_after_two_hyphens_is_the_scripts() -> None:
    with pytest.raises(UsageError, match=r"--dry-run after train[.]py is the script"):
        split(["--auto-select", "2", "train.py", "--epochs", "3", "--dry-run"])
    context = context_of("train", ["--auto-select", "2", "--", "train.py", "--dry-run"])
    assert context.params["program"] == ("train.py", "--dry-run")
    assert not context.params["dry_run"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("train.py", "--backend", "nccl", "--lr", "1"), ""),
        (
            ("train.py", "--max-age=1h"),
            "--max-age passed to train.py: put it before the script if collbench should read it",
        ),
        (
            ("train.py", "--allow-busy", "--exclude", "1"),
            "--allow-busy, --exclude passed to train.py: put them before the script if collbench should read them",
        ),
    ],
)
def test_options_of_collbench_after_the_script_get_a_line(words: tuple[str, ...], line: str) -> None:
    assert passed_on(words) == line
