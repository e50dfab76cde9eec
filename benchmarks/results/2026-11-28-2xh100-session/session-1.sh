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
timeout 150 python3 -m pip install -q --no-build-isolation --no-deps --no-index . 2>/dev/null; echo "install $? $(date -u)"
mkdir -p /tmp/work /tmp/runs /tmp/sims; cp -r csrc setup.py tests benchmarks docs examples pyproject.toml Makefile README.md /tmp/work
cd /tmp/runs
timeout 60 python3 $WHL/pin.py; date -u
mkdir -p /tmp/prof; python3 $WHL/prof.py 
p() { rm -f /tmp/prof/log-*; s=$(now); PYTHONPATH=/tmp/prof:/tmp/site timeout 60 python3 -m collbench "$@" > out.txt 2>&1; r=$?; e=$(now); echo "== $* status $r $(python3 -c "print(round($e-$s,3))") s"; python3 $WHL/prof-sum.py $s $e; }
t() { s=$(now); timeout 60 python3 -m collbench "$@" > out.txt 2>&1; r=$?; e=$(now); echo "== plain $* status $r $(python3 -c "print(round($e-$s,3))") s"; }
t pairs; for i in 1 2 3 4 5; do t pairs; done; t check; t check; t check --quick; t check --quick; t check --map-p2p
p pairs -o pp.json; p pairs -o pp2.json; p check -o c1.json; p check -o c2.json; p check --quick -o c3.json; p check --map-p2p
python3 -c "
import json
for f in ('pp2','c2','c3'): print(f, json.load(open(f+'.json'))['phases'])"
python3 -m collbench check | head -30
date -u
cd /tmp/work; timeout 400 python3 benchmarks/extra_time.py measure /tmp/extra; echo "extra $?"; date -u
timeout 60 python3 benchmarks/extra_time.py judge /tmp/extra | tee $OUT/extra.txt; grep -n "Error\|error" /tmp/extra/log.txt | head
(cd /tmp/extra && tar czf $OUT/extra-raw.tgz .)
cat > /tmp/sims/loop.sh <<'X'
cd /tmp/work; seed=$2
while :; do python3 benchmarks/verdicts.py --jobs $1 --seed $seed --part healthy --machines 400 >> /tmp/sims/healthy-$2.txt 2>&1; seed=$((seed+1)); done
X
setsid nohup nice -n 15 bash /tmp/sims/loop.sh 22 8000 > /tmp/sims/log 2>&1 < /dev/null &
timeout $((590-SECONDS)) python3 -m pytest -q tests/gpu/test_copies.py tests/gpu/test_peer_map.py --durations 8 > $OUT/gpu-copies.txt 2>&1; echo "copies $?"; date -u; tail -15 $OUT/gpu-copies.txt
else
[ -e /tmp/work ] || exit 1
cd /tmp/work; limit=${2:-585}
(timeout $((limit-10)) python3 -m pytest -q tests/gpu/test_overlap.py tests/gpu/test_replay.py tests/gpu/test_shared_gpu.py --durations 8 > $OUT/gpu-overlap.txt 2>&1; echo "overlap $?"; date -u ) & a=$!
timeout $((limit-10)) python3 -m pytest -q tests/gpu --ignore tests/gpu/test_overlap.py --ignore tests/gpu/test_replay.py --ignore tests/gpu/test_shared_gpu.py --durations 25 > $OUT/gpu-rest.txt 2>&1; echo "rest $?"; date -u
wait $a; tail -40 $OUT/gpu-*.txt
while [ $SECONDS -lt $limit ]; do sleep 2; done
cp /tmp/sims/*.txt $OUT/; wc -l /tmp/sims/*; cat /tmp/sims/log
fi
date -u
