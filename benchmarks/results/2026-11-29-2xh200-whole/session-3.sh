# Two GPUs, third part: 20 `pairs` on another machine, offsets of copies, `nodes` with a killed rank, jobs with and without P2P.
set -u
exec > $OUT/session.log 2>&1
. .whl/setup.sh
cat .whl/commit; nvidia-smi --query-gpu=name,driver_version,uuid --format=csv,noheader; nproc; uptime; date -u
cd /tmp/work; export XDG_STATE_HOME=/tmp/state NO_COLOR=1 COLUMNS=160 OPENBLAS_NUM_THREADS=1; mkdir -p /tmp/runs /tmp/jobs /tmp/marks
t() { local limit=$1 file=$2; shift 2; local begin=$EPOCHREALTIME status=0; echo "\$ $*" >> $OUT/$file; timeout -k 3 "$limit" "$@" >> $OUT/$file 2>&1 < /dev/null || status=$?
  awk -v a="$begin" -v b="$EPOCHREALTIME" -v s="$status" -v c="$*" 'BEGIN { printf "%6.2f s, status %d: %s\n", b - a, s, c }'; }
C="python3 -m collbench"
for i in $(seq 20); do t 15 commands.txt $C pairs -o /tmp/runs/pairs$i.json; done
t 30 offsets.txt python3 .whl/offsets.py
t 60 gpu-tests.txt python3 -m pytest -v -p no:cacheprovider tests/gpu/test_copies.py -k "node or host"
cat /sys/devices/system/node/node*/cpulist; grep -h MemFree /sys/devices/system/node/node*/meminfo
export SIZE=1G
t 100 nodes.txt python3 .whl/two_hosts.py cuda /tmp/runs/nodes.json
t 100 nodes.txt python3 .whl/two_hosts.py cuda /tmp/runs/nodes-killed.json 1 10
t 5 nodes.txt $C show /tmp/runs/nodes-killed.json
echo "$SECONDS s"
for k in ddp fsdp2; do
  t 40 marks.txt $C record --gpu-times --force -o /tmp/marks/$k-marks-job.json -- python3 .whl/job.py $k marks /tmp/marks
  t 30 marks.txt env NCCL_P2P_DISABLE=1 python3 .whl/job.py $k marks /tmp/marks
done
t 20 marks.txt $C show /tmp/marks/ddp-marks-job.json
t 30 marks.txt $C select 2 --for /tmp/marks/ddp-marks-job.json
t 40 marks.txt $C replay /tmp/marks/ddp-marks-job.json -o /tmp/marks/ddp-replay.json
echo "$SECONDS s"
t $((${1:-585} - SECONDS)) jobs.txt python3 -c "
import sys; sys.path.insert(0, 'benchmarks')
from pathlib import Path
import extra_time
extra_time.JOBS = ('ddp-gpt2-wide', 'fsdp2-llama', 'tp-small', 'ddp-llama')
sys.exit(extra_time.measure(Path('/tmp/jobs')))"
cp /tmp/jobs/curves-* /tmp/marks; tar czf $OUT/raw.tgz -C /tmp runs jobs marks
date -u; echo "$SECONDS s"
