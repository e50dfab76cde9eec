"""`collbench select`: which devices it prints, in which formats, where the reasons go, and when it refuses."""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import subprocess
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from itertools import combinations
from pathlib import Path

import pytest

from collbench.api import by_run
from collbench.choose.freshness import Here
from collbench.judge import references
from collbench.measurement.backends import factory
from collbench.measurement.backends.factory import Present
from collbench.model.run import Health, Run
from collbench.model.units import format_size
from collbench.runfile import run_file
from collbench.sim.fabrics import Fault, FaultKind
from tests.builders import gpus, pair_run, shared
from tests.cli.program import (
    Program,
    collbench,
    environment,
    fake_gpus,
    fake_uuid,
    on_gpus,
    one_line,
    save_run,
    saved_in,
)
from tests.native.fakes import Fakes
from tests.sim.made import faulty_file

DGX_1V = Path(__file__).parents[1] / "data" / "topologies" / "dgx-1v.txt"


def present(*states: Health) -> Present:
    """Return four GPUs that are only listed, in these states, and well without any."""
    by_uuid = {gpu.uuid: state for gpu, state in zip(gpus(4), states or (Health(processes=0),) * 4, strict=True)}
    return Present("cuda", gpus(4), states=by_uuid)


@pytest.fixture
def saved_run(monkeypatch: pytest.MonkeyPatch, program: Program, tmp_path: Path) -> Run:
    """Four GPUs that are only listed, all well, and a saved run of them; measuring anything fails the test."""
    monkeypatch.setattr(factory, "resolve", lambda name: ("cuda" if name == "auto" else name, None))
    monkeypatch.setattr(factory, "look", lambda *_: present())
    monkeypatch.setattr(by_run, "here", lambda of: Here("cuda", of.candidates, "580.159.04", "2.28.9", of.barred))
    monkeypatch.setattr(by_run, "probe", lambda *_: pytest.fail("probed"))
    monkeypatch.setattr(by_run, "measure_finalists", lambda *_: pytest.fail("verified"))
    return save_run(saved_in(tmp_path), gpus(4))


# --- excluded devices ---------------------------------------------------------------------------------------------


