"""Time copies and the pointer chase of one GPU by a tree's extension: JSON of µs (chase: ns) by batch."""

import json
import sys

from collbench.backends.cuda import shipped_ptx

from collbench import _native

PATTERNS = {"h2d": [[(-1, 0)]], "d2h": [[(0, -1)]], "local": [[(0, 0)]], "both": [[(-1, 0), (0, -1)]]}
ITERATIONS = {8: 14, 65536: 14, 2**22: 14, 2**29: 4}

gpus = _native.Gpus([0], shipped_ptx())
gpus.allocate(2**29 + 2**20)
rows = {}
for name, groups in PATTERNS.items():
    for engine in (_native.Engine.copy_engine, _native.Engine.multiprocessors):
        for size, iterations in ITERATIONS.items():
            for pull in (False,) if name == "local" else (False, True):
                plan = _native.CopyRound(
                    groups=groups, engine=engine, pull=pull, bytes=size, iterations=iterations, batches=7, warmup=2,
                    deadline=30.0, covered=name == "both",
                )  # fmt: skip
                key = f"{name} {str(engine).split('.')[-1]} {'read' if pull else 'write'} {size}"
                rows[key] = [seconds * 1e6 for seconds in gpus.time_copies(plan).seconds[0]]
chase = gpus.time_chase(_native.ChaseRound(links=[(0, -1)], accesses=20000, batches=7, warmup=1, deadline=30.0))
rows["chase host"] = [seconds * 1e9 for seconds in chase[0]]
json.dump(rows, sys.stdout)
