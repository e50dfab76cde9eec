set -u
exec > $OUT/session.log 2>&1
env | grep -e NVLS -e MULTICAST
. .whl/setup.sh
mkdir -p /tmp/runs; cd /tmp/work; tar xzf benchmarks/results/2026-11-23-2xh200-recorded-jobs/recorded.tar.gz -C /tmp
nvidia-smi topo -m; export XDG_STATE_HOME=/tmp/state NO_COLOR=1 COLUMNS=160
t() { local limit=$1 file=$2; shift 2; local begin=$EPOCHREALTIME status=0; echo "\$ $*" >> $OUT/$file; timeout -k 3 "$limit" "$@" >> $OUT/$file 2>&1 < /dev/null || status=$?
  awk -v a="$begin" -v b="$EPOCHREALTIME" -v s="$status" -v c="$*" 'BEGIN { printf "%6.2f s, status %d: %s\n", b - a, s, c }'; }
C="python3 -m collbench"
for i in 1 2 3; do t 15 commands.txt $C pairs -o /tmp/runs/pairs$i.json; done
t 15 commands.txt $C check -o /tmp/runs/check.json
t 15 commands.txt $C check --map-p2p
t 25 commands.txt env NCCL_P2P_DISABLE=1 $C check --map-p2p
t 15 commands.txt $C check --quick --force -o /tmp/runs/quick.json
t 25 commands.txt torchrun --nproc-per-node 2 -m collbench allreduce --sizes 1M:64M -o /tmp/runs/torchrun.json
t 15 commands.txt $C allreduce --sizes 1M:64M -o /tmp/runs/allreduce.json
t 20 commands.txt $C overlap --sizes 64M -o /tmp/runs/overlap.json
t 25 commands.txt $C replay $(find /tmp -maxdepth 3 -name ddp-gpu-job.json | head -1) -o /tmp/runs/replay.json
t 15 commands.txt $C compare /tmp/runs/pairs1.json /tmp/runs/pairs2.json
tar czf $OUT/runs.tgz -C /tmp runs
date -u
LEFT=$((225 - SECONDS)); [ $LEFT -gt 15 ] && t $LEFT gpu-tests.txt python3 -m pytest -q -x -p no:cacheprovider tests/gpu -k "torchrun or rank or peer or stale or overlap or replay or nodes or pairs"
date -u
