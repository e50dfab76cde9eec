#!/usr/bin/env bash
# Everything that one session on a GPU machine must show, into the folder $1: build, GPU tests, the three commands.
# Needs no network. Usage: benchmarks/session.sh OUT [quick]
set -u -o pipefail
out=$1 quick=${2:-}
here=$(cd "$(dirname "$0")/.." && pwd)
cd "$here" || exit 1
export XDG_STATE_HOME=${XDG_STATE_HOME:-$(mktemp -d)} PYTHONUNBUFFERED=1

step() { # a titled command, with its wall time and exit status
    echo "== $*"
    local begin=$EPOCHREALTIME
    "$@"
    local status=$?
    awk -v a="$begin" -v b="$EPOCHREALTIME" -v s=$status 'BEGIN { printf "-- exit %d, %.2f s\n", s, b - a }'
    return $status
}

step python3 -m pip install -q --no-build-isolation --no-deps --no-index . || exit 1
cd "$out" || exit 1 # not the source tree: what was installed is what runs
step nvidia-smi -L
step collbench topo
step collbench pairs -o "$out/pairs.json" | tee "$out/pairs.txt"
[ -n "$quick" ] || for size in 1 2 3; do step collbench pairs -o /dev/shm/again.json | grep -E "^best|^All|^--"; done
step collbench allreduce --sizes 8:4G -o "$out/allreduce.json" | tee "$out/allreduce.txt"
step collbench broadcast --sizes 1M:1G -o /dev/shm/broadcast.json | tail -20
step collbench train --auto-select 2 "$here/benchmarks/ddp_ranks.py" 2>&1 | tee "$out/train.txt"
step collbench train --auto-select 2 --dry-run --fresh "$here/benchmarks/ddp_ranks.py" --epochs 3
cd "$here" && step make -s test-gpu PYTHON=python3 2>&1 | tee "$out/test-gpu.txt"
