set -u
exec > $OUT/session.log 2>&1
env | grep -e NVLS -e MULTICAST
. .whl/setup.sh
mkdir -p /tmp/runs; cd /tmp/work
nvidia-smi topo -m; uptime; export XDG_STATE_HOME=/tmp/state NO_COLOR=1 COLUMNS=160
t() { local limit=$1 file=$2; shift 2; local begin=$EPOCHREALTIME status=0; echo "\$ $*" >> $OUT/$file; timeout -k 3 "$limit" "$@" >> $OUT/$file 2>&1 < /dev/null || status=$?
  awk -v a="$begin" -v b="$EPOCHREALTIME" -v s="$status" -v c="$*" 'BEGIN { printf "%6.2f s, status %d: %s\n", b - a, s, c }'; }
C="python3 -m collbench"
for i in 1 2 3 4 5 6 7 8 9 10; do t 15 commands.txt $C pairs -o /tmp/runs/pairs$i.json; done
t 20 commands.txt $C latency --collectives -o /tmp/runs/latency.json
for i in 1 2; do t 15 commands.txt $C check -o /tmp/runs/check$i.json; done
t 15 commands.txt $C check --map-p2p
t 15 commands.txt $C check --quick -o /tmp/runs/quick.json
t 15 commands.txt $C compare /tmp/runs/pairs2.json /tmp/runs/pairs9.json --history /tmp/runs/pairs3.json --history /tmp/runs/pairs4.json --history /tmp/runs/pairs5.json
tar czf $OUT/runs.tgz -C /tmp runs; date -u; echo "$SECONDS s"
G="tests/gpu/test_"
T="${G}world.py ${G}small_allreduces.py ${G}peer_map.py ${G}registration.py ${G}stale_nccl.py ${G}overlap.py ${G}replay.py ${G}recording.py ${G}faults.py ${G}single_launches.py ${G}shared_gpu.py ${G}module.py ${G}nvml_memory.py ${G}verification.py ${G}copies.py ${G}collectives.py"
LEFT=$((345 - SECONDS)); t $LEFT gpu-tests.txt python3 -m pytest -v -p no:cacheprovider -p no:randomly --durations 15 $T
date -u; echo "$SECONDS s"
