"""When torchrun's files are nobody's: `train` then removes their folder."""

from __future__ import annotations

import pytest

from collbench.launch.agent import wants_logs


@pytest.mark.parametrize(
    ("title", "words", "variables", "wanted"),
    [
        ("nothing of the kind", ["--nproc-per-node", "2", "--", "train.py"], [], False),
        ("a folder", ["--log-dir", "x", "--", "train.py"], [], True),
        ("in torchrun's older spelling", ["--log_dir=x", "--", "train.py"], [], True),
        ("a copy on the terminal", ["--tee", "3", "--", "train.py"], [], True),
        ("into files", ["-r", "3", "--", "train.py"], [], True),
        ("an option of the script's", ["--standalone", "--", "train.py", "--log-dir", "x", "-t"], [], False),
        ("a variable", ["--", "train.py"], ["PET_LOG_DIR"], True),
        ("another variable", ["--", "train.py"], ["PET_NNODES", "LOG_DIR"], False),
    ],
)
def test_whose_the_files_are(title: str, words: list[str], variables: list[str], wanted: bool) -> None:
    assert wants_logs(words, dict.fromkeys(variables, "1")) is wanted
