set -u
exec > $OUT/session.log 2>&1
. .whl/setup.sh
cd /tmp/work; export XDG_STATE_HOME=/tmp/state NO_COLOR=1 COLUMNS=200
t() { local limit=$1 file=$2; shift 2; local begin=$EPOCHREALTIME status=0; timeout -k 3 "$limit" "$@" >> $OUT/$file 2>&1 < /dev/null || status=$?
  awk -v a="$begin" -v b="$EPOCHREALTIME" -v s="$status" -v c="$*" 'BEGIN { printf "%6.2f s, status %d: %s\n", b - a, s, c }'; }
t 160 gpu-tests.txt python3 -m pytest -q -p no:cacheprovider tests/gpu
for i in 1 2 3; do t 20 check.txt python3 -m collbench check --quick --force -o /tmp/runs/quick$i.json; done
t 20 check.txt python3 -m collbench check -o /tmp/runs/check.json
t 20 check.txt python3 -m collbench doctor
t 20 check.txt python3 -m collbench check --map-p2p
t 20 check.txt python3 -m collbench copies --patterns host,local -o /tmp/runs/copies.json
t 20 check.txt python3 -m collbench latency -o /tmp/runs/latency.json
tar czf $OUT/runs.tgz -C /tmp runs

date -u
