# Two GPUs, second part: nvbandwidth and nccl-tests in turn with collbench; copies in both directions at once.
set -u
exec > $OUT/session.log 2>&1
. .whl/setup.sh
cat .whl/commit; nvidia-smi --query-gpu=name,driver_version --format=csv,noheader; nproc; uptime; date -u
cd /tmp/work; tar xJf .whl/peers.tar.xz -C /tmp; export XDG_STATE_HOME=/tmp/state NO_COLOR=1 COLUMNS=160 OPENBLAS_NUM_THREADS=1
S=$(python3 -c "import nvidia.nccl, os; print(os.path.dirname(list(nvidia.nccl.__path__)[0]))")
export LD_LIBRARY_PATH=$S/nccl/lib:$S/cu13/lib:${LD_LIBRARY_PATH:-}; ldd /tmp/peers/all_reduce_perf | grep -e nccl -e cudart
P=/tmp/peers; C="python3 -m collbench"; mkdir -p /tmp/both
t() { local limit=$1 file=$2; shift 2; local begin=$EPOCHREALTIME status=0; echo "\$ $*" >> $OUT/$file; timeout -k 3 "$limit" "$@" >> $OUT/$file 2>&1 < /dev/null || status=$?
  awk -v a="$begin" -v b="$EPOCHREALTIME" -v s="$status" -v c="$*" 'BEGIN { printf "%6.2f s, status %d: %s\n", b - a, s, c }'; }
t 15 both.txt $C pairs -o /tmp/both/pairs.json
B=device_to_device_bidirectional_memcpy
for i in 1 2 3; do
  for m in 64 512; do t 20 both.txt $P/nvbandwidth -b $m -s -t ${B}_write_ce ${B}_read_ce ${B}_write_sm ${B}_read_sm; done
  t 15 both.txt $C copies --patterns both-ways --sizes 64M,512M -o /tmp/both/default-$i.json
  t 25 both.txt $C copies --patterns both-ways --sizes 64M,512M --budget 10s -o /tmp/both/budget-$i.json
done
date -u; echo "$SECONDS s"
V="python3 benchmarks/versus_peers.py --nccl-tests $P --nvbandwidth $P/nvbandwidth"
t 140 versus.txt $V --out /tmp/v1 --repeats 3 --part copies wall
t 100 versus.txt $V --out /tmp/v2 --repeats 2 --part skew
t 230 versus.txt $V --out /tmp/v3 --repeats 3 --part collectives
[ $SECONDS -lt 570 ] && t $((586 - SECONDS)) versus.txt $V --out /tmp/v4 --repeats 3 --part registration
for i in 1 2 3 4; do cat /tmp/v$i/versus_peers.txt; done > $OUT/tables.txt
tar czf $OUT/raw.tgz -C /tmp both v1 v2 v3 v4
date -u; echo "$SECONDS s"
