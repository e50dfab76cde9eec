# host.sh: copies of one GPU with host memory and within itself, collbench beside nvbandwidth 0.8, five repeats.
# Run in the repository's root on a machine with one H200:
#   bash .whl/host.sh        (carry: .whl, which holds setup.sh, its wheels, commit, host.sh and peers.tgz)
# Ends within 400 s. Writes $OUT/session.log, versus_peers.txt, raw.tgz, samples.txt.
set -u
exec > $OUT/session.log 2>&1
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1 PYTHONUNBUFFERED=1
carried=$PWD/.whl; limit=340
left() { echo $((limit - SECONDS > 5 ? limit - SECONDS : 5)); }
nproc; uptime
mkdir -p /tmp/peers && tar xzf $carried/peers.tgz -C /tmp/peers
(cd /tmp/peers/nvbandwidth &&
  sed -i 's/^find_package(Boost.*/add_library(Boost::program_options STATIC IMPORTED)\nset_target_properties(Boost::program_options PROPERTIES IMPORTED_LOCATION \/tmp\/peers\/lib\/libboost_program_options.a INTERFACE_INCLUDE_DIRECTORIES \/tmp\/peers\/include)/' CMakeLists.txt &&
  timeout 200 cmake -DCMAKE_CUDA_ARCHITECTURES=90 . > /tmp/nvb.log 2>&1 && timeout 200 make -j 10 >> /tmp/nvb.log 2>&1
  echo "nvbandwidth built: status $?, $SECONDS s"; tail -4 /tmp/nvb.log) & building=$!
. $carried/setup.sh          # then in /tmp/work
echo "collbench installed: $SECONDS s"
wait $building
nvb=/tmp/peers/nvbandwidth/nvbandwidth
$nvb --help > /dev/null 2>&1; echo "nvbandwidth starts: status $?"
cd /tmp/work; export XDG_STATE_HOME=/tmp/state NO_COLOR=1 COLUMNS=200 CUDA_VISIBLE_DEVICES=0 CUDA_DEVICE_ORDER=PCI_BUS_ID
sleep 3; uptime

# 1. All rows, as benchmarks/versus_peers.py compares them: the two programs in turn, five times.
timeout $(left) python3 benchmarks/versus_peers.py --nvbandwidth $nvb --out /tmp/vp --part host --repeats 3
echo "versus_peers: status $?, $SECONDS s"
cp /tmp/vp/versus_peers.txt $OUT/
cp -r /tmp/vp/raw /tmp/raw 2>/dev/null

# 2. The row that missed (h2d-ce against the opposite direction), alone, in turn, every sample of both printed.
for i in 1 2 3 4 5; do
  [ $SECONDS -lt 300 ] || break
  timeout 40 $nvb -b 64 -s -v -i 10 -t host_to_device_bidirectional_memcpy_ce > /tmp/raw/contested-nvbandwidth-$i.txt 2>&1
  timeout 40 python3 -m collbench copies --backend cuda --devices 0 --patterns host-both-ways --sizes 64M --budget 10s \
    --force -o /tmp/raw/contested-collbench-$i.json > /tmp/raw/contested-collbench-$i.txt 2>&1
done
cat > /tmp/samples.py <<'P'
import json, re, statistics as st
from pathlib import Path
raw = Path("/tmp/raw")
def line(what, gbs):
    if gbs:
        print(f"{what}: median {st.median(gbs):.2f}, {min(gbs):.2f} to {max(gbs):.2f}, {len(gbs)}: "
              + " ".join(f"{one:.1f}" for one in gbs))
    return gbs
def of_run(file, operation, variant):
    run = json.loads(file.read_text())
    return [point["point"]["size_bytes"] / second / 1e9 for point in run["measurements"]
            if (point["point"]["operation"], point["point"]["variant"]) == (operation, variant)
            for sample in point["samples"] for second in sample["seconds"]]
print("h2d-ce against the opposite direction, GB/s of each sample (nvbandwidth) or batch (collbench), alone and in turn")
ratios = []
for number in range(1, 6):
    text = (raw / f"contested-nvbandwidth-{number}.txt")
    file = (raw / f"contested-collbench-{number}.json")
    if not (text.exists() and file.exists()):
        continue
    peer = line(f"{number} nvbandwidth", [float(one) for one in re.findall(r"Sample \d+: .*?: ([\d.]+) GB/s", text.read_text())])
    ours = line(f"{number} collbench  ", of_run(file, "h2d-ce", "host-both-ways"))
    line(f"{number} collbench d2h", of_run(file, "d2h-ce", "host-both-ways"))
    if peer and ours:
        ratios.append(st.median(ours) / st.median(peer))
if ratios:
    print(f"ratio of medians: median {st.median(ratios):.4f}, {min(ratios):.4f} to {max(ratios):.4f}")
print("\nthe same row within all rows: nvbandwidth's figure of each repeat (its median of 3), collbench's batches")
for number in range(5):
    peer = raw / f"nvbandwidth-host-copies-64M-{number}.txt"
    file = raw / f"collbench-host-copies-64M-{number}.json"
    if peer.exists():
        text = peer.read_text()
        cases = json.loads(text[text.index("{"):])["nvbandwidth"]["testcases"]
        for case in cases:
            if case["name"] in ("host_to_device_bidirectional_memcpy_ce", "host_to_all_bidirectional_memcpy_ce"):
                print(number, case["name"], case.get("bandwidth_matrix"), case.get("status"))
    if file.exists():
        line(f"{number} collbench", of_run(file, "h2d-ce", "host-both-ways"))
P
python3 /tmp/samples.py > $OUT/samples.txt 2>&1; cat $OUT/samples.txt
tar czf $OUT/raw.tgz -C /tmp raw
echo "$SECONDS s"; uptime; date -u
