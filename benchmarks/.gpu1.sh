set -u
export LD_LIBRARY_PATH=$(python3 -c 'import nvidia.nccl,os;print(os.path.join(list(nvidia.nccl.__path__)[0],"lib"))') XDG_STATE_HOME=/tmp/state COMMIT=$1 PYTHONFAULTHANDLER=1
W=/tmp/w; mkdir -p $W; S=$EPOCHREALTIME
say() { echo "#### $(date -u +%T) $*"; }
say start; nvidia-smi -L
export WORLDS=2
say overlap; timeout 120 bash benchmarks/training.sh $W/t curves > $W/curves.log 2>&1; grep -E '^--|^==|failed' $W/curves.log
timeout 250 bash benchmarks/training.sh $W/t steps > $W/steps.log 2>&1; tail -60 $W/steps.log | cut -c1-260
tar czf $OUT/t.tgz -C $W .
timeout 180 bash benchmarks/training.sh $W/t overlap > $W/overlap.log 2>&1; grep -E '^--|^==|failed' $W/overlap.log
python3 benchmarks/steps.py $W/t --json $W/t/steps.json > $W/steps.md 2>&1; cat $W/steps.md | cut -c1-250
tar czf $OUT/t.tgz -C $W .
say end
