"""`import collbench`: what a training program and a notebook call, and docs/python.md, whose snippets are run here."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

import collbench
from collbench.api import keywords, training
from collbench.cli.program import cli
from collbench.cluster.page import as_plain
from collbench.jobs.predict import page as prediction
from collbench.jobs.replay.results import replays_of
from collbench.judge.diagnose import Diagnosis, judge
from collbench.model.errors import UsageError
from collbench.model.operations import COLLECTIVES, Operation
from collbench.report import verdicts
from collbench.runfile import run_file
from collbench.runfile.codec import plain
from collbench.sim import fabrics
from collbench.sim.fabrics import Fault, FaultKind
from tests.builders import gpus, measured, pair_run, run_of
from tests.cli.program import Program, environment, fake_gpus, fake_uuid, on_gpus, save_run, saved_in
from tests.golden.commands import CLUSTER
from tests.native.fakes import Fakes, Outcome
from tests.sim.made import fabric_text

pytestmark = pytest.mark.usefixtures("loaded_program")
DOCS = Path(__file__).parent.parent / "docs" / "python.md"


def python(fakes: Fakes, code: str, extra: dict[str, str] | None = None) -> Outcome:
    """Run code in a process of its own on four simulated GPUs."""
    return fakes.run([sys.executable, "-c", code], environment(fakes) | (extra or {}))


def saved(tmp_path: Path) -> None:
    """Save a run of the simulated GPUs where `select` finds it: GPU2 and GPU3 are the best two."""
    save_run(saved_in(tmp_path), fake_gpus())


def test_importing_it_loads_nothing() -> None:
    code = "import collbench, sys; print([n for n in sys.modules if n.split('.')[0] in ('numpy', 'torch', 'click')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_it_offers_what_it_says_and_nothing_else() -> None:
    assert all(getattr(collbench, name).__name__ in (name, "CollbenchError") for name in collbench.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'elect'"):
        collbench.elect  # noqa: B018  # type: ignore[attr-defined]


# As tests.cli.program.on_gpus has it: small buffers make a quick test.
SMALL_MEMORY = {"FAKE_MEMORY": str(4096 << 20), "FAKE_FREE": str((256 + 4 * 512 + 2) << 20)}

# --- select -------------------------------------------------------------------------------------------------------


def test_select_sets_what_cuda_will_see(fakes: Fakes, tmp_path: Path) -> None:
    """A driver that is loaded but not started is no obstacle, and this process does not start it."""
    saved(tmp_path)
    done = python(
        fakes,
        "import collbench, ctypes, os\n"
        "from collbench.machine import device_names\n"
        "ctypes.CDLL('libcuda.so.1')\n"
        "selection = collbench.select(2, verify=False)\n"
        "print(os.environ['CUDA_VISIBLE_DEVICES'], device_names._cuda_user() or 'no CUDA')\n"
        "print(*(device.uuid for device in selection.devices), selection.origin.backend, type(selection).__name__)\n"
        "print(selection)\n",
    )
    assert done.code == 0, done.stderr
    visible, devices, line = done.stdout.splitlines()
    assert visible == f"{fake_uuid(2)},{fake_uuid(3)} no CUDA"
    assert devices == f"{fake_uuid(2)} {fake_uuid(3)} cuda Selection"
    assert line.startswith("GPU2, GPU3: ")
    assert done.stderr == ""


def test_it_returns_what_the_command_prints(fakes: Fakes, tmp_path: Path) -> None:
    saved(tmp_path)
    printed = on_gpus(fakes, ["select", "2", "--no-verify", "--format", "json"]).stdout
    code = "import collbench, json; from collbench.runfile.codec import plain\n"
    code += "print(json.dumps(plain(collbench.select(2, verify=False))))"
    returned = json.loads(python(fakes, code).stdout)
    head = {"format": "collbench-selection", "format_version": 1, "backend": returned["origin"]["backend"]}
    assert json.loads(printed) == {**head, "exit_status": 0, **returned}


REFUSED = "import collbench, os\n{before}\ntry:\n    collbench.select({arguments})\nexcept collbench.Error as error:\n"
REFUSED += "    print(error.exit_code, error, os.environ.get('CUDA_VISIBLE_DEVICES', 'unset'), sep='|')\n"


@pytest.mark.parametrize(
    ("case", "before", "arguments", "extra", "message"),
    [
        ("CUDA has started", "import ctypes; ctypes.CDLL('libcuda.so.1').cuInit(0)", "2", {}, "CUDA has started"),
        (
            "torch has started CUDA",
            "import sys, types; sys.modules['torch'] = types.SimpleNamespace("
            "cuda=types.SimpleNamespace(is_initialized=lambda: True))",
            "2",
            {},
            "torch has started CUDA",
        ),
        (
            "one of torchrun's processes",
            "",
            "2",
            {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"},
            "one of 2 processes that torchrun started",
        ),
        ("no GPU", "", "2", {"FAKE_GPUS": "0"}, "no GPU to use"),
    ],
)
def test_where_it_refuses_the_environment_is_untouched(
    fakes: Fakes, case: str, before: str, arguments: str, extra: dict[str, str], message: str
) -> None:
    done = python(fakes, REFUSED.format(before=before, arguments=arguments), extra)
    assert done.code == 0, done.stderr
    status, line, visible = done.stdout.rstrip("\n").split("|")
    assert (status, visible) == ("2", "unset"), case
    assert message in line
    assert not line.startswith("collbench: ")


def test_a_probe_that_fails_raises_with_the_commands_status(fakes: Fakes) -> None:
    fault = SMALL_MEMORY | {"FAKE_FAIL": "ncclCommSplit:2:1"}
    done = python(fakes, REFUSED.format(before="", arguments="2"), fault)
    assert done.code == 0, done.stderr
    code, line, visible = done.stdout.rstrip("\n").split("|")
    assert (code, visible) == ("1", "unset")
    assert line.startswith("the probe failed: ")


def test_a_probe_leaves_neither_cuda_nor_a_process_behind(fakes: Fakes) -> None:
    code = "import collbench, os, pathlib\nfrom collbench.machine import device_names\n"
    code += "print(collbench.select(2, verify=False).origin.source, device_names._cuda_user() or 'no CUDA')\n"
    code += "print([p.name for p in pathlib.Path('/proc/self/task').glob('*/children') if p.read_text().strip()])"
    done = python(fakes, code, SMALL_MEMORY)
    assert done.stdout == "quick probe no CUDA\n[]\n", done.stderr


# --- measure, compare ---------------------------------------------------------------------------------------------

SIMULATED: dict[str, Any] = {"backend": "sim", "fabric": "nvlink-pairs-2x2", "quick": True, "sizes": "1M", "seed": 7}


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where this process saves runs."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "collbench" / "runs"


@pytest.mark.parametrize("command", ["copies", "allreduce", "check"])
def test_measure_is_the_command(program: Program, tmp_path: Path, command: str) -> None:
    run = collbench.measure(command, **SIMULATED)
    (listed,) = collbench.runs()
    assert run_file.dumps(collbench.load(listed.path)) == run_file.dumps(run)
    program(*run.settings.command, "--seed", "7", "--output", "typed.json")
    from_command = collbench.load(tmp_path / "typed.json")
    assert from_command.measurements == run.measurements


def test_what_check_measures_is_confirmed_and_judged(state: Path, tmp_path: Path) -> None:
    slow = Fault(FaultKind.SLOW_LINK, (0, 3), factor=0.5)
    fabric = dataclasses.replace(fabrics.load("nvlink-pairs-2x2"), faults=(slow,))
    (tmp_path / "slow.json").write_text(fabric_text(fabric), encoding="utf-8")
    run = collbench.measure("check", backend="sim", fabric=str(tmp_path / "slow.json"), seed=3)
    assert {0, 3} in [set(verdict.members) for verdict in collbench.check(run)]
    of_slow_pair = [measurement for measurement in run.measured() if set(measurement.point.members) == {0, 3}]
    assert any(not sample.concurrent for measurement in of_slow_pair for sample in measurement.samples)
    (saved,) = collbench.runs()
    assert run_file.dumps(collbench.load(saved.path)) == run_file.dumps(run)


def test_measure_saves_where_it_is_reported(state: Path, tmp_path: Path) -> None:
    collbench.measure("latency", **SIMULATED | {"sizes": None}, save=False)
    assert not state.exists()
    collbench.measure("allreduce", **SIMULATED, devices=[0, 3], output=tmp_path / "mine.json")
    assert not state.exists()
    assert [device.index for device in collbench.load(tmp_path / "mine.json").devices] == [0, 3]


# For each call the keywords beside those with which it would succeed.
MEANT: dict[str, dict[str, Any]] = {
    "measure": {"command": "pairs"},
    "select": {"k": 2},
    "predict": {"runs": pair_run(4, lambda *_: 300.0), "params": "1B"},
    "nodes": {"backend": "sim", "fabric_cluster": "thin-32"},
    "topo": {},
}
NOT_MEANT: dict[str, list[dict[str, Any]]] = {
    "measure": [
        *({"command": "show"}, {"command": 7}, {"backend": "gpu"}, {"fabric": "dgx-1v"}, {"sizes": 1.5}, {"sizes": []}),
        *({"devices": [None]}, {"precision": "half"}, {"precision": 1}, {"budget": -1}, {"budget": 1, "quick": True}),
        *({"quick": "yes"}, {"seed": -1}, {"nccl": 2}, {"dtype": 32}, {"redop": "all"}),
        {"command": "allreduce", "latency": 0},
        {"command": "allreduce", "latency": True},
        {"command": "latency", "sizes": "1M"},
        {"command": "check", "dtype": "float16"},
    ],
    "select": [
        *({"k": "two"}, {"k": True}, {"k": 2.0}, {"k": 0}, {"exclude": [None]}, {"exclude": [1.5]}),
        *({"run": 7}, {"size": [64, 65]}, {"verify": "yes"}, {"fresh": 1}, {"allow_busy": "no"}),
    ],
    "predict": [
        *({"runs": "run.json"}, {"runs": []}, {"runs": [None]}, {"runs": 7}, {"params": None}, {"params": 0}),
        *({"params": "many"}, {"layers": 0}, {"gpus": 1}, {"gpus": "2"}, {"dtype": "float32"}, {"strategy": "hope"}),
        {"strategy": ["ddp"]},
    ],
    "nodes": [
        *({"backend": None, "fabric_cluster": None}, {"fabric_cluster": None}, {"backend": "gpu"}, {"backend": "cuda"}),
        *({"select": 33}, {"select": "two"}, {"budget": "60s"}, {"fabric_cluster": 7}),
        {"output": "other.json"},
    ],
    "topo": [{"file": 7}, {"fabric": "dgx-1v"}, {"file": "x.txt", "backend": "sim"}],
}


@pytest.mark.parametrize(("call", "options"), [(call, one) for call, some in NOT_MEANT.items() for one in some])
def test_what_cannot_be_meant_is_one_of_our_errors(state: Path, call: str, options: dict[str, Any]) -> None:
    with pytest.raises(collbench.Error):
        getattr(collbench, call)(**MEANT[call] | options)
    assert not state.exists()


@pytest.mark.parametrize(
    ("call", "options", "said"),
    [
        ("measure", {"budget": "10s"}, "budget='10s' is not a number of seconds above 0"),
        ("measure", {"budget": -1}, "budget=-1 is not a number of seconds above 0"),
        ("nodes", {"budget": "10s"}, "budget='10s' is not a number of seconds above 0"),
        ("measure", {"budget": 1, "quick": True}, "quick and budget both say how long to measure: use only one"),
        ("measure", {"precision": 5}, "precision 5 is not above 0 and below 100%: write 1%, 0.5% or 0.01"),
        ("measure", {"fabric": "x"}, 'fabric x is a machine to simulate: add backend="sim", or leave it out'),
        ("select", {"k": "two"}, "k='two' is not a whole number from 1 to 1000000"),
        (
            "select",
            {"run": pair_run(4, lambda *_: 300.0)},
            "this is a run, not the path of its file, which collbench.runs() has of each saved run",
        ),
        (
            "load",
            {"path": "no.json"},
            "cannot read run file no.json: No such file or directory; collbench.runs() lists",
        ),
    ],
)
def test_an_error_names_the_keywords_of_the_call(call: str, options: dict[str, Any], said: str) -> None:
    """Not options, which the caller did not write, nor a unit that was added to what it wrote."""
    with pytest.raises(collbench.Error) as error:
        getattr(collbench, call)(**MEANT.get(call, {}) | options)
    assert str(error.value).startswith(said)


def test_the_command_lines_that_an_error_quotes_keep_their_options() -> None:
    @keywords.in_keywords
    def call(*, backend: str, fresh: bool, verify: bool) -> None:
        raise UsageError("try --backend sim or --fresh, --verify, --no-verify, --all, or 'collbench pairs --fresh'")

    with pytest.raises(UsageError) as error:
        call(backend="sim", fresh=True, verify=False)
    wanted = "try backend=\"sim\" or fresh, verify, verify=False, --all, or 'collbench pairs --fresh'"
    assert str(error.value) == wanted


SOME_TAKE = {
    "sizes": "1M",
    "dtype": "float16",
    "redop": "max",
    "registration": "buffer",
    "latency": 4,
    "layers": 80,
    "skew": "zipf:1",
}


@pytest.mark.parametrize("command", ["pairs", "copies", "latency", "check", *COLLECTIVES])
def test_measure_takes_what_the_command_line_takes(command: str) -> None:
    row = cli.get_command(click.Context(cli), command)
    assert row is not None
    typed = {param.name for param in row.params}
    for name, value in SOME_TAKE.items():
        with pytest.raises(collbench.Error) as error:
            collbench.measure(command, **{name: value}, backend="none")  # type: ignore[arg-type]
        assert (f"takes no {name}" in str(error.value)) is (name not in typed), name


def test_layers_make_latency_measure_small_allreduces(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    run = collbench.measure("latency", layers=32, backend="sim", fabric="titan-rtx-nv2", output=file)
    assert (run.settings.layers, run.settings.dtype, len(run.latencies)) == (32, "bfloat16", 3 * 14)
    typed = [*run.settings.command]
    assert typed[:2] == ["latency", "--backend"]
    assert "--collectives" in typed
    assert typed[typed.index("--layers") + 1] == "32"


def test_sizes_may_be_an_iterator(tmp_path: Path) -> None:
    run = collbench.measure("allreduce", **SIMULATED | {"sizes": iter([1024, 4096])}, output=tmp_path / "run.json")
    assert run.settings.command[run.settings.command.index("--sizes") + 1] == "1024,4096"
    assert {measurement.point.size_bytes for measurement in run.measurements} == {1024, 4096}


def test_compare_is_the_commands_judgement() -> None:
    base, new = pair_run(3, lambda *_: 300.0), pair_run(3, lambda a, _b: 300.0 if a else 200.0)
    comparison = collbench.compare(base, new)
    assert comparison.status == 3
    assert collbench.compare(base, new, fail_below=0.5).status == 0
    for wrong in (("base.json", new), (base, None)):
        with pytest.raises(collbench.Error, match=r"collbench\.load"):
            collbench.compare(*wrong)
    with pytest.raises(collbench.Error, match="fail_below"):
        collbench.compare(base, new, fail_below="5%")  # type: ignore[arg-type]
    with pytest.raises(collbench.Error, match="compare runs of the same backend"):
        collbench.compare(base, dataclasses.replace(new, backend="host"))


# --- load, rank, check --------------------------------------------------------------------------------------------


def test_load_reads_what_was_saved_and_says_what_is_wrong(tmp_path: Path) -> None:
    run = save_run(tmp_path / "run.json", gpus(3))
    assert run_file.dumps(collbench.load(str(tmp_path / "run.json"))) == run_file.dumps(run)
    with pytest.raises(collbench.Error, match=r"none\.json"):
        collbench.load(tmp_path / "none.json")


def test_rank_takes_the_largest_size_on_links() -> None:
    points = [measured(Operation.ALLREDUCE, (0, 1), gbs, size) for gbs, size in ((1.0, 8), (9.0, 1024))]
    points += [measured(Operation.ALLREDUCE, (0, 1, 2), 50.0, 4096)]
    run = run_of(gpus(3), points)
    ranking = collbench.rank(run)
    assert ranking.size_bytes == 1024
    assert [standing.gbs for standing in ranking.standings] == pytest.approx([9.0])
    small = collbench.rank(run, "allreduce", 8)
    assert small.standings[0].gbs == pytest.approx(1.0)
    with pytest.raises(collbench.Error, match="the run has no ce-write on links or pairs: it has allreduce"):
        collbench.rank(run, "ce-write")
    assert collbench.rank(run, size="1K").size_bytes == 1024
    with pytest.raises(collbench.Error, match="operation='nonsense' is unknown"):
        collbench.rank(run, "nonsense")


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ("64M", "at 64M: the run has 8 B, 1K"),
        (4096, "at 4K: the run has 8 B, 1K"),  # the communicator of three had it: no link
        (0, "size '0' is zero"),
    ],
)
def test_a_size_that_cannot_be_ranked_is_an_error_and_not_nothing(size: object, message: str) -> None:
    points = [measured(Operation.ALLREDUCE, (0, 1), gbs, size) for gbs, size in ((1.0, 8), (9.0, 1024))]
    points += [measured(Operation.ALLREDUCE, (0, 1, 2), 50.0, 4096)]
    with pytest.raises(collbench.Error, match=message):
        collbench.rank(run_of(gpus(3), points), size=size)  # type: ignore[arg-type]


@pytest.mark.parametrize("judge_it", [collbench.rank, collbench.check])
@pytest.mark.parametrize("argument", ["x.json", Path("x.json"), {"format": "collbench-run"}, None])
def test_what_is_no_run_is_an_error_that_says_how_to_load_one(
    judge_it: Callable[[Any], object], argument: object
) -> None:
    with pytest.raises(collbench.Error, match=r"collbench\.load"):
        judge_it(argument)


def test_check_is_the_judge() -> None:
    run = pair_run(3, lambda *_: 300.0)
    assert collbench.check(run) == judge(run)


def test_a_verdict_has_an_explanation() -> None:
    run = pair_run(3, lambda a, b: 200.0 if (a, b) == (0, 1) else 326.0)
    (verdict,) = collbench.check(run)
    assert collbench.explain(verdict, run).startswith("GPU0-GPU1: ")
    shown = verdicts.as_json(Diagnosis(run))["verdicts"][0]
    assert (verdict.cause.text, verdict.fix) == (shown["cause"], shown["command"])
    assert shown["what"] == f"{verdict.place}: {verdict.text}."
    with pytest.raises(collbench.Error, match=r"collbench\.load"):
        collbench.explain(verdict, "run.json")  # type: ignore[arg-type]


# --- predict, nodes, topo, doctor, train_command --------------------------------------------------------------------


def test_predict_is_the_command(program: Program, tmp_path: Path) -> None:
    run = collbench.measure("pairs", **SIMULATED | {"sizes": "8,1M,64M"}, output=tmp_path / "run.json")
    predicted = collbench.predict(run, params="124M", strategy="fsdp", gpus=[2])
    args = ("--params", "124M", "--strategy", "fsdp", "--gpus", "2", "--json")
    reported = json.loads(program("predict", "run.json", *args).out)
    fields = json.loads(json.dumps(prediction.training_json(predicted)))
    assert {**fields, "exit_status": 0, "interrupted": [], "contention": []} == reported
    assert collbench.predict([run], params=124_000_000).cases == collbench.predict(run, params="124M").cases


def test_nodes_is_the_command(program: Program) -> None:
    Path("eight.json").write_text(json.dumps(CLUSTER | {"slow_nodes": []}), encoding="utf-8")
    cluster = collbench.nodes(3, backend="sim", fabric_cluster="eight.json", seed=1)
    assert cluster is not None
    args = ("--fabric-cluster", "eight.json", "--select", "3", "--seed", "1", "--json")
    printed = program("nodes", "--backend", "sim", *args)
    assert as_plain(cluster) == json.loads(printed.out)
    assert cluster.status == printed.status == 0


def test_topo_is_the_command(program: Program) -> None:
    topology = collbench.topo(backend="sim", fabric="dgx-1v")
    reported = json.loads(program("topo", "--backend", "sim", "--fabric", "dgx-1v", "--json").out)
    assert (plain(topology.devices), plain(topology.paths)) == (reported["devices"], reported["paths"])
    assert (topology.backend, topology.fabric) == (reported["backend"], reported["fabric"]) == ("sim", "dgx-1v")
    text = Path(__file__).parent / "data" / "topologies" / "dgx-1v.txt"
    assert [path.label for path in collbench.topo(text).paths] == [path.label for path in topology.paths]


def test_doctor_is_the_command(program: Program) -> None:
    findings = collbench.doctor("host")
    reported = json.loads(program("doctor", "--backend", "host", "--json").out)
    assert [(finding["level"], finding["group"]) for finding in reported["findings"]] == [
        (finding.level, finding.group) for finding in findings
    ]
    with pytest.raises(collbench.Error):
        collbench.doctor("sim")


def test_train_command_is_what_train_would_start(program: Program) -> None:
    args = ["--devices", "0", "--backend", "host", "--no-python", "true"]
    launch = collbench.train_command(args)
    done = program("train", "--dry-run", *args)
    assert done.out.strip() == training.shell_line(launch.changes, launch.command)
    assert done.line == launch.choice
    for wrong in ("--devices 0 true", ["--help"], [], [7], ["--backend", "sim", "--devices", "0", "x.py"]):
        with pytest.raises(collbench.Error):
            collbench.train_command(wrong)  # type: ignore[arg-type]


# --- jobs ---------------------------------------------------------------------------------------------------------

TRACES = Path(__file__).parent / "data" / "traces"
REPLAYED_ON: dict[str, Any] = {"backend": "sim", "fabric": "titan-rtx-nv2", "save": False}


def test_a_traced_job_is_imported_and_replayed(tmp_path: Path) -> None:
    job = collbench.import_job(
        [TRACES / "ddp-0.kineto.json.gz", TRACES / "ddp-1.kineto.json.gz"], tmp_path / "job.json"
    )
    assert collbench.load_job(tmp_path / "job.json") == job
    run = collbench.replay(job, seed=1, trials=3, **REPLAYED_ON)
    (replayed,) = replays_of(run)
    assert [(call.operation, call.count) for call in replayed.calls] == [("allreduce", 2), ("allreduce", 1)]
    assert (len(replayed.trials), replayed.failure) == (3, None)
    with pytest.raises(collbench.Error, match="exists"):
        collbench.import_job([TRACES / "ddp-0.kineto.json.gz"], tmp_path / "job.json")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"without": "shn"}, "'shn' is not one of p2p, nvlink, shm, ib"),
        ({"trials": "many"}, "trials"),
    ],
)
def test_replay_refuses_what_it_does_not_know(wrong: dict[str, Any], message: str) -> None:
    job = collbench.load_job(TRACES / "ddp-job.json")
    with pytest.raises(collbench.Error, match=message):
        collbench.replay(job, **REPLAYED_ON, **wrong)


def test_what_is_no_job_is_refused(tmp_path: Path) -> None:
    with pytest.raises(collbench.Error, match=r"load_job"):
        collbench.replay("job.json", **REPLAYED_ON)  # type: ignore[arg-type]
    with pytest.raises(collbench.Error, match="one for each rank"):
        collbench.import_job("trace.json", tmp_path / "job.json")
    (tmp_path / "run.json").write_text("{}", encoding="utf-8")
    with pytest.raises(collbench.Error, match="not a collbench job"):
        collbench.load_job(tmp_path / "run.json")


# --- any value ----------------------------------------------------------------------------------------------------

NONSENSE: tuple[Any, ...] = (
    *(None, True, -1, 0, 10**30, 10**400, 1.5, float("nan"), float("inf"), "", "a\0b", "\ud800", b"x", [], [[1]], {}),
    *({"a": 1}, {1: 1}, object(), ("x",), [None], Path("a\0b"), Path(), len),
)
ON_TITAN: dict[str, Any] = {"backend": "sim", "fabric": "titan-rtx-nv2", "sizes": ["8"], "save": False}


def asked_for(call: str) -> tuple[dict[str, Any], str]:
    """Return keywords with which a call succeeds or is refused in a moment, and the names of those to replace."""
    run = pair_run(3, lambda a, b: 300.0)
    calls: dict[str, tuple[dict[str, Any], str]] = {
        "load": ({}, "path"),
        "load_job": ({}, "path"),
        "runs": ({}, "limit"),
        "check": ({}, "run"),
        "tails": ({}, "run"),
        "rank": ({"run": run}, "run operation size variant numa_node registration"),
        "compare": ({"base": run, "new": run}, "base new fail_below"),
        "explain": ({"found": (), "run": run}, "found run"),
        "predict": (
            {"runs": run, "params": "1B", "gpus": 2},
            "runs layers strategy dtype gpus params",
        ),
        "measure": (
            {"command": "allreduce", "quick": True, **ON_TITAN},
            "command devices sizes backend fabric dtype redop precision budget quick latency layers nccl seed "
            "registration skew output",
        ),
        "select": ({"k": 2, "backend": "sim", "fabric": "titan-rtx-nv2"}, "k run exclude size backend fabric"),
        "overlap": (
            {"trials": 1, **ON_TITAN},
            "operation devices sizes compute priority ctas trials fabric seed output",
        ),
        "import_job": ({"traces": ["none"], "output": "job.json"}, "traces output force devices"),
        "replay": ({"job": None}, "job"),
        "topo": ({"backend": "sim"}, "file fabric"),
        "train_command": ({}, "words"),
        "nodes": (
            {"backend": "sim", "fabric_cluster": "none"},
            "fabric_cluster budget select size switches seed output",
        ),
    }
    return calls[call]


@pytest.mark.parametrize(
    "call",
    [
        *("load", "load_job", "runs", "check", "tails", "rank", "compare", "explain", "predict", "measure", "overlap"),
        *("import_job", "replay", "topo", "train_command", "nodes", "select"),
    ],
)
def test_any_value_is_taken_or_one_of_our_errors(state: Path, tmp_path: Path, call: str) -> None:
    keywords, names = asked_for(call)
    function = getattr(collbench, call)
    known = inspect.signature(function).parameters
    for name in names.split():
        assert name in known, name
        for value in NONSENSE:
            with contextlib.chdir(tmp_path), contextlib.suppress(collbench.Error):
                function(**{**keywords, name: value})


# --- docs/python.md -----------------------------------------------------------------------------------------------

RUNNER = """
import os, re, sys
text = open(sys.argv[1], encoding="utf-8").read()
names = {}
for block in re.findall(r"^```python\\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # each snippet stands for a program of its own
    exec(block, names)
"""


def test_every_snippet_of_the_documentation_runs(fakes: Fakes, tmp_path: Path) -> None:
    for path in (tmp_path / "run.json", saved_in(tmp_path)):
        equal = pair_run(4, lambda *_: 300.0)  # so that nothing needs to be measured
        save_run(path, fake_gpus(), measurements=equal.measurements)
    assert len(re.findall(r"^```python$", DOCS.read_text(encoding="utf-8"), re.MULTILINE)) == 6
    command = [sys.executable, "-c", RUNNER, str(DOCS)]
    for trace in TRACES.glob("ddp-*.kineto.json.gz"):
        shutil.copy(trace, tmp_path)
    done = fakes.run(command, environment(fakes))
    assert done.code == 0, done.stderr
    assert done.stdout.startswith("GPU0, GPU1: ")


def test_the_documentation_names_every_field(fakes: Fakes) -> None:
    from collbench.choose.choice import Finalist, Omitted, Origin, Selection

    text = DOCS.read_text(encoding="utf-8")
    for kind in (Selection, Origin, Finalist, Omitted):
        for field in kind.__dataclass_fields__:
            assert re.search(rf"`{field}(\[\])?`", text), f"{kind.__name__}.{field}"
