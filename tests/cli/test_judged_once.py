"""A command judges its run once, whatever takes the answer: page, headline, JSON, exit status."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from collbench.judge import references
from collbench.judge.diagnose import readings
from collbench.runfile import run_file
from tests.builders import pair_run
from tests.cli.program import Program


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often rates were read of a run's samples, and how often published figures judged it."""
    counted = Counter[str]()
    for module, name, made in ((readings, "read", readings.read), (references, "judge", references.judge)):

        def counting(*arguments: Any, name: str = name, made: Any = made) -> Any:
            counted[name] += 1
            return made(*arguments)

        monkeypatch.setattr(module, name, counting)
    return counted


@pytest.mark.parametrize(
    "command", ["check", "check --json", "show", "show --json", "show --ranking", "show --ranking --json", "report"]
)
def test_a_saved_run_is_judged_once(command: str, program: Program, calls: Counter[str]) -> None:
    run_file.save(pair_run(4, lambda a, b: 200.0 if (a, b) == (0, 1) else 326.0), Path("run.json"))
    name, *others = command.split()
    assert program(name, "run.json", *others).out
    assert calls["read"] == 1
    assert calls["judge"] <= 1


@pytest.mark.parametrize("command", ["pairs", "pairs --json", "check --quick"])
def test_a_measurement_is_judged_once_at_its_end(command: str, program: Program, calls: Counter[str]) -> None:
    """It was judged before, too: what would be accused is measured again. Figures judge no simulated machine."""
    options = "--backend sim --fabric titan-rtx-nv2 --seed 1 --sizes 64M -o run.json"
    assert program(*command.split(), *options.split()).out
    assert calls == {"read": 2} | ({"judge": 1} if "--json" in command else {})
