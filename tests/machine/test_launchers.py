"""Variables as launchers set them: torchrun 2.13, srun of Slurm 23.11 and mpirun of Open MPI 4.1, by their manuals."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.machine.launchers import (
    LaunchEnvironment,
    SlurmStep,
    find_launch,
    find_step,
    tasks_on_node,
)
from collbench.model.errors import UsageError
from collbench.ranks.store import join_seconds

TORCHRUN = {
    "RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "node0",
    "MASTER_PORT": "29400", "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "2",
}  # fmt: skip
SRUN = {
    "SLURM_JOB_ID": "123456", "SLURM_STEP_ID": "1", "SLURM_STEP_NUM_TASKS": "8", "SLURM_NTASKS": "8",
    "SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_NODEID": "1", "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
    "SLURM_STEP_NODELIST": "gpu[07-08]", "SLURM_NODELIST": "gpu[07-10]",
}  # fmt: skip
MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
}  # fmt: skip
# kubeflow/training-operator v1.9, pkg/controller.v1/pytorch/envvar.go
POD = {"MASTER_ADDR": "a", "MASTER_PORT": "23456", "WORLD_SIZE": "2", "RANK": "1", "PET_NNODES": "2"}
ONE_A_NODE = SRUN | {"SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NUM_NODES": "4", "SLURM_STEP_TASKS_PER_NODE": "1(x4)"}
ONE_A_NODE |= {"SLURM_PROCID": "3", "SLURM_NODEID": "3", "SLURM_LOCALID": "0"}
BATCH_SCRIPT = {"SLURM_JOB_ID": "123456", "SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_NODELIST": "gpu[07-08]"}


@pytest.mark.parametrize(
    ("title", "environment", "launch"),
    [
        ("nothing", {"HOME": "/root"}, None),
        (
            "torchrun",
            TORCHRUN,
            LaunchEnvironment(5, 8, 1, 4, "node0", 29400, "torchrun", agent_listens=True, generation=2),
        ),
        ("torchrun with one process", TORCHRUN | {"RANK": "0", "WORLD_SIZE": "1"}, None),
        ("torchrun inside a Slurm step", SRUN | TORCHRUN | {"RANK": "0", "WORLD_SIZE": "1"}, None),
        (
            "torch's own variables without an agent, as Kubernetes operators set them",
            {name: value for name, value in TORCHRUN.items() if "ELASTIC" not in name},
            LaunchEnvironment(5, 8, 1, 4, "node0", 29400, "torchrun"),
        ),
        ("a world size without a rank", {"WORLD_SIZE": "8", "MASTER_ADDR": "node0"}, None),
        ("srun", SRUN, LaunchEnvironment(5, 8, 1, 4, "gpu07", 13457, "Slurm")),
        ("srun with a port", SRUN | {"MASTER_PORT": "6000"}, LaunchEnvironment(5, 8, 1, 4, "gpu07", 6000, "Slurm")),
        ("a batch script, where nobody else would come", BATCH_SCRIPT, None),
        ("mpirun on one host", MPIRUN, LaunchEnvironment(3, 4, 3, 4, "127.0.0.1", 29500, "Open MPI")),
        (
            "mpirun on two hosts",
            MPIRUN | {"OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "MASTER_ADDR": "a"},
            LaunchEnvironment(3, 4, 1, 2, "a", 29500, "Open MPI"),
        ),
        (
            "mpirun inside Slurm, whose daemons are the tasks",
            SRUN | MPIRUN,
            LaunchEnvironment(3, 4, 3, 4, "127.0.0.1", 29500, "Open MPI"),
        ),
        ("a pod of a PyTorchJob, in which torchrun is yet to start", POD, None),
        (
            "a rank that torchrun started in such a pod",
            TORCHRUN | {"PET_NNODES": "2"},
            LaunchEnvironment(5, 8, 1, 4, "node0", 29400, "torchrun", agent_listens=True, generation=2),
        ),
    ],
)
def test_a_process_finds_its_rank(title: str, environment: dict[str, str], launch: LaunchEnvironment | None) -> None:
    assert find_launch(environment) == launch


@pytest.mark.parametrize(
    ("title", "environment", "message"),
    [
        ("a rank too many", TORCHRUN | {"RANK": "8"}, "rank 8 of 8"),
        ("a local rank too many", TORCHRUN | {"LOCAL_RANK": "4"}, "local rank 4 of 4"),
        ("more ranks here than everywhere", TORCHRUN | {"LOCAL_WORLD_SIZE": "9"}, "9 of 8 ranks here"),
        ("no number", TORCHRUN | {"WORLD_SIZE": "eight"}, "WORLD_SIZE=eight is not a number"),
        ("no port of this world", TORCHRUN | {"MASTER_PORT": "70000"}, "port 70000"),
        ("half of torchrun's variables", {"RANK": "0", "WORLD_SIZE": "2"}, "LOCAL_RANK is not set"),
        ("nobody knows where rank 0 is", MPIRUN | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, "add -x MASTER_ADDR=HOST"),
        ("a node list of nothing", SRUN | {"SLURM_STEP_NODELIST": "[]"}, "set MASTER_ADDR"),
    ],
)
def test_contradictory_variables_are_reported_in_one_line(
    title: str, environment: dict[str, str], message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        find_launch(environment)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


LONG = "9" * 5000
BASES = (TORCHRUN, SRUN, MPIRUN, ONE_A_NODE, POD, BATCH_SCRIPT, SRUN | MPIRUN)
NAMES = sorted({name for base in BASES for name in base} | {"MASTER_ADDR", "MASTER_PORT", "SLURM_STEP_NUM_NODES"})
STRANGE = ("", " ", "0", "-1", "00", "1e9", "٣", "²", "..", "a..b", "x" * 70, "\udcff", "[", "n[0-999999999]", "1(x2),",
           "4(x999999999)", f"4(x{LONG})", "2000000000", str(2**64), LONG)  # fmt: skip


@given(
    base=st.sampled_from(BASES), changes=st.dictionaries(st.sampled_from(NAMES), st.sampled_from(STRANGE), max_size=3)
)
@settings(max_examples=300)
def test_any_variables_are_a_possible_launch_or_one_line(base: dict[str, str], changes: dict[str, str]) -> None:
    environment = base | changes
    for found in (result_of(find_launch, environment), result_of(find_step, environment)):
        if isinstance(found, LaunchEnvironment):
            assert 0 <= found.rank < found.world_size <= 2**20
            assert 0 < found.master_port < 2**16
        if isinstance(found, str):
            assert "\n" not in found
            assert len(found) < 400


def result_of(find: Callable[[dict[str, str]], object], environment: dict[str, str]) -> object:
    """Return what is found, or the message that refuses it."""
    try:
        return find(environment)
    except UsageError as error:
        return str(error)


@pytest.mark.parametrize(
    ("base", "name"),
    [
        *((TORCHRUN, name) for name in TORCHRUN if name not in {"MASTER_ADDR", "TORCHELASTIC_USE_AGENT_STORE"}),
        *((SRUN, name) for name in SRUN if name not in {"SLURM_STEP_ID", "SLURM_NTASKS"} and "PER_NODE" not in name
          and "LIST" not in name),
        (SRUN, "MASTER_PORT"),
        *((MPIRUN, name) for name in MPIRUN),
    ],
)  # fmt: skip
def test_a_number_of_thousands_of_digits_is_refused_by_its_name(base: dict[str, str], name: str) -> None:
    with pytest.raises(
        UsageError, match=rf"^{name}=9{{40}}… \(5,000 characters\) is not a number of at most 18 digits"
    ):
        find_launch(base | {name: LONG})


@pytest.mark.parametrize(
    ("base", "name"), [(TORCHRUN, "WORLD_SIZE"), (SRUN, "SLURM_STEP_NUM_TASKS"), (MPIRUN, "OMPI_COMM_WORLD_SIZE")]
)
def test_more_ranks_than_a_job_has_are_refused(base: dict[str, str], name: str) -> None:
    with pytest.raises(UsageError, match=f"^{name}=2000000000 is more than 1,048,576 ranks"):
        find_launch(base | {name: "2000000000"})


@pytest.mark.parametrize("address", ["..", "a..b", "x" * 70, "\udcff"])
def test_a_name_that_no_host_can_have_is_refused(address: str) -> None:
    with pytest.raises(UsageError, match=r"^MASTER_ADDR=.+ is not the name or address of a host"):
        find_launch(TORCHRUN | {"MASTER_ADDR": address})


@pytest.mark.parametrize("address", ["10.0.0.1", "fe80::1%eth0", "node-1.cluster.", "my_node", "knoten-ä"])
def test_names_and_addresses_of_hosts_are_accepted(address: str) -> None:
    launch = find_launch(TORCHRUN | {"MASTER_ADDR": address})
    assert launch is not None
    assert launch.master_addr == address


def test_two_jobs_and_two_steps_of_a_job_meet_at_different_ports() -> None:
    environments = (SRUN, SRUN | {"SLURM_STEP_ID": "2"}, SRUN | {"SLURM_JOB_ID": "123460"})
    ports = {launch.master_port for launch in map(find_launch, environments) if launch}
    assert len(ports) == 3
    assert all(1024 < port < 32768 for port in ports), "ports from 32768 on are ephemeral on Linux"


@pytest.mark.parametrize(
    ("tasks", "node", "count"),
    [
        ("4", 0, 4),
        ("2(x3),1", 2, 2),
        ("2(x3),1", 3, 1),
        ("1,4(x2)", 1, 4),
        ("4(x999999999)", 5, 4),
        (f"4(x{'9' * 5000})", 5, None),
        ("", 0, None),
    ],
)
def test_the_tasks_of_a_node(tasks: str, node: int, count: int | None) -> None:
    assert tasks_on_node(tasks, node) == count


@pytest.mark.parametrize(
    ("title", "environment", "step"),
    [
        ("one task on each of four nodes", ONE_A_NODE, SlurmStep(4, 3, "gpu07", 13457, "123456.1")),
        ("a host by hand", ONE_A_NODE | {"MASTER_ADDR": "ib0"}, SlurmStep(4, 3, "ib0", 13457, "123456.1")),
        ("a Slurm that tells only the job's nodes",
         {name: value for name, value in ONE_A_NODE.items() if name != "SLURM_STEP_NUM_NODES"} | {"SLURM_NNODES": "4"},
         SlurmStep(4, 3, "gpu07", 13457, "123456.1")),
        ("a batch script", BATCH_SCRIPT, None),
        ("no Slurm", TORCHRUN, None),
    ],
)  # fmt: skip
def test_a_node_finds_its_step(title: str, environment: dict[str, str], step: SlurmStep | None) -> None:
    assert find_step(environment) == step, title


def test_a_step_of_several_tasks_a_node_is_refused() -> None:
    with pytest.raises(UsageError, match=r"starts 8 tasks on 2 nodes, .* --ntasks-per-node 1"):
        find_step(SRUN | {"SLURM_STEP_NUM_NODES": "2"})


@pytest.mark.parametrize(("value", "seconds"), [("", 300.0), (" 20 ", 20.0), ("1", 1.0), ("86400", 86400.0)])
def test_how_long_ranks_wait_for_each_other(value: str, seconds: float) -> None:
    assert join_seconds({"COLLBENCH_JOIN_SECONDS": value}) == seconds
    assert join_seconds({}) == 300.0


@pytest.mark.parametrize("value", ["0", "-1", "soon", "1e9", "inf", "nan", "86401", "²", LONG])
def test_invalid_join_timeouts_are_refused(value: str) -> None:
    with pytest.raises(UsageError, match="write whole seconds, 1 to 86400"):
        join_seconds({"COLLBENCH_JOIN_SECONDS": value})
