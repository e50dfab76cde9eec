#!/usr/bin/env bash
# Measures what links are worth to training on real GPUs, into the folder OUT: curves of collectives with P2P and without,
# GPT-2 with P2P and without, its steps without communication, a small image network on 1 … 4 GPUs, the cost of a launch.
# Needs no network.
# Usage: COMMIT=$(git rev-parse --short HEAD) benchmarks/training.sh OUT [PART] > LOG 2>&1
#   Minutes on 4 × H200, by PART: curves 2, gpt2 9 (1.5 for each ablation), bound 6, buckets 1, scaling 7, launch 2; `all`
#   is all of these. On two GPUs, `overlap` measures factors of overlap (2.5 min), and `steps` (with `curves`) what
#   benchmarks/extra_time.py compares with `predict`: steps of MODELS='gpt2 gpt2-medium vit-b/16', with P2P and without (4 min). A job of `steps` is
#   one model in one arm, all strategies and batches in one process per GPU.
#   Each command has a time limit. To split long parts into several calls, set ABLATIONS='ddp-2-bf16 …' for gpt2, and
#   MODELS=gpt2 for steps.
#   Parts of one session share XDG_STATE_HOME: `curves` saves the run there from which `train` chooses.
#   DRY=1 tests the script without GPUs: CPU cores, a tiny model, few steps. None of its figures means anything.
#   EPOCHS=4, SEEDS=0,1,2,3, REPEATS=3 and LIMIT=… change how long `scaling`, an ablation and a job may take.
#   The script sets no variables of NCCL except NCCL_P2P_DISABLE=1, where it measures its effect; it inherits all others.
set -u -o pipefail
[ $# -ge 1 ] && mkdir -p "$1" || { echo "usage: benchmarks/training.sh OUT [curves|gpt2|bound|overlap|steps|buckets|scaling|launch|all]" >&2; exit 2; }
out=$(cd "$1" && pwd)
here=$(cd "$(dirname "$0")/.." && pwd)
part=${2:-all}
case $part in curves | gpt2 | bound | overlap | steps | buckets | scaling | launch | all) ;; *)
    echo "training.sh: no part '$part': curves, gpt2, bound, overlap, steps, buckets, scaling, launch or all" >&2; exit 2 ;;
esac
export XDG_STATE_HOME=${XDG_STATE_HOME:-$out/.state} PYTHONUNBUFFERED=1
python=${PYTHON:-python3}
DRY=${DRY:-}
failed=0
mkdir -p "$XDG_STATE_HOME"

step() { # step LIMIT COMMAND …: run a command for at most LIMIT seconds; print it, its wall time and its exit status
    local limit=$1; shift
    echo "== $*"
    local begin=$EPOCHREALTIME
    timeout --kill-after=10 "$limit" "$@"
    local status=$?
    awk -v a="$begin" -v b="$EPOCHREALTIME" -v s=$status 'BEGIN { printf "-- exit %d, %.2f s\n", s, b - a }'
    [ $status -eq 0 ] || failed=$((failed + 1))
    return $status
}

program=("$python" -m collbench)

if [ "$DRY" ]; then
    backend=(--backend host) sizes=64K:4M:8 two=0,1 worlds=(2) images=(--tiny --images 960 --held-out 960 --gpus 1,2)
    gpt2=("$here/benchmarks/gpt2_ddp.py" --tiny --batch 2 --sequence 64 --steps 8 --warmup 2)
    four=$two without=NCCL_P2P_DISABLE=1 # cores have no P2P, and only a script could read the variable
else
    backend=() sizes=64K:1G two=0,1 four=0,1,2,3 without=p2p worlds=(${WORLDS:-2 4}) images=(--gpus "${GPUS:-1,2,3,4}" --steps-of 1,2,3,4)
    gpt2=("$here/benchmarks/gpt2_ddp.py" --steps 50 --warmup 10)
fi
# strategy-GPUs-dtype; amp, with which most people train, sends 4 bytes per gradient
ablations=${ABLATIONS:-ddp-2-bf16 fsdp-2-bf16 ddp-4-bf16 fsdp-4-bf16 ddp-2-amp ddp-2-fp32}
[ "$DRY" ] && ablations=${ABLATIONS:-ddp-2-bf16 fsdp-2-bf16}
devices() { [ "$1" = 2 ] && echo $two || echo $four; }

curves() {
    step 60 "${program[@]}" pairs "${backend[@]}" --quick # saved where `train --auto-select` looks
    for world in "${worlds[@]}"; do
        for operation in allreduce allgather reducescatter; do
            local command=("${program[@]}" "$operation" "${backend[@]}" --devices "$(devices "$world")" --sizes "$sizes" --quick)
            step 60 "${command[@]}" --output "$out/curves-$world-p2p-$operation.json"
            step 90 env NCCL_P2P_DISABLE=1 "${command[@]}" --output "$out/curves-$world-nop2p-$operation.json"
        done
    done
}

ablate() { # ablate WORLD STRATEGY DTYPE
    step 180 "${program[@]}" ablate "${backend[@]}" --devices "$(devices "$1")" --without "$without" --repeats "${REPEATS:-3}" \
        --skip 0 -o "$out/ablate-$2-$1-$3.json" -- "${gpt2[@]}" --strategy "$2" --dtype "$3"
}

