"""A stranger in a notebook: completion, what objects print, figures as a table, spellings, simulated machines."""

from __future__ import annotations

import inspect
import json
import re
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import collbench
from collbench.choose.select import choose
from collbench.overlaps.results import overlaps_of

FABRIC: dict[str, Any] = {"backend": "sim", "fabric": "dgx-1v"}
QUICK: dict[str, Any] = {**FABRIC, "quick": True, "seed": 7, "save": False}
TRACES = Path(__file__).parent / "data" / "traces"


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved run of pairs on eight simulated GPUs."""
    path = tmp_path_factory.mktemp("pairs") / "pairs.json"
    collbench.measure("pairs", **QUICK | {"sizes": "8,1M", "output": path})
    return path


@pytest.fixture(scope="module")
def allreduce(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved run of all-reduces on eight simulated GPUs, with single launches."""
    path = tmp_path_factory.mktemp("allreduce") / "allreduce.json"
    collbench.measure("allreduce", **QUICK | {"sizes": "1M", "latency": 200, "output": path})
    return path


# --- completion and help ----------------------------------------------------------------------------------------------


def test_completion_offers_all_names_and_no_others() -> None:
    assert dir(collbench) == sorted([*collbench.__all__, "__version__"])
    assert {"measure", "load", "select", "Error"} <= set(dir(collbench))


def test_each_signature_shows_values_that_can_be_read() -> None:
    for name in {*collbench.__all__} - {"Error"}:
        signature = str(inspect.signature(getattr(collbench, name)))
        assert not re.search(r"<|lambda|0x[0-9a-f]+", signature), signature


# --- what objects print -----------------------------------------------------------------------------------------------


def returned() -> dict[str, Callable[[Path, Path], Any]]:
    """Return a call for each kind of object that the interface returns; it gets the files of two runs."""
    load, job = collbench.load, TRACES / "moe-job.json"
    return {
        "run": lambda pairs, _: load(pairs),
        "run of a collective": lambda _, allreduce: load(allreduce),
        "ranking": lambda pairs, _: collbench.rank(load(pairs)),
        "standing": lambda pairs, _: collbench.rank(load(pairs)).standings[0],
        "verdict": lambda pairs, _: collbench.check(load(pairs))[0],
        "comparison": lambda pairs, _: collbench.compare(load(pairs), load(pairs)),
        "tails": lambda _, allreduce: collbench.tails(load(allreduce))[0],
        "prediction": lambda pairs, _: collbench.predict(load(pairs), params="1M", gpus=2),
        "survey": lambda *_: collbench.nodes(4, backend="sim", fabric_cluster="thin-32", seed=1),
        "topology": lambda *_: collbench.topo(**FABRIC),
        "job": lambda *_: collbench.load_job(job),
        "selection": lambda *_: collbench.select(2, **FABRIC),
        "choice": lambda pairs, _: choose(load(pairs), 2),
    }


@pytest.mark.parametrize("kind", returned())
def test_an_object_prints_as_one_line(pairs: Path, allreduce: Path, kind: str) -> None:
    text = repr(returned()[kind](pairs, allreduce))
    assert len(text) < 250, text
    assert "\n" not in text


def test_a_run_says_what_it_is(pairs: Path) -> None:
    run = collbench.load(pairs)
    held = json.loads(pairs.read_text(encoding="utf-8"))
    assert repr(run) == (
        f"<Run of pairs on 8 × Tesla V100-SXM2-16GB, simulated dgx-1v, {held['started']}: "
        f"{len(held['measurements'])} data points>"
    )
    run.complete = False
    assert repr(run).endswith(" data points, incomplete>")


# --- figures ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["pairs", "allreduce"])
def test_figures_follow_from_the_seconds_in_the_file(pairs: Path, allreduce: Path, command: str) -> None:
    path = {"pairs": pairs, "allreduce": allreduce}[command]
    held = json.loads(path.read_text(encoding="utf-8"))
    table = collbench.load(path).table()
    assert len(table) == len(held["measurements"]) > 0
    for row, measurement in zip(table, held["measurements"], strict=True):
        point = measurement["point"]
        trials = [statistics.median(sample["seconds"]) for sample in measurement["samples"]]
        seconds, ranks = statistics.median(trials), len(point["members"])
        factor = 2 * (ranks - 1) / ranks if point["operation"] == "allreduce" else 1
        busbw = point["size_bytes"] / seconds / 1e9 * factor
        assert row["members"] == ",".join(f"GPU{held['devices'][member]['index']}" for member in point["members"])
        assert (row["operation"], row["size_bytes"]) == (point["operation"], point["size_bytes"])
        assert row["seconds"] == pytest.approx(seconds)
        assert row["algbw_gbs"] == pytest.approx(busbw / factor)
        assert row["busbw_gbs"] == pytest.approx(busbw)
        if len(trials) > 2:
            assert row["busbw_low_gbs"] <= busbw * 1.0001
            assert row["busbw_high_gbs"] >= busbw / 1.0001


