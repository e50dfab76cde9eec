#!/bin/bash
# Run in the repository root on a machine with 4 GPUs (2 or 3 do), collbench installed: how long the map of P2P takes,
# step by step; check with and without it; pairs, select 2; NCCL without P2P; one GPU filled. Writes under $OUT, ~110 s.
# Each step has its own timeout; none begins after 135 s. Nothing waits for a process without a limit.
OUT=${OUT:-out}; mkdir -p "$OUT"; export PYTHONUNBUFFERED=1 NO_COLOR=1 COLUMNS=200 XDG_STATE_HOME="$OUT/.state"
unset NCCL_DEBUG
PYTHON=${PYTHON:-python3}
count=$(timeout 10 nvidia-smi --list-gpus | wc -l); [ "$count" -gt 4 ] && count=4
counts=$(seq -s, 2 "$count"); last=$((count - 1)); all=$(seq -s, 0 "$last")
steps="$OUT/steps.jsonl"
step() { # step SECONDS FILE COMMAND…: its output goes to FILE, its wall time and status to the log
  local limit=$1 file=$2; shift 2
  if [ "$SECONDS" -gt 135 ]; then echo "skipped after $SECONDS s: $*"; return; fi
  local begin=$EPOCHREALTIME status=0
  timeout -k 3 "$limit" "$@" >> "$OUT/$file" 2>&1 < /dev/null || status=$?
  awk -v a="$begin" -v b="$EPOCHREALTIME" -v s="$status" -v c="$*" 'BEGIN { printf "%6.2f s, status %d: %s\n", b - a, s, c }'
}
{
  echo "commit $(git rev-parse HEAD 2> /dev/null), $(date -u +%FT%TZ), $count GPUs used of $(timeout 10 nvidia-smi --list-gpus | wc -l)"
  timeout 10 nvidia-smi --query-gpu=name,driver_version,persistence_mode --format=csv,noheader
  step 10 machine.txt nvidia-smi topo -m
  step 10 machine.txt lscpu
  step 10 machine.txt "$PYTHON" -m collbench doctor
  # A first command, so that the kernels are in the driver's cache.
  step 20 first.txt "$PYTHON" -m collbench check --map-p2p --devices "$all"
  # Two kinds of runs of the map: the plain ones give the whole time, the others the steps.
  step 45 map.txt "$PYTHON" benchmarks/map_time.py --gpus "$counts" --repeats 2 --only map
  step 45 map-steps.txt "$PYTHON" benchmarks/map_time.py --gpus "$counts" --repeats 2 --only map --steps "$steps"
  step 20 driver-calls.txt "$PYTHON" benchmarks/driver_calls.py --gpus "$counts" --repeats 2
  step 20 p2p-disabled.txt env NCCL_P2P_DISABLE=1 "$PYTHON" -m collbench check --map-p2p --devices "$all"
  # One GPU with 3 GiB left: the filler ends itself after 40 s.
  timeout -k 3 40 "$PYTHON" -c "import torch, time
held = torch.empty(torch.cuda.mem_get_info($last)[0] - 3 * 2**30, dtype=torch.uint8, device='cuda:$last')
print('ready', flush=True); time.sleep(60)" > "$OUT/filler.txt" 2>&1 < /dev/null &
  filler=$!
  for _ in $(seq 60); do grep -q ready "$OUT/filler.txt" && break; kill -0 "$filler" 2> /dev/null || break; sleep 0.25; done
  step 25 filled.txt "$PYTHON" -m collbench check --map-p2p --devices "$all"
  kill "$filler" 2> /dev/null
  for _ in $(seq 20); do kill -0 "$filler" 2> /dev/null || break; sleep 0.25; done
  # check with and without the map, in turn.
  step 40 check-2.txt "$PYTHON" benchmarks/map_time.py --gpus 2 --repeats 1 --only check --without --steps "$steps"
  step 60 check-$count.txt "$PYTHON" benchmarks/map_time.py --gpus "$count" --repeats 1 --only check --without --steps "$steps"
  step 20 pairs.txt "$PYTHON" -m collbench pairs --devices "$all" -o "$OUT/pairs.json"
  step 20 select.txt "$PYTHON" -m collbench select 2
  step 15 quick.txt "$PYTHON" -m collbench check --quick --expect "$count" --devices "$all" -o "$OUT/quick.json"
  echo "done after $SECONDS s"
} 2>&1 | tee "$OUT/log.txt"
rm -rf "$OUT/.state"
