#!/usr/bin/env bash
# What the judging must show on real GPUs, into the folder $1: ten runs judged, a competing job, a full GPU, NCCL without P2P,
# the labels' own disagreement, the Python call. Needs two GPUs; with four, `select` has another pair to take. No network.
# Usage: COMMIT=$(git rev-parse --short HEAD) benchmarks/judging.sh OUT > OUT/judging.log 2>&1
set -u -o pipefail
out=$(cd "$1" && pwd)
here=$(cd "$(dirname "$0")/.." && pwd)
export XDG_STATE_HOME=${XDG_STATE_HOME:-$(mktemp -d)} PYTHONUNBUFFERED=1
scratch=$(mktemp -d)
cd "$here" || exit 1

step() { # a titled command, with its wall time and exit status
    echo "== $*"
    local begin=$EPOCHREALTIME
    "$@"
    local status=$?
    awk -v a="$begin" -v b="$EPOCHREALTIME" -v s=$status 'BEGIN { printf "-- exit %d, %.2f s\n", s, b - a }'
    return $status
}

beside() { # beside TITLE PROGRAM: run the Python text PROGRAM until it prints "ready", and leave it running as $job
    echo "== $1"
    python3 -c "$2" > "$scratch/job" 2>&1 &
    job=$!
    for _ in $(seq 80); do grep -q ready "$scratch/job" && return || sleep 0.25; done
    cat "$scratch/job"
}

echo "commit ${COMMIT:-unknown}, $(date -u +%FT%TZ), $(nvidia-smi --query-gpu=name --format=csv,noheader | sort | uniq -c)"
step python3 -m pip install -q --no-build-isolation --no-deps --no-index . || exit 1
cd "$out" || exit 1 # not the source tree: what was installed is what runs

echo "== ten runs: exit status of check, and what rank says of the largest all-reduce"
for number in $(seq 10); do
    collbench pairs -o "$scratch/$number.json" > "$scratch/$number.txt" || exit 1
    collbench check "$scratch/$number.json" > "$scratch/$number.check.txt"
    echo "run $number: check exits $?, $(grep -c . "$scratch/$number.check.txt") lines; $(grep -hE 'allreduce at 1G|pairs tie|tiers:|no pair differs' "$scratch/$number.txt" | tail -1)"
done
cp "$scratch/1.json" pairs.json
step collbench rank pairs.json | tee rank.txt
step collbench check pairs.json | tee check.txt
step collbench check -o check.json | tee check-live.txt
step nvidia-smi topo -p -i 0,1
step collbench select 2 | tee select.txt
step collbench select 2 --format env
step sh -c 'eval "$(collbench select 2 --format env 2> /dev/null)" && echo "CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES"'
step collbench select 2 --verify
step python3 -c 'import collbench, os
choice = collbench.select(2)
print(os.environ["CUDA_VISIBLE_DEVICES"], choice.reason if hasattr(choice, "reason") else choice)
import torch
print(torch.cuda.device_count(), "GPUs for torch")
try:
    torch.zeros(1, device="cuda")
    collbench.select(2)
except collbench.Error as error:
    print("refused:", error)'
step collbench train --auto-select 2 --dry-run "$here/benchmarks/ddp_ranks.py"

beside "a job that copies GPU0 to GPU1" 'import torch
a = torch.empty(2**28, dtype=torch.uint8, device="cuda:0")
b = torch.empty_like(a, device="cuda:1")
b.copy_(a); torch.cuda.synchronize(0); print("ready", flush=True)
while True:
    for _ in range(20): b.copy_(a, non_blocking=True)
    torch.cuda.synchronize(0)'
step collbench pairs -o busy.json | grep -E "^measured|^health|^flag|^best|shared|^--"
step collbench check busy.json | tee busy-check.txt
step collbench select 2
step collbench select 2 --allow-busy
kill $job; wait $job 2> /dev/null

last=$(($(nvidia-smi --list-gpus | wc -l) - 1))
beside "a job that fills GPU$last" "import torch, time
held = torch.empty(torch.cuda.mem_get_info($last)[0] - 3 * 2**30, dtype=torch.uint8, device='cuda:$last')
print('ready', flush=True); time.sleep(120)"
step collbench pairs -o full.json | grep -E "^measured|^skipped|^health|^best|^--"
step collbench check full.json
step collbench select 2
kill $job; wait $job 2> /dev/null

NCCL_P2P_DISABLE=1 step collbench pairs -o no-p2p.json | grep -E "^measured|^best|^--"
step collbench check no-p2p.json | tee no-p2p-check.txt
step collbench copies --patterns host --sizes 64M -o host.json
rm -f full.json
tar czf runs.tar.gz busy.json no-p2p.json host.json check.json && rm -f busy.json no-p2p.json host.json check.json
tar czf ten.tar.gz -C "$scratch" $(cd "$scratch" && ls ./*.txt)
