#!/usr/bin/env python3
"""Whether `collbench record` writes down what a JAX job sends, call by call.

    python benchmarks/recording_jax.py --out FOLDER

Two processes of JAX each have a GPU, or share one: NCCL then takes them for two hosts (NCCL_HOSTID). A step is one
all-reduce, all-gather, reduce-scatter, all-to-all and exchange of neighbours, each compiled by itself, so that XLA
neither joins nor leaves out any. What the program asked XLA for is compared with the job file: function, bytes and
order on both ranks. The exit status is 1 where they differ; FOLDER keeps the job file and the log.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from collbench.model.job import Job, JobRank
from collbench.runfile import job_file

_RANKS, _STEPS = 2, 25
# float32 elements of each rank's part, and a step's calls as nccl-tests counts their bytes. XLA receives first.
_ELEMENTS = 1 << 18
_PART = 4 * _ELEMENTS
_STEP = [
    ["allreduce", _PART],
    ["allgather", _PART * _RANKS],
    ["reducescatter", _PART],
    ["alltoall", _PART],
    ["recv", _PART],
    ["send", _PART],
]


def train(number: int, port: int) -> None:
    """Be one rank: send the calls of each step, and see that they arrive."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as Spec

    jax.distributed.initialize(f"127.0.0.1:{port}", _RANKS, number)
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("ranks",))
    here, everywhere = Spec("ranks"), Spec()

    def compiled(body: Any, out: Any) -> Any:
        return jax.jit(jax.shard_map(body, mesh=mesh, in_specs=here, out_specs=out, check_vma=False))

    calls = [
        compiled(lambda part: jax.lax.psum(part, "ranks"), everywhere),
        compiled(lambda part: jax.lax.all_gather(part, "ranks", tiled=True), everywhere),
        compiled(lambda part: jax.lax.psum_scatter(part, "ranks", tiled=True), here),
        compiled(lambda part: jax.lax.all_to_all(part, "ranks", 0, 0, tiled=True), here),
        compiled(lambda part: jax.lax.ppermute(part, "ranks", [(0, 1), (1, 0)]), here),
    ]
    part = jnp.full(_ELEMENTS, number + 1.0, jnp.float32)
    shape, spread = (_RANKS * _ELEMENTS,), NamedSharding(mesh, here)
    whole = jax.make_array_from_single_device_arrays(shape, spread, [part])
    for _ in range(_STEPS):
        found = [call(whole) for call in calls]
        for one in found:
            one.block_until_ready()
    first = [float(np.asarray(one.addressable_data(0))[0]) for one in found]
    if first != [3.0, 1.0, 3.0, 1.0, 2.0 - number]:
        raise SystemExit(f"rank {number} received {first}")
    print(f"rank {number}: {_STEPS} steps of jax {jax.__version__} on {jax.devices()[number].device_kind}", flush=True)


def job(port: int, gpus: int) -> int:
    """Run both ranks. Return the exit status of the first that failed."""
    ranks = []
    for number in range(_RANKS):
        own = {"CUDA_VISIBLE_DEVICES": str(number % gpus), "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        if gpus < _RANKS:
            own["NCCL_HOSTID"] = f"host{number}"
        words = [sys.executable, __file__, "--rank", str(number), "--port", str(port)]
        ranks.append(subprocess.Popen(words, env=os.environ | own))
    return max(rank.wait() for rank in ranks)


def difference(recorded: Job) -> str:
    """Return where the record and what was asked for differ first; "" where they are equal."""
    if [rank.rank for rank in recorded.ranks] != list(range(_RANKS)):
        return f"ranks {[rank.rank for rank in recorded.ranks]}"
    for rank in recorded.ranks:
        have, want = sent(recorded, rank), _STEP * _STEPS
        if have != want:
            pairs = enumerate(zip(have, want, strict=False))
            place = next((at for at, (one, other) in pairs if one != other), min(len(have), len(want)))
            return f"rank {rank.rank}: {len(have)} of {len(want)} calls; {place}: {have[place:][:8]}"
    return ""


def sent(recorded: Job, rank: JobRank) -> list[list[Any]]:
    """Return what a rank sent, as [operation, bytes]."""
    return [[recorded.calls[at].operation, recorded.calls[at].size_bytes] for at in rank.unfolded()]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="keep the job file here")
    parser.add_argument(
        "--gpus", type=int, default=0, help="that the ranks share; default: those that nvidia-smi lists"
    )
    parser.add_argument("--gpu-times", action="store_true", help="record with GPU times")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.rank is not None:
        train(asked.rank, asked.port)
        return 0
    if asked.port:
        return job(asked.port, asked.gpus)
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout.count("GPU ")
    folder = asked.out or Path(tempfile.mkdtemp(prefix="recording-jax-"))
    folder.mkdir(parents=True, exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    output = folder / "jax-job.json"
    words = [sys.executable, __file__, "--port", str(port), "--gpus", str(asked.gpus or listed)]
    record = [sys.executable, "-m", "collbench", "record", *["--gpu-times"] * asked.gpu_times, "--force"]
    record += ["-o", str(output), "--", *words]
    with (folder / "jax.log").open("w", encoding="utf-8") as log:
        status = subprocess.run(record, stdout=log, stderr=log, check=False).returncode
    if status or not output.is_file():
        print(f"exit status {status}: see {folder / 'jax.log'}")
        return 1
    recorded = job_file.load(output)
    wrong = difference(recorded)
    calls = " + ".join(str(rank.calls) for rank in recorded.ranks)
    print(
        f"{calls} calls recorded, NCCL {recorded.nccl}: {wrong or 'function, bytes and order are equal on both ranks'}"
    )
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
