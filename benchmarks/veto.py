"""Whether `select K` chooses a sound set on simulated machines with links that hang or corrupt data.

Faults are planted on random pairs of links. A set is sound if no planted pair is inside it; whether one exists is found
by trying all sets of K, without collbench. Writes one line of CSV for each machine, and prints the totals.

    python benchmarks/veto.py --machines 1000 > veto.csv
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections import Counter
from dataclasses import replace
from itertools import combinations
from pathlib import Path

from collbench.api.selecting import SelectRequest, select_devices
from collbench.model.errors import CollbenchError
from collbench.runfile.codec import plain
from collbench.sim import fabrics
from collbench.sim.fabrics import FORMAT, Fault, FaultKind

MACHINES = ("dgx-1v", "hgx-h200")
KINDS = (FaultKind.HANGING_LINK, FaultKind.CORRUPT_LINK)


def outcome(name: str, pairs: list[tuple[int, int]], kinds: list[FaultKind], k: int, folder: Path) -> tuple[str, str]:
    """Return what became of one choice, and the chosen devices or the error."""
    fabric = fabrics.load(name)
    faults = tuple(Fault(kind, pair) for kind, pair in zip(kinds, pairs, strict=True))
    file = folder / "machine.json"
    planted = replace(fabric, name="planted", faults=faults)
    file.write_text(json.dumps({**FORMAT.head, **plain(planted)}))
    n = len(fabric.gpus)
    exists = any(not any(set(pair) <= set(some) for pair in pairs) for some in combinations(range(n), k))
    try:
        selected = select_devices(SelectRequest(count=k, backend="sim", fabric=str(file)))
        chosen = {device.index for device in selected.check().devices}
    except CollbenchError as error:
        return ("refused a sound set" if exists else "rightly none"), str(error)
    bad = any(set(pair) <= chosen for pair in pairs)
    return ("chose a fault" if bad else "chose a sound set"), " ".join(map(str, sorted(chosen)))


def main() -> None:
    """Run all machines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--machines", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    rng, totals = random.Random(asked.seed), Counter[str]()
    print("machine,fabric,k,faults,outcome,answer")
    with tempfile.TemporaryDirectory() as folder:
        for number in range(asked.machines):
            name, k = rng.choice(MACHINES), rng.randint(2, 7)
            pairs = rng.sample(list(combinations(range(len(fabrics.load(name).gpus)), 2)), rng.randint(1, 12))
            kinds = [rng.choice(KINDS) for _ in pairs]
            what, answer = outcome(name, pairs, kinds, k, Path(folder))
            faults = " ".join(f"{kind}:{a}-{b}" for kind, (a, b) in zip(kinds, pairs, strict=True))
            print(f'{number},{name},{k},{faults},{what},"{answer}"', flush=True)
            totals[what] += 1
    print(dict(totals), file=sys.stderr)


if __name__ == "__main__":
    main()
