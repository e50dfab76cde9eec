"""How nodes find each other: what the user types, what srun sets, what a PyTorchJob sets."""

from __future__ import annotations

import shlex

import pytest

from collbench.api import training
from collbench.model.errors import UsageError
from collbench.model.run import Device
from tests.api.torchrun.made import script

ENDPOINT = "--rdzv-endpoint node0:29500"
# One task on each of four nodes, this one on the third [srun(1), OUTPUT ENVIRONMENT VARIABLES].
SLURM = {
    "SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "4", "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_TASKS_PER_NODE": "1(x4)", "SLURM_STEP_NODELIST": "node[03-06]", "SLURM_PROCID": "2",
    "SLURM_NODEID": "2", "SLURM_LOCALID": "0",
}  # fmt: skip
BATCH = {"SLURM_JOB_ID": "4711", "SLURM_NNODES": "4", "SLURM_PROCID": "0", "SLURM_JOB_NODELIST": "node[03-06]"}
# What the training operator sets in each pod [kubeflow/training-operator v1.9, pkg/controller.v1/pytorch/envvar.go,
# elastic.go]; of a job with a master, and of an elastic one.
POD = {
    "PYTHONUNBUFFERED": "1", "MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456", "PET_MASTER_ADDR": "job-master-0",
    "PET_MASTER_PORT": "23456", "WORLD_SIZE": "2", "RANK": "1", "PET_NODE_RANK": "1", "PET_NPROC_PER_NODE": "auto",
    "PET_NNODES": "2",
}  # fmt: skip
ELASTIC_POD = {
    "PYTHONUNBUFFERED": "1", "PET_RDZV_ENDPOINT": "job-worker-0:23456", "PET_RDZV_BACKEND": "c10d",
    "PET_NNODES": "1:3", "PET_MAX_RESTARTS": "10", "PET_NPROC_PER_NODE": "8",
}  # fmt: skip
# Its successor, the Trainer [kubeflow/trainer, pkg/constants/constants.go].
TRAIN_JOB_POD = {
    "PET_NNODES": "2", "PET_NPROC_PER_NODE": "auto", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "job-node-0-0.job",
    "PET_MASTER_PORT": "29500",
}  # fmt: skip
MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "1", "MASTER_ADDR": "node0",
}  # fmt: skip
IN_STEP = "--nnodes 4 --rdzv-backend c10d --rdzv-endpoint node03:14711 --rdzv-id 4711.0 --rdzv-conf is_host=0"


@pytest.mark.parametrize(
    ("title", "line", "environment", "expected"),
    [
        ("one node", "", {}, "--standalone"),
        ("the same words on every node", f"--nnodes 4 {ENDPOINT}", {}, "--rdzv-backend c10d"),
        ("a number of nodes that may change", f"--nnodes=1:4 {ENDPOINT}", {}, "--rdzv-backend c10d"),
        ("static, with a number for each node", f"--nnodes 4 --node-rank 1 {ENDPOINT}", {}, ""),
        ("static, by a master's address", "--nnodes 4 --master-addr node0", {}, ""),
        ("one node, said", "--nnodes 1", {}, ""),
        ("alone, said", "--standalone", {}, ""),
        ("srun", "", SLURM, IN_STEP),
        ("srun's first node", "", SLURM | {"SLURM_PROCID": "0", "SLURM_NODEID": "0"}, IN_STEP[:-1] + "1"),
        ("srun, and the same number of nodes by hand", "--nnodes 4", SLURM, IN_STEP.partition("4 ")[2]),
        ("srun, a port by hand", "", SLURM | {"MASTER_PORT": "5"}, IN_STEP.replace("14711", "5")),
        ("srun, but the user says where", f"--nnodes 4 {ENDPOINT}", SLURM, "--rdzv-backend c10d"),
        ("srun, but each for itself", "--standalone", SLURM, ""),
        ("a batch script outside srun", "", BATCH, "--standalone"),
        ("srun of one task", "", SLURM | {"SLURM_STEP_NUM_TASKS": "1"}, "--standalone"),
        ("a pod of a PyTorchJob", "", POD, ""),
        ("a pod of an elastic one", "", ELASTIC_POD, ""),
        ("mpirun, one a node, with words that say where", f"--nnodes 2 {ENDPOINT}", MPIRUN, "--rdzv-backend c10d"),
        ("the only pod", "", {"PET_NNODES": "1", "PET_NPROC_PER_NODE": "auto"}, ""),
    ],
)
def test_what_is_added_to_what_the_user_types(
    title: str, line: str, environment: dict[str, str], expected: str
) -> None:
    arguments = script(["--auto-select", "2", *line.split(), "a.py"])
    assert training.rendezvous_options(arguments, environment) == expected.split(), title


@pytest.mark.parametrize(
    ("title", "line", "environment", "several"),
    [
        ("nothing said", "", {}, False),
        ("one", "--nnodes 1", {}, False),
        ("from one on", f"--nnodes 1:2 {ENDPOINT}", {}, True),
        ("srun", "", SLURM, True),
        ("one, though srun starts four", "--nnodes 1", SLURM, False),
        ("a batch script outside srun", "", BATCH, False),
        ("a PyTorchJob", "", POD, True),
        ("a PyTorchJob of one pod", "", POD | {"PET_NNODES": "1"}, False),
    ],
)
def test_whether_there_may_be_several_nodes(title: str, line: str, environment: dict[str, str], several: bool) -> None:
    arguments = script(["--auto-select", "2", *line.split(), "a.py"])
    assert training.several_nodes(arguments, environment) is several, title


