#!/usr/bin/env bash
# Measures everything on a machine with two or more GPUs, into the folder OUT. Needs no network.
# Usage: COMMIT=$(git rev-parse --short HEAD) [PEERS=DIR] benchmarks/session.sh OUT [PART …] > OUT/session.log 2>&1
#   PART (about so many minutes on 4 × H200); without one, all parts:
#     commands 3   every command, an interrupted run, one process per GPU
#     repeat   2   ten runs of `pairs`: time and answer, positions of batches; growth over 2, 4, 8 GPUs
#     judging  3   does it find a competing job, a full GPU, NCCL without P2P; `select` from a shell and from Python
#     choice   5   regret of `select` against all sets, measured, on a disturbed machine (chosen_sets.py)
#     staged   3   all-reduce without P2P on all GPUs: does its speed depend on the order of GPUs, or on NCCL's choice
#     jobs     5   overlap, registered memory, a recorded job replayed, on all GPUs
#     tests    4   make test-gpu
#     peers    8   versus_peers.py, if PEERS names the folder of nccl-tests' programs and nvbandwidth; REPEATS=2
#   Parts of one session share XDG_STATE_HOME. OUT holds pages, run files and logs; larger files are packed.
#   The script sets no variables of NCCL except NCCL_P2P_DISABLE=1 and NCCL_DEBUG, where it measures their effect.
set -u -o pipefail
[ $# -ge 1 ] && mkdir -p "$1" || { echo "usage: benchmarks/session.sh OUT [commands|repeat|judging|choice|staged|jobs|tests|peers …]" >&2; exit 2; }
out=$(cd "$1" && pwd)
shift
here=$(cd "$(dirname "$0")/.." && pwd)
export XDG_STATE_HOME=${XDG_STATE_HOME:-$out/.state} PYTHONUNBUFFERED=1
scratch=$(mktemp -d)
gpus=$(nvidia-smi --list-gpus | wc -l)
all=$(seq -s, 0 $((gpus - 1)))

step() { # run a command, and print it, its wall time and its exit status
    echo "== $*"
    local begin=$EPOCHREALTIME
    "$@"
    local status=$?
    awk -v a="$begin" -v b="$EPOCHREALTIME" -v s=$status 'BEGIN { printf "-- exit %d, %.2f s\n", s, b - a }'
    return $status
}

start_job() { # start_job TITLE PROGRAM: start the Python program PROGRAM as $job, and return when it has printed "ready"
    echo "== $1"
    python3 -c "$2" > "$scratch/job" 2>&1 &
    job=$!
    for _ in $(seq 80); do grep -q ready "$scratch/job" && return || sleep 0.25; done
    cat "$scratch/job"
}

pack() { (cd "$scratch" && find . -name "$2" -print0) | tar czf "$1.tar.gz" -C "$scratch" --null -T -; } # pack NAME PATTERN

end_job() { kill $job; wait $job 2> /dev/null; }

commands() {
    step collbench pairs -o pairs.json | tee pairs.txt
    step collbench pairs # saved where `train` looks for a run
    step collbench pairs --sizes 8:1G -o "$scratch/every-size.json" --verbose | grep -E "^points|^time|^--"
    step collbench copies -o copies.json --verbose | tee copies.txt
    step collbench latency -o latency.json --verbose | tee latency.txt
    for operation in allreduce broadcast reduce allgather reducescatter alltoall sendrecv gather scatter; do
        step collbench "$operation" --sizes 8:1G:8 --in-place -o "$scratch/$operation.json"
    done
    step collbench allreduce --split 2 --sizes 64M -o "$scratch/split.json"
    step collbench allreduce -b 8 -e 1G -f 8 --format nccl-tests
    step collbench allreduce --pairs --sizes 16M --dtype bfloat16 --op avg -o "$scratch/pairs.json"
    step torchrun --nproc-per-node "$gpus" -m collbench allreduce --sizes 1M:1G:4 -o "$scratch/world.json"
    step collbench train --auto-select 2 "$here/benchmarks/ddp_ranks.py"
    step timeout --preserve-status -s INT 3 collbench pairs -o "$scratch/cut.json"
    step collbench show "$scratch/cut.json" --verbose | grep -E "^points|^time|^--"
    pack commands "*.json"
}

repeat() {
    for number in $(seq 10); do
        step collbench pairs -o "repeat-$number.json" --verbose > "$scratch/repeat-$number.txt"
        collbench check "repeat-$number.json" > "$scratch/check-$number.txt"
        echo "run $number: check exits $?; $(grep -hE '^All pairs tie|^No pair|^[0-9]+ tiers|^time|^--' "$scratch/repeat-$number.txt" | tr '\n' ' ')"
    done
    step python3 "$here/benchmarks/positions.py" repeat-*.json --out positions.txt
    for count in 2 4 8; do
        [ "$count" -le "$gpus" ] || continue
        step collbench pairs --devices "$(seq -s, 0 $((count - 1)))" -o "$scratch/growth-$count.json" --verbose | grep -E "^points|^time|^--"
    done
    tar czf repeat.tar.gz repeat-*.json && rm -f repeat-*.json
}

judging() {
    step collbench check -o check.json | tee check-live.txt
    step nvidia-smi topo -p -i 0,1
    step collbench select 2 | tee select.txt
    step sh -c 'eval "$(collbench select 2 --format env 2> /dev/null)" && echo "CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES"'
    step collbench select 2 --verify
    step python3 -c 'import collbench, os
choice = collbench.select(2)
print(os.environ["CUDA_VISIBLE_DEVICES"], collbench.explain(choice))
import torch
print(torch.cuda.device_count(), "GPUs for torch")
try:
    torch.zeros(1, device="cuda")
    collbench.select(2)
except collbench.Error as error:
    print("refused:", error)'

    start_job "a job that copies GPU0 to GPU1" 'import torch
a = torch.empty(2**28, dtype=torch.uint8, device="cuda:0")
b = torch.empty_like(a, device="cuda:1")
b.copy_(a); torch.cuda.synchronize(0); print("ready", flush=True)
while True:
    for _ in range(20): b.copy_(a, non_blocking=True)
    torch.cuda.synchronize(0)'
    step collbench pairs -o busy.json | tee busy.txt
    step collbench check busy.json | tee busy-check.txt
    step collbench select 2
    step collbench select 2 --allow-busy
    end_job

    local last=$((gpus - 1))
    start_job "a job that fills GPU$last" "import torch, time
held = torch.empty(torch.cuda.mem_get_info($last)[0] - 3 * 2**30, dtype=torch.uint8, device='cuda:$last')
print('ready', flush=True); time.sleep(120)"
    step collbench pairs -o "$scratch/full.json" | tee full.txt
    step collbench check "$scratch/full.json"
    step collbench select 2
    end_job

    NCCL_P2P_DISABLE=1 step collbench pairs -o no-p2p.json | tee no-p2p.txt
    step collbench check no-p2p.json | tee no-p2p-check.txt
    tar czf judging.tar.gz check.json busy.json no-p2p.json && rm -f check.json busy.json no-p2p.json
}

choice() { step python3 "$here/benchmarks/chosen_sets.py" --out "$out"; }

# One process for each run, because NCCL makes its rings, and the kernel places its threads, once per process.
staged() {
    export NCCL_P2P_DISABLE=1
    local order reversed
    reversed=$(seq -s, $((gpus - 1)) -1 0)
    for number in $(seq 6); do
        for order in "$all" "$reversed"; do
            step collbench allreduce --devices "$order" --sizes 256M,1G -o "$scratch/staged-$number-${order//,/}.json" | grep -E "^ *(256M|1G)|^--"
        done
    done
    NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH,ENV step collbench allreduce --sizes 1G -o "$scratch/staged-log.json" > staged-nccl.log 2>&1
    unset NCCL_P2P_DISABLE
    pack staged "staged-*.json"
}

jobs_on_all_gpus() {
    step collbench overlap allreduce --devices "$all" -o overlap.json | tee overlap.txt
    step collbench allreduce --registration all --sizes 64K:1G:16 -o registration.json | tee registration.txt
    for job in ddp fsdp2; do
        step collbench record --gpu-times -o "$job.json" -- torchrun --nproc-per-node "$gpus" "$here/benchmarks/recorded_job.py" "$job" "$scratch"
        step collbench show "$job.json"
        step collbench replay "$job.json" --without p2p -o "$job-replay.json"
    done
}

tests() { PYTHON=python3 step make -C "$here" test-gpu; }

peers() {
    [ -n "${PEERS:-}" ] || { echo "== peers: skipped, PEERS is not set"; return; }
    for program in all_reduce broadcast reduce all_gather reduce_scatter alltoall sendrecv gather scatter; do
        "$PEERS/${program}_perf" -t "$gpus" -g 1 -b 8 -e 64M -f 8 > "$scratch/${program}_perf-$gpus-ranks.txt"
    done
    pack recordings "*_perf-*.txt"
    step python3 "$here/benchmarks/versus_peers.py" --nccl-tests "$PEERS" --nvbandwidth "$PEERS/nvbandwidth" \
        --out "$scratch/versus" --repeats "${REPEATS:-2}"
    cp "$scratch"/versus/versus_peers.{txt,md} "$out"
    tar czf versus-raw.tar.gz -C "$scratch/versus" raw
}

[ $# -gt 0 ] || set -- commands repeat judging choice staged jobs tests peers
for part in "$@"; do
    case $part in commands | repeat | judging | choice | staged | jobs | tests | peers) ;; *)
        echo "session.sh: no part '$part'" >&2; exit 2 ;;
    esac
done
echo "commit ${COMMIT:-unknown}, $(date -u +%FT%TZ), $(nvidia-smi --query-gpu=name --format=csv,noheader | sort | uniq -c)"
cd "$here" || exit 1
step python3 -m pip install -q --no-build-isolation --no-deps --no-index . || exit 1
cd "$out" || exit 1 # outside the source tree, so that the installed collbench runs
for part in "$@"; do
    [ "$part" = jobs ] && part=jobs_on_all_gpus
    "$part"
done
