#!/usr/bin/env bash
# Everything that one session on a GPU machine must show, into the folder $1: build, the three commands, GPU tests,
# a full GPU, an interrupt, NCCL without P2P. Needs no network.
# Usage: COMMIT=$(git rev-parse --short HEAD) benchmarks/session.sh OUT 2>&1 | tee OUT/session.log
set -u -o pipefail
out=$1
here=$(cd "$(dirname "$0")/.." && pwd)
cd "$here" || exit 1
export XDG_STATE_HOME=${XDG_STATE_HOME:-$(mktemp -d)} PYTHONUNBUFFERED=1
scratch=$(mktemp -d)

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

step collbench topo
step collbench topo 0 1
step collbench pairs -o pairs.json | tee pairs.txt
step collbench pairs # saved where train looks
for _ in 1 2 3; do step collbench pairs -o "$scratch/again.json" | grep -E "^best|^All|^--"; done
step collbench allreduce --sizes 1M:1G
step collbench allreduce --sizes 8:4G -o allreduce.json
step collbench broadcast --sizes 8:1G -o broadcast.json
step collbench allreduce --pairs --sizes 16M --dtype bfloat16 --op avg -o "$scratch/pairs.json"
step python3 "$here/benchmarks/against_reference.py" pairs.json allreduce.json | tee ratios.txt

{
    step collbench train --auto-select 2 "$here/benchmarks/ddp_ranks.py"
    step collbench train --auto-select 2 --dry-run "$here/benchmarks/ddp_ranks.py" --epochs 3
    step collbench train --auto-select 2 --dry-run --fresh "$here/benchmarks/ddp_ranks.py" --epochs 3
} 2>&1 | tee train.txt

echo "== a GPU that another process fills up to 3 GiB"
python3 -c 'import time, torch
free = torch.cuda.mem_get_info(1)[0]
held = torch.empty(free - 3 * 2**30, dtype=torch.uint8, device="cuda:1")
print("filled", flush=True)
time.sleep(60)' > "$scratch/filled" &
hog=$!
for _ in $(seq 40); do grep -q filled "$scratch/filled" && break || sleep 0.5; done
step collbench pairs -o "$scratch/full.json" | grep -E "^measured|^skipped|^best|^--"
kill $hog
wait $hog 2> /dev/null

step timeout --preserve-status -s INT 4 collbench pairs -o "$scratch/cut.json"
step collbench show "$scratch/cut.json" | grep -E "^measured|^--"
NCCL_P2P_DISABLE=1 step collbench allreduce --sizes 64M -o "$scratch/staged.json"
cd "$here" && step make -s test-gpu PYTHON=python3
