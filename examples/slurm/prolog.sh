#!/bin/bash
# Slurm Prolog: no job starts on GPUs whose links are not what their labels say. In slurm.conf:
#
#   Prolog=/etc/slurm/prolog.d/50-collbench.sh
#   PrologFlags=Alloc
#   PrologEpilogTimeout=60
#
# Any status but 0 makes Slurm drain this node and requeue the job; "Prolog error" is the reason that sinfo -R
# shows, and the log below has the rest. Slurm's manual asks prologs to call none of its commands, so this calls none.
#
# It fails closed: whatever is not "all links agree" refuses the job, a missing collbench, a hang and a GPU that
# could not be checked among it. A job with no GPU, or with one (which has no link to another), passes unchecked.
set -u
PATH=/usr/sbin:/usr/bin:/sbin:/bin # slurmd gives none

# What a site may set in the environment of slurmd.
collbench=${COLLBENCH:-/opt/collbench/bin/collbench}
logs=${COLLBENCH_LOGS:-/var/log/collbench}
limit=${COLLBENCH_LIMIT:-30} # seconds; the check takes 5 on four GPUs, and a node's first CUDA start may take as many
strict=${COLLBENCH_STRICT:-} # not empty: refuse also for what is slow without a contradiction

job=${SLURM_JOB_ID:-unknown}

say() {
    logger -t collbench-prolog "job $job: $1" 2>/dev/null || true
    echo "collbench-prolog: job $job: $1" >&2
}

refuse() {
    say "refused: $1"
    exit 1
}

# Slurm numbers the job's GPUs by their files, /dev/nvidia0 and on; nvidia-smi does so too, unless nvidia-smi -q shows
# other minor numbers. CUDA_VISIBLE_DEVICES is its older way to name them.
gpus=${SLURM_JOB_GPUS:-${CUDA_VISIBLE_DEVICES:-}}
[ -n "$gpus" ] || exit 0
IFS=, read -r -a list <<<"$gpus"
if [ "${#list[@]}" -lt 2 ]; then
    say "one GPU ($gpus): no link to check"
    exit 0
fi
[ -x "$collbench" ] || refuse "$collbench is not there"
mkdir -p "$logs" || refuse "$logs cannot be made"

run=$logs/job-$job.json
text=$logs/job-$job.txt
# --force: a job that was refused here and requeued has left its run.
unset CUDA_VISIBLE_DEVICES # --devices counts all GPUs of the node
timeout --kill-after=5 "$limit" "$collbench" check --quick ${strict:+--strict} \
    --devices "$gpus" --expect "${#list[@]}" --force --output "$run" >"$text" 2>&1
status=$?

case $status in
0)
    if grep -q 'abels, tools and measurement agree\.$' "$text"; then
        rm -f "$run" "$text"
    else
        say "started in spite of a warning: GPUs $gpus: $(sed -n '/^collbench: /!{p;q}' "$text") See $text"
    fi
    exit 0
    ;;
3) refuse "GPUs $gpus: labels and measurement disagree, see $text" ;;
4) refuse "GPUs $gpus: wrong data or a hang, see $text" ;;
124 | 137) refuse "GPUs $gpus: not checked within $limit s, see $text" ;;
*) refuse "GPUs $gpus: could not be checked (status $status), see $text" ;;
esac
