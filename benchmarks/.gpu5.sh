set -x
date; mkdir -p $OUT/k
python3 -m pip install -q --no-build-isolation --no-deps --no-index . 2>&1 | tail -3
export LD_LIBRARY_PATH=$(python3 -c 'import nvidia.nccl,os;print(list(nvidia.nccl.__path__)[0]+"/lib")') XDG_STATE_HOME=/tmp/state
nvidia-smi -L
timeout 120 python3 benchmarks/recording_jax.py --out $OUT/k/jax; tail -20 $OUT/k/jax/jax.log | cut -c1-300
timeout 120 python3 benchmarks/recording_jax.py --gpu-times --out $OUT/k/jax-gpu-times; tail -3 $OUT/k/jax-gpu-times/jax.log | cut -c1-300
cd $OUT && tar czf k.tgz k && rm -rf k; date
