# Two GPUs: reads both ways beside nvbandwidth, then tests/gpu whole, while 22 of 32 cores judge made machines (nice 19).
set -u
exec > $OUT/session.log 2>&1
. .whl/setup.sh
cat .whl/commit; nvidia-smi --query-gpu=name,driver_version,uuid --format=csv,noheader; nproc; uptime; date -u
cd /tmp/work; tar xJf .whl/peers.tar.xz -C /tmp; export XDG_STATE_HOME=/tmp/state NO_COLOR=1 COLUMNS=160 OPENBLAS_NUM_THREADS=1; mkdir -p /tmp/sim
for i in 1 2; do timeout 20 /tmp/peers/nvbandwidth -b 64 -t device_to_device_bidirectional_memcpy_read_ce device_to_device_bidirectional_memcpy_write_ce >> $OUT/reads.txt 2>&1; timeout 30 python3 .whl/reads.py >> $OUT/reads.txt 2>&1; done
echo "$SECONDS s"
S="nice -n 19 taskset -c 10-31 timeout -k 3 310 python3 benchmarks/verdicts.py --machines 100000 --jobs"
$S 13 --seconds 285 --seed 30281 --part faults together seen sockets thirds --out /tmp/sim/faults-30281.jsonl > /tmp/sim/faults-30281.txt 2>&1 < /dev/null & F=$!
$S 9 --seconds 285 --seed 30280 --part healthy ties equal --out /tmp/sim/healthy-30280.jsonl > /tmp/sim/healthy-30280.txt 2>&1 < /dev/null & H=$!
begin=$SECONDS; timeout -k 3 ${1:-330} python3 -m pytest tests/gpu -p no:cacheprovider --durations=20 > $OUT/gpu.txt 2>&1 < /dev/null; echo "tests/gpu: status $?, $((SECONDS - begin)) s"
for _ in $(seq 30); do kill -0 $F 2> /dev/null || kill -0 $H 2> /dev/null || break; sleep 1; done
tar czf $OUT/sim.tgz -C /tmp sim; cp /tmp/sim/*.txt $OUT/
date -u; echo "$SECONDS s"
