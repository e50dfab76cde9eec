#!/bin/bash
# Run where collbench is installed, on 2 GPUs. Answers: (1) the map of a healthy machine, how long it takes, and whether
# the parsed NCCL log lines name a transport; (2) with NCCL_P2P_DISABLE=1: the answer and the cause; (3) with a worker
# stopped (SIGSTOP) mid-way: the hang is named with its link and the rest goes on (if it says "all GPUs in one
# process", it was stopped while opening: STOP_AFTER=6; if everything works, it was too late: STOP_AFTER=3); (4) with a GPU that is nearly full: smaller messages
# or a named failure, no crash. Takes 60 to 90 s.
PYTHON=${PYTHON:-python3}
MAP="$PYTHON -m collbench check --map-p2p"
part() { echo; echo "=== $1 $(date -u +%T)"; }
part "healthy"
time timeout 25 $MAP; echo "status $?"
part "healthy again, as JSON: transports, seconds, messages that are not 'works'"
timeout 25 $MAP --json | $PYTHON -c '
import json, sys
a = json.load(sys.stdin)
print(a["seconds"], [l["nccl"] for l in a["links"]], [l["nvidia_smi"] for l in a["links"]][:1], [l["nvml"] for l in a["links"]][:1])
print([m for l in a["links"] for m in l["messages"] if m["state"] != "works"], a["causes"], a["nccl_failure"])'
part "NCCL_P2P_DISABLE=1"
NCCL_P2P_DISABLE=1 timeout 25 $MAP | grep -v "^$"; echo "status ${PIPESTATUS[0]}"
part "a worker that is stopped while it sends messages: small ones, many, so that it takes seconds"
timeout 60 $PYTHON -c '
import runpy, sys
import collbench.measurement.peer_map as m
m.SIZES, m._BATCHES = (4096, 8192), 3000
sys.argv = ["collbench", "check", "--map-p2p"]
runpy.run_module("collbench", run_name="__main__", alter_sys=True)' & map=$!
STOP_AFTER=${STOP_AFTER:-4} $PYTHON - $map <<'P'
import os, pathlib, signal, sys, time
map, end = sys.argv[1], time.time() + 20
def children(of):
    try:
        return pathlib.Path(f"/proc/{of}/task/{of}/children").read_text().split()
    except OSError:
        return []
def is_worker(pid):
    try:
        return b"backends.worker" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
while time.time() < end:  # timeout -> collbench -> workers: the first is NCCL's, the second sends
    workers = [pid for program in children(map) for pid in children(program) if is_worker(pid)]
    if len(workers) > 1:
        time.sleep(float(os.environ["STOP_AFTER"]))
        print("stopped", workers[1], is_worker(workers[1]), flush=True)
        os.kill(int(workers[1]), signal.SIGSTOP)
        break
    time.sleep(0.01)
else:
    print("no worker was caught")
P
wait $map; echo "status $?"
part "GPU 1 nearly full"
$PYTHON - <<'P' &
import ctypes, time
cuda = ctypes.CDLL("libcuda.so.1")
context, free, total, memory = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 1) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
left = 900 * 2**20  # beside the contexts of three workers
print("taking", cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(free.value - left)), flush=True)
time.sleep(22)
P
full=$!
sleep 3
timeout 25 $MAP | grep -v "^$"; echo "status ${PIPESTATUS[0]}"
kill $full 2>/dev/null
wait $full 2>/dev/null
part end
