#!/usr/bin/env bash
# How often `check`, `select` and `nodes` err, on many simulated machines: a part takes about four minutes on 30 cores.
#
#     benchmarks/bars.sh OUT healthy|faults|ties|choosing|leaves|nodes
#
# No GPU, no network and no installed collbench is needed. SEED, JOBS and PYTHON may be set.
set -euo pipefail

[ $# -eq 2 ] || { sed -n '2,6s/^# \{0,1\}//p' "$0" >&2; exit 2; }
out=$1 part=$2 python=${PYTHON:-python3}
here=$(dirname "$0")
export PYTHONPATH="$here/../src:$out" OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1
many=(--jobs "${JOBS:-30}")
seeded=("${many[@]}" --seed "${SEED:-101}" --out "$out/$part.csv")
mkdir -p "$out/collbench-0.dist-info" # runs name the version of an installed package
printf 'Metadata-Version: 2.1\nName: collbench\nVersion: 0\n' >"$out/collbench-0.dist-info/METADATA"
case $part in
healthy) "$python" "$here/verdicts.py" "${seeded[@]}" --part healthy --machines 2400 ;;
faults) "$python" "$here/verdicts.py" "${seeded[@]}" --part faults --machines 480 ;;
ties) "$python" "$here/verdicts.py" "${seeded[@]}" --part ties --machines 2000 ;;
choosing) "$python" "$here/choosing.py" "${seeded[@]}" --machines 1200 ;;
leaves) "$python" "$here/leaves.py" "${seeded[@]}" --runs 360 ;;
nodes)
    "$python" "$here/cluster_plan.py" "${many[@]}" --runs 1000
    "$python" "$here/few_hosts.py" "${many[@]}" --runs 200
    ;;
*) echo "unknown part: $part" >&2; exit 2 ;;
esac | tee "$out/$part.txt"
