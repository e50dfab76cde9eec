"""How often a decision is wrong: on simulated machines, on real ones that were disturbed, on hosts of one machine."""

from __future__ import annotations

import re
import tarfile
from collections import Counter
from pathlib import PurePath

from collbench.judge import diagnose
from collbench.runfile import run_file

from . import files
from .agreement import Row

SLOW = "2026-11-24-decisions/slow.csv"
HEALTHY = "2026-11-24-decisions/healthy.csv"
RELABEL = "2026-11-24-decisions/relabel.csv"
NOISE = "2026-11-24-decisions/noise.txt"
KINDS = "2026-11-24-bands/kinds.csv"
CHOOSING = "2026-11-24-bands/choosing.csv"
CLUSTERS = "2026-11-24-cluster-plan-sim/cluster-plan.txt"
KEPT_RUNS = "2026-11-30-kept-runs/kept-runs.txt"
REPEATS = "2026-11-24-bands/compare-repeats.txt"
HELD_OUT = "2026-11-28-references/held-out.txt"
JUDGING = "2026-11-21-4xh200-judging/judging.log"
BUSY = "2026-11-21-4xh200-judging/runs.tar.gz"
TEN = "2026-11-21-4xh200-judging/ten.tar.gz"
HALF_RATE = {
    "four hosts": ("2026-11-24-1xh200-slow-hosts/4-hosts.jsonl",),
    "eight hosts": (
        "2026-11-24-1xh200-slow-hosts/8-hosts.jsonl",
        "2026-11-24-1xh200-eight-hosts/8-hosts-18.jsonl",
        "2026-11-24-1xh200-eight-hosts/8-hosts-38.jsonl",
    ),
}
FAILED = ("2026-11-23-emulated-hosts", "2026-11-23-emulated-hosts-killed")


def simulated() -> list[Row]:
    """Return the rows of simulated machines and clusters."""
    healthy, slow, kinds = files.rows(HEALTHY), files.rows(SLOW), files.rows(KINDS)
    found = Counter(row["kind"] for row in kinds if row["placed"] == row["caused"] == "True")
    elsewhere = sum(bool(row["false_kinds"]) for row in kinds)
    relabeled = files.rows(RELABEL)
    same = sum(row["tiers"] == row["verdicts"] == row["choices"] == "True" for row in relabeled)
    choices = files.rows(CHOOSING)
    regrets = [float(row["regret"]) for row in choices]
    finalists = sum(int(row["finalists"]) for row in choices)
    outside = sum(int(row["outside_2"]) for row in choices) / finalists
    noisy = re.findall(r"(\d+) of (\d+)$", files.text(NOISE), re.MULTILINE)
    return [
        (
            "healthy machines: runs with a false split or contradiction",
            f"{sum(bool(row['false_splits'] or row['false_kinds']) for row in healthy)} of {len(healthy)}",
            "1%",
            HEALTHY,
        ),
        (
            "the same, trials vary by 5% to 30%: `check` ends with 3",
            f"{sum(int(wrong) for wrong, _ in noisy)} of {sum(int(runs) for _, runs in noisy)}",
            "",
            NOISE,
        ),
        (
            "one pair 8% slow: found, by a tier or a verdict; by a verdict that names it",
            f"{sum('True' in (row['by_tier'], row['by_verdict']) for row in slow)} of {len(slow)}; "
            f"{sum(row['by_verdict'] == 'True' for row in slow)}",
            "99%",
            SLOW,
        ),
        (
            f"each of {len(found)} kinds of verdict: found with devices and cause; false ones elsewhere",
            f"at least {min(found.values())} of {len(kinds) // len(found)}; {elsewhere}",
            "99%; 0",
            KINDS,
        ),
        ("GPUs renumbered: the same tiers, verdicts, choices", f"{same} of {len(relabeled)}", "always", RELABEL),
        (
            "bandwidth lost by the chosen set against the best: mean; worst; finalists more than 2% outside their band",
            f"{sum(regrets) / len(regrets):.3%}; {max(regrets):.1%} in {len(choices)} choices; {outside:.1%}",
            "1%; 5%",
            CHOOSING,
        ),
        *(
            (
                f"clusters of 128 nodes, {name}: slow nodes found; slow uplinks; clusters with a false flag",
                _clusters(at),
                "99%; 99%; 1%",
                CLUSTERS,
            )
            for at, name in enumerate(("switches known", "switches not reported"))
        ),
    ]


def _clusters(at: int) -> str:
    part = files.text(CLUSTERS).split("\nsim: ")[1 + at]
    counts = [re.search(rf"{name} +(\d+) of (\d+)", part) for name in ("nodes found", "uplinks found", "false flag")]
    return "; ".join(f"{int(match[1]):,} of {int(match[2]):,}" for match in counts if match)


