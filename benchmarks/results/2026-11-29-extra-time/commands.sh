#!/bin/bash
# The first line that `collbench predict` prints of each of the 14 recorded jobs, or why it refuses; from benchmarks/results.
set -e
results=$PWD; kept=$(mktemp -d); cd "$kept"
tar xzf "$results/2026-11-23-2xh200-recorded-jobs/raw.tar.gz"
tar xzf "$results/2026-11-28-2xh100-jobs/raw.tar.gz"
say() {  # SET, JOB's file, folder of the curves
    job=$(basename "$2" -job.json); file=$2
    # Eight blocks of four calls: a record does not show where such a step begins. A trace does not say its devices.
    options=(); case $job in tp-*) options+=(--calls-per-step 32);; esac; [ "$1" = responses ] && options+=(--devices 0,1)
    if [ ${#options[@]} != 0 ]; then collbench import "$2" "${options[@]}" --force -o import.json 2>/dev/null; file=import.json; fi
    echo "$1: $job${options:+ ${options[*]}}"
    collbench predict "$file" "$3"/curves-nop2p-*.json $(printf -- '--recorded-links %s ' "$3"/curves-p2p-*.json) 2>&1 |
        grep -E "a step takes|too little" || true
}
for job in pj/*-job.json; do say recorded "$job" pj; done
for job in "$results"/2026-11-23-2xh200-responses/*-job.json; do say responses "$job" pj; done
for job in h100/*-job.json; do say H100 "$job" h100; done
rm -r "$kept"
