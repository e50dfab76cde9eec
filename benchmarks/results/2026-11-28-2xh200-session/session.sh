set -u
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1 PYTHONUNBUFFERED=1 OPENBLAS_NUM_THREADS=1
limit=${1:-530}
exec > $OUT/session.log 2>&1
date -u
export PYTHONPATH=/tmp/site PATH=/tmp/site/bin:$PATH
now() { date +%s.%N; }
nvidia-smi -L; nvidia-smi --query-gpu=driver_version,name --format=csv,noheader; nproc
pip install -q --no-index --no-deps --no-compile --target /tmp/site .whl/*.whl 2>/dev/null
timeout 150 python3 -m pip install -q --no-build-isolation --no-deps --no-index . 2>/dev/null; echo "install $? $(date -u)"
mkdir -p /tmp/work /tmp/runs /tmp/vt; cp -r csrc setup.py tests benchmarks docs examples pyproject.toml Makefile README.md .whl /tmp/work
cd /tmp/runs
t() { s=$(now); timeout 60 python3 -m collbench "$@" > out.txt 2>&1; r=$?; e=$(now); echo "== $* status $r $(python3 -c "print(round($e-$s,3))") s"; }
t pairs || exit 1; head -4 out.txt
cd /tmp/work
timeout -s INT $((limit-SECONDS-10)) python3 -m pytest -v tests/gpu --durations 30 > $OUT/gpu.txt 2>&1; echo "tests/gpu $?"; date -u
tail -50 $OUT/gpu.txt
cd /tmp/runs
if [ $((limit-SECONDS)) -gt 20 ]; then t pairs; t check; t check --quick; fi
c="copies --patterns both-ways,one-to-all --sizes 64M,512M"
if [ $((limit-SECONDS)) -gt 25 ]; then
for i in 1 2; do t $c -o free-$i.json; export CUDA_DEVICE_MAX_CONNECTIONS=1; t $c -o one-$i.json; unset CUDA_DEVICE_MAX_CONNECTIONS; done; cat out.txt
fi
cd /tmp/work
if [ $((limit-SECONDS)) -gt 40 ]; then timeout $((limit-SECONDS-5)) python3 .whl/versus_torchrun.py $((limit-SECONDS-10)) cuda /tmp/vt 64M,256M; fi
cp /tmp/runs/*.json /tmp/vt 2>/dev/null; tar czf $OUT/raw.tgz -C /tmp/vt .
date -u
