#!/bin/bash
# Run where collbench is installed, on 2 GPUs (more work, too), about 50 s. Answers: from the start of `collbench pairs` and
# `collbench check --quick` to the prompt, which part takes how long, in both processes, side by side. Works on code of
# before and after branch native's start-up commits: run it on both builds on the same machine. Nothing of it is in the
# product: a sitecustomize on PYTHONPATH wraps functions as their modules are loaded and appends stamps to a file.
#   PYTHON=/path/to/python bash native-startup.sh
export PYTHONUNBUFFERED=1 NO_COLOR=1
PYTHON=${PYTHON:-python3}
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
cat > "$folder/sitecustomize.py" <<'PY'
import os, sys, time
STAMPS = os.environ.get("STAMPS")
if STAMPS:
    now = lambda: time.clock_gettime(time.CLOCK_BOOTTIME)
    fd = os.open(STAMPS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    def stamp(begin, end, name):
        os.write(fd, f"{os.getpid()} {begin:.5f} {end:.5f} {name}\n".encode())
    with open("/proc/self/stat") as stat:
        started = int(stat.read().rsplit(")", 1)[1].split()[19]) / os.sysconf("SC_CLK_TCK")
    stamp(started, now(), "python starts: " + " ".join(sys.orig_argv[1:4])[:60])
    WRAP = {
        "collbench._native": ["list_gpus", "Gpus", "Nccl", "Collectives"],
        "collbench.backends.cuda": ["list_gpus", "CudaBackend.__init__", "CudaBackend.reserve", "CudaBackend.prepare"],
        "collbench.machine.nccl": ["find_nccl"],
        "collbench.backends.factory": ["begin", "_open_cuda", "here", "ObservedGpus.__init__", "choose_devices"],
        "collbench.machine.nvidia_smi": ["LiveTools.__init__", "LiveTools.with_reports"],
        "collbench.machine.nvml": ["Nvml.__init__", "Nvml.__enter__", "Nvml.devices", "Nvml.paths", "Nvml.health"],
        "collbench.backends.isolated": ["IsolatedBackend.list_gpus", "IsolatedBackend.open", "Supervised.facts",
            "IsolatedBackend.reserve", "IsolatedBackend.prepare", "IsolatedBackend.ready", "IsolatedBackend.reap"],
        "collbench.bench.session": ["Session.__init__", "Session.measure", "make_plan", "empty_run", "sweep", "confirm"],
        "collbench.bench.sweep": ["warm_up"],
        "collbench.output.text.measured": ["show", "page", "render"],
        "collbench.cli.measuring": ["RunPrinter.show"],
    }
    # The names of modules before and after they moved.
    for old, new in (("collbench.backends.", "collbench.measurement.backends."), ("collbench.bench.", "collbench.measurement."),
                     ("collbench.output.", "collbench.report.")):
        WRAP |= {module.replace(old, new): functions for module, functions in WRAP.items() if module.startswith(old)}
    def timed(function, name):
        def call(*arguments, **keywords):
            begin = now()
            try:
                return function(*arguments, **keywords)
            finally:
                if now() - begin > 0.001: stamp(begin, now(), name)
        return call
    def wrap(module):
        for path in WRAP.get(module.__name__, ()):
            owner, names = module, path.split(".")
            for part in names[:-1]: owner = getattr(owner, part, None)
            found = getattr(owner, names[-1], None) if owner is not None else None
            if callable(found): setattr(owner, names[-1], timed(found, f"{module.__name__.removeprefix('collbench.')}.{path}"))
    import importlib.machinery
    class Finder:
        def find_spec(self, name, path=None, target=None):
            if not name.startswith(("collbench", "numpy", "rich", "scipy")): return None
            spec = importlib.machinery.PathFinder.find_spec(name, path, target)
            if spec is None or spec.loader is None: return spec
            load = spec.loader.exec_module
            def exec_module(module):
                begin = now(); load(module)
                if now() - begin > 0.02: stamp(begin, now(), f"import {name} (with all that it imports)")
                wrap(module)
            spec.loader.exec_module = exec_module
            return spec
    sys.meta_path.insert(0, Finder())
    import atexit
    atexit.register(lambda: stamp(now(), now(), "python leaves"))
PY
cat > "$folder/table.py" <<'PY'
import sys
rows = [line.rstrip("\n").split(" ", 3) for line in open(sys.argv[1])]
prompt = float(sys.argv[2])
zero = min(float(row[1]) for row in rows)
first = rows[0][0]
print(f"    from   to     lasts  process  ({sys.argv[3]}: {prompt - zero:.2f} s to the prompt)")
for pid, begin, end, name in sorted(rows, key=lambda row: (float(row[1]), -float(row[2]))):
    begin, end = float(begin) - zero, float(end) - zero
    print(f"    {begin:5.2f}  {end:5.2f}  {end - begin:5.2f}  {'parent' if pid == first else 'worker'}   {name}")
PY
boot() { "$PYTHON" -c "import time; print(time.clock_gettime(time.CLOCK_BOOTTIME))"; }
cd "$folder" || exit 1
for command in "pairs" "check --quick"; do
  echo "== collbench $command: three runs without stamps, seconds to the prompt"
  for run in 1 2 3; do
    begin=$(date +%s.%N); timeout 20 "$PYTHON" -m collbench $command > page.txt 2> errors.txt; status=$?
    "$PYTHON" -c "print(f'    {$(date +%s.%N) - $begin:.2f} s, status $status')"
  done
  head -2 page.txt | cut -c1-100 | sed 's/^/    /'; head -2 errors.txt | sed 's/^/    /'
  rm -f stamps.txt
  STAMPS="$folder/stamps.txt" PYTHONPATH="$folder${PYTHONPATH:+:$PYTHONPATH}" timeout 20 "$PYTHON" -m collbench $command > /dev/null 2>&1
  timeout 10 "$PYTHON" table.py stamps.txt "$(boot)" "$command"
done
echo "== alone: nvidia-smi topo -m, and what each process imports (self ms, cumulative ms)"
( time timeout 10 nvidia-smi topo -m > /dev/null ) 2>&1 | grep real
if "$PYTHON" -c "import collbench.measurement" 2> /dev/null; then M=collbench.measurement; B=$M.backends; R=collbench.report
else M=collbench.bench; B=collbench.backends; R=collbench.output; fi
for modules in "$B.worker, $B.cuda" "collbench.cli.program, collbench.api.measuring, $M.session, $R.text.measured"; do
  echo "  import $modules"
  timeout 20 "$PYTHON" -X importtime -c "import $modules" 2>&1 >/dev/null | sed 's/import time://' |
    awk -F'|' '$2 > 8000 {printf "    %6.1f %6.1f %s\n", $1 / 1000, $2 / 1000, $3}' | sort -k2 -n -r | head -14
done
