"""benchmarks/versus_peers.py from start to report, on fake programs that print what the real ones printed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "tests" / "data" / "h200x4"
RESULTS = ROOT / "benchmarks" / "results" / "2026-11-21-4xh200"
PROGRAMS = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "alltoall", "sendrecv")

# Puts a recorded run where --output says (the last option): of all-reduce over all GPUs, else the one of all pairs.
FAKE_COLLBENCH = """#!/bin/sh
command=$1
for file; do :; done
case "$command $3" in
    'allreduce 0,1,2,3') cp '{allreduce}' "$file" ;;
    pairs*|copies*|allreduce*|broadcast*) cp '{pairs}' "$file" ;;
    *) echo "collbench: no such command: $command" >&2; exit 2 ;;
esac
"""


@dataclass(frozen=True)
class FinalistRequest:
    """A folder with fake programs, and where versus_peers.py leaves its reports."""

    folder: Path

    def start(self, *options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(ROOT / "benchmarks" / "versus_peers.py"), "--out", str(self.folder / "out")]
        environment = {key: value for key, value in os.environ.items() if key != "CUDA_VISIBLE_DEVICES"}
        return subprocess.run(
            [*command, *options], capture_output=True, text=True, check=False, timeout=100, env=environment
        )

    def compare(self, *options: str) -> subprocess.CompletedProcess[str]:
        peers = ("--nccl-tests", str(self.folder), "--nvbandwidth", str(self.folder / "nvbandwidth"))
        fake = ("--devices", "0,1,2,3", "--collbench", str(self.folder / "collbench"))
        return self.start(*peers, *fake, *options)

    def program(self, name: str, script: str) -> None:
        (self.folder / name).write_text(script, encoding="utf-8")
        (self.folder / name).chmod(0o755)

    def rows(self, start: str) -> list[list[str]]:
        report = (self.folder / "out" / "versus_peers.txt").read_text(encoding="utf-8")
        return [re.split(r" {2,}", line) for line in report.splitlines() if line.startswith(start)]

    def commands(self) -> list[str]:
        log = (self.folder / "out" / "raw" / "commands.txt").read_text(encoding="utf-8")
        return [line.split(": ", 2)[1] for line in log.splitlines()]


@pytest.fixture
def sitting(tmp_path: Path) -> FinalistRequest:
    made = FinalistRequest(tmp_path)
    for program in PROGRAMS:
        # The recorded all-reduce stands for all: what is tested is which figure is laid beside which.
        made.program(f"{program}_perf", f"#!/bin/sh\nexec cat '{RECORDED}/all_reduce_perf-'\"$2\"'-ranks.txt'\n")
    cases = json.loads((RECORDED / "nvbandwidth-d2d-ce.json").read_text(encoding="utf-8"))
    links = [case for case in cases["nvbandwidth"]["testcases"] if "bidirectional" not in case["name"]]
    # No SM figures were recorded: the copy engine's stand in.
    links += [case | {"name": case["name"].replace("_ce", "_sm")} for case in links]
    (tmp_path / "cases.json").write_text(json.dumps({"nvbandwidth": {"testcases": links}}), encoding="utf-8")
    made.program("nvbandwidth", f"#!/bin/sh\nexec cat '{tmp_path}/cases.json'\n")
    made.program("collbench", FAKE_COLLBENCH.format(pairs=RESULTS / "pairs.json", allreduce=RESULTS / "allreduce.json"))
    return made


def test_copies_are_laid_beside_nvbandwidths(sitting: FinalistRequest) -> None:
    done = sitting.compare("--part", "copies", "--repeats", "2")
    ((_, write, our_write, ratio, _, bar, verdict),) = sitting.rows("ce-write 512M, 12 links")
    # benchmarks/README.md has these medians of 512 MiB: 395.3 / 396.1 = 0.998, 393.0 / 393.8 = 0.998.
    assert (float(write), float(our_write)) == pytest.approx((396.1, 395.3), abs=0.06)
    assert float(ratio.split()[0]) == pytest.approx(0.998, abs=5e-4)
    assert (bar, verdict) == ("±0.5%", "met")
    ((_, read, our_read, *_),) = sitting.rows("ce-read 512M, 12 links")
    assert (float(read), float(our_read)) == pytest.approx((393.8, 393.0), abs=0.06)
    # SM against the copy engine's figures, some 5 % above: slower, so the bar is missed and said to be.
    assert sitting.rows("sm-write 512M")[0][-2:] == ["not slower", "MISSED"]
    assert done.returncode == 1
    assert "bars missed, 0 commands failed" in done.stdout


def test_collectives_are_laid_beside_nccl_tests(sitting: FinalistRequest) -> None:
    sitting.compare("--part", "collectives", "--repeats", "1")
    ((_, peer, ours, ratio, bar, _),) = sitting.rows("allreduce, 2 ranks, 1G, graph")
    recorded = (RECORDED / "all_reduce_perf-2-ranks.txt").read_text(encoding="utf-8")
    row = next(line.split() for line in recorded.splitlines() if line.split()[:1] == [str(2**30)])
    assert float(peer) == pytest.approx(float(row[5]), rel=1e-3)
    # Rate of collbench over the peer's: above 1 where collbench's time is the shorter.
    assert float(ratio.split()[0]) == pytest.approx(float(peer) / float(ours), rel=1e-3)
    assert bar == "±1%"
    assert sitting.rows("allreduce, 4 ranks, 64K, launch")[0][-2] == "±5%"
    assert not sitting.rows("broadcast, 4 ranks")  # the fake answers with pairs alone


def test_peer_and_collbench_take_turns(sitting: FinalistRequest) -> None:
    sitting.compare("--part", "copies", "repeat", "--repeats", "2")
    turns = [name.split("-")[0] for name in sitting.commands()]
    assert turns[:12] == ["nvbandwidth", "collbench"] * 6
    assert turns[12:] == ["pairs", "pairs", "nccl", "pairs", "nccl"]  # the first of the pairs is thrown away


def test_a_failed_command_is_named_with_its_last_line_and_stops_nothing(sitting: FinalistRequest) -> None:
    sitting.program("broadcast_perf", "#!/bin/sh\necho 'Test NCCL failure'\necho ' .. vm: Test failure' >&2\nexit 3\n")
    done = sitting.compare("--part", "collectives", "growth", "--repeats", "1")
    assert done.returncode == 1
    failures = [line for line in done.stderr.splitlines() if "nccl-tests-broadcast-4-ranks-0" in line]
    assert len(failures) == 1
    assert failures[0].endswith("exit 3: .. vm: Test failure")
    assert "collbench: no such command: alltoall" in done.stderr
    assert sitting.rows("allreduce, 2 ranks")
    assert sitting.rows("4 ")[0][1:3] == ["6", "3"]  # 4 GPUs: 6 pairs in 3 rounds


def test_runs_without_noise_change_by_nothing(sitting: FinalistRequest) -> None:
    sitting.compare("--part", "repeat", "--repeats", "3")
    small, large = sitting.rows("collbench, all cells")[:2]
    assert small[1:] == ["small", *small[2:3], "0.00%", "0.00%", "2.0%", "met"]
    assert large[-2:] == ["0.3%", "met"]
    counts = []
    for operation in ("ce-write", "ce-read", "sm-write", "sm-read", "allreduce", "broadcast"):
        rows = sitting.rows(f"collbench {operation} ")[:2]
        assert [row[3:6] for row in rows] == [["0.00%", "0.00%", "none"]] * 2
        counts.append(int(rows[0][2]))
    assert sum(counts) == int(small[2])  # each operation's cells are cells of their own
    # 8 B … 64 KiB are 14 sizes; three runs make two couples.
    assert sitting.rows("nccl-tests allreduce")[0][2] == "28"


def test_the_peers_wall_time_is_that_of_every_pair_one_after_another(sitting: FinalistRequest) -> None:
    sitting.compare("--part", "wall", "--repeats", "1")
    peers = [name for name in sitting.commands() if "wall" in name]
    assert len(peers) == 1 + 6 * 2  # nvbandwidth once; six pairs, two operations
    assert sitting.rows("collbench pairs, 4 GPUs")[0][-2] == "≤ 5 s"  # whether it is met is this machine's matter


def test_only_the_choice_of_gpus_is_added_to_the_environment(sitting: FinalistRequest) -> None:
    sitting.compare("--part", "wall", "--repeats", "1")
    log = (sitting.folder / "out" / "raw" / "commands.txt").read_text(encoding="utf-8")
    assert set(re.findall(r"\b([A-Z_]+)=", log)) == {"CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES"}
    assert "CUDA_VISIBLE_DEVICES=2,3 " in log


@pytest.mark.parametrize(
    ("title", "options", "complaint"),
    [
        ("no peers given", [], "--nccl-tests is not given. Get the sources"),
        ("a folder without the programs", ["--nccl-tests", "/nowhere"], "/nowhere/all_reduce_perf is no program"),
        ("one GPU", ["--part", "growth", "--devices", "0"], "needs two or more"),
        ("no repeats", ["--part", "growth", "--repeats", "0"], "write 1 or more"),
    ],
)
def test_what_is_missing_is_said_in_one_line_before_anything_runs(
    tmp_path: Path, title: str, options: list[str], complaint: str
) -> None:
    done = FinalistRequest(tmp_path).start(*options)
    assert done.returncode == 2
    assert complaint in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_different_nccls_are_no_comparison(sitting: FinalistRequest) -> None:
    sitting.program(
        "all_reduce_perf",
        f"#!/bin/sh\nsed s/nccl-library=22809/nccl-library=22707/ '{RECORDED}/all_reduce_perf-2-ranks.txt'\n",
    )
    done = sitting.compare("--part", "repeat", "--repeats", "1")
    assert "not the same NCCL: collbench 2.28.9, nccl-tests 2.27.7" in done.stderr
    assert done.returncode == 1
