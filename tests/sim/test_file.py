"""Fabric files: what is shipped, what is refused and where, and that nothing in a file makes a traceback."""

import contextlib
import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.measurement.backends.sim import SimBackend
from collbench.measurement.plan import make_plan, unordered_pairs
from collbench.model.errors import CollbenchError, RunFileError, UsageError
from collbench.sim import fabrics
from collbench.sim.fabrics import FaultKind
from tests.sim.made import fabric_text, request

DGX: dict[str, Any] = json.loads(fabric_text(fabrics.load("dgx-1v")))


def damaged(change: Callable[[dict[str, Any]], object]) -> str:
    data = copy.deepcopy(DGX)
    change(data)
    return json.dumps(data)


def test_the_shipped_fabrics_are_these() -> None:
    assert fabrics.names() == ("dgx-1v", "hgx-h200", "nvlink-pairs-2x2", "pcie-4-two-bridges", "titan-rtx-nv2")


@pytest.mark.parametrize("name", fabrics.names())
def test_a_shipped_fabric_names_itself_and_its_sources(name: str) -> None:
    fabric = fabrics.load(name)
    assert fabric.name == name
    assert len(fabric.source) > 100
    assert fabric.faults == ()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file"),
        (b"", "it is empty"),
        (b"\xff\xfe", "not text"),
        (b"[" * 100_000, "nested too deep"),
        (b" " * (2**20 + 1), "has more than 1 MiB"),
    ],
)
def test_a_file_that_is_not_a_fabric_is_refused_with_the_shipped_names(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    path = tmp_path / "mine.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CollbenchError, match=message) as refused:
        fabrics.load(str(path))
    assert str(path) in str(refused.value)


@pytest.mark.parametrize(("name", "meant"), [("dgx1v", "'dgx-1v'"), ("dgx1v.json", "'dgx1.json'")])
def test_one_name_is_suggested_whatever_files_are_near(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, meant: str
) -> None:
    (tmp_path / "dgx1.json").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as refused:
        fabrics.load(name)
    assert re.findall(r"did you mean ([^?]*)", str(refused.value)) == [meant]


def test_a_folder_and_a_zero_byte_are_refused(tmp_path: Path) -> None:
    for name in (str(tmp_path), "a\0b", ""):
        with pytest.raises(UsageError, match="dgx-1v"):
            fabrics.load(name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(format="collbench-run"), 'its format is "collbench-run"'),
        (lambda d: d.update(format_version=3), "version 3"),
        (lambda d: d.pop("gpus"), "fabric has no 'gpus'"),
        (lambda d: d.update(gpus=d["gpus"][:1]), "fabric.gpus has 1 items"),
        (lambda d: d["gpus"][2].update(nam="x"), r"fabric.gpus\[2\] has 'nam'"),
        (lambda d: d["gpus"][2].update(pcie_gbs="fast"), r"fabric.gpus\[2\].pcie_gbs is str"),
        (lambda d: d["gpus"][2].update(pcie_gbs=0), r"fabric.gpus\[2\].pcie_gbs is 0"),
        (lambda d: d["gpus"][2].update(bridge="plx9"), r"fabric.gpus\[2\].bridge is 'plx9', which leads to no host"),
        (lambda d: d["gpus"][2].update(pci_bus_id="6"), r"fabric.gpus\[2\] needs"),
        (lambda d: d["gpus"][2].update(pci_bus_id=d["gpus"][1]["pci_bus_id"]), r"gpus\[2\].pci_bus_id is another"),
        (lambda d: d["bridges"][0].update(parent="plx0"), "'plx0', which is above itself"),
        (lambda d: d["bridges"][0].update(name="plx1"), "'plx1' twice"),
        (lambda d: d["bundles"][3].update(gpus=[0, 0]), r"fabric.bundles\[3\] names \[0, 0\]"),
        (lambda d: d["bundles"][3].update(gpus=[0, 1, 2]), r"fabric.bundles\[3\].gpus has 3 items"),
        (lambda d: d["bundles"][3].update(gpus=[1, 0]), r"fabric.bundles\[3\] joins two GPUs that another"),
        (lambda d: d["bundles"][3].update(links=37), r"fabric.bundles\[3\].links is 37"),
        (lambda d: d["noise"].update(trial=2), "not a σ from 0 to 1"),
        (lambda d: d.update(faults=[{"kind": "rust"}]), r"fabric.faults\[0\].kind is 'rust', not one of slow-link"),
        (lambda d: d.update(faults=[{"kind": "slow-link", "devices": [1]}]), r"faults\[0\].devices is \[1\]"),
        (lambda d: d.update(faults=[{"kind": "slow-gpu", "factor": 0}]), r"faults\[0\].factor is 0"),
        (
            lambda d: d.update(faults=[{"kind": "slow-link", "devices": [0, 1]}]),
            r"faults\[0\] needs a factor below 1: what a slow-link leaves of the rate",
        ),
        (
            lambda d: d.update(faults=[{"kind": "mistimed", "factor": 0.5}]),
            r"faults\[0\] needs a factor above 1: by how",
        ),
        # Faults that would do nothing.
        (lambda d: d.update(faults=[{"kind": "pcie-degraded", "devices": [1]}]), "a width below gen 3 and width 16"),
        (lambda d: d.update(faults=[{"kind": "hidden-nvlink", "devices": [0, 5]}]), "no NVLink is there for hidden"),
        (lambda d: d.update(faults=[{"kind": "links-down", "devices": [1]}]), r"takes 1 NVLinks of \[1\]: name two"),
        (
            lambda d: d.update(faults=[{"kind": "links-down", "devices": [1, 0], "links": 1}]),
            r"takes 1 NVLinks of \[1, 0\], and leaves none of 1: nvlink-unused",
        ),
        (lambda d: d.update(faults=[{"kind": "mistimed", "devices": [1], "factor": 2}]), "two GPUs or more"),
        (lambda d: d.update(faults=[{"kind": "bottleneck"}]), r"faults\[0\] needs gbs above 0"),
        (lambda d: d.update(faults=[{"kind": "late-gpu"}]), r"faults\[0\] needs us above 0"),
        (lambda d: d.pop("format_version"), 'no version: write "format_version": 2'),
        (lambda d: d.update(faults=[{"kind": "p2p-disabled", "words": "HOME=/"}]), "not an NCCL variable"),
        (lambda d: d.update(labels=[{"gpus": [0, 1], "label": "NVX"}]), r"labels\[0\].label is 'NVX'"),
        (lambda d: d.update(labels=[{"gpus": [0, 1], "tool_peer_access": "?"}]), "not one of OK"),
        (lambda d: d.update(unreachable=[[3, 3]]), r"fabric.unreachable\[0\] names \[3, 3\]"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line_with_the_place(
    change: Callable[[dict[str, Any]], object], message: str
) -> None:
    with pytest.raises(RunFileError, match=message) as refused:
        fabrics.loads(damaged(change), "mine.json")
    assert "mine.json" in str(refused.value)
    assert "damaged" not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_comma_that_is_missing_is_named_with_its_place() -> None:
    with pytest.raises(RunFileError) as refused:
        fabrics.loads('{"format": "collbench-fabric",\n "base": "dgx-1v" "faults": []}', "mine.json")
    assert str(refused.value) == "mine.json is not a fabric file: Expecting ',' delimiter at line 2, column 19"


def test_a_fault_of_one_gpus_nvlinks_is_read() -> None:
    """As docs/fabric-file.md says of these kinds: any number of devices."""
    for kind in ("nvlink-unused", "hidden-nvlink"):
        fabric = fabrics.loads(damaged(lambda d, kind=kind: d.update(faults=[{"kind": kind, "devices": [6]}])), "it")  # type: ignore[misc]
        assert fabric.faults[0].devices == (6,)


KEY_PATHS = st.sampled_from(
    [(key,) for key in DGX]
    + [("gpus", 0, key) for key in DGX["gpus"][0]]
    + [("gpus", 0, "health", key) for key in DGX["gpus"][0]["health"]]
    + [("bundles", 0, key) for key in DGX["bundles"][0]]
    + [("bridges", 0, key) for key in DGX["bridges"][0]]
    + [("host_bridges", 0, key) for key in DGX["host_bridges"][0]]
    + [(part, key) for part in ("noise", "engines", "delays", "sockets") for key in DGX[part]]
)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner))
FAULTS = st.fixed_dictionaries(
    {"kind": st.sampled_from([kind.value for kind in FaultKind])},
    optional={
        "devices": st.lists(st.integers(-1, 8), max_size=3),
        "factor": st.floats(-1, 2),
        "links": st.integers(-1, 40),
        "gbs": st.floats(-1, 500),
        "one_way": st.booleans(),
        "width": st.integers(-1, 32),
        "generation": st.integers(-1, 9),
        "words": st.text(max_size=8),
    },
)


def use(text: str) -> None:
    """Load the text, and where it is a fabric plan and time a step of everything. Only collbench's errors may come."""
    with contextlib.suppress(CollbenchError):
        backend = SimBackend(fabrics.loads(text, "fuzzed"), seed=1)
        backend.paths()
        plan, _ = make_plan(request(sizes=(2**20,)), backend)
        for work, groups in plan.groups.items():
            step = plan.step(work, groups[:1], 2**20)
            backend.time(step)
        assert len(backend.paths()) == len(unordered_pairs(len(backend.devices())))


@settings(max_examples=60, deadline=None)
@given(KEY_PATHS, VALUES)
def test_no_value_at_any_key_makes_a_traceback(key_path: tuple[Any, ...], value: Any) -> None:
    data = copy.deepcopy(DGX)
    part: Any = data
    for key in key_path[:-1]:
        part = part[key]
    part[key_path[-1]] = value
    use(json.dumps(data))


@settings(max_examples=40, deadline=None)
@given(st.lists(FAULTS, max_size=2))
def test_no_fault_makes_a_traceback(faults: list[dict[str, Any]]) -> None:
    use(json.dumps({**DGX, "faults": faults}))
