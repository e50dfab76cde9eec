"""docs/results.md's tables, the pictures and the session that both are made from.

No figure in tests/data/training was measured; those of MEASURED were, and its session.log has what was printed then.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.training import published, results, tables
from collbench.model.errors import RunFileError

ROOT = Path(__file__).parents[2]
INVENTED = ROOT / "tests" / "data" / "training"
BENCHMARKS = ROOT / "benchmarks"
MEASURED = BENCHMARKS / "results" / "2026-11-21-4xh200-training"


def python(script: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARKS / script), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)


EXPECTED = {
    "headline": [
        "- DDP bf16 on 2 × Invented GPU: a step takes **1.43 times** as long without P2P (1.42–1.44).",
        "- FSDP bf16 on 4 × Invented GPU: no difference shown, a step takes 1.004 (0.990–1.018) times as long without "
        "P2P.",
    ],
    "gpt2": [
        "| DDP bf16 | 2 × Invented GPU | 22.40 ms (22.20–22.60) | 32.10 ms (31.80–32.40) | 1.433 (1.424–1.441) "
        "| 320.5 | 27.9 |",
        "| before: DDP, fp32, random tokens | 2 × NVIDIA H200 | 51.3 ms | 58.6 ms | 1.14 | – | – |",
    ],
    # 42.0 and 47.0 less what the same ranks take that never exchange
    "exposed": ["| DDP bf16 | 2 | 32 | 40.00 / 40.10 | 2.00 | 6.90 |"],
    "buckets": ["| DDP bf16 | 3 | 1.0, 25.0, 75.0 |"],
    # 36.72 of 37.47; DDP's job of batch 4 has no partner without P2P
    "bound": [
        "| FSDP bf16 | 2 | 4 | 37.47 | 36.72 (98%) | 1.50 | – |",
        "| FSDP bf16 | 2 | 32 | 50.00 | 37.00 (74%) | 10.25 | – |",
    ],
    "predicted": ["| DDP bf16, 2 GPUs | 9.70 (9.50 to 9.90) | 8.20 (0.00 to 9.40), -15% | – |"],
    # 40 / 25 = 1.6, on two GPUs 80 %; 1.96 √(0.75 · 0.25 / 10,000) = 0.85 %; of 74, 76, 78 %: 4.303 · 2 / √3 = 4.97 %
    "scaling": [
        "| images per GPU | 2 | 192 | 1000 | 25.00 | 1.60 | 80% | 75.0 ± 0.8 |",
        "| images per GPU | 4 | 384 | 500 | 12.50 | 3.20 | 80% | 70.0 ± 0.9 |",
        "| images a step | 2 | 96 | 2000 | 38.00 | 1.05 | 53% | 79.6 ± 0.8 |",
        "| images per GPU, rate × √GPUs | 2 | 192 | 1000 | 25.00 | 1.60 | 80% | 78.0 ± 0.8 |",
        "| one GPU | 1 | 192 | 1000 | 30.00 | – | – | 76.0 ± 5.0 |",
    ],
    "seeds": ["| one GPU | 1 | 192 | 1000 | 76.0 ± 5.0 | 74.0 – 78.0 |"],
    # 707 / 109 = 6.486, an eighth of it 81 %
    "published-scaling": ["| 8 | 109 | 6.49 | 81% | 68.82 |"],
}


@pytest.mark.parametrize("name", list(EXPECTED))
def test_a_table_says_what_the_files_say(name: str) -> None:
    lines = tables.blocks(INVENTED)[name].splitlines()
    assert [line for line in EXPECTED[name] if line not in lines] == []


# As session.log has them: steps and their ratio, all-reduces, the first prediction (of two lanes) and its error.
PRINTED = {
    "headline": [
        "- DDP bf16 on 2 × NVIDIA H200: a step takes **1.28 times** as long without P2P (1.18–1.39).",
        "- FSDP bf16 on 2 × NVIDIA H200: no difference shown, a step takes 1.037 (0.985–1.093) times as long without "
        "P2P.",
    ],
    "gpt2": [
        "| DDP bf16 | 4 × NVIDIA H200 | 17.41 ms (16.81–18.03) | 24.75 ms (24.49–25.02) | 1.422 (1.362–1.485) "
        "| 312.2 | 34.3 |",
    ],
    "curves": [
        "| allreduce | 2 | 72.8 / 16.9 | 218.4 / 27.7 | 270.8 / 28.3 | 328.9 / 29.1 |",
        "| reducescatter | 4 | 65.9 / 14.3 | 207.0 / 30.7 | 272.4 / 31.6 | 328.1 / 32.0 |",
    ],
    "predicted": ["| FSDP bf16, 4 GPUs | 2.33 (1.21 to 3.48) | 3.78 (0.00 to 13.49), +63% |"],
    # scaling.log; in scaling-seeds.log the trainings of 384 images reach 82.15, 80.15, 80.90, 80.57 and 81.78 %
    "scaling": [
        "| images per GPU | 4 | 384 | 200 | 5.07 | 2.41 | 60% | 81.2 ± 0.8 |",
        "| images a step | 4 | 96 | 800 | 18.57 | 0.66 | 16% | 85.2 ± 0.7 |",
    ],
    "seeds": ["| one GPU | 1 | 384 | 200 | 81.1 ± 1.0 | 80.1 – 82.1 |"],
}


@pytest.mark.parametrize("name", list(PRINTED))
def test_a_measured_table_says_what_the_session_printed(name: str) -> None:
    table = tables.blocks(MEASURED)[name]
    assert [line for line in PRINTED[name] if line not in table] == []


def test_what_bounds_a_step_stands_beside_its_prediction(tmp_path: Path) -> None:
    folder = tmp_path / "both"
    shutil.copytree(MEASURED, folder)
    for path in folder.glob("gpt2-*"):
        path.unlink()
    for path in INVENTED.glob("gpt2-bound-fsdp-*"):
        # with the ablation's own step, so that the prediction of two lanes is what session.log has for FSDP on 2
        (folder / path.name).write_text(path.read_text(encoding="utf-8").replace("=50.00ms", "=37.47ms"), "utf-8")
    found = tables.blocks(folder)["bound"].splitlines()[2:]
    small, large = ([cell.strip() for cell in line.split("|")[1:-1]] for line in found)
    assert (small[2], large[2]) == ("4", "32")
    assert large[-1] == "3.27"
    # the ablation's batch: its cell also has the GPU's own time, and these jobs that of the host
    assert float(small[-1]) < 3.27
    (folder / "predicted.toml").unlink()
    assert tables.blocks(folder)["bound"].splitlines()[3].endswith("| – |")


def test_jobs_timed_in_one_process_on_the_same_day_stand_in_the_same_table() -> None:
    found = tables.blocks(MEASURED)["bound"].splitlines()
    # lanes-p2p.txt has FSDP's steps of batch 4 as 45.503 and 42.559, the host's end 45.455 and 42.513; lanes-nop2p.txt
    # 47.796 and 45.325; DDP at batch 32: 82.092, 19.685 and 85.646
    assert any(line.startswith("| FSDP bf16 | 2 | 4 | 44.03 | 43.98 (100%) | 2.53 |") for line in found)
    assert any(line.startswith("| DDP bf16 | 2 | 32 | 82.09 | 19.68 (24%) | 3.55 |") for line in found)
    assert "| DDP bf16 that exchanges nothing | 2 | 32 | 80.74 | 16.71 (21%) | 0.17 | – |" in found
    # of it 80.736 and 80.902 are the steps that exchange nothing
    assert "| DDP bf16 | 2 | 32 | 80.74 / 80.90 | 1.36 | 4.74 |" in tables.blocks(MEASURED)["exposed"].splitlines()


def test_a_launch_is_shown_as_it_was_printed(tmp_path: Path) -> None:
    (tmp_path / "launch-cost.txt").write_text("$ launch_cost.py\n\nadded 0.3 s\n", encoding="utf-8")
    assert tables.blocks(tmp_path)["launch"] == "    $ launch_cost.py\n\n    added 0.3 s"


def test_the_page_shows_the_pictures_that_there_are() -> None:
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"!\[[^]]+\]\(\.\./(benchmarks/results/[^)]+)\)", page))
    assert shown == {path.relative_to(ROOT).as_posix() for path in MEASURED.glob("*.svg")}
    assert MEASURED / "ablation.svg" in {ROOT / name for name in shown}
    for one in results.ablations(MEASURED):
        assert f"{one.result.ratio.middle:.2f}×" in (MEASURED / "ablation.svg").read_text(encoding="utf-8")


def test_curves_with_and_without_p2p_stand_beside_each_other(tmp_path: Path) -> None:
    recorded = ROOT / "benchmarks" / "results" / "2026-11-21-4xh200" / "allreduce.json"
    shutil.copy(recorded, tmp_path / "curves-4-p2p-allreduce.json")
    (line,) = [line for line in tables.blocks(tmp_path)["curves"].splitlines() if "| 4 |" in line]
    # session.log beside it printed 84.18, 254.17, 314.40 and 354.42 GB/s at these sizes
    assert line == "| allreduce | 4 | 84.2 / – | 254.2 / – | 314.4 / – | 354.4 / – |"


def test_the_ratios_of_what_was_published() -> None:
    for one in published.LANGUAGE:
        fast, slow = (float(time.split()[0]) for time in (one.fast, one.slow))
        assert one.ratio == pytest.approx(slow / fast, abs=0.005)


def page_blocks(page: str) -> dict[str, str]:
    return dict(re.findall(r"<!-- figure: ([\w-]+) -->\n(.*?)\n<!-- end -->", page, re.DOTALL))


def test_the_pages_tables_are_those_of_its_folder() -> None:
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    (folder,) = re.findall(r"<!-- results: (\S+) -->", page)
    assert ROOT / folder == MEASURED
    assert page_blocks(page) == tables.blocks(MEASURED)
    assert set(tables.blocks(None).values()) == {tables.MISSING, "\n".join(tables.published_scaling())}


def test_update_fills_the_page_and_nothing_else(tmp_path: Path) -> None:
    before = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    page = tmp_path / "results.md"
    page.write_text(before, encoding="utf-8")
    done = python("results_tables.py", str(INVENTED), "--update", str(page))
    assert done.returncode == 0, done.stderr
    after = page.read_text(encoding="utf-8")
    assert page_blocks(after) == tables.blocks(INVENTED)
    bare = [
        re.sub(r"(<!-- (?:figure|results): ).*?(?=<!-- end|$)", r"\1", text, flags=re.DOTALL)
        for text in (before, after)
    ]
    assert bare[0] == bare[1]
    assert f"<!-- results: {INVENTED.as_posix()} -->" in after


@pytest.mark.parametrize("script", ["results_tables.py", "training_plots.py"])
def test_files_that_are_not_results_are_one_line(tmp_path: Path, script: str) -> None:
    (tmp_path / "scaling.json").write_text("[]", encoding="utf-8")
    done = python(script, str(tmp_path))
    assert done.returncode == 2
    assert "scaling.json" in done.stderr
    assert done.stderr.count("\n") == 1


def test_an_unfinished_ablation_is_refused(tmp_path: Path) -> None:
    data: dict[str, Any] = json.loads((INVENTED / "ablate-ddp-2-bf16.json").read_text(encoding="utf-8"))
    (tmp_path / "ablate-a.json").write_text(json.dumps(data | {"result": None}), encoding="utf-8")
    with pytest.raises(results.ResultError, match="incomplete"):
        results.ablations(tmp_path)
    (tmp_path / "ablate-a.json").write_text("{}", encoding="utf-8")
    with pytest.raises(RunFileError):
        results.ablations(tmp_path)


def test_pictures_are_the_same_bytes_twice_and_say_where_and_when(tmp_path: Path) -> None:
    names = ("ablation.svg", "scaling.svg", "predicted.svg")
    made = []
    for number in range(2):
        folder = tmp_path / str(number)
        shutil.copytree(INVENTED, folder)
        done = python("training_plots.py", str(folder))
        assert done.returncode == 0, done.stderr
        made.append([(folder / name).read_bytes() for name in names])
    assert made[0] == made[1]
    for picture in made[0]:
        text = picture.decode("utf-8")
        assert "Invented GPU" in text
        assert "2026-11-21" in text
        assert "mathdefault" not in text  # our settings show formulas as they are written
    assert "step, ms" in made[0][0].decode("utf-8")


# Stands for python3: notes what it is asked, and fails for one of the commands.
FAKE_PYTHON = """#!/bin/sh
echo "P2P_DISABLE=${{NCCL_P2P_DISABLE:-}} $@" >> '{log}'
case "$*" in *reducescatter*) exit 9 ;; esac
"""


def test_the_session_runs_its_parts_and_counts_what_failed(tmp_path: Path) -> None:
    fake = tmp_path / "python"
    fake.write_text(FAKE_PYTHON.format(log=tmp_path / "log"), encoding="utf-8")
    fake.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NCCL_")}
    environment |= {"DRY": "1", "PYTHON": str(fake)}

    def session(part: str, ablations: str = "") -> subprocess.CompletedProcess[str]:
        command = [str(BENCHMARKS / "training.sh"), str(tmp_path / "out"), part]
        return subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=60, env=environment | {"ABLATIONS": ablations}
        )

    done = session("curves")
    assert done.returncode == 1
    assert done.stdout.endswith("2 steps failed\n")
    assert done.stdout.count("-- exit 9, ") == 2
    asked = (tmp_path / "log").read_text(encoding="utf-8").splitlines()
    assert len(asked) == 7  # pairs, and three collectives with and without P2P
    assert sum(line.startswith("P2P_DISABLE=1 ") for line in asked) == 3
    assert all(("nop2p" in line) is line.startswith("P2P_DISABLE=1 ") for line in asked)
    assert session("gpt2", "ddp-2-bf16 fsdp-2-amp").stdout.endswith("0 steps failed\n")
    later = (tmp_path / "log").read_text(encoding="utf-8").splitlines()[7:]
    trained = [re.search(r"ablate .* --without p2p .*--strategy (\w+) --dtype (\w+)", line) for line in later]
    assert [found and found.groups() for found in trained] == [("ddp", "bf16"), ("fsdp", "amp")]
    assert session("bound").stdout.endswith("0 steps failed\n")
    jobs = (tmp_path / "log").read_text(encoding="utf-8").splitlines()[9:]
    found = [re.search(r"^P2P_DISABLE=(1?) .* train .*--strategy (\w+) .*--batch (\d+)$", line) for line in jobs]
    assert [one and one.groups() for one in found] == [
        (off, strategy, batch) for strategy in ("local", "ddp", "fsdp") for batch in ("4", "3") for off in ("", "1")
    ]
    assert session("everything").returncode == 2


def test_the_session_changes_no_variable_of_nccl_but_the_one_it_measures() -> None:
    source = (BENCHMARKS / "training.sh").read_text(encoding="utf-8")
    assert (
        set(re.findall(r"(\w+)=\S+", source)) & {"NCCL_NVLS_ENABLE", "NCCL_DEBUG", "NCCL_ALGO", "NCCL_PROTO"} == set()
    )
    assert set(re.findall(r"NCCL_\w+", source)) == {"NCCL_P2P_DISABLE"}