def test_a_gpu_that_is_busy_now_is_left_out_by_name_and_reason(
    program: Program, saved_run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the saved run GPU2 had no other process; now it has one."""
    now = tuple(Health(processes=int(index == 2)) for index in range(4))
    monkeypatch.setattr(factory, "look", lambda *_: present(*now))
    result = program("select", "2", "--no-verify", "--format", "list")
    assert result.status == 0, result.err
    assert "2" not in result.out.strip().split(",")
    assert "left out  GPU2: " in result.err
    fresh = replace(saved_run, health_before=now)  # what an old run saw is not what they leave
    monkeypatch.setattr(by_run, "probe", lambda *_: by_run.SuitableRun(fresh, "a probe"))
    assert program("select", "2", "--no-verify", "--allow-busy", "--format", "list").out == "2,3\n"


def test_a_run_that_others_disturbed_is_no_evidence_and_if_named_leaves_nobody_out_now(
    program: Program, saved_run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    busy = (shared(2), shared(3))
    for measurement in saved_run.measurements:
        measurement.samples[:] = [replace(sample, flags=busy) for sample in measurement.samples]
    run_file.save(saved_run, saved_in(tmp_path), replace=True)
    named = program("select", "2", "--no-verify", str(saved_in(tmp_path)), "--format", "list")
    assert (named.out, "left out" in named.err) == ("2,3\n", False)
    monkeypatch.setattr(by_run, "probe", lambda _criteria, why, _notices: pytest.fail(f"probed: {why}"))
    with pytest.raises(pytest.fail.Exception, match="probed: no saved run fits: "):
        program("select", "2", "--no-verify")


def test_as_many_as_there_are_need_no_measurement(program: Program, saved_run: Run, tmp_path: Path) -> None:
    saved_in(tmp_path).unlink()
    result = program("select", "4", "--format", "list")
    assert (result.status, result.out) == (0, "0,1,2,3\n")
    answer = json.loads(program("select", "3", "--exclude", "1", "--json").out)
    assert [device["index"] for device in answer["devices"]] == [0, 2, 3], "the others are all wanted"
    assert answer["left_out"] == [{"device": "GPU1", "reason": "excluded"}]


def test_a_simulated_machine_and_a_saved_run_of_it_refuse_a_busy_gpu_alike(program: Program) -> None:
    machine = faulty_file("nvlink-pairs-2x2", Fault(FaultKind.FOREIGN_LOAD, (2,), 0.5), name="busy")
    program("pairs", *machine, "--sizes", "64M", "--output", "busy-run.json")
    for evidence in (machine, ("busy-run.json", "--any-machine")):
        result = program("select", "4", *evidence)
        assert (result.status, result.out) == (2, "")
        assert "3 are left without GPU2 (busy: 1 other process; busy: 100% utilization)" in result.line
        assert program("select", "4", *evidence, "--allow-busy", "--format", "list").out == "0,1,2,3\n"


# --- refusals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "args", "message"),
    [
        ("too many after excluding", ("3", "--exclude", "0,1"), "than the 2 that may be chosen (GPU2, GPU3; not"),
        ("an unknown GPU excluded", ("2", "--exclude", "9"), "device 9 is not available"),
        ("labels and a run", ("2", "r", "--topology", "t"), "use only one"),
        ("a run and none", ("2", "r", "--fresh"), "use only one"),
        ("elsewhere without a run", ("2", "--any-machine"), "write select K RUN.JSON --any-machine"),
        ("one GPU that should be verified", ("1", "--verify"), "one device has none"),
        ("cores for docker", ("2", "--backend", "host", "--format", "docker"), "--format list"),
        ("a machine that is not simulated", ("2", "--fabric", "dgx-1v"), "add --backend sim"),
        ("a run and a machine", ("2", "r", "--backend", "sim", "--fabric", "dgx-1v"), "use only one"),
        ("no such topology", ("2", "--topology", "none.txt"), "none.txt"),
    ],
)
def test_what_cannot_be_meant_is_one_line(
    program: Program, saved_run: Run, case: str, args: tuple[str, ...], message: str
) -> None:
    result = program("select", *args)
    assert (result.status, result.out) == (2, ""), case
    assert message in result.line, case


@pytest.mark.parametrize("args", [("9",), ("two",), ("2", "none.json"), ("2", "--nonsense")])
@pytest.mark.parametrize("spelling", [("--format", "env"), ("--format=env",)])
def test_a_shell_that_evaluates_a_failure_fails(
    program: Program, saved_run: Run, args: tuple[str, ...], spelling: tuple[str, ...]
) -> None:
    """An empty answer would evaluate to success, and the job would start on all GPUs."""
    result = program("select", *args, *spelling)
    assert result.status == 2
    assert one_line(result.err)
    shell = subprocess.run(["sh", "-c", f"eval '{result.out}' && echo started"], capture_output=True, check=False)
    assert (shell.returncode, shell.stdout) == (1, b"")


# --- runs of other machines ---------------------------------------------------------------------------------------


def another(tmp_path: Path, **changes: object) -> str:
    save_run(tmp_path / "other.json", fake_gpus(), timedelta(days=30), **changes)
    return "other.json"


def simulated(tmp_path: Path) -> str:
    machine = replace(pair_run(2, lambda *_: 1.0).machine, fabric="dgx-1v")
    return another(tmp_path, backend="sim", machine=machine)


@pytest.mark.parametrize("output_format", ["env", "docker", "apptainer", "slurm"])
def test_simulated_gpus_cannot_be_used(program: Program, tmp_path: Path, output_format: str) -> None:
    for args, message in (
        ((simulated(tmp_path), "--any-machine"), "sim backend"),
        (("--backend", "sim", "--fabric", "dgx-1v"), "simulated GPUs"),
    ):
        result = program("select", "2", *args, "--format", output_format)
        assert result.status == 2
        assert result.out == ("false\n" if output_format == "env" else "")
        assert message in result.line


SIM = ("--backend", "sim", "--fabric", "dgx-1v")


def test_a_simulated_machine_is_measured_and_chosen_from_without_this_one(program: Program, tmp_path: Path) -> None:
    result = program("select", "2", *SIM, "--format", "json")
    assert result.status == 0, result.err
    answer = json.loads(result.out)
    # dgx-1v: pairs with two NVLinks reach twice what others do.
    double = {(0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)}
    assert tuple(device["index"] for device in answer["devices"]) in double
    assert (answer["origin"]["backend"], answer["origin"]["fabric"], answer["environment"]) == ("sim", "dgx-1v", {})
    assert answer["finalists"][0]["measured"] is not None
    assert not list(tmp_path.rglob("*.json")), "a simulated probe is no evidence for a real machine"
    page = program("select", "2", *SIM, "--no-verify").out
    assert "of the simulated machine dgx-1v (sim)" in page
    assert all("sim" in line for line in page.splitlines() if "GB/s" in line)


def test_without_gpus_it_says_how_a_saved_simulation_is_taken(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "simulated" not in program("select", "2").line
    assert program("pairs", *SIM, "--quick", "--sizes", "64M").status == 0
    assert program("allreduce", *SIM, "--sizes", "64M").status == 0  # newer, and without a pair to choose
    refused = program("select", "2")
    assert refused.status == 2
    _, command = refused.line.split("the newest saved pairs were simulated, and are taken only by name: collbench ")
    taken = program(*shlex.split(command))
    assert (taken.status, "dgx-1v" in taken.out) == (0, True), taken.err


# --- labels without a measurement ---------------------------------------------------------------------------------


SEEN = sorted((DGX_1V.parent / "seen").glob("*.txt"))
FIGURES = [
    held.get("shared", {}) | figure
    for name in ("figures.json", "curves.json")
    for held in [json.loads((Path(references.__file__).parent / name).read_text(encoding="utf-8"))]
    for figure in held["figures"]
]


@pytest.mark.parametrize("columns", ["40", "200"])
def test_the_answer_is_the_first_line_in_a_terminal_of_any_width(
    program: Program, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    """Labels name no machine after the devices: "GPU0, GPU1" is as long as a name, and no sentence follows it."""
    monkeypatch.setenv("COLUMNS", columns)
    for k in range(1, 5):
        devices = ", ".join(f"GPU{device['index']}" for device in json.loads(_chosen(program, k, "json"))["devices"])
        assert _chosen(program, k).splitlines()[0] == devices


def _chosen(program: Program, k: int, *form: str) -> str:
    return program("select", str(k), "--topology", str(DGX_1V), *(("--format", *form) if form else ())).out


@pytest.mark.parametrize("k", [2, 8])
def test_a_label_has_no_rate_on_any_published_machine(program: Program, k: int) -> None:
    for file in SEEN:
        result = program("select", str(k), "--topology", str(file), "--format", "json")
        if result.status == 0:
            answer = json.loads(result.out)
            assert (answer["predicted"], answer["predicted_how"], answer["published"]) == (None, "", []), file
            assert all(one["predicted"] is None for one in answer["finalists"]), file
            assert "GB/s" not in result.err + answer["reason"], file
        else:
            assert f"cannot choose {k} of" in one_line(result.err), file


@pytest.mark.parametrize(
    ("gpu", "text", "k", "size", "machines"),
    [
        ("H100", "seen/mleng-8xh100.txt", 8, "8G", {"8 × H100 SXM behind NVSwitches"}),
        ("h200", "seen/mleng-8xh100.txt", 4, "64M", {"H200 behind NVSwitches"}),
        ("NVIDIA A100 80GB PCIe", "seen/k8sdp-436-4xa100.txt", 2, "64M", {"2 × A100 PCIe with bridges"}),
    ],
)
def test_with_the_gpus_name_the_figures_come_from_the_references(
    program: Program, gpu: str, text: str, k: int, size: str, machines: set[str]
) -> None:
    """The truth: the file of figures, read as JSON. Each end of a range is a published value of that machine."""
    args = ("select", str(k), "--topology", str(DGX_1V.parent / text), "--gpu", gpu, "--size", size)
    shown = json.loads(program(*args, "--format", "json").out)["published"]
    assert {one["machine"] for one in shown} == machines
    for one in shown:
        machine = one["machine"].split(" × ")[-1]  # sources count the GPUs or not
        rows = [
            row for row in FIGURES if row["machine"].split(" × ")[-1] == machine and row["operation"] == "allreduce"
        ]
        rows = [row for row in rows if row["ranks"] == k and row.get("nvls") == one["nvls"]]
        published = [(*row.get("measured", ()), *row.get("curve", ()), row.get("at_least")) for row in rows]
        values = [value for row in published for value in row if value]
        assert all(any(gbs == pytest.approx(value) for value in values) for gbs in one["gbs"] if gbs is not None)
        assert set(one["sources"]) <= {row["source"] for row in rows}
        assert one["origins"] == len({source.split()[0].rstrip(",") for source in one["sources"]})
        assert one["band"][0] == pytest.approx(one["gbs"][0] * (0.95 if one["gbs"][1] else 1.0))
        assert one["band"][1] == (one["gbs"][1] and pytest.approx(one["gbs"][1] * 1.05))
    page = program(*args).out
    assert all(one["sources"][0] in page for one in shown)


def test_the_name_may_stand_in_the_file_and_others_have_no_figure(program: Program) -> None:
    listed = "".join(f"GPU {i}: NVIDIA H200 (UUID: GPU-{i})\n" for i in range(8))
    matrix = (DGX_1V.parent / "seen" / "mleng-8xh100.txt").read_text(encoding="utf-8")
    Path("both.txt").write_text(f"{listed}\n{matrix}", encoding="utf-8")
    found = program("select", "4", "--topology", "both.txt").out
    assert found.splitlines()[0] == "GPU0, GPU1, GPU2, GPU3 (NVIDIA H200)"
    assert (
        "reference all-reduce busbw 311.4 GB/s (band 295.8 to 327.0, 1 source) at 64M: H200 behind NVSwitches, 4 ranks"
        in found
    )
    other = program("select", "4", "--topology", "both.txt", "--gpu", "RTX 4090").out
    assert "reference none for 4 × RTX 4090 with such links: labels have an order, not a rate" in other
    names = (
        "A100 PCIe, A100 SXM, B200, B300, GB200, GB300, H100 NVL, H100 SXM, H200, P100 SXM2, RTX 2080 Ti, RTX 4090, "
    )
    names += "RTX 5090, RTX A6000, RTX PRO 6000, V100 PCIe, V100 SXM2"
    for unknown, near in (("Banana", ""), ("4", ""), ("rtx4091", "; nearest: RTX 4090")):
        refused = program("select", "4", "--topology", "both.txt", "--gpu", unknown)
        assert (refused.status, refused.out) == (2, "")
        told = f"no reference figure is of a GPU '{unknown}'{near}; all names: {names}"
        assert one_line(refused.err) == told
    for wrong in (("--gpu", "H100"), ("--topology", "both.txt", "--gpu", " ")):
        assert "--gpu names the GPUs" in one_line(program("select", "2", *wrong).err)


@pytest.mark.parametrize("k", [2, 4])
def test_by_labels_a_pair_without_p2p_is_avoided_where_another_set_exists(program: Program, k: int) -> None:
    """The truth: all sets of k, tried one by one."""
    draw = random.Random(k)
    names = [f"GPU{index}" for index in range(8)]
    for _ in range(12):
        share = draw.choice([0.1, 0.3, 0.8, 1.0])
        denied = {pair for pair in combinations(range(8), 2) if draw.random() < share}
        rows = [
            [
                "X" if a == b else draw.choice(["CNS", "NS"]) if (min(a, b), max(a, b)) in denied else "OK"
                for b in range(8)
            ]
            for a in range(8)
        ]
        lines = ["\t".join([name, *row]) for name, row in zip(["", *names], [names, *rows], strict=True)]
        Path("p2p.txt").write_text("\n".join(lines), encoding="utf-8")
        answer = json.loads(program("select", str(k), "--topology", str(DGX_1V), "--p2p", "p2p.txt", "--json").out)
        chosen = {device["index"] for device in answer["devices"]}
        sound = [some for some in combinations(range(8), k) if not denied & {*combinations(some, 2)}]
        inside = [pair for pair in denied if {*pair} <= chosen]
        assert bool(inside) is not bool(sound), (denied, chosen)
        says = "no pair has P2P" if len(denied) == 28 else "every set includes a pair without P2P"
        assert (says in answer["reason"]) is bool(inside)
    for wrong in (("--p2p", "p2p.txt"), ("--topology", str(DGX_1V.parent / "two-gpu-phb.txt"), "--p2p", "p2p.txt")):
        assert program("select", "2", *wrong).status == 2


def test_of_more_gpus_than_have_all_their_sets_tried_one_with_p2p_is_found(program: Program) -> None:
    """Twenty GPUs with one label, and P2P within four groups of five: of five GPUs only the groups have it."""
    groups = [{*range(first, first + 10, 2)} for first in (0, 1, 10, 11)]
    names = [f"GPU{index}" for index in range(20)]

    def write(file: str, cell: Callable[[int, int], str]) -> None:
        rows = [[name, *("X" if a == b else cell(a, b) for b in range(20))] for a, name in enumerate(names)]
        Path(file).write_text("\n".join("\t".join(row) for row in [["", *names], *rows]), encoding="utf-8")

    write("labels.txt", lambda _a, _b: "NV18")
    write("p2p.txt", lambda a, b: "OK" if any({a, b} <= group for group in groups) else "NS")
    files = ("--topology", "labels.txt", "--p2p", "p2p.txt", "--json")
    chosen = json.loads(program("select", "5", *files).out)
    assert {device["index"] for device in chosen["devices"]} in groups
    assert "every set that was tried includes a pair" in json.loads(program("select", "6", *files).out)["reason"]


def test_labels_name_gpus_by_index(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    args = ("select", "4", "--topology", str(DGX_1V), "--exclude", "0")
    result = program(*args, "--format", "env")
    assert result.out == "export CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=4,5,6,7\n"
    assert "by labels, nothing was measured" in result.err
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    refused = program(*args, "--format", "docker")
    assert (refused.status, refused.out) == (2, "")
    assert "CUDA_VISIBLE_DEVICES" in refused.line
    assert program(*args, "--format", "list").out == "4,5,6,7\n"


# --- on simulated GPUs --------------------------------------------------------------------------------------------


def test_the_finalists_are_measured_beside_the_first_ones(fakes: Fakes, tmp_path: Path) -> None:
    """The saved run and today's machine agree: 2-3 is fast, and 0-1 has a tenth of its rate."""
    save_run(saved_in(tmp_path), fake_gpus())
    done = on_gpus(fakes, ["select", "2", "--size", "64K", "--format", "json"], rate="100,0-1=10")
    assert done.code == 0, done.stderr
    answer = json.loads(done.stdout)
    assert [device["index"] for device in answer["devices"]] == [2, 3]
    measured = {tuple(finalist["devices"]): finalist["measured"] for finalist in answer["finalists"]}
    # 5 µs and 64 KiB at 100 or at 10 GB/s: 5.66 and 11.55 µs.
    assert measured["GPU0", "GPU1"][1] == pytest.approx(65536 / 11.5536e-6 / 1e9, rel=1e-3)
    assert measured["GPU2", "GPU3"][1] == pytest.approx(65536 / 5.65536e-6 / 1e9, rel=1e-3)
    low, middle, high = answer["gain"]
    assert low <= middle <= high
    assert middle == pytest.approx(11.5536 / 5.65536, rel=1e-3)
    run = run_file.load(Path(answer["origin"]["verification"]))
    assert min(len(measurement.samples) for measurement in run.measurements) >= 6
    assert {sample.concurrent for measurement in run.measurements for sample in measurement.samples} == {False}
    assert list(saved_in(tmp_path).parent.iterdir()) == [saved_in(tmp_path)]  # no evidence for the next choice


def test_eval_starts_the_job_on_the_chosen_gpus(fakes: Fakes, tmp_path: Path) -> None:
    save_run(saved_in(tmp_path), fake_gpus())
    command = " ".join(collbench("select", "2", "--no-verify", "--format", "env"))
    script = f'eval "$({command})" && printf %s "$CUDA_VISIBLE_DEVICES"'
    done = fakes.run(["sh", "-c", script], environment(fakes))
    assert done.code == 0, done.stderr
    assert done.stdout == f"{fake_uuid(2)},{fake_uuid(3)}"


def test_without_a_saved_run_a_probe_finds_out(fakes: Fakes) -> None:
    """Only the links differ, and 0-1 is the slow one."""
    args = ["select", "2", "--no-verify", "--format", "json"]
    done = on_gpus(fakes, args, rate="100,0-1=10")
    assert done.code == 0, done.stderr
    assert done.stderr.startswith("collbench: no saved run fits: probing for a few seconds\n")
    answer = json.loads(done.stdout)
    assert answer["origin"]["source"] == "quick probe"
    assert answer["left_out"] == []  # the probe's own processes do not count


@pytest.mark.parametrize("kind", [FaultKind.HANGING_LINK, FaultKind.CORRUPT_LINK])
@pytest.mark.parametrize(
    ("count", "broken", "sound"),
    [
        (7, [(2, 5)], True),
        (4, [(0, other) for other in range(1, 8)], True),  # more in a row than a sweep of its own bears
        (2, [pair for pair in combinations(range(8), 2) if pair != (3, 6)], True),
        (7, [(0, 1), (2, 3)], False),
    ],
)
def test_a_probe_chooses_around_links_that_hang_or_deliver_wrong_data(
    program: Program, kind: FaultKind, count: int, broken: list[tuple[int, int]], sound: bool
) -> None:
    faults = tuple(Fault(kind, pair, offset=64 if kind is FaultKind.CORRUPT_LINK else 0) for pair in broken)
    said = program("select", str(count), *faulty_file("hgx-h200", *faults), "--format", "list")
    if not sound:
        assert (said.status, said.out) == (4, "")
        assert f"every set of {count} includes a failure" in said.err
        return
    assert said.status == 0, said.err
    chosen = set(map(int, said.out.replace(",", " ").split()))
    assert len(chosen) == count
    assert not any(set(pair) <= chosen for pair in broken)
    if kind is FaultKind.CORRUPT_LINK:
        assert all(f"among GPU{a}, GPU{b}:" in said.err for a, b in broken)


@pytest.mark.parametrize("kind", [FaultKind.HANGING_LINK, FaultKind.CORRUPT_LINK])
def test_where_the_only_pair_is_broken_nothing_is_chosen(program: Program, kind: FaultKind) -> None:
    fault = Fault(kind, (0, 1), offset=64 if kind is FaultKind.CORRUPT_LINK else 0)
    said = program("select", "2", *faulty_file("titan-rtx-nv2", fault), "--fresh", "--format", "list")
    assert (said.status, said.out) == (4, ""), said.err
    assert "GPU0" in said.err


@pytest.mark.parametrize(
    ("count", "says"),
    [
        ("4", "no pair to choose by, because measuring failed (wrong data)"),
        ("2", "measuring failed (wrong data)"),
        ("8", ""),
    ],
    ids=["some", "a pair", "all"],
)
def test_a_run_without_a_pair_that_failed_says_so(program: Program, count: str, says: str) -> None:
    sim = (*faulty_file("hgx-h200", Fault(FaultKind.CORRUPT_LINK, (2, 5), offset=64)), "--sizes", "1M")
    assert program("pairs", *sim, "--seed", "1", "--output", "run.json").status == 4
    run = run_file.load(Path("run.json"))
    run.measurements = [found for found in run.measurements if not found.samples]
    run_file.save(run, Path("run.json"), replace=True)
    said = program("select", count, "run.json", "--any-machine")
    assert said.status == 4
    assert says in said.err
    assert ("'collbench show run.json' says where" in said.err) is bool(says)


def test_a_choice_by_an_interrupted_run_first_says_how_many_pairs_it_has(program: Program) -> None:
    """The fastest pair may be one of those that are missing. All have small messages, by which nothing is ranked."""
    run = pair_run(4, lambda a, b: 100.0 + a + b)
    small = [replace(one, point=replace(one.point, size_bytes=8)) for one in run.measurements]
    partly = replace(run, measurements=[*small, *run.measurements[:4]], complete=False)
    run_file.save(partly, Path("part.json"))
    size = format_size(run.measurements[0].point.size_bytes)
    how_much = f"4 of 6 pairs were measured by allreduce at {size}"
    said = program("select", "2", "part.json", "--any-machine")
    assert said.out.splitlines()[0] == f"INTERRUPTED: {how_much}: another set may be better"
    said = program("select", "2", "part.json", "--any-machine", "--json")
    assert json.loads(said.out)["origin"]["interrupted"] == how_much
    run_file.save(replace(partly, measurements=[*small, *run.measurements[:2]]), Path("few.json"))
    said = program("select", "2", "few.json", "--any-machine")
    assert (said.status, said.out) == (2, "")
    assert "6 of 6 pairs were measured by allreduce at 8 B, which says nothing of bandwidth: measure again" in said.line
    said = program("show", "few.json")
    assert [line for line in said.out.splitlines() if line.startswith("best")] == [
        "best     none: the largest size measured on enough pairs is 8 B, which says nothing of bandwidth"
    ]
    assert "GPU" in next(line for line in program("show", "part.json").out.splitlines() if line.startswith("best 2"))
    run_file.save(run, Path("whole.json"))
    run_file.save(replace(run, complete=False), Path("all.json"))  # interrupted in what decides nothing
    for path in ("whole.json", "all.json"):
        assert "INTERRUPTED" not in program("select", "2", path, "--any-machine").out
    larger = replace(run.settings, sizes=(*run.settings.sizes, 2**40))
    run_file.save(replace(run, complete=False, settings=larger), Path("larger.json"))
    said = program("select", "2", "larger.json", "--any-machine")
    assert (
        said.out.splitlines()[0]
        == f"INTERRUPTED: 6 of 6 pairs were measured by allreduce at {size}: another set may be better"
    )


def test_an_empty_name_is_no_file(program: Program) -> None:
    for words in (("show", ""), ("pairs", "--output", "")):
        said = program(*words)
        assert (said.status, said.out) == (2, "")
        assert "is empty: write the name of a file" in said.line


def test_a_probe_that_fails_chooses_nothing(fakes: Fakes) -> None:
    done = on_gpus(fakes, ["select", "2", "--format=env"], fail="ncclCommSplit:2:1")
    assert (done.code, done.stdout) == (1, "false\n")
    assert done.stderr.endswith("; nothing was chosen\n")


def test_without_a_gpu_the_line_says_what_can_be_done(fakes: Fakes) -> None:
    done = on_gpus(fakes, ["select", "2"], gpus=0)
    assert (done.code, done.stdout) == (2, "")
    for advice in ("--any-machine", "--topology", "--backend host"):
        assert advice in one_line(done.stderr)


def test_finalists_that_cannot_be_measured_are_one_line_with_advice(fakes: Fakes, tmp_path: Path) -> None:
    save_run(saved_in(tmp_path), fake_gpus())
    done = on_gpus(fakes, ["select", "2", "--size", "64K", "--format", "env"], fail="ncclCommSplit:2:1")
    assert (done.code, done.stdout) == (1, "false\n")
    assert "cannot measure the finalists: " in done.stderr.splitlines()[-1]
    assert "--no-verify" in done.stderr.splitlines()[-1]


def test_ctrl_c_while_the_finalists_are_measured(fakes: Fakes, tmp_path: Path) -> None:
    save_run(saved_in(tmp_path), fake_gpus())
    args = ["select", "2", "--size", "64K", "--format", "env"]
    done = on_gpus(fakes, args, interrupt="cuGraphLaunch=5", signal_parent=1)
    assert (done.code, done.stdout) == (130, "false\n")
    assert done.stderr.endswith("interrupted while measuring the finalists: nothing was chosen\n")


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="this process has one core")
def test_cores_are_chosen_on_the_host_backend(fakes: Fakes) -> None:
    low, high = sorted(os.sched_getaffinity(0))[:2]
    command = collbench("select", "2", "--backend", "host", "--format", "list")
    done = fakes.run(["taskset", "-c", f"{low},{high}", *command], environment(fakes))
    assert (done.code, done.stdout) == (0, f"{low},{high}\n"), done.stderr


def test_workers_follow_each_other_until_every_pair_delivered_wrong_data(fakes: Fakes) -> None:
    """The fifth collective of each worker is corrupt, whatever its pair is: each pair is named, and none is chosen."""
    done = on_gpus(fakes, ("select", "2", "--no-verify"), corrupt_collective="5:0:1")
    assert (done.code, done.stdout) == (4, ""), done.stderr
    named = re.findall(r"wrong data: allreduce of \S+ B, GPU\d among (GPU\d, GPU\d):", done.stderr)
    assert sorted(named) == [f"GPU{a}, GPU{b}" for a, b in combinations(range(4), 2)]
    assert "the run has no pair to choose by, because measuring failed (wrong data)" in done.stderr
