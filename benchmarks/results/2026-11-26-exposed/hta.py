"""HolisticTraceAnalysis on traces: how the GPU's time passes, as JSON, µs.

HTA rounds nanoseconds down unless HTA_DISABLE_NS_ROUNDING is set, and drops kernels that were launched before the first
ProfilerStep or in none; so each trace is read a second time with these rows renamed, which keeps all of its kernels.

    pip install HolisticTraceAnalysis==0.5.0
    HTA_DISABLE_NS_ROUNDING=1 python hta_compare.py TRACE... > hta.json
"""

import contextlib
import gzip
import io
import json
import logging
import sys
import tempfile
import warnings
from pathlib import Path

from hta.trace_analysis import TraceAnalysis

warnings.filterwarnings("ignore")
logging.disable(logging.CRITICAL)


def analyzed(name: str, content: bytes) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        path = Path(folder, name.removesuffix(".gz") + ".gz")
        path.write_bytes(gzip.compress(content, 1))
        analysis = TraceAnalysis(trace_files={0: str(path)}, trace_dir=folder, include_last_profiler_step=True)
        times = analysis.get_temporal_breakdown(visualize=False).iloc[0]
        overlap = analysis.get_comm_comp_overlap(visualize=False).iloc[0]
    names = {
        "idle": "idle_time(us)",
        "compute": "compute_time(us)",
        "other": "non_compute_time(us)",
        "total": "kernel_time(us)",
    }
    return {key: float(times[column]) for key, column in names.items()} | {
        "overlap_percent": float(overlap["comp_comm_overlap_pctg"])
    }


found = []
for file in map(Path, sys.argv[1:]):
    content = file.read_bytes()
    content = gzip.decompress(content) if file.suffix == ".gz" else content
    found.append(
        {
            "trace": file.name,
            "in_steps": analyzed(file.name, content),
            "all_kernels": analyzed(file.name, content.replace(b"ProfilerStep", b"Profiler Step")),
        }
    )
json.dump(found, sys.stdout, indent=1)
