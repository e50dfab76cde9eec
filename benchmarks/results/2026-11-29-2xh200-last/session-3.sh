# Two GPUs: `check` before (.whl/old.tar.xz, commit 71122f81) and after in turn, `host`, stamps, tests/gpu in part.
set -u
exec > $OUT/session.log 2>&1
. .whl/setup.sh
mkdir -p /tmp/oldtree && tar xJf .whl/old.tar.xz -C /tmp/oldtree && (cd /tmp/oldtree && timeout 150 python3 -m pip install -q --no-build-isolation --no-deps --no-index --target /tmp/old . > /tmp/install-old.log 2>&1; echo "old installed: status $?, $SECONDS s")
cat .whl/commit; nvidia-smi --query-gpu=name,driver_version,uuid --format=csv,noheader; nproc; uptime; date -u
cd /tmp/work; export XDG_STATE_HOME=/tmp/state NO_COLOR=1 COLUMNS=160 OPENBLAS_NUM_THREADS=1; mkdir -p /tmp/runs /tmp/stamps
t() { local limit=$1 file=$2; shift 2; local begin=$EPOCHREALTIME status=0; echo "\$ $*" >> $OUT/$file; timeout -k 3 "$limit" "$@" >> $OUT/$file 2>&1 < /dev/null || status=$?
  awk -v a="$begin" -v b="$EPOCHREALTIME" -v s="$status" -v c="$*" 'BEGIN { printf "%6.2f s, status %d: %s\n", b - a, s, c }'; }
old() { local limit=$1 file=$2; shift 2; (cd /tmp; echo old; PYTHONPATH=/tmp/old:$PYTHONPATH t $limit $file "$@"); }
new() { local limit=$1 file=$2; shift 2; (cd /tmp; echo new; t $limit $file "$@"); }
C="python3 -m collbench"
PYTHONPATH=/tmp/old:$PYTHONPATH python3 -c "import collbench; print(collbench.__file__)"; (cd /tmp; python3 -c "import collbench; print(collbench.__file__)")
new 20 first.txt $C check; old 20 first.txt $C check
for i in 1 2 3 4 5 6; do
  old 15 commands.txt $C check -o /tmp/runs/old$i.json; new 15 commands.txt $C check -o /tmp/runs/new$i.json
done
for i in 1 2 3; do old 15 commands.txt $C copies --patterns host,host-both-ways --sizes 64M -o /tmp/runs/host-old$i.json; new 15 commands.txt $C copies --patterns host,host-both-ways --sizes 64M -o /tmp/runs/host-new$i.json; done
for i in 1 2 3; do new 10 commands.txt $C check --quick; new 12 commands.txt $C pairs -o /tmp/runs/pairs$i.json; done
for i in 1 2; do
  export STAMPS=/tmp/stamps/$i; mkdir -p $STAMPS; begin=$EPOCHREALTIME
  (cd /tmp; PYTHONPATH=/tmp/work/.whl/prof:$PYTHONPATH timeout 15 $C check > $OUT/check-$i.txt 2>&1 < /dev/null); end=$EPOCHREALTIME; d=$STAMPS; unset STAMPS
  timeout 10 python3 .whl/sum.py $d $begin $end > $OUT/stamps-$i.txt
done
t 240 gpu.txt python3 -m pytest tests/gpu/test_replay.py tests/gpu/test_copies.py tests/gpu/test_faults.py tests/gpu/test_peer_map.py tests/gpu/test_module.py tests/gpu/test_verification.py -p no:cacheprovider --durations=10
tar czf $OUT/raw.tgz -C /tmp runs
date -u; echo "$SECONDS s"
