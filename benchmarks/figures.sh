#!/usr/bin/env bash
# Makes the figures of the README and of docs/ from committed runs. tests/report/plot/test_figures.py compares them.
#   benchmarks/figures.sh [FOLDER]     default docs/figures; COLLBENCH=path of the program, default .venv/bin/collbench
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-docs/figures}
collbench=${COLLBENCH:-.venv/bin/collbench}
pairs=benchmarks/results/2026-11-21-4xh200-peers/pairs.json  # four H200 behind NVSwitches, NVLS off

"$collbench" plot "$pairs" --kind heatmap --operation ce-write --force -o "$folder/h200x4-ce-write.svg"
"$collbench" plot "$pairs" --kind curves --operation ce-write --operation sm-write --operation allreduce \
    --force -o "$folder/h200x4-curves.svg"
