"""benchmarks/predicted.py: predicted beside measured extra time, by hand, and files that cannot be compared."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.predicted import main
from collbench.model.operations import Operation
from collbench.runfile import run_file
from tests.analysis.made import curve
from tests.builders import gpus, run_of

# GPT-2's last bucket in bf16, as DDP makes it (tests/analysis/test_buckets.py): what a second of compute cannot hide.
LAST_BUCKET = 102_398_976
EXTRA_MS = LAST_BUCKET / 10e9 * 1e3 - LAST_BUCKET / 100e9 * 1e3  # 9.22


def ablation(ratio: float, **changes: Any) -> dict[str, Any]:
    """Return what `collbench ablate` would have written of steps of one second; docs/ablate.md has the format."""
    arms: list[dict[str, Any]] = [
        {"name": name, "environment": {}, "devices": [0, 1], "runs": []} for name in ("with p2p", "without p2p")
    ]
    result = {
        "arms": [{"seconds": seconds, "interval": [seconds, seconds]} for seconds in (1.0, ratio)],
        "ratio": {"middle": ratio, "low": ratio - 0.001, "high": ratio + 0.001},
    }
    head = {"format": "collbench-ablation", "format_version": 1, "measure": "step"}
    return head | {"arms": arms, "result": result} | changes


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, gbs in (("fast", 100.0), ("slow", 10.0)):
        run_file.save(run_of(gpus(2), curve(Operation.ALLREDUCE, (0, 1), gbs)), tmp_path / f"{name}.json")
    return tmp_path


@pytest.fixture
def compared(folder: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[str, dict[str, Any]]]:
    """Run the script on one cell; return its table and its JSON."""

    def run(measured: dict[str, Any], *words: str) -> tuple[str, dict[str, Any]]:
        (folder / "ablation.json").write_text(json.dumps(measured), encoding="utf-8")
        files = [str(folder / f"{name}.json") for name in ("fast", "slow", "ablation")]
        told = folder / "told.json"
        assert main(["--cell", "a job", *files, "--json", str(told), *words]) == 0
        (cell,) = json.loads(told.read_text(encoding="utf-8"))["cells"]
        return capsys.readouterr().out, cell

    return run


Compare = Callable[..., tuple[str, dict[str, Any]]]


def test_the_extra_time_is_that_of_the_bucket_that_nothing_hides(compared: Compare) -> None:
    """10 ms were measured: 9.2 are predicted."""
    table, cell = compared(ablation(1.010))
    assert cell["predicted_ms"]["middle"] == pytest.approx(EXTRA_MS, rel=0.01)
    assert cell["measured_ms"] == pytest.approx({"low": 9.0, "middle": 10.0, "high": 11.0})
    assert cell["error"] == pytest.approx(EXTRA_MS / 10 - 1, abs=0.01)
    assert (cell["within_bar"], cell["base_ms"]) == (True, 1000.0)
    assert (cell["gpu_time_ms"], cell["host_phases"], cell["without_host"]) == (None, None, None)
    # The compute is what the first arm's step leaves.
    assert cell["compute_ms"] == pytest.approx(1000 - LAST_BUCKET / 100e9 * 1e3, abs=0.05)
    assert table.splitlines()[2].startswith("| a job | 1000.00 | 998.9")
    assert table.splitlines()[2].endswith("| -8% | within 25 % |")


@pytest.mark.parametrize(
    ("ratio", "within", "verdict"),
    [(1.0074, True, "within 25 %"), (1.020, False, "in the band"), (1.03, False, "missed")],
)
def test_verdicts(compared: Compare, ratio: float, within: bool, verdict: str) -> None:
    """9.2 ms are predicted, at most 22.4 without overlap."""
    table, cell = compared(ablation(ratio))
    assert cell["within_bar"] is within
    assert cell["predicted_ms"]["high"] == pytest.approx(248_879_616 / 1e6 * 0.09, rel=0.01)
    assert table.splitlines()[2].endswith(f"| {verdict} |")


def test_compute_that_was_measured_is_taken(compared: Compare) -> None:
    """With 1 ms of compute nothing hides: all buckets are exposed, but what one millisecond covers."""
    _, cell = compared(ablation(1.020), "--compute-ms", "1")
    assert cell["compute_ms"] == 1.0
    assert cell["predicted_ms"]["middle"] == pytest.approx(248_879_616 / 1e6 * 0.09, abs=1.0)


def test_the_gpus_own_time_adds_the_host_beside_two_lanes(compared: Compare) -> None:
    """A GPU of half a second behind a host of one: the host's second hides nothing of the last bucket, behind it."""
    table, cell = compared(ablation(1.010), "--gpu-time-ms", "500")
    assert cell["gpu_time_ms"] == 500.0
    assert cell["predicted_ms"]["middle"] == pytest.approx(EXTRA_MS, rel=0.01)
    assert cell["without_host"]["predicted_ms"] == pytest.approx(cell["predicted_ms"], rel=0.01)
    assert [row.split("|")[4].strip() for row in table.splitlines()[2:4]] == ["–", "500.00"]
    assert table.endswith("\n\na job: GPU's own 500.00 ms: no source\n")


