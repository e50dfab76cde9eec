"""An NCCL that delivers the result of the call before is found in every operation, and ends the program with status 4.

It is the real one behind stale_nccl.c. One GPU is enough.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from collbench import _native
from tests.gpu.machine import need_gpus, need_nccl, open_gpus
from tests.ranks.processes import environment

_GROUP = need_gpus(1)[:2]
_NCCL = need_nccl()
_OPERATIONS = tuple(_native.Collective.__members__)
_UNDEFINED_IN_PLACE = ("alltoall", "alltoallv", "sendrecv")
_BUFFER = 2**25
# The first message's buffer gets a result when the ranks connect and in the three batches of a trial. So that of the
# second trial's last batch is the first wrong one.
_RIGHT_RESULTS = 6
# In the program, the same message is wrong in its first trial.
_RIGHT_IN_PROGRAM = 3


@pytest.fixture(scope="module")
def stale(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The faulty NCCL."""
    real, library = Path(_NCCL.path).resolve(), tmp_path_factory.mktemp("stale") / "libstale_nccl.so"
    newer = ["-DHAS_ALLTOALL"] if _NCCL.version >= 22800 else []
    source = Path(__file__).with_name("stale_nccl.c")
    linked = ["-Wl,--no-as-needed", f"-L{real.parent}", f"-l:{real.name}", f"-Wl,-rpath,{real.parent}", "-ldl"]
    command = [os.environ.get("CC", "cc"), "-std=gnu17", "-O1", "-fPIC", "-shared", f'-DREAL_NCCL="{real}"', *newer]
    subprocess.run([*command, source, "-o", library, *linked], check=True)
    return library


@pytest.fixture(scope="module")
def session(stale: Path) -> _native.Collectives:
    return _native.Collectives(open_gpus(_GROUP, _BUFFER), _native.Nccl(str(stale)))


@pytest.mark.parametrize("in_place", [False, True], ids=["out-of-place", "in-place"])
@pytest.mark.parametrize("plain", [False, True], ids=["graphs", "plain-launches"])
@pytest.mark.parametrize("operation", _OPERATIONS)
def test_a_result_of_the_batch_before_is_found(
    session: _native.Collectives, monkeypatch: pytest.MonkeyPatch, operation: str, plain: bool, in_place: bool
) -> None:
    if in_place and operation in _UNDEFINED_IN_PLACE:
        pytest.skip("undefined in place")
    monkeypatch.setenv("STALE_AFTER", str(_RIGHT_RESULTS))
    # No other test has a message of this size: its buffers have got no result yet.
    count = 1024 + 8 * (_OPERATIONS.index(operation) * 4 + plain * 2 + in_place)
    block = count // len(_GROUP)

    def trial() -> None:
        session.time(
            _native.CollectiveRound(
                groups=[list(range(len(_GROUP)))],
                operation=_native.Collective.__members__[operation],
                dtype=_native.Dtype.__members__["float32"],
                reduction=_native.Reduction.__members__["sum"],
                root=0,
                count=count,
                in_place=in_place,
                verify=True,
                iterations=3,
                batches=2,
                warmup=1,
                launch_iterations=0,
                launch_warmup=0,
                deadline=30.0,
                blocks=[block] * len(_GROUP) ** 2 if operation == "alltoallv" else [],
                plain=[plain],
            )
        )

    trial()
    with pytest.raises(_native.DataError) as failure:
        trial()
    assert failure.value.wrong > block / 2


def _ends_with_status_4(status: int, err: str) -> None:
    assert status == 4, err
    assert "wrong data: " in err


@pytest.mark.skipif(len(_GROUP) < 2, reason="needs 2 GPUs")
@pytest.mark.parametrize("command", ["allreduce", "pairs"])
def test_the_program_ends_with_status_4(tmp_path: Path, stale: Path, command: str) -> None:
    arguments = [command, "--backend", "cuda", "--devices", "0,1", "--sizes", "64K,1M", "--nccl", str(stale), "--quick"]
    done = subprocess.run(
        [sys.executable, "-m", "collbench", *arguments],
        env=environment(tmp_path, STALE_AFTER=_RIGHT_IN_PROGRAM),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    _ends_with_status_4(done.returncode, done.stderr)
