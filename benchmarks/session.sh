#!/usr/bin/env bash
# Everything that one session on a GPU machine must show, into the folder $1: build, every command, an interrupt taken up
# again, one process per GPU, a full GPU, NCCL without P2P; then the peers side by side, if PEERS names the folder of
# their programs. Needs no network. The GPU tests are `make test-gpu`, which takes three minutes of its own.
# Usage: COMMIT=$(git rev-parse --short HEAD) [PEERS=DIR] benchmarks/session.sh OUT > OUT/session.log 2>&1
set -u -o pipefail
out=$1
here=$(cd "$(dirname "$0")/.." && pwd)
cd "$here" || exit 1
export XDG_STATE_HOME=${XDG_STATE_HOME:-$(mktemp -d)} PYTHONUNBUFFERED=1
scratch=$(mktemp -d)
gpus=$(nvidia-smi --list-gpus | wc -l)

step() { # a titled command, with its wall time and exit status
    echo "== $*"
    local begin=$EPOCHREALTIME
    "$@"
    local status=$?
    awk -v a="$begin" -v b="$EPOCHREALTIME" -v s=$status 'BEGIN { printf "-- exit %d, %.2f s\n", s, b - a }'
    return $status
}

echo "commit ${COMMIT:-unknown}, $(date -u +%FT%TZ), $(nvidia-smi --query-gpu=name --format=csv,noheader | sort | uniq -c)"
step python3 -m pip install -q --no-build-isolation --no-deps --no-index . || exit 1
cd "$out" || exit 1 # not the source tree: what was installed is what runs

step collbench pairs -o pairs.json | tee pairs.txt
step collbench pairs # saved where train looks
step collbench pairs --sizes 8:1G -o "$scratch/every-size.json" | grep -E "^stopped|^time|^--"
step collbench copies -o copies.json | tee copies.txt
step collbench latency -o latency.json | tee latency.txt
for operation in allreduce broadcast reduce allgather reducescatter alltoall sendrecv gather scatter; do
    step collbench "$operation" --sizes 8:1G:8 --in-place --output "$scratch/$operation.json"
done
step collbench allreduce --split 2 --sizes 64M --output "$scratch/split.json"
step collbench allreduce --sizes 8,64K,1M,64M,1G --algorithms --output "$scratch/algorithms.json"
step collbench allreduce -b 8 -e 1G -f 8 --format nccl-tests --json "$scratch/v3.json"
step collbench allreduce --pairs --sizes 16M --dtype bfloat16 --op avg --output "$scratch/pairs.json"
step torchrun --nproc-per-node "$gpus" -m collbench allreduce --sizes 1M:1G:4 --output "$scratch/world.json"
step collbench train --auto-select 2 "$here/benchmarks/ddp_ranks.py"

step timeout --preserve-status -s INT 3 collbench pairs -o "$scratch/cut.json"
step collbench pairs --resume "$scratch/cut.json" | grep -E "^measured|^stopped|^--"

echo "== a GPU that another process fills up to 3 GiB"
python3 -c 'import time, torch
free = torch.cuda.mem_get_info(1)[0]
held = torch.empty(free - 3 * 2**30, dtype=torch.uint8, device="cuda:1")
print("filled", flush=True)
time.sleep(60)' > "$scratch/filled" &
hog=$!
for _ in $(seq 40); do grep -q filled "$scratch/filled" && break || sleep 0.5; done
step collbench pairs -o "$scratch/full.json" | grep -E "^measured|^skipped|^health|^best|^--"
kill $hog
wait $hog 2> /dev/null
NCCL_P2P_DISABLE=1 step collbench allreduce --sizes 64M --output "$scratch/staged.json"

[ -n "${PEERS:-}" ] || exit 0
for program in all_reduce broadcast reduce all_gather reduce_scatter alltoall sendrecv gather scatter; do
    "$PEERS/${program}_perf" -t "$gpus" -g 1 -b 8 -e 64M -f 8 > "$scratch/${program}_perf-$gpus-ranks.txt"
done
tar czf recordings.tar.gz -C "$scratch" $(cd "$scratch" && ls ./*_perf-*.txt)
cd "$here" && step python3 benchmarks/versus_peers.py --nccl-tests "$PEERS" --nvbandwidth "$PEERS/nvbandwidth" \
    --out "$scratch/versus" --repeats "${REPEATS:-2}"
cp "$scratch"/versus/versus_peers.{txt,md} "$out"
tar czf "$out/versus-raw.tar.gz" -C "$scratch/versus" raw