gpt2() {
    local ablation
    for ablation in $ablations; do
        local strategy world dtype
        IFS=- read -r strategy world dtype <<< "$ablation"
        ablate "$world" "$strategy" "$dtype"
    done
}

arm=() # goes before a job's command: what differs between arms
train_job() { # train_job NAME WORLD OPTIONS …: run one job of gpt2_ddp.py, and keep its output
    local name=$1 world=$2; shift 2
    local command=("${arm[@]}" "${program[@]}" train "${backend[@]}" --devices "$(devices "$world")")
    name=gpt2-$name
    step "${LIMIT:-90}" "${command[@]}" "${gpt2[@]}" "$@" > "$out/$name.txt" 2> "$out/$name.err"
    local status=$?
    echo "== $name: exit $status; $(grep ^summary "$out/$name.txt" || tail -3 "$out/$name.err")"
    rm -f "$out/$name.err"
}

bound() { # what limits a step, the host, the GPU or the links: at a small batch and a large one, with P2P and without
    local large=32 count=(--steps 30 --warmup 8)
    [ "$DRY" ] && large=3 count=()
    for world in "${worlds[@]}"; do
        for strategy in local ddp fsdp; do
            for batch in 4 $large; do
                local name=bound-$strategy-$world-bf16-batch$batch
                local job=("$world" --strategy "$strategy" --dtype bf16 --batch "$batch" "${count[@]}")
                train_job "$name-p2p" "${job[@]}"
                arm=(env NCCL_P2P_DISABLE=1)
                train_job "$name-nop2p" "${job[@]}"
                arm=()
            done
        done
    done
}

# A matrix product about as long as one of GPT-2's layers at a small batch, because a message waits for such kernels.
overlap() { # how much a collective and compute slow each other, with P2P and without; WORLDS=2
    local world=${worlds[0]} command operation operations="allreduce allgather reducescatter" sizes=4M,16M,64M,256M
    local computes=${COMPUTES:-gemm:2048} trials=8
    [ "$DRY" ] && operations=allreduce sizes=256K,1M computes=gemm:256 trials=3
    for operation in $operations; do
        command=("${program[@]}" overlap "$operation" "${backend[@]}" --devices "$(devices "$world")")
        command+=(--compute "$computes" --sizes "$sizes" --trials "$trials")
        step 120 "${command[@]}" --output "$out/overlap-$world-p2p-$operation.json"
        step 240 env NCCL_P2P_DISABLE=1 "${command[@]}" --output "$out/overlap-$world-nop2p-$operation.json"
    done
}

steps() { # steps without exchange, of DDP and of FSDP2, at small and large batches, with P2P and without
    local world=${worlds[0]} models=${MODELS:-gpt2 gpt2-medium vit-b/16} count=() model arm_name
    [ "$DRY" ] && count=(--tiny --steps 3 --warmup 1 --batches 1) models=${MODELS:-gpt2 vit-b/16}
    for model in $models; do
        for arm_name in p2p nop2p; do
            [ $arm_name = p2p ] && arm=() || arm=(env NCCL_P2P_DISABLE=1)
            step "${LIMIT:-150}" "${arm[@]}" "${program[@]}" train "${backend[@]}" --devices "$(devices "$world")" \
                "$here/benchmarks/timed_steps.py" --model "$model" --arm $arm_name --out "$out" "${count[@]}"
            arm=()
        done
    done
}

buckets() { # the messages of a step
    for dtype in bf16 amp; do train_job "buckets-$dtype" 2 --strategy ddp --dtype $dtype --profile-buckets; done
    train_job "units-bf16" 2 --strategy fsdp --dtype bf16 --profile-buckets
}

scaling() {
    step 1200 "$python" "$here/benchmarks/scaling.py" "${backend[@]}" "${images[@]}" --epochs "${EPOCHS:-4}" \
        --seeds "${SEEDS:-0,1,2,3}" --out "$out/scaling.json"
}

launch() {
    step 240 "$python" "$here/benchmarks/launch_cost.py" --out "$out"
}

if [ "$DRY" ]; then
    echo "DRY=1: CPU cores and a tiny model, $(date -u +%FT%TZ)"
else
    echo "commit ${COMMIT:-unknown}, $(date -u +%FT%TZ), $(nvidia-smi --query-gpu=name --format=csv,noheader | sort | uniq -c)"
    cd "$here" || exit 1
    step 120 "$python" -m pip install -q --no-build-isolation --no-deps --no-index . || exit 1
fi
cd "$out" || exit 1 # outside the source tree, so that the installed collbench runs

[ "$part" = all ] || [ "$part" = curves ] && curves
[ "$part" = all ] || [ "$part" = gpt2 ] && gpt2
[ "$part" = all ] || [ "$part" = bound ] && bound
[ "$part" = overlap ] && overlap
[ "$part" = steps ] && steps
[ "$part" = all ] || [ "$part" = buckets ] && buckets
[ "$part" = all ] || [ "$part" = scaling ] && scaling
[ "$part" = all ] || [ "$part" = launch ] && launch
echo "$failed steps failed"
exit $((failed > 0))
