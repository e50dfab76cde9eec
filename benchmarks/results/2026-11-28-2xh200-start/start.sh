#!/bin/bash
# Run in the repository root on a machine with 2 or 4 GPUs, collbench installed: from start to prompt of `pairs` and
# `check`, the commit in .whl/old.tar beside this one in turn; where each tenth goes (stamps of both processes); how long
# processes take to leave their GPUs, by four endings; launch loops on windows by three builds. Writes under $OUT, ~220 s.
# Each step has its own timeout; none begins after LIMIT s. Nothing waits for a process without a limit.
OUT=$(realpath -m "${OUT:-out}"); mkdir -p "$OUT"; LIMIT=${LIMIT:-330}; SECONDS=0
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1 PYTHONUNBUFFERED=1 NO_COLOR=1 COLUMNS=200 OPENBLAS_NUM_THREADS=1 XDG_STATE_HOME=/tmp/fast-state
unset NCCL_DEBUG
PYTHON=${PYTHON:-python3}; work=$(mktemp -d /tmp/fast.XXXXXX); new="${PYTHONPATH:-}"
build() { # build NAME FOLDER: install FOLDER to $work/NAME
  local begin=$EPOCHREALTIME status=0
  (cd "$2" && PYTHONPATH="$new" timeout -k 3 150 "$PYTHON" -m pip install -q --no-build-isolation --no-deps --no-index --target "$work/$1" .) > "$OUT/build-$1.txt" 2>&1 < /dev/null || status=$?
  awk -v a="$begin" -v b="$EPOCHREALTIME" -v s="$status" -v c="$1" 'BEGIN { printf "%6.2f s, status %d: build %s\n", b - a, s, c }'
  return $status
}
t() { # t NAME SECONDS FILE COMMAND…: collbench of NAME (new, old or a build); its output to FILE, wall time to walls.txt
  local name=$1 limit=$2 file=$3; shift 3
  if [ "$SECONDS" -gt "$LIMIT" ]; then echo "skipped after $SECONDS s: $name $*"; return; fi
  local path="$new"; [ "$name" != new ] && path="$work/$name:$new"
  local begin=$EPOCHREALTIME status=0
  (cd "$work" && PYTHONPATH="${STAMPS:+$work/prof:}$path" timeout -k 3 "$limit" "$PYTHON" -m collbench "$@") > "$OUT/$file" 2>&1 < /dev/null || status=$?
  local end=$EPOCHREALTIME
  awk -v n="$name" -v a="$begin" -v b="$end" -v s="$status" -v c="$*" 'BEGIN { printf "%s %.3f s, status %d: %s\n", n, b - a, s, c }' | tee -a "$OUT/walls.txt"
  [ -n "${STAMPS:-}" ] && timeout 10 "$PYTHON" "$work/sum.py" "$STAMPS" "$begin" "$end" > "$STAMPS.txt"
}
stamped() { # stamped NAME NUMBER COMMAND…: with stamps of both processes
  local name=$1 number=$2; shift 2
  export STAMPS="$OUT/stamps-$name-$1-$number"; mkdir -p "$STAMPS"
  t "$name" 30 "stamped-$name-$1-$number.txt" "$@"; unset STAMPS
}
mkdir -p "$work/prof"
cat > "$work/prof/sitecustomize.py" <<'PYTHON'
"""Stamps of a collbench command: each process writes "begin end thread name" lines, CLOCK_MONOTONIC, to $STAMPS/PID."""
import os, sys, time
if os.environ.get("STAMPS"):
    import importlib.util, threading
    _clock = time.monotonic; _cpu = time.thread_time
    _out = os.open(os.path.join(os.environ["STAMPS"], str(os.getpid())), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    def put(begin, end, name, cpu=None):
        own = "" if threading.current_thread() is threading.main_thread() else "~"
        os.write(_out, f"{begin:.6f} {end:.6f} {_cpu():.6f} {_cpu() - cpu if cpu is not None else 0:.6f} {own}{name}\n".encode())
    def timed(owner, name, label=None):
        if not hasattr(owner, name): return
        raw = owner.__dict__.get(name) if isinstance(owner, type) else None
        function = getattr(owner, name)
        if isinstance(raw, property):
            setattr(owner, name, property(wrapper(raw.fget, label or name))); return
        setattr(owner, name, wrapper(function, label or name))
    def wrapper(function, label):
        def call(*a, **k):
            begin, cpu = _clock(), _cpu()
            try: return function(*a, **k)
            finally: put(begin, _clock(), label(*a) if callable(label) else label, cpu)
        return call
    def step_of(_, step, *more):
        size = step.size_bytes
        return f"time {step.work} {'<64K' if size < 65536 else '<16M' if size < 2**24 else '16M..'}"
    B = "collbench.measurement.backends."
    TABLE = {
        B + "cuda": [("CudaBackend", "__init__", "open"), ("CudaBackend", "prepare"), ("CudaBackend", "reserve"),
            ("CudaBackend", "time", step_of), ("CudaBackend", "can_run"), (None, "list_gpus")],
        B + "isolated": [("Supervised", "start", "start worker"), ("Supervised", "facts", "wait for facts"),
            ("Supervised", "_exchange", lambda s, call: "exchange " + call.method), ("Supervised", "answer"),
            ("Supervised", "reap")],
        B + "factory": [(None, "_open_cuda"), (None, "begin"), ("ObservedGpus", "__init__", "observed"), ("ObservedGpus", "health"), (None, "here"), ("NVML", "x")],
        "collbench.machine.health": [("HealthWatch", "_look", "glance")],
        "collbench.machine.nvml": [("Nvml", "__enter__", "NVML starts"), ("Nvml", "__exit__", "NVML ends"), ("Nvml", "devices", "NVML devices"), ("Nvml", "paths", "NVML paths")],
        "collbench.machine.nvidia_smi": [("LiveTools", "__init__", "nvidia-smi starts"), ("LiveTools", "with_reports", "nvidia-smi waited"), ("LiveTools", "close", "nvidia-smi close")],
        "collbench.measurement.sweep": [("Trials", "_record_outcome", "record"), ("Trials", "_drop_settled"), ("Trials", "_require_deciding"), ("Trials", "make", "trials"), (None, "note_noise"), (None, "warm_up"), (None, "marked"), (None, "check_interference")],
        "collbench.measurement.plan": [("Plan", "passes"), (None, "make_plan")],
        "collbench.measurement.confirm": [(None, "confirm")],
        "collbench.measurement.session": [("Session", "__init__", "open session"), ("Session", "measure"), (None, "sweep")],
        "collbench.runfile.run_file": [("RunWriter", "keep"), ("RunWriter", "end", "writer end"), (None, "dumps"), (None, "loads")],
        "collbench.runfile.atomic_write": [(None, "write", "write file"), (None, "check", "check file")],
        "collbench.cli.measuring": [("RunPrinter", "show", "print page"), (None, "leave_with"), (None, "_judged"), (None, "measured"), (None, "new_file")],
        "collbench.api.measuring": [("RequestSession", "close", "session close"), ("RequestSession", "__init__", "session open")],
        "collbench.measurement.peer_map": [(None, "examine", "map of P2P")],
    }
    put(0 + _clock(), _clock(), "python runs")
    class Hook:
        def find_spec(self, name, path, target=None):
            if name not in TABLE: return None
            sys.meta_path.remove(self)
            try: spec = importlib.util.find_spec(name)
            finally: sys.meta_path.insert(0, self)
            load = spec.loader.exec_module
            def exec_module(module):
                begin, cpu = _clock(), _cpu(); load(module); put(begin, _clock(), "import " + name, cpu)
                for owner, function, *label in TABLE[name]:
                    target = module if owner is None else getattr(module, owner, None)
                    if target is not None: timed(target, function, *label)
            spec.loader.exec_module = exec_module
            return spec
    sys.meta_path.insert(0, Hook())
    from multiprocessing import connection
    timed(connection.Connection, "recv")
    timed(connection.Connection, "send")
    import atexit
    atexit.register(lambda: put(_clock(), _clock(), "atexit"))
PYTHON
cat > "$work/sum.py" <<'PYTHON'
import json,os,sys
import time
d=sys.argv[1]; shift=time.time()-time.monotonic(); a,b=(float(x)-shift for x in sys.argv[2:4])
for f in sorted(os.listdir(d),key=lambda f:open(d+'/'+f).readline()):
    rows=[l.split(' ',4) for l in open(d+'/'+f).read().splitlines()]
    rows=sorted((float(x)-a,float(y)-a,float(c),float(o),n) for x,y,c,o,n in rows)
    print('==',f,len(rows),'begins %.3f last %.3f'%(rows[0][0],max(r[1] for r in rows)),'prompt %.3f'%(b-a))
    agg={}
    for x,y,c,o,n in rows:
        k=n
        t=agg.setdefault(k,[0,0.0,x,y,0.0,c]); t[0]+=1; t[1]+=y-x; t[4]+=o; t[5]=max(t[5],c); t[2]=min(t[2],x); t[3]=max(t[3],y)
    for k,(c,s,x,y,o,q) in sorted(agg.items(),key=lambda i:i[1][2]): print('   %-44s %5d %7.3f s  from %.3f to %.3f  cpu %.3f until %.3f'%(k[:44],c,s,x,y,o,q))
PYTHON
cat > "$work/leaving.py" <<'PYTHON'
"""How long a process takes to be gone from N GPUs, with contexts, peer access and 3 GiB on each, by how it ends."""
import ctypes, os, signal, subprocess, sys, time
from concurrent.futures import ThreadPoolExecutor
from statistics import median

def opened(gpus):
    cuda = ctypes.CDLL("libcuda.so.1")
    def ok(error):
        if error: raise SystemExit(f"error {error}")
    ok(cuda.cuInit(0))
    devices = [ctypes.c_int(i) for i in range(gpus)]; contexts = [ctypes.c_void_p() for _ in devices]; memory = []
    def open_one(i):
        ok(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(contexts[i]), devices[i])); ok(cuda.cuCtxSetCurrent(contexts[i]))
        for _ in range(3):
            at = ctypes.c_uint64(); ok(cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(2**30))); memory.append((i, at))
    with ThreadPoolExecutor(gpus) as threads: list(threads.map(open_one, range(gpus)))
    for i in range(gpus):
        ok(cuda.cuCtxSetCurrent(contexts[i]))
        for j in range(gpus):
            if i != j: cuda.cuCtxEnablePeerAccess(contexts[j], 0)
    return cuda, devices, contexts, memory

