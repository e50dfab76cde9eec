"""How often the step of a simulated job is found: simulated ranks, recorded by the real plugin.

    python benchmarks/steps_sim.py --seeds 10 --crossings > benchmarks/results/…/steps.json

Each job of tests/jobs/scenarios.py is played to the NCCL profiler plugin by tests/native/recorded_host.cpp, on a
virtual clock, and merged as `collbench record` does. One line per scenario says how often the step was right, not
claimed, or wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.jobs import scenarios
from tests.jobs.test_steps import recorded_job, verdict


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--crossings", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    wanted = scenarios.SCENARIOS | (scenarios.CROSSINGS if options.crossings else {})
    rows, totals = [], {way: Counter[str]() for way in ("host", "gpu", "marks")}
    for name, features in wanted.items():
        if options.only not in name:
            continue
        row: dict[str, object] = {"scenario": name}
        for way in totals:
            counts = Counter[str]()
            for seed in range(options.first, options.first + options.seeds):
                made = scenarios.Job(features, seed, gpu=way == "gpu", marks=way == "marks")
                with tempfile.TemporaryDirectory() as folder:
                    judged, why = verdict(made, recorded_job(made, Path(folder)))
                counts[judged] += 1
                if options.verbose or judged == "wrong":
                    print(name, way, seed, judged, why, file=sys.stderr)
            row[way] = dict(counts)
            totals[way] += counts
        rows.append(row)
        print(json.dumps(row), file=sys.stderr)
    print(
        json.dumps(
            {"seeds": options.seeds, "scenarios": rows, "totals": {k: dict(v) for k, v in totals.items()}}, indent=1
        )
    )


if __name__ == "__main__":
    main()
