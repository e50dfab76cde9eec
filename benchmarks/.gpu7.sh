date; mkdir -p $OUT/k; export PATH=$PWD/.peers/tools:$PATH
python3 -m pip install -q --no-build-isolation --no-deps --no-index . 2>&1 | tail -3
export LD_LIBRARY_PATH=$(python3 -c 'import nvidia.nccl,os;print(list(nvidia.nccl.__path__)[0]+"/lib")') XDG_STATE_HOME=/tmp/state
nvidia-smi -L
timeout 60 python3 benchmarks/recording_jax.py --gpu-times --out $OUT/k/jax-gpu-times; tail -2 $OUT/k/jax-gpu-times/jax.log | cut -c1-300
timeout 60 python3 -m collbench pairs > $OUT/k/pairs.txt 2>&1; head -5 $OUT/k/pairs.txt
timeout 60 python3 -m collbench doctor > $OUT/k/doctor.txt 2>&1; head -20 $OUT/k/doctor.txt
(timeout 200 python3 -m pytest tests/gpu -q -p no:cacheprovider --durations=3 > $OUT/k/gpu-tests.log 2>&1; tail -15 $OUT/k/gpu-tests.log)
timeout 220 python3 benchmarks/slow_hosts.py --hosts 4 --runs 20 --gpus 1 --budget 75s --until 140 --file $OUT/k/4.jsonl > $OUT/k/4.log 2>&1
tail -1 $OUT/k/4.log
cd $OUT && tar czf k.tgz k && rm -rf k; date
