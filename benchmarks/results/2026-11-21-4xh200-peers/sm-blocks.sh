#!/bin/bash
# usage: sm_exp.sh SRC OUT PEERS
set -u
SRC=$1; OUT=$2; PEERS=$3
for n in 4 8 16; do
  ( cp -r $SRC /tmp/b$n; cd /tmp/b$n; sed -i "s/constexpr std::uint64_t kCopyBlocks = 16; /constexpr std::uint64_t kCopyBlocks = $n; /" csrc/gpus.cpp; grep -n "kCopyBlocks =" csrc/gpus.cpp; python3 setup.py -q build_ext --inplace > /tmp/b$n.log 2>&1 || tail -5 /tmp/b$n.log ) &
done
wait
cat > /tmp/sm_exp.py <<'P'
import sys, time, json
n=sys.argv[1]
from collbench import _native
from collbench.backends.cuda import kernel_images
g=_native.Gpus([0,1],[i for _,i in kernel_images()],True)
g.allocate(512<<20)
import statistics as st
MiB=1<<20
res={}
for visit in range(8):
    for size in (16,64,256,512):
        for pull in (True,False):
            for total in (2048,4096,8192):
                it=min(30,max(1,total//size))
                s=g.time_copies([[(0,1)]],True,pull,size*MiB,0,it,2,1 if visit==0 else 0,30.0)[0]
                res.setdefault((size,pull,it),[]).append(size*MiB/st.median(s)/1e9)
for k,v in sorted(res.items()): print(n, *k, f"{st.median(v):.2f} ({min(v):.2f}-{max(v):.2f})", flush=True)
P
for round in 1 2; do
for n in 16 8 4; do PYTHONPATH=/tmp/b$n/src python3 /tmp/sm_exp.py $n; done
$PEERS/nvbandwidth -t device_to_device_memcpy_read_sm device_to_device_memcpy_write_sm -b 512 -i 5 | grep -A3 "^ *0 \|memcpy\|SUM"
$PEERS/nvbandwidth -t device_to_device_memcpy_read_sm device_to_device_memcpy_write_sm -b 64 -i 5 | grep -A3 "SUM"
done
