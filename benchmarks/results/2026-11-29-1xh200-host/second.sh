# caches.sh: is host memory read from the processor's caches? 64 MiB and 1 GiB, both programs in turn
set -u
exec > $OUT/session.log 2>&1
export PYTHONUNBUFFERED=1
carried=$PWD/.whl
mkdir -p /tmp/peers /tmp/raw && tar xzf $carried/peers.tgz -C /tmp/peers
(cd /tmp/peers/nvbandwidth && sed -i 's/^find_package(Boost.*/add_library(Boost::program_options STATIC IMPORTED)\nset_target_properties(Boost::program_options PROPERTIES IMPORTED_LOCATION \/tmp\/peers\/lib\/libboost_program_options.a INTERFACE_INCLUDE_DIRECTORIES \/tmp\/peers\/include)/' CMakeLists.txt && timeout 200 cmake -DCMAKE_CUDA_ARCHITECTURES=90 . > /tmp/nvb.log 2>&1 && timeout 200 make -j 10 >> /tmp/nvb.log 2>&1) & building=$!
. $carried/setup.sh
wait $building
nvb=/tmp/peers/nvbandwidth/nvbandwidth
lscpu | grep -E "Model name|L3|L2|NUMA"; grep Huge /proc/meminfo
cd /tmp/work; export XDG_STATE_HOME=/tmp/state NO_COLOR=1 COLUMNS=200
python3 -m collbench copies --patterns host --sizes 64M --force -o /tmp/raw/warm.json > /dev/null 2>&1
for i in 1 2 3 4; do for b in 64 1024; do
  timeout 40 $nvb -b $b -s -v -i 5 -t host_to_device_memcpy_ce device_to_host_memcpy_ce host_to_device_bidirectional_memcpy_ce device_to_host_bidirectional_memcpy_ce > /tmp/raw/peer-$b-$i.txt 2>&1
  timeout 40 python3 -m collbench copies --patterns host,host-both-ways --sizes ${b}M --budget 4s --force -o /tmp/raw/ours-$b-$i.json > /tmp/raw/ours-$b-$i.txt 2>&1
done; done
cat > /tmp/s.py <<'P'
import json, re, statistics as st
from pathlib import Path
raw = Path("/tmp/raw")
rows = [("h2d-ce", "host", "host_to_device_memcpy_ce", "Host -> Device 0"), ("d2h-ce", "host", "device_to_host_memcpy_ce", "Device 0 -> Host"), ("h2d-ce", "host-both-ways", "host_to_device_bidirectional_memcpy_ce", "Host -> Device 0"), ("d2h-ce", "host-both-ways", "device_to_host_bidirectional_memcpy_ce", "Device 0 -> Host")]
for op, variant, case, which in rows:
    for b in (64, 1024):
        ratios = []
        for i in range(1, 5):
            text = (raw / f"peer-{b}-{i}.txt").read_text()
            part = text.split(f"Running {case}.")[1].split("Running ")[0]
            peer = [float(x) for x in re.findall(rf"Sample \d+: {which}: ([\d.]+)", part)]
            run = json.loads((raw / f"ours-{b}-{i}.json").read_text())
            ours = [p["point"]["size_bytes"] / s / 1e9 for p in run["measurements"] if (p["point"]["operation"], p["point"]["variant"]) == (op, variant) for t in p["samples"] for s in t["seconds"]]
            if peer and ours:
                ratios.append(st.median(ours) / st.median(peer))
                print(f"{op} {variant} {b}M {i}: peer", *(f"{x:.1f}" for x in peer), "| ours", *(f"{x:.1f}" for x in ours))
        if ratios: print(f"== {op} {variant} {b}M: ratio of medians {st.median(ratios):.4f} ({min(ratios):.4f} to {max(ratios):.4f})")
P
python3 /tmp/s.py > $OUT/samples.txt 2>&1; grep == $OUT/samples.txt
tar czf $OUT/raw.tgz -C /tmp raw; uptime; date -u
