"""`check --map-p2p` on simulated GPUs: each fault costs its own link, and is named with its direction and cause."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.program import on_gpus
from tests.native.fakes import Fakes, Outcome

_MIB = 2**20
# Little more than NCCL itself needs, and too little for it: smaller buffers are quicker.
_FREE_FOR_NCCL, _FREE = 1290 * _MIB, 269 * _MIB
_BY_PCIE: dict[str, Any] = {"nvlinks": 0, "ancestor": 10}


def _mapped(
    fakes: Fakes, gpus: int = 2, variables: dict[str, str] | None = None, **settings: object
) -> tuple[Outcome, dict[str, Any]]:
    arguments = ("check", "--map-p2p", "--backend", "cuda", "--json")
    done = on_gpus(fakes, arguments, variables, **{"gpus": gpus, "free": _FREE} | settings)
    assert done.stdout, done.stderr
    return done, json.loads(done.stdout)


def _states(answer: dict[str, Any]) -> dict[tuple[int, int], str]:
    return {(link["source"], link["destination"]): link["state"] for link in answer["links"]}


def _causes(answer: dict[str, Any]) -> dict[str, str]:
    return {cause["name"]: cause["certainty"] for cause in answer["causes"]}


def _messages(answer: dict[str, Any], link: tuple[int, int]) -> dict[tuple[str, int], str]:
    row = next(one for one in answer["links"] if (one["source"], one["destination"]) == link)
    return {(one["by"], one["size_bytes"]): one["state"] for one in row["messages"]}


def test_a_healthy_machine_works_on_every_link_and_has_no_cause(fakes: Fakes) -> None:
    done, answer = _mapped(fakes, free=_FREE_FOR_NCCL)

    assert done.code == 0
    assert _states(answer) == {(0, 1): "works", (1, 0): "works"}
    assert answer["causes"] == answer["meanwhile"] == []
    assert {link["nccl"] for link in answer["links"]} == {"P2P/direct pointer/read"}
    assert {state for link in answer["links"] for state in link["nvml"].values()} == {"OK"}
    assert set(answer["links"][0]["nvml"]) == set("rwnap")
    assert len(_messages(answer, (0, 1))) == 8
    rates = {one["by"]: one["gbs"] for one in answer["links"][0]["messages"] if one["size_bytes"] == 64 * _MIB}
    assert rates["copy_engine"] == pytest.approx(100, rel=0.01)
    assert rates["via_host"] == pytest.approx(10, rel=0.01)


def test_a_hang_costs_its_own_direction_alone(fakes: Fakes) -> None:
    done, answer = _mapped(fakes, gpus=3, hang="copy:0>1")

    assert done.code == 4
    assert {link for link, state in _states(answer).items() if state != "works"} == {(0, 1)}
    assert _messages(answer, (0, 1)) == {
        ("kernel_write", 4096): "hangs",
        ("kernel_read", 4096): "hangs",
        ("copy_engine", 4096): "works",
        ("copy_engine", 4 * _MIB): "works",
        ("via_host", 4096): "works",
        ("via_host", 4 * _MIB): "works",
    }
    assert "GPU0→GPU1 hangs" in answer["answer"]
    assert answer["meanwhile"][0] == "export NCCL_P2P_DISABLE=1"


def test_wrong_data_costs_its_own_direction_alone(fakes: Fakes) -> None:
    done, answer = _mapped(fakes, gpus=3, corrupt_copy="0:7:2>1")

    assert done.code == 4
    assert {link: state for link, state in _states(answer).items() if state != "works"} == {(2, 1): "wrong data"}
    assert "GPU2→GPU1 delivers wrong data" in answer["answer"]


@pytest.mark.parametrize("copy", [35, 38])
def test_each_message_of_a_batch_is_compared_on_a_nearly_full_gpu(fakes: Fakes, copy: int) -> None:
    """Of the messages of a link these four are a timed batch of the larger ones by kernels."""
    done, answer = _mapped(fakes, free=262 * _MIB, corrupt_copy=f"{copy}:7:0>1")
    assert done.code == 4
    assert _states(answer) == {(0, 1): "wrong data", (1, 0): "works"}


def test_a_refused_link_has_the_drivers_error(fakes: Fakes) -> None:
    done, answer = _mapped(fakes, gpus=3, refuse_peer="0,0>1=217", **_BY_PCIE)

    assert done.code == 3
    refused = {link for link, state in _states(answer).items() if state != "works"}
    assert refused == {(0, 1), (1, 0)}, "the writes of one direction, and the reads of the other"
    assert _messages(answer, (0, 1))["kernel_write", 4 * _MIB] == "refused"
    assert _messages(answer, (0, 1))["kernel_read", 4 * _MIB] == "works"
    assert "cuCtxEnablePeerAccess(GPU 0 for memory of GPU 1)" in next(
        one["why"] for one in answer["links"][0]["messages"] if one["state"] == "refused"
    )


@pytest.mark.parametrize(
    ("fault", "state", "status"),
    [({"free": _FREE_FOR_NCCL}, "works", 0), ({"corrupt_copy": "0:7:0>1"}, "wrong data", 4)],
)
def test_check_has_the_map_and_goes_on_after_a_fault(
    fakes: Fakes, fault: dict[str, object], state: str, status: int
) -> None:
    """What the run measured of sound links is not sent again; links that it did not come to are examined."""
    arguments = ("check", "--backend", "cuda", "--json", "--sizes", "64K", "--budget", "10ms")
    done = on_gpus(fakes, arguments, gpus=2, **fault)
    assert done.stdout, done.stderr
    answer = json.loads(done.stdout)
    mapped = answer["p2p"]
    states = _states(mapped)
    assert (done.code, answer["exit_status"]) == (max(status, done.code), done.code)
    assert mapped["exit_status"] == status
    assert len(states) == 2
    assert {link: one for link, one in states.items() if one != "works"} == ({} if status == 0 else {(0, 1): state})
    if status == 0:
        assert {one["size_bytes"] for link in mapped["links"] for one in link["messages"]} == {2**16}
        assert {link["nccl"] for link in mapped["links"]} == {"P2P/direct pointer/read"}


def test_opening_that_fails_for_one_gpu_leaves_the_links_of_the_others(fakes: Fakes) -> None:
    _, answer = _mapped(fakes, gpus=3, free=f"{_FREE},2=1000")

    states = _states(answer)
    assert states[0, 1] == states[1, 0] == "works"
    assert {states[link] for link in states if 2 in link} == {"fails"}


def test_the_map_of_two_visible_gpus_says_what_hides_the_others(fakes: Fakes) -> None:
    variables = {"CUDA_VISIBLE_DEVICES": "1,3", "SLURM_GPUS_ON_NODE": "6"}
    _, answer = _mapped(fakes, gpus=4, variables=variables)
    assert [device["index"] for device in answer["devices"]] == [1, 3]
    found = {cause["name"]: (cause["certainty"], cause["fix"]) for cause in answer["hidden"]}
    fix = "unset CUDA_VISIBLE_DEVICES; then examine them"
    assert found == {"CUDA_VISIBLE_DEVICES": ("shown", fix), "Slurm": ("consistent", "srun --gpu-bind=none")}
    assert {cause["name"] for cause in answer["causes"]}.isdisjoint(found)


@pytest.mark.parametrize(("gpus", "given"), [(1, "4"), (2, "2")])
def test_check_says_of_a_bound_task_which_gpus_it_cannot_reach(fakes: Fakes, gpus: int, given: str) -> None:
    """The truth: the step has three more GPUs than the first task, and none that the second one lacks."""
    done = on_gpus(fakes, ("check", "--backend", "cuda", "--sizes", "64K"), {"SLURM_GPUS_ON_NODE": given}, gpus=gpus)
    hides = "hidden    Slurm (consistent): Slurm's step has 3 more here"
    assert (hides in done.stdout) is (gpus == 1), done.stdout
    assert ("p2p       " in done.stdout) is (gpus == 2)


def test_a_task_that_is_bound_to_one_gpu_is_told_how_to_see_the_others(fakes: Fakes) -> None:
    """No link with both ends in one process can show it [NVIDIA/nccl#1066]."""
    bound = {"SLURM_GPUS_ON_NODE": "2", "CUDA_VISIBLE_DEVICES": "0"}
    done = on_gpus(fakes, ("check", "--map-p2p", "--backend", "cuda"), bound, gpus=1)
    assert (done.code, done.stdout) == (2, "")
    said = "Slurm's step has 1 more, which this task is not bound to: srun --gpu-bind=none"
    assert said in done.stderr
    done = on_gpus(fakes, ("check", "--map-p2p", "--backend", "cuda"), bound, gpus=2)
    assert done.code == 2
    assert said not in done.stderr, "the driver shows both, and a variable hides one"


def test_a_variable_is_shown_to_be_the_cause_by_what_nccl_takes_without_it(fakes: Fakes, tmp_path: Path) -> None:
    conf = tmp_path / "nccl.conf"
    conf.write_text("NCCL_P2P_DISABLE=1\n")
    _, answer = _mapped(fakes, variables={"NCCL_CONF_FILE": str(conf)})
    (cause,) = (one for one in answer["causes"] if one["name"] == "NCCL variable")
    assert cause["certainty"] == "shown"
    assert cause["text"] == (
        f"NCCL_P2P_DISABLE=1 is set in {conf}: NCCL takes SHM, though P2P delivers; without the variable it took P2P"
    )
    assert cause["fix"] == f"remove NCCL_P2P_DISABLE from {conf}"


@pytest.mark.parametrize(
    ("case", "settings", "words", "status", "said"),
    [
        ("healthy", {}, [], 0, "evidence  no choice to make; P2P works on all 2 links: "),
        (
            "wrong data",
            {"corrupt_copy": "0:7:0>1"},
            [],
            4,
            "FAILED: the set includes GPU0-GPU1 (P2P is broken on 1 of 2 links: GPU0→GPU1 delivers wrong data)",
        ),
        ("more than two", {"gpus": 3, "corrupt_copy": "0:7:0>1"}, [], 0, "check --map-p2p tries P2P"),
    ],
)
def test_select_is_not_silent_over_the_only_pair(
    fakes: Fakes, case: str, settings: dict[str, Any], words: list[str], status: int, said: str
) -> None:
    plan = {"gpus": 2, "memory": _FREE} | settings
    done = on_gpus(fakes, ("select", str(plan["gpus"]), *words), free=plan["memory"], **plan)
    assert done.code == status, done.stderr
    assert said in done.stdout, case


def test_select_without_an_answer_stops_the_shell_that_would_act_on_it(fakes: Fakes) -> None:
    settings = {"gpus": 2, "memory": _FREE, "free": _FREE, "corrupt_copy": "0:7:0>1"}
    done = on_gpus(fakes, ("select", "2", "--format", "env"), **settings)
    assert (done.code, done.stdout) == (4, "false\n")
    assert "GPU0→GPU1 delivers wrong data" in done.stderr


@pytest.mark.parametrize(
    ("case", "settings", "variables", "status", "expected"),
    [
        (
            "a patched driver and a small BAR1",
            {"name": "NVIDIA GeForce RTX 4090", "corrupt_copy": "0:7:0>1", "bar1": 256 * _MIB, "free": _FREE}
            | _BY_PCIE,
            {},
            4,
            {"patched driver": "consistent", "BAR1": "consistent"},
        ),
        (
            "NCCL told not to, nor through shared memory",
            {"free": _FREE},
            {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"},
            0,
            {"NCCL variable": "shown", "NCCL_SHM_DISABLE": "consistent"},
        ),
        (
            "lanes, and two sockets",
            {"rate": 4, "pcie_width": "16,1=4", "nvlinks": 0, "ancestor": 50, "free": _FREE},
            {},
            3,
            {"PCIe width": "possible", "CPU sockets": "consistent"},
        ),
        (
            "a slot of generation 3, and one that was read at rest",  # host copies have 10 GB/s: gen 1 carries 3.94
            {"rate": 4, "pcie_generation": "5,0=1,1=3", "free": _FREE} | _BY_PCIE,
            {},
            3,
            {"PCIe generation": "possible"},
        ),
    ],
)
def test_planted_causes_are_named(
    fakes: Fakes, case: str, settings: dict[str, Any], variables: dict[str, str], status: int, expected: dict[str, str]
) -> None:
    done, answer = _mapped(fakes, variables=variables, **({"free": _FREE_FOR_NCCL} | settings))

    # The fakes' machine is a virtual one; and this one has bridges, perhaps unreadable, and perhaps a small /dev/shm.
    of_this_machine = ("virtual machine", "ACS", "IOMMU", "shared memory")
    found = {name: certainty for name, certainty in _causes(answer).items() if name not in of_this_machine}
    assert (done.code, found) == (status, expected), case
