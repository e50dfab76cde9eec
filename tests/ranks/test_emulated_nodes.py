"""`collbench nodes` on emulated hosts, of which one is slow and one is killed."""

from __future__ import annotations

import json
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
