# one GPU: tests/gpu, then what one GPU has, by hand
set -u
exec > $OUT/session.log 2>&1
. .whl/setup.sh
cd /tmp/work; export XDG_STATE_HOME=/tmp/state NO_COLOR=1 COLUMNS=200
timeout -s INT 260 python3 -m pytest -v tests/gpu --durations 15 > $OUT/gpu.txt 2>&1; echo "tests/gpu $? $SECONDS s"; tail -40 $OUT/gpu.txt
t() { local limit=$1 file=$2; shift 2; local begin=$EPOCHREALTIME status=0; timeout -k 3 "$limit" "$@" >> $OUT/$file 2>&1 < /dev/null || status=$?
  awk -v a="$begin" -v b="$EPOCHREALTIME" -v s="$status" -v c="$*" 'BEGIN { printf "%6.2f s, status %d: %s\n", b - a, s, c }'; }
for i in 1 2 3; do t 30 one.txt python3 -m collbench check --quick; done
t 40 one.txt python3 -m collbench check -v
t 40 one.txt python3 -m collbench copies --patterns host,local
t 40 one.txt python3 -m collbench latency
t 30 one.txt python3 -m collbench doctor
t 30 one.txt python3 -m collbench select 1
t 30 one.txt python3 -m collbench pairs
t 30 one.txt python3 -m collbench check --map-p2p
mkdir -p /tmp/o/onegpu; [ $SECONDS -lt 400 ] && OUT=/tmp/o/onegpu t 150 onegpu.log bash .whl/onegpu.sh
tar czf $OUT/out.tgz -C /tmp o state; cat $OUT/one.txt | head -150; date -u
