# Two GPUs, second part: offsets of copies, jobs with marks with and without P2P, predict, replay, versus_peers --part host.
set -u
exec > $OUT/session.log 2>&1
. .whl/setup.sh
cat .whl/commit; nvidia-smi --query-gpu=name,driver_version,uuid --format=csv,noheader; nproc; uptime; date -u
cd /tmp/work; tar xJf .whl/peers.tar.xz -C /tmp; export XDG_STATE_HOME=/tmp/state NO_COLOR=1 COLUMNS=160 OPENBLAS_NUM_THREADS=1; mkdir -p /tmp/jobs /tmp/marks
S=$(python3 -c "import nvidia.nccl, os; print(os.path.dirname(list(nvidia.nccl.__path__)[0]))")
t() { local limit=$1 file=$2; shift 2; local begin=$EPOCHREALTIME status=0; echo "\$ $*" >> $OUT/$file; timeout -k 3 "$limit" "$@" >> $OUT/$file 2>&1 < /dev/null || status=$?
  awk -v a="$begin" -v b="$EPOCHREALTIME" -v s="$status" -v c="$*" 'BEGIN { printf "%6.2f s, status %d: %s\n", b - a, s, c }'; }
C="python3 -m collbench"
t 60 offsets.txt python3 .whl/offsets.py
t 15 marks.txt $C pairs --sizes 8:1G -o /tmp/marks/p2p.json
t 25 marks.txt env NCCL_P2P_DISABLE=1 $C pairs --sizes 8:1G -o /tmp/marks/nop2p.json
for k in ddp fsdp2; do
  t 40 marks.txt $C record --gpu-times --force -o /tmp/marks/$k-marks-job.json -- python3 .whl/job.py $k marks /tmp/marks
  t 30 marks.txt python3 .whl/job.py $k plain /tmp/marks
  t 30 marks.txt env NCCL_P2P_DISABLE=1 python3 .whl/job.py $k plain /tmp/marks
  t 20 marks.txt $C show /tmp/marks/$k-marks-job.json
  t 20 marks.txt $C predict /tmp/marks/$k-marks-job.json /tmp/marks/nop2p.json --recorded-links /tmp/marks/p2p.json
done
t 40 marks.txt $C replay /tmp/marks/ddp-marks-job.json -o /tmp/marks/ddp-replay.json
echo "$SECONDS s"
LD_LIBRARY_PATH=$S/nccl/lib:$S/cu13/lib:${LD_LIBRARY_PATH:-} t 110 host.txt python3 benchmarks/versus_peers.py --nccl-tests /tmp/peers --nvbandwidth /tmp/peers/nvbandwidth --out /tmp/v --repeats 3 --part host
echo "$SECONDS s"
t $((${1:-585} - SECONDS)) jobs.txt python3 -c "
import sys; sys.path.insert(0, 'benchmarks')
from pathlib import Path
import extra_time
extra_time.JOBS = ('ddp-llama', 'tp-small')
sys.exit(extra_time.measure(Path('/tmp/jobs')))"
tar czf $OUT/raw.tgz -C /tmp jobs marks v
date -u; echo "$SECONDS s"
