# session 1: load of cores, one GPU as two hosts, pairs, check, NCCL_CTA_POLICY, a stopped peer
set -u
exec > $OUT/session.log 2>&1
. .whl/setup.sh
cd /tmp/work; export XDG_STATE_HOME=/tmp/state NO_COLOR=1 COLUMNS=200
t() { local limit=$1 file=$2; shift 2; local begin=$EPOCHREALTIME status=0; timeout -k 3 "$limit" "$@" >> $OUT/$file 2>&1 < /dev/null || status=$?
  awk -v a="$begin" -v b="$EPOCHREALTIME" -v s="$status" -v c="$*" 'BEGIN { printf "%6.2f s, status %d: %s\n", b - a, s, c }'; }
for i in 1 2 3 4; do t 30 pairs.txt python3 -m collbench pairs -o /tmp/runs/pairs$i.json; done
for i in 1 2; do t 30 pairs.txt python3 -m collbench check -o /tmp/runs/check$i.json; t 30 pairs.txt python3 -m collbench check --quick -o /tmp/runs/quick$i.json; done
t 30 p2poff.txt env NCCL_P2P_DISABLE=1 python3 -m collbench pairs -o /tmp/runs/p2poff.json
t 30 p2poff.txt env NCCL_P2P_DISABLE=1 python3 -m collbench check --quick -o /tmp/runs/p2poff-quick.json
for p in 0 2; do t 30 cta-$p.txt env NCCL_CTA_POLICY=$p NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,ENV,TUNING,COLL python3 -m collbench allgather --registration window --sizes 64M,256M -o /tmp/runs/cta$p.json; done
mkdir -p /tmp/o/mapload /tmp/o/onegpu; OUT=/tmp/o/mapload t 80 mapload.log bash .whl/mapload.sh
(export CUDA_VISIBLE_DEVICES=0; OUT=/tmp/o/onegpu t 170 onegpu.log bash .whl/onegpu.sh)
t 90 p2p-map.txt bash .whl/p2p-map.sh
gzip -f $OUT/cta-*.txt; tar czf $OUT/out.tgz -C /tmp o runs; ls -l $OUT
date -u
