# Two GPUs, first part: 20 `pairs`, `check`, stamps, both ways with CUDA_DEVICE_MAX_CONNECTIONS, CTA policy, tests/gpu whole.
set -u
exec > $OUT/session.log 2>&1
env | grep -e NVLS -e MULTICAST
. .whl/setup.sh
cat .whl/commit; nvidia-smi topo -m; nvidia-smi --query-gpu=name,driver_version --format=csv,noheader; nproc; uptime; date -u
mkdir -p /tmp/runs /tmp/stamps; cd /tmp/work; export XDG_STATE_HOME=/tmp/state NO_COLOR=1 COLUMNS=160 OPENBLAS_NUM_THREADS=1
t() { local limit=$1 file=$2; shift 2; local begin=$EPOCHREALTIME status=0; echo "\$ $*" >> $OUT/$file; timeout -k 3 "$limit" "$@" >> $OUT/$file 2>&1 < /dev/null || status=$?
  awk -v a="$begin" -v b="$EPOCHREALTIME" -v s="$status" -v c="$*" 'BEGIN { printf "%6.2f s, status %d: %s\n", b - a, s, c }'; }
C="python3 -m collbench"
for i in $(seq 20); do t 15 commands.txt $C pairs -o /tmp/runs/pairs$i.json; done
for i in 1 2 3; do t 15 commands.txt $C check -o /tmp/runs/check$i.json; t 15 commands.txt $C check --quick -o /tmp/runs/quick$i.json; done
for i in 1 2; do
  export STAMPS=/tmp/stamps/$i; mkdir -p $STAMPS; begin=$EPOCHREALTIME
  PYTHONPATH=/tmp/work/.whl/prof:$PYTHONPATH timeout 15 $C pairs > /dev/null 2>&1 < /dev/null; end=$EPOCHREALTIME; d=$STAMPS; unset STAMPS
  timeout 10 python3 .whl/sum.py $d $begin $end > $OUT/stamps-$i.txt
done
t 15 commands.txt $C check --map-p2p
t 25 commands.txt env NCCL_P2P_DISABLE=1 $C check --map-p2p
c="copies --patterns both-ways,one-to-all --sizes 64M,512M"
for i in 1 2; do t 20 commands.txt $C $c -o /tmp/runs/free-$i.json; t 20 commands.txt env CUDA_DEVICE_MAX_CONNECTIONS=1 $C $c -o /tmp/runs/one-$i.json; done
for p in 0 2; do t 20 cta-$p.txt env NCCL_CTA_POLICY=$p NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,ENV,TUNING,COLL $C allgather --registration window --sizes 64M,256M -o /tmp/runs/cta$p.json; done
gzip -f $OUT/cta-*.txt; tar czf $OUT/runs.tgz -C /tmp runs stamps; date -u; echo "$SECONDS s"
t $((575 - SECONDS)) gpu-tests.txt python3 -m pytest -v -p no:cacheprovider --durations 25 tests/gpu
date -u; echo "$SECONDS s"; tail -60 $OUT/gpu-tests.txt
