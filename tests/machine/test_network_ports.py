"""Ports of network cards from made-up trees: what cannot be read stays unknown, and only siblings are compared."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.machine.kernel import read_ports
from collbench.measurement.backends.protocol import Opened
from collbench.measurement.plan import read_ports_after
from collbench.model.run import NetworkPort
from collbench.preflight.judge import down, slower
from collbench.ranks.ports import CONGESTION, ERRORS, changes
from collbench.report.frame import network_lines, unhealthy_lines
from collbench.runfile import run_file
from tests.builders import gpus, run_of
from tests.machine.roots import put, write


def put_port(root: Path, card: str, model: str = "MT4129", **files: str) -> None:
    folder = root / "sys/class/infiniband" / card
    (folder / "ports/1").mkdir(parents=True)
    put(folder, "hca_type", f"{model}\n")
    write(folder / "ports/1", {name: f"{text}\n" for name, text in files.items()})


def up(rate: str = "400 Gb/sec (4X NDR)", layer: str = "InfiniBand") -> dict[str, str]:
    return {"state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": rate, "link_layer": layer}


def test_a_port_has_the_kernels_states_and_its_rate(tmp_path: Path) -> None:
    put_port(tmp_path, "mlx5_0", **up("2.5 Gb/sec (1X SDR)"))
    assert read_ports(tmp_path) == (NetworkPort("mlx5_0", 1, "ACTIVE", "LinkUp", 2.5, "InfiniBand", "MT4129"),)


def test_only_active_ports_of_one_card_type_and_link_layer_are_compared(tmp_path: Path) -> None:
    put_port(tmp_path, "mlx5_0", **up())
    put_port(tmp_path, "mlx5_1", **up("200 Gb/sec (4X HDR)"))
    put_port(tmp_path, "mlx5_2", **up("100 Gb/sec (4X EDR)", "Ethernet"))
    put_port(tmp_path, "mlx5_3", model="MT4127", **up("25 Gb/sec (1X EDR)"))
    put_port(tmp_path, "mlx5_4", state="1: DOWN", phys_state="3: Disabled", rate="10 Gb/sec (4X SDR)")
    ports = read_ports(tmp_path)
    assert [(port.name, best) for port, best in slower(ports)] == [("mlx5_1:1", 400.0)]
    assert [port.name for port in down(ports)] == ["mlx5_4:1"]


def test_random_trees_never_fail_and_never_gain_a_figure(tmp_path: Path) -> None:
    texts = ["", "4: ACTIVE", "4", ": ", "400 Gb/sec", "-1 Gb/sec", "0 Gb/sec", "nan Gb/sec", "\0", "9" * 40]
    for seed in range(20):
        rng, root = random.Random(seed), tmp_path / str(seed)
        for card in range(rng.randrange(1, 6)):
            files = ("state", "phys_state", "rate", "link_layer")
            put_port(root, f"mlx5_{card}", **{name: rng.choice(texts) for name in files if rng.random() < 0.8})
        ports = read_ports(root)
        assert {port.rate_gbits for port in ports} <= {None, 400.0}, seed
        assert slower(ports) == (), seed


_PORTS = st.lists(
    st.builds(
        NetworkPort,
        st.sampled_from(["mlx5_0", "mlx5_1", "bnxt_re0"]),
        st.integers(1, 2),
        st.sampled_from(["", "ACTIVE", "DOWN"]),
        rate_gbits=st.none() | st.sampled_from([100.0, 400.0]),
        counters=st.dictionaries(st.sampled_from([*ERRORS, *CONGESTION]), st.integers(0, 2**64)),
        host=st.sampled_from(["h0", "h1"]),
    ),
    unique_by=lambda port: (port.host, port.name),
    max_size=6,
)


@given(_PORTS, _PORTS)
def test_what_changed_is_what_two_readings_differ_in(before: list[NetworkPort], after: list[NetworkPort]) -> None:
    changed = list(changes(before, after))
    unchanged = list(changes(before, before))
    assert all(
        change.before == change.after and change.before in (15, 255, 65535) for change in unchanged
    )  # full counters
    assert len({(change.port.host, change.port.name, change.what) for change in changed}) == len(changed)
    later = {(port.host, port.name): port for port in after}
    for change in changed:
        assert change.port in before
        now = later.get((change.port.host, change.port.name))
        if now is None:
            assert change.after is None
        elif change.what == "state":
            assert {change.port.state, now.state} == {"ACTIVE", "DOWN"}
        elif change.what == "rate":
            assert {change.port.rate_gbits, now.rate_gbits} == {100.0, 400.0}
        else:
            assert change.growth == now.counters[change.what] - change.port.counters[change.what] >= 0
            assert change.growth or change.before in {15, 255, 65535}, "it can grow no more"
            assert change.congestion == (change.what in CONGESTION)
    changed_names = {(change.port.host, change.port.name, change.what) for change in changed}
    for port in before:
        now = later.get((port.host, port.name))
        grown = {name for name, count in port.counters.items() if now and now.counters.get(name, 0) > count}
        assert {(port.host, port.name, name) for name in grown} <= changed_names
        assert now is not None or (port.host, port.name, "state") in changed_names


def test_the_page_says_what_changed_on_ports_and_congestion_in_one_line() -> None:
    before = tuple(
        NetworkPort("mlx5_0", 1, "ACTIVE", rate_gbits=400.0, counters={"symbol_error": 1, "np_cnp_sent": 5}, host=host)
        for host in ("h0", "h1", "h2")
    )
    after = (
        replace(before[0], rate_gbits=200.0, counters={"symbol_error": 4, "np_cnp_sent": 6}),
        replace(before[1], state="DOWN", counters={"symbol_error": 0, "np_cnp_sent": 2000}),
    )
    run = run_of(gpus(2), [])
    run.ports_before, run.ports_after = before, after
    assert network_lines(run) == [
        "mlx5_0:1 of h0 changed from 400 to 200 Gbit/s",
        "symbol_error grew by 3 on mlx5_0:1 of h0",
        "mlx5_0:1 of h1 changed from ACTIVE to DOWN",
        "mlx5_0:1 of h2 is gone, or its host is gone",
        "congestion: np_cnp_sent grew by 1,995 on mlx5_0:1 of h1, and no more on 1 other port",
    ]
    assert unhealthy_lines(run) == network_lines(run)[:4], "congestion is no fault of a device"
    run.ports_before = run.ports_after = (replace(before[0], counters={"link_downed": 255, "np_cnp_sent": 255}),)
    (line,) = network_lines(run)
    assert line == "link_downed on mlx5_0:1 of h0 has reached its maximum, 255: whether it grew is unknown"
    run.ports_before, run.ports_after = before, after
    assert run_file.loads(run_file.dumps(run), "run").ports_after == after
    run.ports_after = ()
    assert network_lines(run) == [], "interrupted: nobody looked"


def test_ports_that_all_vanish_are_named_and_ports_that_nobody_read_are_not() -> None:
    run = run_of(gpus(2), [])
    run.ports_before = tuple(NetworkPort("mlx5_0", 1, "ACTIVE", host=host) for host in ("h0", "h1"))
    run.ports_after_read = True
    vanished = ["mlx5_0:1 of h0 is gone, or its host is gone", "mlx5_0:1 of h1 is gone, or its host is gone"]
    again = run_file.loads(run_file.dumps(run), "run")
    assert network_lines(run) == network_lines(again) == vanished
    assert again.ports_after_read
    data = json.loads(run_file.dumps(run))
    del data["ports_after_read"]
    older = run_file.loads(json.dumps(data), "run")
    assert network_lines(older) == [], "a file of before this field does not say whether anybody looked"


@pytest.mark.parametrize(
    ("title", "ports_read", "ports", "read"),
    [
        ("not read, as on one host", None, (), False),
        ("read, and no port there", (), (), True),
        ("read", (NetworkPort("mlx5_0", 1),), (NetworkPort("mlx5_0", 1),), True),
    ],
)
def test_a_run_keeps_whether_ports_were_read(
    title: str, ports_read: tuple[NetworkPort, ...] | None, ports: tuple[NetworkPort, ...], read: bool
) -> None:
    run = run_of(gpus(2), [])
    opened = cast("Opened", SimpleNamespace(ports=lambda: ports_read))
    read_ports_after(run, opened)
    assert (run.ports_after, run.ports_after_read) == (ports, read)