def test_the_hosts_optimizer_hides_the_last_bucket(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a second the host launches 5 ms of optimizer behind backward: of 10.2 ms that take 10 GB/s 5.2 are left."""
    (folder / "ablation.json").write_text(json.dumps(ablation(1.005)), encoding="utf-8")
    text = '[[cell]]\nlabel = "a job"\nfast = ["fast.json"]\nslow = ["slow.json"]\nablation = "ablation.json"\n'
    text += 'strategy = "ddp"\ngpus = 2\ngpu_time_ms = 500\ngpu_time_source = "a profiler"\n'
    text += 'host_phases = "330,665,5"\n'
    (folder / "cells.toml").write_text(text, encoding="utf-8")
    assert main([str(folder / "cells.toml"), "--json", str(folder / "told.json")]) == 0
    (cell,) = json.loads((folder / "told.json").read_text(encoding="utf-8"))["cells"]
    assert cell["compute_ms"] == pytest.approx(1000)
    assert cell["predicted_ms"]["middle"] == pytest.approx(LAST_BUCKET / 10e9 * 1e3 - 5, rel=0.01)
    assert cell["without_host"]["predicted_ms"]["middle"] == pytest.approx(EXTRA_MS, rel=0.01)
    said = capsys.readouterr().out
    assert said.endswith("\na job: GPU's own 500.00 ms, the host's phases 330,665,5: a profiler\n")


def test_a_list_names_its_files_beside_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "ablation.json").write_text(json.dumps(ablation(1.01)), encoding="utf-8")
    cell = 'fast = ["fast.json"]\nslow = ["slow.json"]\nablation = "ablation.json"\ngpus = 2\n'
    text = "".join(f'[[cell]]\nlabel = "{name} job"\nstrategy = "{name}"\n{cell}' for name in ("ddp", "fsdp"))
    (folder / "cells.toml").write_text(text, encoding="utf-8")
    assert main([str(folder / "cells.toml")]) == 0
    assert [line.split("|")[1] for line in capsys.readouterr().out.splitlines()[2:]] == [" ddp job ", " fsdp job "]


@pytest.mark.parametrize(
    ("title", "changes", "line"),
    [
        ("another file", {"format": "collbench-run"}, "is not an ablation"),
        ("whole processes", {"measure": "process"}, "timed a whole process, and a prediction is of one step"),
        ("interrupted", {"result": None}, "is incomplete"),
        (
            "other GPUs",
            {"arms": [{"devices": [0, 3]}, {"devices": [0, 3]}]},
            "GPU3 is in none of its runs, the cell says 2",
        ),
        (
            "more GPUs",
            {"arms": [{"devices": [0]}, {"devices": [0]}]},
            "the ablation ran on 1 GPUs, the cell says 2",
        ),
    ],
)
def test_what_cannot_be_compared_is_one_line_and_the_rest_goes_on(
    folder: Path, capsys: pytest.CaptureFixture[str], title: str, changes: dict[str, Any], line: str
) -> None:
    for name, measured in (("sound", ablation(1.01)), ("broken", ablation(1.01, **changes))):
        (folder / f"{name}.json").write_text(json.dumps(measured), encoding="utf-8")
    runs = [str(folder / f"{name}.json") for name in ("fast", "slow")]
    cells = [word for name in ("broken", "sound") for word in ("--cell", name, *runs, str(folder / f"{name}.json"))]
    assert main(cells) == 1
    out, err = capsys.readouterr()
    assert [row.split("|")[1] for row in out.splitlines()[2:]] == [" sound "]
    assert err.startswith("predicted: broken: ")
    assert line in err
    assert err.count("\n") == 1


def test_nothing_to_compare_is_said() -> None:
    with pytest.raises(SystemExit, match=r"name a CELLS\.toml, or add --cell"):
        main([])


MEASURED = Path(__file__).parents[2] / "benchmarks" / "results" / "2026-11-21-4xh200-training"


def test_the_committed_comparison_is_what_its_files_give(tmp_path: Path) -> None:
    """Four H200, GPT-2 with and without P2P: nobody edits the figures that docs/results.md shows."""
    assert main([str(MEASURED / "predicted.toml"), "--json", str(tmp_path / "told.json")]) == 0
    told, kept = (json.loads(file.read_text("utf-8")) for file in (tmp_path / "told.json", MEASURED / "predicted.json"))
    assert len(told["cells"]) == len(kept["cells"]) >= 4
    for now, then in zip(told["cells"], kept["cells"], strict=True):
        assert (now["label"], now["within_bar"], now["in_band"]) == (then["label"], then["within_bar"], True)
        for name in ("predicted_ms", "measured_ms"):
            assert now[name] == pytest.approx(then[name], abs=0.005)
