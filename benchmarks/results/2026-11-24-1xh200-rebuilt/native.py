"""Time host and local copies and the pointer chase by one installed tree's native layer: JSON on stdout."""
import json, statistics, sys
from collbench import _native
from collbench.backends.cuda import shipped_ptx
gpus = _native.Gpus([0], shipped_ptx())
gpus.allocate(2**29 + 2**20)
rows = {}
for name, groups in {"h2d": [[(-1, 0)]], "d2h": [[(0, -1)]], "local": [[(0, 0)]], "both": [[(-1, 0), (0, -1)]]}.items():
    for engine in (_native.Engine.copy_engine, _native.Engine.multiprocessors):
        for size, its in ((8, 14), (65536, 14), (2**22, 14), (2**29, 4)):
            for pull in (False, True):
                if name == "local" and pull: continue
                t = gpus.time_copies(_native.CopyRound(groups=groups, engine=engine, pull=pull, bytes=size, iterations=its, batches=7, warmup=2, deadline=30.0, covered=name == "both"))
                rows[f"{name} {str(engine).split('.')[-1]} {'read' if pull else 'write'} {size}"] = [s * 1e6 for s in t.seconds[0]]
t = gpus.time_chase(_native.ChaseRound(links=[(0, -1)], accesses=20000, batches=7, warmup=1, deadline=30.0))
rows["chase host"] = [s * 1e9 for s in t[0]]
json.dump(rows, sys.stdout)
