# One GPU (45 s): host and local copies, latency, check, doctor and show work with one; pairs and allreduce refuse in one
# line with status 2; select 1 works after check and after an allreduce-less run. Expect: "rc 0" except where it says 2.
export CUDA_VISIBLE_DEVICES=0 XDG_STATE_HOME=$(mktemp -d) NO_COLOR=1
run() { echo "=== $* (expect rc $expect)"; timeout 20 python3 -m collbench "$@" 2>&1 | cut -c1-150 | head -22; echo "rc ${PIPESTATUS[0]}"; }
expect=0
run copies --patterns host,local -o $XDG_STATE_HOME/copies.json
run latency
run check --expect 1 -o $XDG_STATE_HOME/check.json
run check --quick --expect 1
run show $XDG_STATE_HOME/check.json
run select 1 $XDG_STATE_HOME/check.json
run select 1
run doctor
expect=2
run pairs
run allreduce
run select 2
