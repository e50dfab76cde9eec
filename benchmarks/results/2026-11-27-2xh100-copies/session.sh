set -u
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1 PYTHONUNBUFFERED=1
exec > $OUT/session.log 2>&1
repo=$PWD; date -u; nvidia-smi -L; nvidia-smi --query-gpu=driver_version,name --format=csv,noheader | head -1; nproc
pip install -q --no-index --no-deps --target /tmp/site .whl/*.whl; export PYTHONPATH=/tmp/site
mkdir -p /tmp/peers /tmp/old; tar xzf .whl/peers.tgz -C /tmp/peers; tar xzf .whl/old.tgz -C /tmp/old
nccl=$(python3 -c "import nvidia.nccl as n; print(list(n.__path__)[0])"); mkdir -p /tmp/nccl/lib; ln -s $nccl/include /tmp/nccl/include; ln -s $nccl/lib/libnccl.so.2 /tmp/nccl/lib/libnccl.so.2; ln -s $nccl/lib/libnccl.so.2 /tmp/nccl/lib/libnccl.so; export LD_LIBRARY_PATH=/tmp/nccl/lib:${LD_LIBRARY_PATH:-}
(cd /tmp/peers/nccl-tests && timeout 300 make -s -j 24 NCCL_HOME=/tmp/nccl NVCC_GENCODE="-gencode=arch=compute_90,code=sm_90" > /tmp/nt.log 2>&1; echo "nccl-tests $?"; tail -3 /tmp/nt.log) & nt=$!
(cd /tmp/peers/nvbandwidth && sed -i 's/find_package(Boost.*/add_library(Boost::program_options STATIC IMPORTED)\nset_target_properties(Boost::program_options PROPERTIES IMPORTED_LOCATION \/tmp\/peers\/lib\/libboost_program_options.a INTERFACE_INCLUDE_DIRECTORIES \/tmp\/peers\/include)/' CMakeLists.txt && timeout 300 cmake -DCMAKE_CUDA_ARCHITECTURES=90 . > /tmp/nvb.log 2>&1 && timeout 300 make -j 8 >> /tmp/nvb.log 2>&1; echo "nvbandwidth $?"; tail -3 /tmp/nvb.log) & nvb=$!
timeout 120 python3 -m pip install -q --no-build-isolation --no-deps --no-index . ; echo "install $?"
(cd /tmp/old && timeout 120 python3 -m pip install -q --no-build-isolation --no-deps --no-index --target /tmp/oldsite . ; echo "old install $?")
wait $nt; wait $nvb
cd /tmp; mkdir runs
bidir() { for b in 64 512; do for t in write_ce read_ce write_sm read_sm; do timeout 60 /tmp/peers/nvbandwidth/nvbandwidth -t device_to_device_bidirectional_memcpy_$t -b $b -i 3 | grep -A4 -E "bandwidth \(GB" ; done; done; }
for r in 1 2; do
 echo "== old $r"; PYTHONPATH=/tmp/oldsite:/tmp/site timeout 60 python3 -m collbench copies --patterns both-ways,one-way --sizes 64M,512M -o runs/old-$r.json --verbose --seed $r
 echo "== new $r"; timeout 60 python3 -m collbench copies --patterns both-ways,one-way --sizes 64M,512M -o runs/new-$r.json --verbose --seed $r
 echo "== nvbandwidth $r"; bidir
done
mkdir -p /tmp/work; cp -r $repo/csrc $repo/setup.py $repo/tests $repo/benchmarks $repo/docs $repo/examples $repo/pyproject.toml $repo/Makefile $repo/README.md /tmp/work
cd /tmp/work; echo "== tests"; timeout 120 python3 -m pytest -q -x tests/gpu/test_copies.py 2>&1 | tail -5
echo "== versus"; date -u; timeout 330 python3 benchmarks/versus_peers.py --nccl-tests /tmp/peers/nccl-tests/build --nvbandwidth /tmp/peers/nvbandwidth/nvbandwidth --out $OUT/vp --repeats 3; echo "versus $?"; date -u
tar czf $OUT/raw.tgz -C $OUT vp/raw -C /tmp runs; rm -r $OUT/vp/raw
