"""How often two GPUs alone are called UNSTEADY: every tenth trial takes twice as long, or a third is slow."""

import numpy as np

from tests.judge.test_verdicts_over_time import COPIES, SLOWER, noise, run_with, said

RUNS = 250
for passes in (3, 5, 7):
    named = 0
    for seed in range(RUNS):
        rng = np.random.default_rng(1000 + seed)
        logs = noise(0.01, count=2, passes=passes, seed=seed) - 0.7 * (rng.random((len(COPIES), 2, passes)) < 0.1)
        named += bool(said(run_with(logs, 2)))
    print(f"(sim) {passes} passes, every tenth trial wild: named in {named} of {RUNS}", flush=True)
named = 0
for seed in range(100):
    rng = np.random.default_rng(seed)
    logs = noise(0.003, count=2, passes=3, seed=seed)
    begin, when = rng.uniform(0, 2), np.arange(3)[None, None, :] + rng.random(logs.shape)
    logs += SLOWER * ((when >= begin) & (when < begin + 1))
    named += bool(said(run_with(logs, 2)))
print(f"(sim) 20% slower for a third of three passes, begun at any time: named in {named} of 100")
