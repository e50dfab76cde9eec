"""`collbench nodes` on emulated hosts: one is slow in one direction; one is killed, stopped or late."""

from __future__ import annotations

import json
import os
import re
from itertools import combinations
from pathlib import Path

import pytest

from collbench.runfile import run_file
from tests.ranks.emulated import emulated_hosts
from tests.ranks.processes import ends, started, wait_for

pytestmark = pytest.mark.usefixtures("loaded_torch")

# Four ranks and their workers load torch, each 3 s of a core or two, and others may use the cores.
TIMEOUT_S = 250.0
ARGUMENTS = ["nodes", "--backend", "host", "--size", "64K", "-v"]


# Each takes a minute of a core: CI runs only five hosts, of which one is slow and one is killed.
slow_test = pytest.mark.skipif(
    not os.environ.get("COLLBENCH_EMULATED"), reason="takes a minute: set COLLBENCH_EMULATED=1"
)


@slow_test
@pytest.mark.timeout(2 * TIMEOUT_S)
def test_a_host_whose_link_is_slow_one_way_is_named(tmp_path: Path) -> None:
    """At a quarter of the others' rate, beyond what a busy machine does to one of them."""
    with emulated_hosts(4, tmp_path) as hosts:
        hosts.rate(2, 10.0, receives=False)
        arguments = [*ARGUMENTS, "--budget", "10ms", "--json"]
        with started(tmp_path, arguments, hosts.places, hosts.before) as processes:
            (status, out, err), *other_outputs = ends(processes, TIMEOUT_S)
    assert status in {1, 3}, err  # 1: on busy cores nobody may be certain
    assert other_outputs == [(0, "", "")] * 3
    ratios = [node["ratio"] for node in json.loads(out)["judgement"]["nodes"]]
    assert ratios.index(min(ratios)) == 2, ratios
    assert min(ratios) < -0.2


@slow_test
@pytest.mark.timeout(3 * TIMEOUT_S)
def test_a_host_that_is_stopped_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    file, message = tmp_path / "run.json", "rank 1 on h1 is silent for 15 s"
    with emulated_hosts(4, tmp_path) as hosts:
        # A process of its own: stopping the stand-in of a forked process would stop the wrong one.
        hosts.places[1] |= {"COLLBENCH_TEST_LIBRARIES": "another's"}
        arguments = [*ARGUMENTS, "--budget", "10ms", "--output", str(file), "--select", "2"]
        with started(tmp_path, arguments, hosts.places, hosts.before) as processes:
            wait_for("the first trial", file.exists, processes, TIMEOUT_S)
            hosts.stop(processes[1])
            (exit_status, out, err), *other_outputs = ends([processes[0], processes[2], processes[3]], TIMEOUT_S)
    assert exit_status == 4, err
    assert other_outputs == [(0, "", "")] * 2, "rank 0 has released them"
    assert f"collbench: {message}" in err, "at once"
    assert f"lost      {message}" in out
    assert "undecided h1: it was not measured" in out
    (chosen,) = (line for line in out.splitlines() if line.startswith("chosen "))
    assert "1" not in chosen
    run = run_file.load(file)
    assert not run.complete
    # Every pair of the remaining hosts was measured, and earlier measurements with h1 are kept.
    remaining_pairs = {(0, 2), (0, 3), (2, 3)}
    assert remaining_pairs <= {
        tuple(sorted(measurement.point.members)) for measurement in run.measurements if measurement.samples
    }
    failed = [measurement.point.members for measurement in run.measurements if measurement.failure]
    assert all(1 in members for members in failed)


@pytest.mark.timeout(3 * TIMEOUT_S)
def test_among_five_hosts_the_slow_one_has_the_lowest_estimate_and_the_killed_one_is_named(tmp_path: Path) -> None:
    slow, killed, file = 4, 1, tmp_path / "run.json"
    with emulated_hosts(5, tmp_path) as hosts:
        hosts.rate(slow, 10.0)
        arguments = [*ARGUMENTS, "--budget", "10ms", "--output", str(file), "--json"]
        with started(tmp_path, arguments, hosts.places, hosts.before) as processes:
            wait_for("the first trial", file.exists, processes, TIMEOUT_S)
            hosts.kill(processes[killed])
            survivors = [process for rank, process in enumerate(processes) if rank != killed]
            (status, out, err), *other_outputs = ends(survivors, TIMEOUT_S)
    assert other_outputs == [(0, "", "")] * 3, "rank 0 has released them"
    assert f"collbench: rank {killed} on h{killed} is gone" in err, "at once"
    assert set(re.findall(r"rank \d+ on h\d+", err)) == {f"rank {killed} on h{killed}"}, "nobody else is named"
    nodes = json.loads(out)["judgement"]["nodes"]
    ratios = {host: node["ratio"] for host, node in enumerate(nodes) if host != killed}
    assert min(ratios, key=lambda host: ratios[host]) == slow, ratios
    assert ratios[slow] < -0.2
    named = [host for host, node in enumerate(nodes) if node["state"] == "slow"]
    assert named in ([slow], []), "on busy cores nobody may be certain, but no healthy host is accused"
    assert status == (3 if named else 1), err
    assert nodes[killed]["state"] == "undecided", "it was not measured"
    run = run_file.load(file)
    assert not run.complete
    # Every pair of the remaining hosts was measured, and earlier measurements with the killed one are kept.
    measured = {frozenset(measurement.point.members) for measurement in run.measurements if measurement.samples}
    assert {frozenset(pair) for pair in combinations({*range(5)} - {killed}, 2)} <= measured
    assert all(killed in measurement.point.members for measurement in run.measurements if measurement.failure)


LATE_HOST = Path(__file__).with_name("late_host")


@slow_test
@pytest.mark.timeout(2 * TIMEOUT_S)
def test_a_late_host_is_named_with_its_delay_and_frequency(tmp_path: Path) -> None:
    with emulated_hosts(4, tmp_path, mbit=200.0) as hosts:
        # Without the process that has loaded torch: its forks do not read sitecustomize.
        hosts.places[1] |= {"PYTHONPATH": str(LATE_HOST), "EMULATED_LATE_S": "0.05", "COLLBENCH_TEST_TORCH": ""}
        with started(tmp_path, [*ARGUMENTS, "--budget", "10ms", "--json"], hosts.places, hosts.before) as processes:
            (status, out, err), *other_outputs = ends(processes, TIMEOUT_S)
    assert status in {0, 1, 3}, err
    assert other_outputs == [(0, "", "")] * 3
    (late,) = json.loads(out)["late"]
    assert late["node"] == 1
    assert late["seconds"] == pytest.approx(0.05, abs=0.03)
    assert late["later"] >= 0.9 * late["seen"]
