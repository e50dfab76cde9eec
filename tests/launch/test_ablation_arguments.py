"""The command line of `collbench ablate`: which arguments are its own, torchrun's and the script's."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.launch.arguments import AblateArguments, split_ablation
from collbench.model.errors import UsageError

BASE = ("--devices", "0,1", "--without", "p2p")


def asked(args: Sequence[str]) -> AblateArguments:
    parsed = split_ablation(args)
    assert isinstance(parsed, AblateArguments)
    return parsed


def test_every_argument_reaches_its_parser() -> None:
    args = ["--auto-select", "2", "--without", "p2p,shm", "--max-restarts", "1", "--max-age=1d", "--repeats=5"]
    args += ["-o", "out.json", "-t3", "--skip", "0", "--seed", "7", "--json", "--no-allreduce", "--verbose"]
    parsed = asked([*args, "--", "train.py", "--repeats", "9", "--without", "all", "--", "-o"])
    assert parsed.train.program == ("train.py", "--repeats", "9", "--without", "all", "--", "-o")
    assert (parsed.train.auto_select, parsed.train.max_age) == (2, timedelta(days=1))
    assert parsed.passed == ("--max-restarts", "1", "-t3")
    assert (parsed.without, parsed.repeats, parsed.skip, parsed.seed) == (("p2p,shm",), 5, 0, 7)
    assert (parsed.output, parsed.json, parsed.allreduce, parsed.verbose) == ("out.json", True, False, True)


def test_defaults() -> None:
    parsed = asked([*BASE, "train.py"])
    assert (parsed.repeats, parsed.skip, parsed.seed, parsed.output, parsed.against) == (None, None, None, None, None)
    assert (parsed.allreduce, parsed.json, parsed.verbose, parsed.passed) == (True, False, False, ())


def test_without_may_stand_twice_and_a_file_may_be_glued_to_o() -> None:
    parsed = asked(["-oa.json", *BASE, "--without", "NCCL_ALGO=Ring", "-m", "pkg.train"])
    assert (parsed.without, parsed.output) == (("p2p", "NCCL_ALGO=Ring"), "a.json")
    assert (parsed.passed, parsed.train.program) == (("-m", ), ("pkg.train",))  # fmt: skip


@pytest.mark.parametrize("args", [["--help"], ["-h"], ["--without", "p2p", "--help", "train.py"]])
def test_help_stands_before_what_is_wrong_elsewhere(args: list[str]) -> None:
    assert asked(args).train.help


@pytest.mark.parametrize(
    ("case", "args", "reported"),
    [
        ("no script", [*BASE, "--"], "no script to train: write collbench ablate "),
        ("nothing to compare", ["--devices", "0,1", "train.py"], "nothing to compare with"),
        ("two changes", [*BASE, "--against", "2,3", "train.py"], "changes the devices: use only one"),
        ("one run of each", [*BASE, "--repeats", "1", "train.py"], "one run of each arm gives no interval"),
        ("no number", [*BASE, "--repeats", "many", "train.py"], "--repeats 'many' is not a whole number"),
        ("a negative number", [*BASE, "--skip=-1", "train.py"], "--skip '-1' is not a whole number"),
        ("more than anybody means", [*BASE, "--repeats", "9" * 40, "train.py"], "is not a whole number"),
        ("another script's digits", [*BASE, "--repeats", "٣", "train.py"], "is not a whole number"),
        ("a slip in our option", [*BASE, "--repeat", "3", "train.py"], "write --repeats in full"),
        ("a slip in a longer one", [*BASE, "--step-patern", "x", "train.py"], "write --step-pattern in full"),
        ("a slip in train's", [*BASE, "--max-restart", "3", "train.py"], "--max-restarts"),
        ("an option of the script's", [*BASE, "--epochs", "1", "train.py"], "script's own options after the script"),
        ("a value that is missing", ["--devices", "0,1", "--without"], "'--without' needs a value"),
        ("a value before the dashes", ["--devices", "0,1", "--without", "--", "x.py"], "'--without' needs a value"),
        ("a flag with a value", [*BASE, "--json=yes", "train.py"], "takes no value"),
        ("a recorded job", [*BASE, "job.json"], "a recorded job is compared with collbench replay job.json"),
        ("no devices", ["--without", "p2p", "train.py"], "no GPUs asked for"),
    ],
)
def test_what_cannot_be_meant_is_one_line(case: str, args: list[str], reported: str) -> None:
    with pytest.raises(UsageError, match=reported) as error:
        asked(args)
    assert "\n" not in str(error.value), case


ARGUMENTS = [
    "--without",
    "p2p",
    "--devices",
    "0,1",
    "--repeats",
    "--",
    "-o",
    "-x",
    "--json",
    "train.py",
    "job.json",
    "=",
    "-",
    "",
]


@given(st.lists(st.one_of(st.sampled_from(ARGUMENTS), st.text(max_size=8)), max_size=12))
def test_any_arguments_are_read_or_refused(args: list[str]) -> None:
    try:
        parsed = split_ablation(args)
    except UsageError:
        return
    assert parsed.train.help or parsed.train.program


def test_only_a_first_word_that_names_a_file_of_json_is_no_script() -> None:
    assert asked([*BASE, "--", "job.json"]).train.program == ("job.json",)
    assert asked([*BASE, "train.py", "job.json"]).train.program == ("train.py", "job.json")
