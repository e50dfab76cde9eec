"""The command line of `collbench ablate`: which arguments are its own, torchrun's and the script's."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.cli.calls import context_of
from collbench.cli.terminal import is_json
from collbench.cli.train import train_request
from collbench.model.errors import UsageError

BASE = "--devices 0,1 --without p2p"


def asked(args: Sequence[str]) -> dict[str, Any]:
    return context_of("ablate", args).params


def test_every_argument_reaches_its_parser() -> None:
    args = ["--auto-select", "2", "--without", "p2p,shm", "--max-restarts", "1", "--max-age=1d", "--repeats=5"]
    args += ["-o", "out.json", "-t3", "--skip", "0", "--seed", "7", "--json", "--no-allreduce", "--verbose"]
    context = context_of("ablate", [*args, "--", "train.py", "--repeats", "9", "--without", "all", "--", "-o"])
    with context:
        assert is_json()
    parsed = context.params
    train = train_request(parsed)
    assert train.script.program == ("train.py", "--repeats", "9", "--without", "all", "--", "-o")
    assert (train.count, train.max_age) == (2, timedelta(days=1))
    assert train.script.options == ("--max-restarts", "1", "--tee", "3")
    assert [parsed[name] for name in ("without", "repeats", "skip", "seed")] == [("p2p,shm",), 5, 0, 7]
    assert [parsed[name] for name in ("output", "allreduce", "verbose")] == [Path("out.json"), False, True]


def test_without_may_stand_twice_and_a_file_may_be_glued_to_o() -> None:
    parsed = asked(["-oa.json", *BASE.split(), "--without", "NCCL_ALGO=Ring", "-m", "pkg.train"])
    assert (parsed["without"], parsed["output"]) == (("p2p", "NCCL_ALGO=Ring"), Path("a.json"))
    script = train_request(parsed).script
    assert (script.options, script.program) == (("--module",), ("pkg.train",))


@pytest.mark.parametrize("args", [["--help"], ["-h"], ["--without", "p2p", "--help", "train.py"]])
def test_a_call_has_no_help_to_print(args: list[str]) -> None:
    with pytest.raises(UsageError, match=r"option '-(h|-help)' is neither"):
        asked(args)


@pytest.mark.parametrize(
    ("case", "args", "reported"),
    [
        ("no script", f"{BASE} --", "no script to train: write collbench ablate "),
        ("nothing to compare", "--devices 0,1 train.py", "nothing to compare with"),
        ("the change behind the script", "--devices 0,1 train.py --without p2p", "stands behind the script"),
        ("a simulated machine", f"{BASE} --fabric dgx-1v train.py", "--fabric simulates a machine"),
        ("two changes", f"{BASE} --against 2,3 train.py", "changes the devices: use only one"),
        ("one run of each", f"{BASE} --repeats 1 train.py", "1 is not in the range 2<="),
        ("a slip in our option", f"{BASE} --repeat 3 train.py", "write --repeats in full"),
        ("a slip in train's", f"{BASE} --max-restart 3 train.py", "--max-restarts"),
        ("an option of the script's", f"{BASE} --epochs 1 train.py", "script's own options after the script"),
        ("a value before the dashes", "--devices 0,1 --without -- x.py", "'--without' needs a value"),
        ("no devices", "--without p2p train.py", "no GPUs asked for"),
    ],
)
def test_what_cannot_be_meant_is_one_line(case: str, args: str, reported: str) -> None:
    with pytest.raises(UsageError, match=reported) as error:
        asked(args.split())
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
]
ARGUMENTS += ["-", ""]


@given(st.lists(st.one_of(st.sampled_from(ARGUMENTS), st.text(max_size=8)), max_size=12))
def test_any_arguments_are_read_or_refused(args: list[str]) -> None:
    try:
        parsed = context_of("ablate", args)
    except UsageError:
        return
    assert parsed.params["program"]


def test_a_recorded_job_is_compared_with_replay() -> None:
    with pytest.raises(UsageError, match=r"job\.json is no script: .* with collbench replay job\.json"):
        asked([*BASE.split(), "job.json", "--json"])
    assert asked([*BASE.split(), "--", "job.json"])["program"] == ("job.json",)  # behind the dashes it is a script
    assert asked([*BASE.split(), "train.py", "job.json"])["program"] == ("train.py", "job.json")
