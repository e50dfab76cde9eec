set -u
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1 PYTHONUNBUFFERED=1 OPENBLAS_NUM_THREADS=1
WHL=$PWD/.whl; limit=${1:-540}
exec > $OUT/session.log 2>&1
date -u
export PYTHONPATH=/tmp/site PATH=/tmp/site/bin:$PATH
now() { date +%s.%N; }
nvidia-smi -L; nvidia-smi --query-gpu=driver_version,name --format=csv,noheader; nproc
pip install -q --no-index --no-deps --target /tmp/site .whl/*.whl 2>/dev/null
mkdir -p /tmp/peers; tar xzf .whl/peers.tgz -C /tmp/peers
timeout 150 python3 -m pip install -q --no-build-isolation --no-deps --no-index . 2>/dev/null; echo "install $? $(date -u)"
mkdir -p /tmp/work /tmp/runs; cp -r csrc setup.py tests benchmarks docs examples pyproject.toml Makefile README.md /tmp/work
cd /tmp/runs
t() { s=$(now); timeout 60 python3 -m collbench "$@" > out.txt 2>&1; r=$?; e=$(now); echo "== $* status $r $(python3 -c "print(round($e-$s,3))") s"; }
t pairs; for i in 1 2 3; do t pairs; done; for i in 1 2 3 4 5; do t check -o c$i.json; done; t check --quick; t check --quick; t check --map-p2p
python3 -c "
import json
for f in ('c2','c5'): print(f, json.load(open(f+'.json'))['phases'])"
python3 -m collbench check --verbose | tee $OUT/check.txt | head -40
NCCL_P2P_DISABLE=1 python3 -m collbench check | head -12; NCCL_P2P_DISABLE=1 python3 -m collbench pairs | head -8
P=$(python3 -c "import collbench,pathlib; print(pathlib.Path(collbench.__file__).parents[1])"); cp -r $P/collbench /tmp/early; mkdir -p /tmp/e/src; mv /tmp/early /tmp/e/src/collbench; (cd /tmp/e && git init -q . && git apply $WHL/early.patch; echo "patch $?")
te() { s=$(now); PYTHONPATH=/tmp/e/src:/tmp/site timeout 60 python3 -m collbench "$@" > out.txt 2>&1; r=$?; e=$(now); echo "== early $* status $r $(python3 -c "print(round($e-$s,3))") s"; }
te check; te check; t check; te check; t check; te check; tail -12 out.txt
date -u
(cd /tmp/peers/nvbandwidth && sed -i 's/find_package(Boost.*/add_library(Boost::program_options STATIC IMPORTED)\nset_target_properties(Boost::program_options PROPERTIES IMPORTED_LOCATION \/tmp\/peers\/lib\/libboost_program_options.a INTERFACE_INCLUDE_DIRECTORIES \/tmp\/peers\/include)/' CMakeLists.txt && timeout 200 cmake -DCMAKE_CUDA_ARCHITECTURES=90 . > /tmp/nvb.log 2>&1 && timeout 200 make -j 8 >> /tmp/nvb.log 2>&1; echo "nvbandwidth $?"; tail -3 /tmp/nvb.log) & nvb=$!
cd /tmp/work
timeout 200 python3 -m pytest -q tests/gpu/test_world.py tests/gpu/test_recording.py --durations 12 > $OUT/gpu-torchrun.txt 2>&1; echo "torchrun $?"; date -u
wait $nvb
timeout $((limit-SECONDS)) python3 -m pytest -q tests/gpu/test_faults.py tests/gpu/test_copies.py tests/gpu/test_peer_map.py tests/gpu/test_module.py --durations 8 > $OUT/gpu-faults.txt 2>&1; echo "faults $?"; date -u
timeout $((limit-SECONDS-75)) python3 -m pytest -q tests/gpu/test_overlap.py --durations 8 > $OUT/gpu-overlap.txt 2>&1; echo "overlap $?"; date -u
timeout $((limit-SECONDS)) python3 benchmarks/versus_peers.py --nvbandwidth /tmp/peers/nvbandwidth/nvbandwidth --out /tmp/vp --part host --repeats 1; echo "versus $?"; date -u
cp /tmp/vp/versus_peers.txt $OUT/host.txt; tar czf $OUT/host-raw.tgz -C /tmp/vp raw
tail -n 25 $OUT/gpu-torchrun.txt; tail -n 14 $OUT/gpu-faults.txt; tail -n 14 $OUT/gpu-overlap.txt
date -u