def test_a_table_prints_as_a_table(pairs: Path) -> None:
    table = collbench.load(pairs).table()
    head, *lines, more = repr(table).splitlines()
    assert head.split()[:4] == ["operation", "members", "size_bytes", "seconds"]
    assert lines[0].split()[:3] == ["ce-write", "GPU0,GPU1", "8"]
    assert len(lines) < 25
    assert more == f"… and {len(table) - len(lines)} more rows"
    assert len(table[:3]) == 3
    assert "more rows" not in repr(table[:3])
    assert repr(table[:0]) == "no rows"
    assert [row["size_bytes"] for row in table[:2]] == [8, 2**20]


def test_a_table_as_a_data_frame_has_typed_columns(pairs: Path) -> None:
    import pandas as pd  # type: ignore[import-untyped]

    table = collbench.load(pairs).table()
    frame = table.to_pandas()
    assert list(frame.columns) == [column.name for column in table.columns]
    assert len(frame) == len(table)
    assert frame["busbw_gbs"].dtype == "float64"
    assert frame["size_bytes"].dtype == frame["world_size"].dtype == "Int64"  # a copy has no world size
    assert frame["concurrent"].dtype == "boolean"
    fastest = frame[frame["operation"] == "allreduce"].groupby("size_bytes")["busbw_gbs"].max()
    rates = [row["busbw_gbs"] for row in table if (row["operation"], row["size_bytes"]) == ("allreduce", 2**20)]
    assert rates.count(fastest[2**20]) == 1
    assert sum(isinstance(rate, float) and rate > fastest[2**20] for rate in rates) == 0
    assert pd.isna(frame[frame["operation"] == "ce-write"]["world_size"]).all()


def test_without_pandas_one_line_says_how_to_get_it(pairs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(collbench.Error, match=r"needs pandas.*pip install pandas"):
        collbench.load(pairs).table().to_pandas()


def test_each_kind_of_run_has_a_table(tmp_path: Path) -> None:
    both = collbench.overlap(sizes=["64M"], **FABRIC, seed=1, save=False)
    table = both.table()
    assert [row["collective_factor"] for row in table] == [pytest.approx(table[0]["collective_factor"])]
    assert "collective_factor" in repr(table)
    replayed = collbench.replay(collbench.load_job(TRACES / "ddp-job.json"), **FABRIC, seed=1, save=False)
    assert [row["operation"] for row in replayed.table()] == ["allreduce", "allreduce"]
    assert "call_seconds" in repr(replayed.table())


# --- spellings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("typed", ["all_reduce", "all-reduce", "AllReduce"])
def test_an_operation_has_the_command_lines_spellings(pairs: Path, typed: str) -> None:
    run = collbench.measure(typed, **QUICK | {"sizes": "1M"})
    assert run.settings.command_name == "allreduce"
    assert run.settings.command[0] == "allreduce"
    assert collbench.rank(collbench.load(pairs), typed) == collbench.rank(collbench.load(pairs), "allreduce")
    assert overlaps_of(collbench.overlap(typed, sizes="64M", **FABRIC, save=False))[0].work.operation == "allreduce"


def test_links_of_a_copy_are_ranked_by_any_spelling(pairs: Path) -> None:
    run = collbench.load(pairs)
    assert collbench.rank(run, "ce_write") == collbench.rank(run, "ce-write")
    with pytest.raises(collbench.Error, match=r"operation='bus' is unknown: write one of .*allreduce"):
        collbench.rank(run, "bus")
    with pytest.raises(collbench.Error, match="command='all reduces' is unknown: write one of pairs, "):
        collbench.measure("all reduces", **QUICK)


# --- rank -------------------------------------------------------------------------------------------------------------


def test_ranking_what_has_no_links_says_what_to_do(pairs: Path, allreduce: Path) -> None:
    with pytest.raises(collbench.Error, match=r"no links to rank.*allreduce.*8 devices.*table\(\).*measure\('pairs'"):
        collbench.rank(collbench.load(allreduce))
    with pytest.raises(collbench.Error, match=r"no alltoall.*it has ce-write, ce-read, sm-write, sm-read, allreduce"):
        collbench.rank(collbench.load(pairs), "alltoall")


def test_loading_a_job_as_a_run_names_the_call_for_jobs() -> None:
    with pytest.raises(
        collbench.Error, match=r"moe-job\.json is a recorded job: write collbench\.load_job\('.*moe-job"
    ):
        collbench.load(TRACES / "moe-job.json")