def child(gpus, how):
    cuda, devices, contexts, memory = opened(gpus)
    print("open", flush=True); sys.stdin.readline()
    def reset(i): cuda.cuDevicePrimaryCtxReset_v2(devices[i])
    def free(i):
        cuda.cuCtxSetCurrent(contexts[i])
        for owner, at in memory:
            if owner == i: cuda.cuMemFree_v2(at)
    if how == "reset at once, _exit":
        with ThreadPoolExecutor(gpus) as threads: list(threads.map(reset, range(gpus)))
    if how == "free, _exit":
        with ThreadPoolExecutor(gpus) as threads: list(threads.map(free, range(gpus)))
    if how == "SIGKILL": time.sleep(60)
    os._exit(0)

def main(gpus):
    for how in ("SIGKILL", "_exit", "free, _exit", "reset at once, _exit"):
        seconds = []
        for _ in range(3):
            with subprocess.Popen([sys.executable, __file__, str(gpus), how], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as one:
                if one.stdout.readline() != "open\n": print("failed", how); return
                begin = time.monotonic()
                if how == "SIGKILL": one.kill()
                else: one.stdin.write("\n"); one.stdin.flush()
                try: one.wait(10)
                except subprocess.TimeoutExpired: one.kill()
                seconds.append(time.monotonic() - begin)
        print(f"{gpus} GPUs, {how}: {', '.join(f'{s:.3f}' for s in seconds)} s, median {median(seconds):.3f}", flush=True)

if len(sys.argv) > 2: child(int(sys.argv[1]), sys.argv[2])
else: main(int(sys.argv[1]))
PYTHON
cat > "$work/table.py" <<'PYTHON'
"""Medians and ranges of wall times and phases, old beside new; launch loop and graph of windows by build."""
import collections, glob, json, os, re, sys
from statistics import median
out = sys.argv[1]
walls = collections.defaultdict(list)
for line in open(os.path.join(out, "walls.txt")):
    m = re.match(r"(\w+) ([\d.]+) s, status (\d+): (.*)", line)
    if m and m[3] in "03": walls[re.sub(r" -o \S+", "", m[4]), m[1]].append(float(m[2]))
def span(v): return f"median {median(v):.3f} ({min(v):.3f} to {max(v):.3f}), n {len(v)}"
print("== start to prompt, s (statuses 0 and 3; with the stamped runs and the first ones)")
for (command, name), seconds in sorted(walls.items()): print(f"{command:60s} {name:8s} {span(seconds)}")
print("== from the run files, s")
for kind in ("pairs", "check", "all"):
    for name in ("old", "new"):
        runs = [json.load(open(f)) for f in sorted(glob.glob(os.path.join(out, f"{kind}-{name}-*.json")))]
        if not runs: continue
        print(f"{kind} {name}: measuring {span([r['seconds'] for r in runs])}; trials {[sum(len(m['samples']) for m in r['measurements']) for r in runs]}")
        for phase in dict.fromkeys(p for r in runs for p in r["phases"]):
            print(f"    {phase:20s} {span([r['phases'].get(phase, 0) for r in runs])}")
        rates = collections.defaultdict(list)
        for r in runs:
            for m in r["measurements"]:
                p = m["point"]
                if p["size_bytes"] == max(q["point"]["size_bytes"] for q in r["measurements"] if q["point"]["operation"] == p["operation"]) and m["samples"] and not p.get("numa_node"):
                    rates[p["operation"], p["variant"], tuple(p["members"]), p["size_bytes"]].append(median(median(s["seconds"]) for s in m["samples"]))
        for key, seconds in sorted(rates.items(), key=str): print(f"    {' '.join(map(str, key)):58s} µs {1e6 * median(seconds):10.2f} ({1e6 * min(seconds):.2f} to {1e6 * max(seconds):.2f})")
print("== all-reduce, µs: launch loop, graph, launch over graph")
for name in ("windows-new", "windows-one", "windows-swapped", "plain-new"):
    found = collections.defaultdict(list)
    for f in sorted(glob.glob(os.path.join(out, f"{name}-?.json"))):
        for m in json.load(open(f))["measurements"]:
            loops = [s["launch_seconds"] for s in m["samples"] if s["launch_seconds"]]
            if loops: found[m["point"]["size_bytes"]].append((median(loops), median(median(s["seconds"]) for s in m["samples"])))
    for size, both in sorted(found.items()):
        a, b = (1e6 * median(x) for x in zip(*both))
        print(f"{name:16s} {size >> 20:5d}M  {a:10.2f} {b:10.2f}  {', '.join(f'{x / y:.4f}' for x, y in both)}")
PYTHON
{
  echo "new $(git rev-parse HEAD 2> /dev/null), old 020fc5a1, $(date -u +%FT%TZ), $(nproc) cores, load $(cut -d' ' -f1 /proc/loadavg)"
  timeout 10 nvidia-smi --query-gpu=name,driver_version,persistence_mode --format=csv,noheader
  count=$(timeout 10 nvidia-smi --list-gpus | wc -l); last=$((count - 1)); two=0,1; all=$(seq -s, 0 "$last")
  mkdir "$work/old-tree" && tar xf .whl/old.tar -C "$work/old-tree"
  build old "$work/old-tree"
  # First commands, so that the kernels are in the driver's cache and all files in memory.
  for name in new old; do t $name 30 "first-$name.txt" pairs --devices $two; done
  for i in 1 2 3 4 5 6 7 8 9 10; do
    for name in $( ((i % 2)) && echo old new || echo new old); do t $name 20 "pairs-$name-$i.txt" pairs --devices $two -o "$OUT/pairs-$name-$i.json" --verbose; done
  done
  for i in 1 2 3; do
    for name in $( ((i % 2)) && echo old new || echo new old); do t $name 25 "check-$name-$i.txt" check --devices $two -o "$OUT/check-$name-$i.json" --verbose; done
  done
  for i in 1 2; do for name in old new; do stamped $name $i pairs --devices $two; done; done
  for name in old new; do stamped $name 1 check --devices $two; done
  for i in 1 2; do for name in old new; do t $name 20 "quick-$name-$i.txt" check --devices $two --quick; done; done
  [ "$count" -gt 2 ] && for i in 1 2; do for name in old new; do t $name 30 "all-$name-$i.txt" pairs --devices "$all" -o "$OUT/all-$name-$i.json"; done; done
  if [ "$SECONDS" -lt "$LIMIT" ]; then
    echo "== leaving"; for n in 2 $( ((count > 2)) && echo "$count"); do timeout -k 3 40 "$PYTHON" "$work/leaving.py" "$n" 2>&1 | tee -a "$OUT/leaving.txt"; done
  fi
  # Launch loops on windows. `one`: on the communicators of the graphs. `swapped`: the launches' windows are made first.
  if [ "$SECONDS" -lt $((LIMIT - 40)) ]; then
    for name in one swapped; do mkdir "$work/$name-tree"; cp -r csrc setup.py pyproject.toml README.md LICENSE MANIFEST.in src "$work/$name-tree"; done
    sed -i '/for_launches(const Group& group) const/s/for_launches_\.at/made_.at/' "$work/one-tree/csrc/communicators.hpp"
    python3 - "$work/swapped-tree/csrc/collective_timer.cpp" <<'P'
import sys
path = sys.argv[1]; text = open(path).read()
lines = [f"  session_.registered.prepare(round_.registration, {which}, round_.deadline);\n" for which in ("captured", "launched")]
assert "".join(lines) in text
open(path, "w").write(text.replace("".join(lines), "".join(reversed(lines))))
P
    cmp -s csrc/communicators.hpp "$work/one-tree/csrc/communicators.hpp" && echo "one: not patched"
    build one "$work/one-tree"; build swapped "$work/swapped-tree"
    for i in 1 2 3; do
      for name in new one swapped; do t $name 25 "windows-$name-$i.txt" allreduce --devices $two --sizes 64M,256M,1G --registration window -o "$OUT/windows-$name-$i.json"; done
      t new 25 "plain-new-$i.txt" allreduce --devices $two --sizes 64M,256M,1G -o "$OUT/plain-new-$i.json"
    done
  fi
  timeout 30 "$PYTHON" "$work/table.py" "$OUT" | tee "$OUT/table.txt"
  (cd "$OUT" && tar czf raw.tgz --remove-files -- *.json stamps-*/ 2> /dev/null)
  echo "done after $SECONDS s"
} 2>&1 | tee "$OUT/log.txt"
rm -rf "$work"
