#!/bin/bash
# run B: the final tree. GPU tests, peers, memcheck, start to prompt, commands end to end
set -u -o pipefail
here=$PWD; out=$OUT; begin=$SECONDS
log() { echo "== $(( SECONDS - begin )) s: $*"; }
export COLLBENCH_NO_NVCC=1 PYTHONUNBUFFERED=1 XDG_STATE_HOME=/tmp/state
exec > >(tee $out/session.txt) 2>&1
echo "commit $COMMIT, $(date -u +%FT%TZ), $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | sort | uniq -c)"
env | grep -E "NVLS|MULTICAST"
tar xJf .peers/bin.txz -C /tmp
export LD_LIBRARY_PATH=$(python3 -c 'import nvidia.nccl,os; print(os.path.join(list(nvidia.nccl.__path__)[0],"lib"))')
log install; python3 -m pip install -q --no-build-isolation --no-deps --no-index . || exit 1
python3 -c "import collbench,os; d=os.path.dirname(collbench.__file__); print(d, os.listdir(d+'/kernels'))"
cd /tmp; mkdir -p x
log pairs; timeout 60 collbench pairs
for i in 1 2 3 4 5 6; do s=$EPOCHREALTIME; timeout 40 collbench pairs -o x/pairs-$i.json >/dev/null; awk -v a=$s -v b=$EPOCHREALTIME 'BEGIN{printf "pairs %.2f s\n",b-a}'; done
for i in 1 2 3; do s=$EPOCHREALTIME; timeout 40 collbench allreduce --sizes 1M:1G:4 --dtype bfloat16 -o x/ar-$i.json >/dev/null; awk -v a=$s -v b=$EPOCHREALTIME 'BEGIN{printf "allreduce bfloat16 %.2f s\n",b-a}'; done
log commands
for c in "copies -o x/copies.json" "latency -o x/latency.json" "check --expect 2" "select 2" "rank" "doctor" "topo" "runs" "compare x/pairs-1.json x/pairs-2.json"; do echo "-- collbench $c"; timeout 60 collbench $c | head -70; echo "exit ${PIPESTATUS[0]}"; done
log memcheck
for c in "allreduce --sizes 1M" "copies --sizes 1M"; do timeout 60 compute-sanitizer --tool memcheck --target-processes all --report-api-errors no python3 -m collbench $c -o x/mem-$RANDOM.json 2>&1 | grep -E "ERROR SUMMARY|Invalid|failed" | sort | uniq -c; done
log versus; cd $here; timeout 240 python3 benchmarks/versus_peers.py --nccl-tests /tmp/bin --nvbandwidth /tmp/bin/nvbandwidth --out /tmp/versus --repeats 2 --part copies collectives repeat > /tmp/versus.log 2>&1; tail -3 /tmp/versus.log; cp /tmp/versus/versus_peers.txt $out/; grep -E "^(ce|sm)-" $out/versus_peers.txt
tar czf $out/raw.tar.gz -C /tmp x versus
log "tests/gpu"; timeout $(( 585 - SECONDS + begin )) python3 -m pytest -q -p no:cacheprovider tests/gpu 2>&1 | tail -30 | tee $out/test-gpu.txt
log end
