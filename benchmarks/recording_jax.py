#!/usr/bin/env python3
"""Checks that `collbench record` records every call of a JAX job.

    python benchmarks/recording_jax.py --out FOLDER

Two JAX processes each have a GPU, or share one; then NCCL_HOSTID lets NCCL take them for two hosts. A step is an
all-reduce, an all-gather, a reduce-scatter, an all-to-all and an exchange between neighbors, each compiled separately,
so that XLA neither merges nor removes any. The calls in the program are compared with the job file: function, bytes and
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

from collbench.jobs import job_file
from collbench.jobs.job import Job, JobRank

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
    """Run one rank: make the calls of each step, and check the results."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as Spec

    jax.distributed.initialize(f"127.0.0.1:{port}", _RANKS, number)
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("ranks",))
    per_rank, replicated = Spec("ranks"), Spec()

    def compile_call(body: Any, out_spec: Any) -> Any:
        return jax.jit(jax.shard_map(body, mesh=mesh, in_specs=per_rank, out_specs=out_spec, check_vma=False))

    calls = [
        compile_call(lambda part: jax.lax.psum(part, "ranks"), replicated),
        compile_call(lambda part: jax.lax.all_gather(part, "ranks", tiled=True), replicated),
        compile_call(lambda part: jax.lax.psum_scatter(part, "ranks", tiled=True), per_rank),
        compile_call(lambda part: jax.lax.all_to_all(part, "ranks", 0, 0, tiled=True), per_rank),
        compile_call(lambda part: jax.lax.ppermute(part, "ranks", [(0, 1), (1, 0)]), per_rank),
    ]
    part = jnp.full(_ELEMENTS, number + 1.0, jnp.float32)
    shape, sharding = (_RANKS * _ELEMENTS,), NamedSharding(mesh, per_rank)
    array = jax.make_array_from_single_device_arrays(shape, sharding, [part])
    for _ in range(_STEPS):
        results = [call(array) for call in calls]
        for result in results:
            result.block_until_ready()
    first_values = [float(np.asarray(result.addressable_data(0))[0]) for result in results]
    if first_values != [3.0, 1.0, 3.0, 1.0, 2.0 - number]:
        raise SystemExit(f"rank {number} received {first_values}")
    print(f"rank {number}: {_STEPS} steps of jax {jax.__version__} on {jax.devices()[number].device_kind}", flush=True)


def job(port: int, gpus: int) -> int:
    """Run both ranks. Return the exit status of the first that failed."""
    ranks = []
    for number in range(_RANKS):
        rank_variables = {"CUDA_VISIBLE_DEVICES": str(number % gpus), "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        if gpus < _RANKS:
            rank_variables["NCCL_HOSTID"] = f"host{number}"
        command = [sys.executable, __file__, "--rank", str(number), "--port", str(port)]
        ranks.append(subprocess.Popen(command, env=os.environ | rank_variables))
    return max(rank.wait() for rank in ranks)


def difference(recorded: Job) -> str:
    """Return where the record and the program's calls first differ; "" where they are equal."""
    if [rank.rank for rank in recorded.ranks] != list(range(_RANKS)):
        return f"ranks {[rank.rank for rank in recorded.ranks]}"
    for rank in recorded.ranks:
        sent, expected = recorded_calls(recorded, rank), _STEP * _STEPS
        if sent != expected:
            pairs = enumerate(zip(sent, expected, strict=False))
            index = next(
                (position for position, (sent_call, expected_call) in pairs if sent_call != expected_call),
                min(len(sent), len(expected)),
            )
            return f"rank {rank.rank}: {len(sent)} of {len(expected)} calls; {index}: {sent[index:][:8]}"
    return ""


def recorded_calls(recorded: Job, rank: JobRank) -> list[list[Any]]:
    """Return a rank's recorded calls, as [operation, bytes]."""
    return [[recorded.calls[index].operation, recorded.calls[index].size_bytes] for index in rank.unfolded()]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="keep the job file here")
    parser.add_argument(
        "--gpus", type=int, default=0, help="that the ranks share; default: those that nvidia-smi lists"
    )
    parser.add_argument("--gpu-times", action="store_true", help="record with GPU times")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        train(options.rank, options.port)
        return 0
    if options.port:
        return job(options.port, options.gpus)
    gpu_count = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout.count("GPU ")
    folder = options.out or Path(tempfile.mkdtemp(prefix="recording-jax-"))
    folder.mkdir(parents=True, exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    output = folder / "jax-job.json"
    command = [sys.executable, __file__, "--port", str(port), "--gpus", str(options.gpus or gpu_count)]
    record_command = [sys.executable, "-m", "collbench", "record", *["--gpu-times"] * options.gpu_times, "--force"]
    record_command += ["-o", str(output), "--", *command]
    with (folder / "jax.log").open("w", encoding="utf-8") as log:
        status = subprocess.run(record_command, stdout=log, stderr=log, check=False).returncode
    if status or not output.is_file():
        print(f"exit status {status}: see {folder / 'jax.log'}")
        return 1
    recorded = job_file.load(output)
    mismatch = difference(recorded)
    calls = " + ".join(str(rank.calls) for rank in recorded.ranks)
    outcome = mismatch or "function, bytes and order are equal on both ranks"
    print(f"{calls} calls recorded, NCCL {recorded.nccl}: {outcome}")
    return int(bool(mismatch))


if __name__ == "__main__":
    sys.exit(main())
