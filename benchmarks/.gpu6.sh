date; mkdir -p $OUT/k; export PATH=$PWD/.peers/tools:$PATH
python3 -m pip install -q --no-build-isolation --no-deps --no-index . 2>&1 | tail -3
export XDG_STATE_HOME=/tmp/state; nproc; U=330
go() { timeout 400 python3 benchmarks/emulated_hosts.py --hosts 8 --runs 10 --how $2 --when $3 --until $U --file $OUT/k/$1.jsonl > $OUT/k/$1.log 2>&1 & }
go kill-start kill start
sleep 3
go kill-connecting kill connecting
go kill-opening kill Introduce:1,OpenRank:1,Reserve:1
go kill-first kill Step:1,Step:2,Step:5
go kill-middle kill Step:8,Step:11,Step:14
go kill-last kill Step:17,Step:20,Step:23
go kill-gathering kill gathering:5
go stop stop Step:8
wait
for f in $OUT/k/*.log; do echo $f; tail -1 $f | cut -c1-400; done
cd $OUT && tar czf k.tgz k && rm -rf k; date
