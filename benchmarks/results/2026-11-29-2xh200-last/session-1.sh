# Two GPUs, first part: tests/gpu whole, then check, quick, pairs by time. Second part (two5.sh): jobs, host, offsets.
set -u
exec > $OUT/session.log 2>&1
. .whl/setup.sh
cat .whl/commit; nvidia-smi --query-gpu=name,driver_version,uuid --format=csv,noheader; nproc; uptime; date -u
cd /tmp/work; export XDG_STATE_HOME=/tmp/state NO_COLOR=1 COLUMNS=160 OPENBLAS_NUM_THREADS=1; mkdir -p /tmp/runs
t() { local limit=$1 file=$2; shift 2; local begin=$EPOCHREALTIME status=0; echo "\$ $*" >> $OUT/$file; timeout -k 3 "$limit" "$@" >> $OUT/$file 2>&1 < /dev/null || status=$?
  awk -v a="$begin" -v b="$EPOCHREALTIME" -v s="$status" -v c="$*" 'BEGIN { printf "%6.2f s, status %d: %s\n", b - a, s, c }'; }
C="python3 -m collbench"
for i in 1 2 3 4 5; do t 20 commands.txt $C check -o /tmp/runs/check$i.json; t 10 commands.txt $C check --quick; t 12 commands.txt $C pairs -o /tmp/runs/pairs$i.json; done
t 430 gpu.txt python3 -m pytest tests/gpu -p no:cacheprovider --durations=20
tar czf $OUT/raw.tgz -C /tmp runs
date -u; echo "$SECONDS s"
