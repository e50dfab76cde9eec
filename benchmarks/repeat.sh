#!/usr/bin/env bash
# Runs `collbench pairs` N times with its defaults: wall time and verdict of each, for steadiness.
# Usage: benchmarks/repeat.sh N
set -u -o pipefail
run=$(mktemp)
for i in $(seq "$1"); do
    begin=$EPOCHREALTIME
    verdict=$(collbench pairs --force -o "$run" | grep -E "^(All pairs|No pair|[0-9]+ tiers)")
    awk -v i="$i" -v a="$begin" -v b="$EPOCHREALTIME" -v v="$verdict" 'BEGIN { printf "%2d  %5.2f s  %s\n", i, b - a, v }'
done
