#!/bin/bash
# Run in the repository root on a machine with 2 GPUs, collbench installed (or PYTHONPATH set). The pages of the map of P2P
# with nothing wrong, and where a variable keeps NCCL from P2P: lines 2 and 3 must be its cause and "fix       unset
# NCCL_P2P_DISABLE"; and of a run in which everything fails: FAILED on stdout, one line on stderr, status 1, as NCCL is
# told an algorithm that does not exist (if it starts all the same, status 0 is right). Writes under $OUT; about 25 s, no step begins after 35 s.
OUT=$(realpath -m "${OUT:-out}"); mkdir -p "$OUT"; SECONDS=0
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1 PYTHONUNBUFFERED=1 NO_COLOR=1 COLUMNS=120 XDG_STATE_HOME="$OUT/.state"
unset NCCL_DEBUG
PYTHON=${PYTHON:-python3}
step() { # step SECONDS FILE COMMAND…
  local limit=$1 file=$2; shift 2
  if [ "$SECONDS" -gt 35 ]; then echo "skipped after $SECONDS s: $*"; return; fi
  local begin=$EPOCHREALTIME status=0
  timeout -k 3 "$limit" "$@" > "$OUT/$file" 2> "$OUT/$file.err" < /dev/null || status=$?
  awk -v a="$begin" -v b="$EPOCHREALTIME" -v s="$status" -v c="$*" 'BEGIN { printf "%6.2f s, status %d: %s\n", b - a, s, c }'
  head -n 4 "$OUT/$file" | cut -c 1-180; head -n 2 "$OUT/$file.err" | cut -c 1-180
}
{ nvidia-smi -L; git log -1 --format=%h 2>/dev/null; date -u
step 15 map.txt "$PYTHON" -m collbench check --map-p2p
step 15 map-disabled.txt env NCCL_P2P_DISABLE=1 "$PYTHON" -m collbench check --map-p2p
step 15 all-fail.txt env NCCL_MAX_CTAS=1 NCCL_MIN_CTAS=32 NCCL_ALGO=none "$PYTHON" -m collbench allreduce --sizes 1M -o "$OUT/all-fail.json"
step 15 check.txt env NCCL_P2P_DISABLE=1 "$PYTHON" -m collbench check
} 2>&1 | tee "$OUT/p35.txt"
rm -rf "$OUT/.state"
