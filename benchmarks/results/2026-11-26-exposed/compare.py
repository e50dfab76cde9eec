"""collbench beside the figures of hta.py, of the same traces: `python compare.py hta.json TRACE... > figures.csv`."""

import csv
import json
import sys
from pathlib import Path

from collbench.jobs.traces.formats import read

found = {one["trace"]: one for one in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))}
rows = csv.writer(sys.stdout, lineterminator="\n")
rows.writerow(["trace", "part", "collbench_us", "hta_us", "difference_percent", "hta_in_steps_us"])
for path in map(Path, sys.argv[2:]):
    (trace,) = read([path])
    if trace.gpu is None:
        continue
    own = trace.gpu.between(*trace.gpu.ends)
    parts = {"compute": own.compute, "other": own.exposed + own.copies, "idle": own.idle, "total": own.total}
    parts["overlap_percent"] = 100 * own.overlapped / (own.overlapped + own.exposed)
    for part, figure in parts.items():
        hta, in_steps = found[path.name]["all_kernels"][part], found[path.name]["in_steps"][part]
        differs = 100 * (figure / hta - 1) if hta else 0.0
        rows.writerow([path.name, part, round(figure, 3), round(hta, 3), f"{differs:+.4f}", round(in_steps, 3)])
