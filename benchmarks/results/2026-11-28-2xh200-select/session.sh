set -u
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1 PYTHONUNBUFFERED=1 OPENBLAS_NUM_THREADS=1
limit=${1:-450}; whole=${2:-1}
exec > $OUT/session.log 2>&1
date -u
export PYTHONPATH=/tmp/site PATH=/tmp/site/bin:$PATH
now() { date +%s.%N; }
nvidia-smi -L; nvidia-smi --query-gpu=driver_version,name --format=csv,noheader; nproc
pip install -q --no-index --no-deps --no-compile --target /tmp/site .whl/*.whl 2>/dev/null
timeout 150 python3 -m pip install -q --no-build-isolation --no-deps --no-index . 2>/dev/null; echo "install $? $(date -u)"
mkdir -p /tmp/work /tmp/runs; cp -r csrc setup.py tests benchmarks docs examples pyproject.toml Makefile README.md .whl /tmp/work
cd /tmp/runs
t() { s=$(now); timeout 60 python3 -m collbench "$@" > out.txt 2>&1; r=$?; e=$(now); echo "== $* status $r $(python3 -c "print(round($e-$s,3))") s"; }
t select 2 --verbose; cat out.txt
t select 2 --fresh --verbose; cat out.txt
t select 1; cat out.txt
t pairs -o pairs-1.json || exit 1; cat out.txt
t select 2 --json; cat out.txt
cat > job.py <<'P'
import os, torch, torch.distributed as dist
r = int(os.environ["LOCAL_RANK"]); torch.cuda.set_device(r); dist.init_process_group("nccl")
x = torch.ones(2**24, device="cuda")
for _ in range(20): dist.all_reduce(x)
torch.cuda.synchronize()
if r == 0: print("devices", os.environ.get("CUDA_VISIBLE_DEVICES"), torch.cuda.device_count())
dist.destroy_process_group()
P
t train --auto-select 2 job.py; cat out.txt
cd /tmp/work
if [ $whole = 1 ]; then timeout -s INT $((limit-SECONDS-10)) python3 -m pytest -v tests/gpu --durations 30 > $OUT/gpu.txt 2>&1; echo "tests/gpu $?"; date -u; tail -50 $OUT/gpu.txt; fi
cd /tmp/runs
for i in 2 3 4 5 6; do [ $((limit-SECONDS)) -gt 15 ] && t pairs -o pairs-$i.json; done
if [ $((limit-SECONDS)) -gt 20 ]; then t check -o check.json; cat out.txt; t check --quick; fi
for i in pairs-*.json check.json; do python3 -c "import json,sys;d=json.load(open(sys.argv[1]));print(sys.argv[1],d['seconds'],d['phases'])" $i; done
tar czf $OUT/raw.tgz *.json
cd /tmp/work; export PYTHONPATH=/tmp/work:/tmp/site
date -u
if [ $((limit-SECONDS)) -gt 30 ]; then timeout $((limit-SECONDS-5)) python3 benchmarks/choosing.py --machines 160 --seed 4101 --jobs $(nproc) --family cube quads bridges numa switch --out $OUT/choosing.csv > $OUT/choosing.txt; echo "choosing $?"; date -u; fi
if [ $((limit-SECONDS)) -gt 40 ]; then timeout $((limit-SECONDS-5)) python3 benchmarks/leaves.py --seed 2801 --runs 432 --jobs $(nproc) --cell "healthy, equal leaves, 1.5" --out $OUT/leaves.csv > $OUT/leaves.txt; echo "leaves $?"; date -u; fi