def real() -> list[Row]:
    """Return the rows of real GPUs."""
    with tarfile.open(files.RESULTS / TEN) as archive:
        pages = [
            one for member in archive if member.name.endswith(".check.txt") and (one := archive.extractfile(member))
        ]
        agree = sum(b"Labels, tools and measurement agree." in page.read() for page in pages)
    disturbed, with_verdict, undisturbed, accused = (
        int(number)
        for number in files.numbers(
            KEPT_RUNS,
            r"^disturbed runs: (\d+); disturbed with a verdict: (\d+); undisturbed runs: (\d+); undisturbed with a "
            r"verdict: (\d+)",
        )
    )
    found, planted = (
        int(number) for number in files.numbers(REPEATS, r"^\| all \|.*\| (\d+) of (\d+) \| \d+ of \d+ \|")
    )
    outside, inside = (int(number) for number in files.numbers(HELD_OUT, r"^held out:.*disagree (\d+); inside (\d+)"))
    return [
        ("four H200, nothing disturbed: `check` finds agreement", f"{agree} of {len(pages)} runs", "always", TEN),
        (
            "a job copies GPU0 to GPU1: `select 2 --allow-busy` takes GPU2, GPU3, all-reduce of 64M against the first "
            "two, GB/s; gain",
            "{:.1f} against {:.1f}; {:.2f}× ({:.2f}–{:.2f})".format(*busy()),
            "",
            JUDGING,
        ),
        ("the run beside that job: what today's `check` says", _said_of_busy(), "", BUSY),
        (
            "every kept run, judged again: undisturbed runs with a verdict, all right; disturbed ones with a verdict",
            f"{accused} of {undisturbed}; {with_verdict} of {disturbed}",
            "",
            KEPT_RUNS,
        ),
        (
            "one link of a kept run made 8% slow in the file: `compare` with the machine's other runs finds it",
            f"{found} of {planted}",
            "99%",
            REPEATS,
        ),
        (
            "published figures, each source held out: inside the others' band; the page says that sources disagree",
            f"{inside}; {outside} of {inside + outside}",
            "all",
            HELD_OUT,
        ),
    ]


def _said_of_busy() -> str:
    with files.unpacked(BUSY) as folder:
        run = run_file.load(folder / "busy.json")
    found = [verdict for verdict in diagnose.judge(run) if verdict.severity is not diagnose.Severity.INFO]
    return "; ".join(f"{one.kind} on {', '.join(run.devices[at].tag for at in one.members)}" for one in found)


def busy() -> tuple[float, ...]:
    """Return GB/s of the chosen pair and of the first two, and the gain with its interval, beside a competing job."""
    chosen = files.numbers(JUDGING, r"^  GPU2, GPU3 +[\d.]+ +([\d.]+) \(")
    first = files.numbers(JUDGING, r"^  GPU0, GPU1 +[\d.]+ +([\d.]+) \([^)]*\)  the first 2$")
    gain = files.numbers(JUDGING, r"^gain +\+([\d.]+) % over GPU0, GPU1 \(95 %: \+([\d.]+) to \+([\d.]+) %\)")
    return (*chosen, *first, *(1 + percent / 100 for percent in gain))


def hosts() -> list[Row]:
    """Return the rows of emulated hosts, which share one machine."""
    rows: list[Row] = []
    for name, sources in HALF_RATE.items():
        runs = [run for source in sources for run in files.json_lines(source)]
        counts = {
            slow: (
                sum(run["named"] == ([] if run["slow"] is None else [run["slow"]]) for run in some),
                len(some),
            )
            for slow in (True, False)
            if (some := [run for run in runs if (run["slow"] is not None) == slow])
        }
        rows.append(
            (
                f"one of {name} at half rate: named, nobody else; nobody is slow: nobody named",
                "{} of {}; {} of {}".format(*counts[True], *counts[False]),
                "",
                str(PurePath(sources[0]).parent),
            )
        )
    failed = [
        run
        for folder in FAILED
        for path in sorted((files.RESULTS / folder).glob("*.jsonl"))
        for run in files.json_lines(f"{folder}/{path.name}")
        if "victim" in run
    ]
    right = sum(run["named"] == [run["victim"]] and run["pairs_of_others"] == _PAIRS_OF_SEVEN for run in failed)
    rows.append(
        (
            "one of eight hosts killed, stopped or cut off: only it is named, and all other pairs are measured",
            f"{right} of {len(failed)}",
            "always",
            FAILED[0],
        )
    )
    return rows


_PAIRS_OF_SEVEN = 21
