set -u
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1 PYTHONUNBUFFERED=1 OPENBLAS_NUM_THREADS=1
part=$1; WHL=$PWD/.whl
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
mkdir -p /tmp/work /tmp/runs /tmp/sims; cp -r csrc setup.py tests benchmarks docs examples pyproject.toml Makefile README.md /tmp/work
wait $nt; cd /tmp/runs
mkdir -p /tmp/prof; python3 $WHL/prof.py 
p() { rm -f /tmp/prof/log-*; s=$(now); PYTHONPATH=/tmp/prof:/tmp/site timeout 60 python3 -m collbench "$@" > out.txt 2>&1; r=$?; e=$(now); echo "== $* status $r $(python3 -c "print(round($e-$s,3))") s"; python3 $WHL/prof-sum.py $s $e; }
python3 -m collbench pairs > /dev/null 2>&1
p pairs -o pp.json; p pairs -o pp2.json; p check -o c1.json; p check -o c2.json; p check --quick -o c3.json; p check --map-p2p
python3 -c "
import json
for f in ('pp2','c2','c3'): print(f, json.load(open(f+'.json'))['phases'])"
PYTHONPATH=/tmp/site python3 -X importtime -m collbench pairs --help 2>/tmp/imp.txt >/dev/null; sort -t'|' -k2 -n /tmp/imp.txt | tail -12
export LD_LIBRARY_PATH=/tmp/nccl/lib:${LD_LIBRARY_PATH:-}; cd /tmp/work
timeout 250 python3 benchmarks/versus_peers.py --nccl-tests /tmp/peers/nccl-tests/build --out /tmp/vp --repeats 3 --part registration; echo "registration $?"; date -u
timeout $((585-SECONDS)) python3 benchmarks/versus_peers.py --nccl-tests /tmp/peers/nccl-tests/build --out /tmp/vs --repeats 2 --part skew; echo "skew $?"; date -u
cp /tmp/vp/versus_peers.txt $OUT/registration.txt; cp /tmp/vs/versus_peers.txt $OUT/skew.txt; tar czf $OUT/peers-raw.tgz -C /tmp vp/raw vs/raw
cat > /tmp/sims/loop.sh <<'X'
cd /tmp/work; seed=$2
while :; do python3 benchmarks/verdicts.py --jobs $1 --seed $seed --part healthy --machines 400 >> /tmp/sims/healthy-$2.txt 2>&1; seed=$((seed+1)); done
X
setsid nohup nice -n 10 bash /tmp/sims/loop.sh 25 7000 > /tmp/sims/log 2>&1 < /dev/null &
else
cd /tmp/work; limit=${2:-540}
(timeout $((limit-10)) python3 -m pytest -q tests/gpu/test_overlap.py tests/gpu/test_replay.py --durations 5 > $OUT/gpu-overlap.txt 2>&1; echo "overlap $?"; date -u ) & a=$!
timeout $((limit-10)) python3 -m pytest -q tests/gpu --ignore tests/gpu/test_overlap.py --ignore tests/gpu/test_replay.py --ignore tests/gpu/test_shared_gpu.py --durations 15 > $OUT/gpu-rest.txt 2>&1; echo "rest $?"; date -u
wait $a; tail -30 $OUT/gpu-*.txt
while [ $SECONDS -lt $limit ]; do sleep 2; done
cp /tmp/sims/*.txt $OUT/; wc -l /tmp/sims/*; cat /tmp/sims/log
fi
date -u
