set -u
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1 PYTHONUNBUFFERED=1 OPENBLAS_NUM_THREADS=1
limit=${1:-585}
exec > $OUT/session.log 2>&1
date -u
export PYTHONPATH=/tmp/site PATH=/tmp/site/bin:$PATH
now() { date +%s.%N; }
nvidia-smi -L; nvidia-smi --query-gpu=driver_version,name --format=csv,noheader; nproc
pip install -q --no-index --no-deps --target /tmp/site .whl/*.whl 2>/dev/null
timeout 150 python3 -m pip install -q --no-build-isolation --no-deps --no-index . 2>/dev/null; echo "install $? $(date -u)"
mkdir -p /tmp/work /tmp/runs; cp -r csrc setup.py tests benchmarks docs examples pyproject.toml Makefile README.md /tmp/work
cd /tmp/runs
t() { s=$(now); timeout 60 python3 -m collbench "$@" > out.txt 2>&1; r=$?; e=$(now); echo "== $* status $r $(python3 -c "print(round($e-$s,3))") s"; }
t pairs; t pairs; head -12 out.txt; t check; t check; head -14 out.txt; t check --quick; t check --map-p2p; date -u
cd /tmp/work
timeout -s INT $((limit-SECONDS-10)) python3 -m pytest -v tests/gpu --durations 45 > $OUT/gpu.txt 2>&1; echo "tests/gpu $?"; date -u
tail -70 $OUT/gpu.txt
