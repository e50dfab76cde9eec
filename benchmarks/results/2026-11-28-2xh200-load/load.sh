#!/bin/bash
# Run in the repository root on a machine with 2 GPUs or more, collbench installed (or PYTHONPATH set): a machine without
# faults must not be said to hang while four spinning processes a core run, each in a session of its own (the harshest
# with autogroups), nor after its processes were stopped for 5 s. Writes under $OUT; about 60 s. Each step has its own
# timeout, none begins after 55 s; the spinners end by themselves after 60 s.
OUT=$(realpath -m "${OUT:-out}"); mkdir -p "$OUT"; SECONDS=0
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1 PYTHONUNBUFFERED=1 NO_COLOR=1 COLUMNS=200 XDG_STATE_HOME="$OUT/.state"
unset NCCL_DEBUG
PYTHON=${PYTHON:-python3}; cores=$(getconf _NPROCESSORS_ONLN)
step() { # step SECONDS FILE COMMAND…: its output goes to FILE, its wall time, status and first line to the log
  local limit=$1 file=$2; shift 2
  if [ "$SECONDS" -gt 55 ]; then echo "skipped after $SECONDS s: $*"; return; fi
  local begin=$EPOCHREALTIME status=0
  timeout -k 3 "$limit" "$@" > "$OUT/$file" 2> "$OUT/$file.err" < /dev/null || status=$?
  awk -v a="$begin" -v b="$EPOCHREALTIME" -v s="$status" -v c="$*" 'BEGIN { printf "%6.2f s, status %d: %s\n", b - a, s, c }'
  head -n 2 "$OUT/$file" | cut -c 1-180
}
# Runs collbench in a group of its own, stops the whole group for 5 s after argv[1] seconds, and lets it go on.
cat > "$OUT/stopped.py" <<'P'
import os, signal, subprocess, sys
after, words = float(sys.argv[1]), sys.argv[2:]
process = subprocess.Popen([sys.executable, "-m", "collbench", *words], start_new_session=True)
for number, seconds in ((signal.SIGSTOP, after), (signal.SIGCONT, 5.0)):
    try:
        process.wait(seconds)
        print("ended before it could be stopped")
        break
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, number)
try:
    sys.exit(process.wait(25))
except subprocess.TimeoutExpired:
    os.killpg(process.pid, signal.SIGKILL)
    sys.exit(99)
P
{
  echo "commit $(git rev-parse HEAD 2> /dev/null), $(date -u +%FT%TZ), $cores cores, autogroup $(cat /proc/sys/kernel/sched_autogroup_enabled 2> /dev/null)"
  timeout 5 nvidia-smi --query-gpu=name,driver_version,persistence_mode --format=csv,noheader | head -2
  step 15 idle-map.txt "$PYTHON" -m collbench check --map-p2p --devices 0,1
  spinners=()
  for _ in $(seq $((4 * cores))); do
    setsid timeout -k 1 60 "$PYTHON" -S -c 'while True: pass' < /dev/null > /dev/null 2>&1 &
    spinners+=($!)
  done
  echo "load of $((4 * cores)) processes begins after $SECONDS s"
  step 20 loaded-map.txt "$PYTHON" -m collbench check --map-p2p --devices 0,1
  step 15 loaded-quick.txt "$PYTHON" -m collbench pairs --quick --devices 0,1
  step 25 loaded-check.txt "$PYTHON" -m collbench check --devices 0,1
  # The same with each process on one core, and all of them on it.
  step 20 one-core-map.txt taskset -c 0 "$PYTHON" -m collbench check --map-p2p --devices 0,1
  for one in "${spinners[@]}"; do kill "$one" 2> /dev/null; done
  wait "${spinners[@]}" 2> /dev/null
  echo "load ends after $SECONDS s"
  step 35 stopped-map.txt "$PYTHON" "$OUT/stopped.py" 1.3 check --map-p2p --devices 0,1
  step 35 stopped-quick.txt "$PYTHON" "$OUT/stopped.py" 1.6 pairs --quick --devices 0,1
  echo "lines with a hang, an answer that did not come, or a busy host (none is right):"
  grep -n -i "hang\|no answer\|busy host\|host was busy\|took more than 4 s" "$OUT"/*.txt "$OUT"/*.err || echo "none"
  echo "done after $SECONDS s"
} 2>&1 | tee "$OUT/log"
rm -rf "$OUT/.state" "$OUT/stopped.py"