@pytest.mark.parametrize(
    ("title", "line", "environment", "reported"),
    [
        ("nodes that may come and go", f"--nnodes 1:2 {ENDPOINT}", {}, True),
        ("nodes that may be started anew", f"--nnodes 2 --max-restarts 3 {ENDPOINT}", {}, True),
        ("pods that may come and go", "", ELASTIC_POD, True),
        ("pods that stay", "", POD, False),
        ("a step of Slurm's with restarts", "--max-restarts 1", SLURM, True),
        ("nodes without restarts", f"--nnodes 2 {ENDPOINT}", {}, False),
        ("one node", "--max-restarts 3", {}, False),
        ("the user's own will", f"--nnodes 1:2 {ENDPOINT}", {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "0"}, False),
    ],
)
def test_a_job_whose_nodes_may_come_back_gets_a_store_that_they_find(
    title: str, line: str, environment: dict[str, str], reported: bool
) -> None:
    arguments = script(["--auto-select", "2", *line.split(), "a.py"])
    expected = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"} if reported else {}
    assert training.rendezvous_variables(arguments, environment) == expected, title


@pytest.mark.parametrize(
    ("title", "line", "environment", "message"),
    [
        ("nodes without a place to meet", "--nnodes 4", {}, "--nnodes 4 has no address .* --rdzv-endpoint HOST"),
        ("pods without a place to meet", "", {"PET_NNODES": "2"}, "--rdzv-endpoint HOST"),
        ("another number than srun's", "--nnodes 3", SLURM, "contradicts srun, which starts 4 nodes"),
        (
            "two tasks on each node",
            "",
            SLURM | {"SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_TASKS_PER_NODE": "2(x2)", "SLURM_NODEID": "1"},
            "srun --ntasks-per-node 1",
        ),
        ("mpirun, one a node", "", MPIRUN, "Open MPI started this on 2 nodes, .* --rdzv-endpoint HOST:29500"),
        (
            "a word for a number",
            f"--nnodes two {ENDPOINT}",
            {},
            "--nnodes 'two' is not a number of nodes: write 4, or 1:4",
        ),
        ("more than the most", f"--nnodes 4:1 {ENDPOINT}", {}, "--nnodes '4:1' is not a number"),
        ("a pod's word for a number", "", POD | {"PET_NNODES": "two"}, "PET_NNODES 'two' is not a number of nodes"),
        ("a node list that nobody can read", "", SLURM | {"SLURM_STEP_NODELIST": "["}, "set MASTER_ADDR"),
    ],
)
def test_one_clear_line(title: str, line: str, environment: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        training.rendezvous_options(script(["--auto-select", "2", *line.split(), "a.py"]), environment)


@pytest.mark.parametrize(
    ("title", "line", "environment", "expected"),
    [
        ("another number", "", ELASTIC_POD, "PET_NPROC_PER_NODE=8 is overridden by the 2 chosen here"),
        ("auto", "", POD, ""),
        ("the same", "", {"PET_NPROC_PER_NODE": "2"}, ""),
        ("the option, which torchrun prefers", "--nproc-per-node 2", ELASTIC_POD, ""),
        ("none", "", {}, ""),
    ],
)
def test_k_wins_over_a_pods_number_of_processes(
    title: str, line: str, environment: dict[str, str], expected: str
) -> None:
    arguments = script(["--auto-select", "2", *line.split(), "a.py"])
    assert training.override_note(arguments, environment, 2) == expected, title


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (SLURM, ("4", "c10d", "node03:14711", "4711.0", "is_host=0", "2")),
        (POD, ("2", "static", "", "none", "", "2")),
        (ELASTIC_POD, ("1:3", "c10d", "job-worker-0:23456", "none", "", "2")),
        (TRAIN_JOB_POD, ("2", "static", "", "none", "", "2")),
    ],
    ids=["Slurm", "PyTorchJob", "elastic PyTorchJob", "TrainJob"],
)
def test_torch_reads_the_arguments_and_environment_as_expected(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: tuple[str, ...]
) -> None:
    run = pytest.importorskip("torch.distributed.run", reason="torch is absent: its parser cannot be asked")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    devices = (Device(0, "GPU-a", ""), Device(1, "GPU-b", ""))
    arguments = script(shlex.split("--auto-select 2 a.py"))
    command = training.start_command(arguments, devices, environment, backend="cuda")
    opts = run.get_args_parser().parse_args(command[4:])
    assert (
        opts.nnodes,
        opts.rdzv_backend,
        opts.rdzv_endpoint,
        opts.rdzv_id,
        opts.rdzv_conf,
        opts.nproc_per_node,
    ) == expected
    assert (opts.master_addr or "") == environment.get("PET_MASTER_ADDR", "127.0.0.1")
