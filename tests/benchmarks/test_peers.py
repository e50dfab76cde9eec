"""What the peers and collbench's run files say, as benchmarks/versus_peers.py reads it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.peers import outputs, runs, table
from collbench.analysis.stats import summarize
from collbench.runfile import run_file

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "tests" / "data" / "h200x4"
PAIRS = ROOT / "benchmarks" / "results" / "2026-11-21-4xh200" / "pairs.json"

# Rows of nccl-tests 2.19.6 with -c 0 -G 20 on 4 × H200.
UNCHECKED = """\
       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
       65536         16384     float     sum      -1    10.36    6.33    9.49    N/A    10.37    6.32    9.48    N/A
     1048576        262144     float     sum      -1    16.56   63.33   95.00    N/A    16.58   63.24   94.86    N/A
# Out of bounds values : 0 OK
"""


def test_times_are_the_recorded_out_of_place_column() -> None:
    times = outputs.nccl_tests((RECORDED / "all_reduce_perf-2-ranks.txt").read_text(encoding="utf-8"))
    assert times[8] == pytest.approx(9.34e-6)
    assert times[2048] == pytest.approx(7.48e-6)
    assert list(times) == [8 << i for i in range(30)]


def test_rows_without_a_data_check_are_read() -> None:
    assert outputs.nccl_tests(UNCHECKED) == pytest.approx({65536: 10.36e-6, 1048576: 16.56e-6})


def test_a_message_of_no_elements_is_left_out() -> None:
    empty = "0  0  float  none  -1  0.37  0.00  0.00  N/A  0.24  0.00  0.00  N/A\n"  # 8 B all-gather of 4 ranks
    assert list(outputs.nccl_tests(empty + UNCHECKED)) == [65536, 1048576]


@pytest.mark.parametrize(
    ("title", "text", "complaint"),
    [
        ("nothing printed", "", "no rows"),
        ("only a header", "# nThread 2 nGpus 1\n", "no rows"),
        ("wrong elements", "8 2 float sum -1 9.34 0.00 0.00 3 8.84 0.00 0.00 0\n", "wrong elements"),
        ("wrong elements in place", "8 2 float sum -1 9.34 0.00 0.00 0 8.84 0.00 0.00 1e+06\n", "wrong elements"),
        ("another layout", "8 2 float sum 9.34 0.00 0.00 0 8.84 0.00 0.00 0\n", "12 columns instead of 13"),
    ],
)
def test_output_of_nccl_tests_that_cannot_be_used_is_refused(title: str, text: str, complaint: str) -> None:
    with pytest.raises(outputs.PeerOutputError, match=complaint):
        outputs.nccl_tests(text)


def test_the_nccl_that_ran_is_named() -> None:
    text = (RECORDED / "all_reduce_perf-4-ranks.txt").read_text(encoding="utf-8")
    assert outputs.nccl_version(text) == "2.28.9"  # [H200x4] of docs/method.md
    assert outputs.nccl_version("# nThread 2") == ""


def test_links_are_named_source_first_whoever_issues_the_copy() -> None:
    cases = outputs.nvbandwidth((RECORDED / "nvbandwidth-d2d-ce.json").read_text(encoding="utf-8"))
    write, read = cases[outputs.LINK_CASES["ce-write"]], cases[outputs.LINK_CASES["ce-read"]]
    # First row, second column of the file: GPU 0 pushes to GPU 1, and GPU 0 pulls from GPU 1.
    assert write[0, 1] == 396.087
    assert read[1, 0] == 393.781
    assert len(write) == len(read) == 12


def test_a_copy_from_the_host_is_named_by_its_gpu() -> None:
    case = {"name": "host_to_device_memcpy_ce", "status": "Passed", "bandwidth_matrix": [["55.5", "54.1"]]}
    found = outputs.nvbandwidth(json.dumps({"nvbandwidth": {"testcases": [case]}}))
    assert found == {"host_to_device_memcpy_ce": {(0,): 55.5, (1,): 54.1}}


@pytest.mark.parametrize(
    ("title", "text", "complaint"),
    [
        ("not JSON", "ERROR: Invalid Arguments", "no JSON"),
        ("JSON of something else", "[]", "no JSON"),
        ("an error instead of cases", '{"nvbandwidth": {"error": "CUDA_ERROR_NO_DEVICE"}}', "no JSON"),
        (
            "a case that was waived",
            '{"nvbandwidth": {"testcases": [{"name": "device_to_device_memcpy_read_ce", "status": "Waived"}]}}',
            "device_to_device_memcpy_read_ce says Waived",
        ),
    ],
)
def test_output_of_nvbandwidth_that_cannot_be_used_is_refused(title: str, text: str, complaint: str) -> None:
    with pytest.raises(outputs.PeerOutputError, match=complaint):
        outputs.nvbandwidth(text)


def test_a_run_file_is_read_as_collbench_itself_reads_it() -> None:
    mine, run = runs.load(PAIRS), run_file.load(PAIRS)
    assert len(mine.cells) == len(run.measurements)
    for measurement in run.measurements:
        cell, summary = measurement.cell, summarize(measurement)
        times = mine.cells[cell.operation.value, cell.members, cell.size_bytes]
        assert (times.seconds, times.launch_seconds) == pytest.approx((summary.seconds, summary.launch_seconds))
    assert (mine.nccl, mine.seconds) == ("2.28.9", run.seconds)


def _run(tmp_path: Path, **changes: object) -> runs.RunFile:
    sample = {"seconds": [1e-3, 3e-3], "iterations": 10, "concurrent": True}
    cell = {"operation": "ce-write", "members": [0, 1], "size_bytes": 8}
    run = {"devices": [{}] * 4, "machine": {}, "seconds": 2.0, "measurements": [{"cell": cell, "samples": [sample]}]}
    file = tmp_path / "run.json"
    file.write_text(json.dumps(run | changes), encoding="utf-8")
    return runs.load(file)


def test_seconds_in_timed_regions_are_the_files_where_it_has_them(tmp_path: Path) -> None:
    run = _run(tmp_path, phases={"open": 0.5, "visits": 1.2, "timed": 0.9})
    assert run.timed == 0.9
    assert run.phases == {"open": 0.5, "visits": 1.2}


def test_pairs_that_were_busy_together_share_their_timed_region(tmp_path: Path) -> None:
    # 10 iterations of 1 ms and 10 of 3 ms are 40 ms, of two pairs at once: 20 ms each.
    assert _run(tmp_path).timed == pytest.approx(0.020)


def test_cells_that_the_peers_do_not_have_are_left_out(tmp_path: Path) -> None:
    sample = {"seconds": [1.0], "iterations": 1, "concurrent": False}
    cell = {"operation": "allreduce", "members": [0, 1], "size_bytes": 8}
    found = [
        {"cell": cell | {"variant": "in-place"}, "samples": [sample]},
        {"cell": cell | {"variant": "plain"}, "samples": [sample | {"seconds": [2.0]}]},
        {"cell": cell | {"size_bytes": 16}, "samples": []},
    ]
    assert _run(tmp_path, measurements=found).cells == {("allreduce", (0, 1), 8): runs.Times(2.0, None)}


@pytest.mark.parametrize(
    ("title", "ratios", "within", "not_slower"),
    [
        ("the same", [1.0], True, True),
        ("slower by the bar", [0.995, 0.995, 1.0], True, True),
        ("slower in every repeat, within the bar", [0.996, 0.997, 0.998], True, False),
        ("much slower but once", [0.9, 0.9, 1.1], False, False),
        ("faster than the bar", [1.01, 1.02, 1.03], False, True),
    ],
)
def test_a_bar_is_judged_by_the_median(title: str, ratios: list[float], within: bool, not_slower: bool) -> None:
    assert (table.within(ratios, 0.0051) == table.MET) is within
    assert (table.not_slower(ratios, 0.0051) == table.MET) is not_slower


def test_a_table_reads_the_same_as_text_and_as_markdown() -> None:
    shown = table.Table("Title", "A note.", ("what", "bar", "verdict"), [("a", "1 %", "met"), ("bcd", "2 %", "MISSED")])
    assert shown.missed == 1
    assert table.text(shown) == "== Title\nA note.\n\nwhat  bar  verdict\na     1 %      met\nbcd   2 %   MISSED\n"
    assert table.markdown(shown).splitlines()[4:] == [
        "| what | bar | verdict |",
        "|---|---:|---:|",
        "| a | 1 % | met |",
        "| bcd | 2 % | MISSED |",
    ]
