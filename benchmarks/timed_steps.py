#!/usr/bin/env python3
"""Times the steps of several training jobs in one process per GPU; extra_time.py compares them with `predict`.

    collbench train --devices 0,1 benchmarks/timed_steps.py --model gpt2 --out OUT --arm p2p
    NCCL_P2P_DISABLE=1 collbench train --devices 0,1 benchmarks/timed_steps.py --model vit-b/16 --out OUT --arm nop2p

Every strategy at every batch is a job of gpt2_ddp.py or vit_ddp.py, with its own model. The jobs share one start of
torch and NCCL, which takes longer than the steps. Rank 0 writes a job's output to
OUT/steps-MODEL-STRATEGY-RANKS-batchBATCH-ARM.txt. If a job fails, the file has its error, the other jobs still run, and
the exit status is 1.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import gpt2_ddp
import torch
import vit_ddp
from training import ranks
from training.ranks import RankProcess

MODELS = ("gpt2", "gpt2-medium", "vit-b/16")


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="steps of several training jobs, in one process per GPU")
    parser.add_argument("--model", choices=MODELS, required=True)
    parser.add_argument("--strategies", default="local,ddp,fsdp", metavar="A,B", help="[local,ddp,fsdp]")
    parser.add_argument("--batches", default="4,32", metavar="N,M", help="per rank and step [4,32]")
    parser.add_argument("--arm", default="p2p", help="a word for the files' names: p2p or nop2p [p2p]")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--steps", type=int, default=30, metavar="N", help="steps that are timed [30]")
    parser.add_argument("--warmup", type=int, default=8, metavar="N", help="steps before those [8]")
    parser.add_argument("--tiny", action="store_true", help="small layers instead: a dry run")
    return parser.parse_args(argv)


def job(options: argparse.Namespace, strategy: str, batch: str, process: RankProcess) -> str:
    """Run one job and return its summary. Raises JobError."""
    arguments = ["--model", options.model, "--strategy", strategy, "--batch", batch]
    arguments += ["--steps", str(options.steps), "--warmup", str(options.warmup), *["--tiny"] * options.tiny]
    if options.model.startswith("vit"):
        return vit_ddp.run(vit_ddp.arguments(arguments), process)
    short_sequence = ["--sequence", "32"] * options.tiny
    return gpt2_ddp.run(gpt2_ddp.arguments([*arguments, *short_sequence]), process)


def main(options: argparse.Namespace) -> int:
    process = ranks.join()
    if process.is_rank_0:
        options.out.mkdir(parents=True, exist_ok=True)
    failed = 0
    for strategy in options.strategies.split(","):
        for batch in options.batches.split(","):
            name = f"steps-{options.model.replace('/', '')}-{strategy}-{process.world_size}-batch{batch}-{options.arm}"
            begin = time.perf_counter()
            with contextlib.ExitStack() as stack:
                if process.is_rank_0:
                    file = stack.enter_context((options.out / f"{name}.txt").open("w", encoding="utf-8"))
                    stack.enter_context(contextlib.redirect_stdout(file))
                try:
                    summary = job(options, strategy, batch, process)
                except (gpt2_ddp.JobError, torch.OutOfMemoryError) as error:
                    summary, failed = f"failed: {error}", failed + 1
                process.print_on_rank_0(summary)
            process.print_on_rank_0(f"{time.perf_counter() - begin:5.1f} s  {name}: {summary}")
            gc.collect()  # DDP's reducer, with its buckets, is in a reference cycle
            if process.device.type == "cuda":
                torch.cuda.empty_cache()
            process.wait_for_all()
    ranks.leave()
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(arguments(sys.argv[1:])))
