set -u
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1 PYTHONUNBUFFERED=1 OPENBLAS_NUM_THREADS=1
part=$1; repo=$PWD
exec > $OUT/session-$part.log 2>&1
date -u
export PYTHONPATH=/tmp/site PATH=/tmp/site/bin:$PATH
now() { date +%s.%N; }
if [ $part = 1 ]; then
nvidia-smi -L; nvidia-smi --query-gpu=driver_version,name --format=csv,noheader; nproc
pip install -q --no-index --no-deps --target /tmp/site .whl/*.whl 2>/dev/null
mkdir -p /tmp/peers; tar xzf .whl/peers.tgz -C /tmp/peers
nccl=$(python3 -c "import nvidia.nccl as n; print(list(n.__path__)[0])"); mkdir -p /tmp/nccl/lib; ln -s $nccl/include /tmp/nccl/include; ln -s $nccl/lib/libnccl.so.2 /tmp/nccl/lib/libnccl.so.2; ln -s $nccl/lib/libnccl.so.2 /tmp/nccl/lib/libnccl.so
(cd /tmp/peers/nccl-tests && timeout 240 make -s -j 26 NCCL_HOME=/tmp/nccl NVCC_GENCODE="-gencode=arch=compute_90,code=sm_90" > /tmp/nt.log 2>&1; echo "nccl-tests $? $(date -u)"; tail -2 /tmp/nt.log) & nt=$!
timeout 150 python3 -m pip install -q --no-build-isolation --no-deps --no-index . 2>/dev/null; echo "install $? $(date -u)"
mkdir -p /tmp/work /tmp/runs; cp -r csrc setup.py tests benchmarks docs examples pyproject.toml Makefile README.md /tmp/work
wait $nt; cd /tmp/runs
w() { s=$(now); timeout 60 python3 -m collbench "$@" > out.txt 2>&1; r=$?; python3 -c "import sys; print('%-40s %.2f s  status %s' % (' '.join(sys.argv[3:]), float(sys.argv[2])-float(sys.argv[1]), $r))" $s $(now) "$@"; }
for i in $(seq 20); do w pairs -o pairs-$i.json; done; cat out.txt; tar czf $OUT/pairs.tgz pairs-*.json
for i in 1 2 3 4 5; do w check; done; cp out.txt check.txt; cat out.txt; for i in 1 2 3; do w check --quick; done; w check --map-p2p; cat out.txt
timeout 60 python3 -m collbench latency --collectives --layers 32 -o $OUT/latency-collectives.json; echo "latency $?"; date -u
export LD_LIBRARY_PATH=/tmp/nccl/lib:${LD_LIBRARY_PATH:-}; cd /tmp/work
timeout 230 python3 benchmarks/versus_peers.py --nccl-tests /tmp/peers/nccl-tests/build --out /tmp/vp --repeats 3 --part collectives registration skew; echo "versus $?"; date -u
cp /tmp/vp/versus_peers.txt $OUT/; tar czf $OUT/peers-raw.tgz -C /tmp/vp raw
timeout $((575-SECONDS)) python3 -m pytest -q tests/gpu/test_single_launches.py tests/gpu/test_small_allreduces.py tests/gpu/test_registration.py tests/gpu/test_copies.py tests/gpu/test_peer_map.py tests/gpu/test_collectives.py tests/gpu/test_module.py tests/gpu/test_nvml_memory.py tests/gpu/test_stale_nccl.py tests/gpu/test_faults.py 2>&1 | tail -12; date -u
else
cd /tmp/work; mkdir -p /tmp/sims
(setsid nice -n 15 timeout 330 python3 benchmarks/verdicts.py --jobs 22 --seed 3302 --part healthy --machines 500 > /tmp/sims/healthy.txt 2>&1 < /dev/null &)
(timeout 355 python3 -m pytest -q tests/gpu/test_recording.py > $OUT/gpu-recording.txt 2>&1; echo "recording $?" ) & a=$!
timeout 190 python3 -m pytest -q tests/gpu/test_world.py tests/gpu/test_verification.py > $OUT/gpu-world.txt 2>&1; echo "world $?"; date -u
timeout $((355-SECONDS)) python3 -m pytest -q tests/gpu/test_overlap.py tests/gpu/test_replay.py > $OUT/gpu-overlap.txt 2>&1; echo "overlap $?"; date -u
wait $a; tail -4 $OUT/gpu-*.txt; cp /tmp/sims/healthy.txt $OUT; cat /tmp/sims/healthy.txt
fi
date -u
