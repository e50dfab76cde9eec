set -u
exec > >(tee $OUT/runX.txt) 2>&1
here=$PWD; begin=$SECONDS; log() { echo "== $(( SECONDS - begin )) s: $*"; }
export XDG_STATE_HOME=/tmp/state COLLBENCH_NO_NVCC=1
tar xJf .peers/bin.txz -C /tmp
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
nvb() { for m in 512 1024 64; do echo "nvbandwidth $m"; /tmp/bin/nvbandwidth -b $m -s -t device_to_device_memcpy_write_sm device_to_device_memcpy_read_sm | grep -E "^ [01]|memcpy SM"; done; }
nvb
log exp6; timeout 100 .peers/exp6; nvb
log build
inst() { python3 -m pip install -q --no-build-isolation --no-deps --no-index --target /tmp/$1 . ; }
inst plain; cp -r /tmp/plain /tmp/noinline; cp .peers/noinline.ptx /tmp/noinline/collbench/kernels/kernels.ptx
rm -rf build; sed -i 's/kSmallBlock = 200.000.000/kSmallBlock = 0/' csrc/copy.cpp; grep -n "kSmallBlock =" csrc/copy.cpp; inst nopipe
log measure; cd /tmp
for i in 1 2 3 4 5 6; do for k in plain noinline nopipe; do
  s=$EPOCHREALTIME; PYTHONPATH=/tmp/$k timeout 40 python3 -m collbench pairs -o /tmp/x/pairs-$k-$i.json >/dev/null; awk -v k=$k -v a=$s -v b=$EPOCHREALTIME 'BEGIN{printf "pairs %s %.2f s\n",k,b-a}'
  [ $i -le 3 ] || continue
  s=$EPOCHREALTIME; PYTHONPATH=/tmp/$k timeout 40 python3 -m collbench allreduce --sizes 1M:1G:4 --dtype bfloat16 -o /tmp/x/ar-$k-$i.json >/dev/null; awk -v k=$k -v a=$s -v b=$EPOCHREALTIME 'BEGIN{printf "allreduce %s %.2f s\n",k,b-a}'
done; done
rm -rf ~/.nv; for k in plain noinline plain noinline; do s=$EPOCHREALTIME; PYTHONPATH=/tmp/$k timeout 40 python3 -m collbench pairs --sizes 8 -o /tmp/x/cold-$k-$s.json >/dev/null;  awk -v k=$k -v a=$s -v b=$EPOCHREALTIME 'BEGIN{printf "jit %s %.2f s\n",k,b-a}'; done
PYTHONPATH=/tmp/plain python3 - <<'P'
import json,glob,collections
from statistics import median
tot=collections.defaultdict(list)
for f in sorted(glob.glob('/tmp/x/*-*-?.json')):
    k=f.split('-')[-2]; r=json.load(open(f)); n=f.split('/')[-1].split('-')[0]
    tot[n,k].append((r['seconds'],r['phases'].get('timed'),sum(len(m['samples']) for m in r['measurements'])))
for k,v in sorted(tot.items()): print(k,'seconds',[round(x[0],2) for x in v],'timed',[round(x[1],2) for x in v],'trials',[x[2] for x in v])
med=collections.defaultdict(dict)
for k in('plain','nopipe','noinline'):
    s=collections.defaultdict(list)
    for f in glob.glob(f'/tmp/x/pairs-{k}-?.json'):
        for m in json.load(open(f))['measurements']:
            c=m['cell']; s[c['operation'],c['size_bytes']]+= [median(x['seconds']) for x in m['samples']]
    for c,v in s.items(): med[c][k]=median(v)
for c,v in sorted(med.items()): print(c,*(f"{k} {v[k]*1e6:.2f} us ({v[k]/v['plain']:.4f})" for k in v))
P
tar czf $OUT/x.tar.gz -C /tmp x
log end
