"""How near collbench is to nvbandwidth and nccl-tests, and to itself, from what all three printed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import median
from typing import Any

from peers import rates, times
from peers.rates import LARGE, LARGE_BAR, PROGRAMS, SMALL_BAR
from peers.registration import registration
from peers.skew import skew
from peers.table import MET, Table, size_name
from positions import collect
from positions import rows as position_rows

from collbench.judge.tails import Tails, tails_of
from collbench.model.run import Latency
from collbench.runfile.codec import build

from . import files

Row = tuple[str, str, str, str]  # what, measured, bar, file below benchmarks/results

PEERS = "2026-11-21-4xh200-peers/versus-raw-3.tar.gz"
TWO = "2026-11-29-2xh200-whole/peers-raw.tar.gz"
HOST = "2026-11-22-2xh200-job/host"
TAILS = "2026-11-22-2xh200-job/tails/tails.json.gz"
CHASE = "2026-11-22-2xh200/session.txt"
POSITIONS = ("2026-11-22-2xh200-positions/runs.tar.gz", "2026-11-22-2xh200/runs.tar.gz")
COVERAGE = "2026-11-29-even-trials-sim/coverage.csv"
_HELD_US = 50


@dataclass(frozen=True, slots=True)
class Compared:
    """Ratios of collbench's rate over a peer's, the median of the repeats, and whether a bar is met, by row."""

    ratios: dict[str, float]
    met: dict[str, bool]

    def names(self, *words: str, large: bool | None = None) -> list[str]:
        """Return the rows that hold each word, from 16 MiB on or below."""
        return [
            what
            for what in self.ratios
            if all(word in what for word in words) and (large is None or large == (_size(what) >= LARGE))
        ]

    def select(self, *words: str, large: bool | None = None) -> list[float]:
        """Return these rows' ratios."""
        return [self.ratios[what] for what in self.names(*words, large=large)]

    def within(self, *words: str, large: bool) -> str:
        """Return how many of these rows are within the bar of their size: "44 of 48 within 1%"."""
        names = self.names(*words, large=large)
        return f"{sum(self.met[what] for what in names)} of {len(names)} within {LARGE_BAR if large else SMALL_BAR:.0%}"


def _size(what: str) -> int:
    """Return the bytes that a row names: "allreduce, 2 ranks, 64K, graph" → 65536."""
    word = what.split(", ")[-2]
    return int(word[:-1]) << {"K": 10, "M": 20, "G": 30}[word[-1]] if word[-1] in "KMG" else int(word)


def _compared(table: Table) -> Compared:
    return Compared(
        {row[0]: float(row[3].split()[0]) for row in table.rows}, {row[0]: row[-1] == MET for row in table.rows}
    )


@cache
def copies(source: str, gpus: int, repeats: int) -> tuple[Compared, Compared]:
    """Return copies between GPUs over nvbandwidth's: of the median link, and of the link that is farthest off."""
    with files.session(source, gpus, repeats) as bench:
        table = rates.copies(bench)
    worst = {row[0]: float(row[4].rpartition(" ")[2]) for row in table.rows}
    return _compared(table), Compared(worst, {})


@cache
def collectives(source: str, gpus: int, repeats: int) -> Compared:
    """Return six collectives over nccl-tests': launch loops over plain, graph replay over -G, and replay over plain."""
    with files.session(source, gpus, repeats) as bench:
        compared = _compared(rates.collectives(bench))
        replayed: dict[str, list[float]] = {}
        for operation in PROGRAMS:
            for members in bench.sets():
                for repeat in range(repeats):
                    name = f"{operation}-{len(members)}-ranks-{repeat}"
                    plain = bench.run_nccl_tests(f"nccl-tests-{name}", operation, members) or {}
                    run = bench.run_collbench(f"collbench-{name}", operation, members)
                    for (_, point, size), seconds in run.points.items():
                        if len(point) == len(members):
                            what = f"{operation}, {len(members)} ranks, {size_name(size)}, replay"
                            replayed.setdefault(what, []).append(plain[size] / seconds.seconds)
    medians = {what: median(ratios) for what, ratios in replayed.items()}
    met = {
        what: abs(ratio - 1) <= (LARGE_BAR if _size(what) >= LARGE else SMALL_BAR) for what, ratio in medians.items()
    }
    return Compared(compared.ratios | medians, compared.met | met)


def range_of(ratios: Sequence[float], digits: int = 3) -> str:
    """Return the smallest and the largest."""
    return f"{min(ratios):.{digits}f} to {max(ratios):.{digits}f}"


def table() -> list[Row]:
    """Return the rows of the comparison with the peers."""
    four, four_worst = copies(PEERS, 4, 3)
    two, two_worst = copies(TWO, 2, 3)
    first, second = collectives(PEERS, 4, 3), collectives(TWO, 2, 3)
    farthest = [max(one.select("ce-"), key=lambda ratio: abs(ratio - 1)) for one in (four_worst, two_worst)]
    slow = sum(ratio < 1 - LARGE_BAR for ratio in first.select("launch", large=True))
    rows = [
        (
            "copy engine, write and read, 64M, 512M, 1G, 4 GPUs: median link; farthest link",
            f"{range_of(four.select('ce-'), 4)}; {farthest[0]:.4f}",
            "0.5%, missed by a link",
            PEERS,
        ),
        (
            "the same, 2 GPUs, another session",
            f"{range_of(two.select('ce-'), 4)}; {farthest[1]:.4f}",
            "0.5%, missed by a link",
            TWO,
        ),
        (
            "copies by kernel, 2 GPUs: write; read",
            f"{range_of(two.select('sm-write'), 4)}; {range_of(two.select('sm-read'), 4)}",
            "not slower, reads miss it",
            TWO,
        ),
        (
            "launch loop over plain nccl-tests, six collectives, from 16M, 2 and 4 GPUs",
            f"{first.within('launch', large=True)}, {slow} slower",
            "1%",
            PEERS,
        ),
        (
            "the same, 2 GPUs, another session",
            second.within("launch", large=True),
            "1%",
            TWO,
        ),
        (
            "the same, 64K to 4M, 2 and 4 GPUs",
            _not_slower(first.select("launch", large=False)),
            "5%",
            PEERS,
        ),
        (
            "graph replay (the figure that pages show) over plain nccl-tests, from 16M",
            f"{first.within('replay', large=True)}, all {range_of(first.select('replay', large=True))}",
            "1%, missed",
            PEERS,
        ),
        (
            "graph replay over nccl-tests `-G`, from 16M, which registers its buffers",
            first.within("graph", large=True),
            "1%, missed",
            PEERS,
        ),
        (
            "the same, 64K to 4M",
            first.within("graph", large=False),
            "5%, missed",
            PEERS,
        ),
    ]
    return [*rows, *_registration(), *_skew(), *_host(), *_chase(), *_tails()]


def _not_slower(ratios: Sequence[float]) -> str:
    fine = sum(ratio >= 1 - SMALL_BAR for ratio in ratios)
    return f"{fine} of {len(ratios)} not slower than {SMALL_BAR:.0%}"


def _registration() -> list[Row]:
    with files.session(TWO, 2, 3) as bench:
        # Rows are "allreduce, window, 64K, graph".
        compared = _compared(registration(bench))
    large = compared.select(large=True)
    return [
        (
            "registered buffers and windows over nccl-tests `-R 1`, `-R 2`, four collectives, 2 GPUs, from 16M, "
            "launch and graph",
            f"{compared.within(large=True)}, all {range_of(large)}",
            "1%",
            TWO,
        ),
        (
            "the same, 64K to 4M: graph replay; launch loop",
            f"{compared.within('graph', large=False)}; {compared.within('launch', large=False)}",
            "5%, missed",
            TWO,
        ),
    ]


def _skew() -> list[Row]:
    with files.session(TWO, 2, 2) as bench:
        compared = _compared(skew(bench))
    return [
        (
            "all-to-all-v over `alltoallv_perf`, three matrices, 2 GPUs: launch loop from 16M; below; "
            "graph replay from 16M",
            f"{range_of(compared.select('launch', large=True))}; {range_of(compared.select('launch', large=False))}; "
            f"{range_of(compared.select('graph', large=True))}",
            "1%; 5%, missed; 1%, missed",
            TWO,
        )
    ]


def _host() -> list[Row]:
    with files.session(HOST, 2, 1) as bench:
        compared = _compared(rates.host(bench, 512))
    alone = [ratio for what, ratio in compared.ratios.items() if " host" not in what and "local" not in what]
    return [
        (
            "copies with host memory over nvbandwidth, 512M, 2 GPUs, one repeat: isolated; both ways by copy engine; "
            "all GPUs at once; `device_local_copy`",
            f"{range_of(alone)}; {range_of(compared.select('-ce host-both-ways'))}; "
            f"{range_of(compared.select(' host-all '))}; {compared.select('local')[0]:.3f}",
            "1%, missed where GPUs share the host",
            HOST,
        )
    ]


def _chase() -> list[Row]:
    (peer,) = files.numbers(CHASE, r"^ 0 +N/A +([\d.]+)")
    (ours,) = files.numbers(CHASE, r"^GPU0 +- +([\d.]+) +\d+\.\d$")
    return [("pointer chase, ns, 2 GPUs", f"{ours:.1f} against {peer:.1f}", "1%", CHASE)]


@cache
def _singles() -> tuple[dict[int, list[float]], list[tuple[bool, float]]]:
    """Return p50 over the launch loop's time by size; and whether a delayed rank was named alone, and its µs."""
    ratios: dict[int, list[float]] = {}
    held: list[tuple[bool, float]] = []
    for launch in json.loads(files.text(TAILS))["launches"]:
        tails = _tails_of(launch)
        if "held_rank" in launch:
            rank = launch["held_rank"]
            arrives = tails.ranks[rank].arrives
            named = [late.member for late in tails.late] == [rank]
            held.append((named, 1e6 * arrives.median if arrives else 0.0))
        elif tails.transfer:
            size = launch["point"]["size_bytes"]
            ratios.setdefault(size, []).append((tails.transfer.at(50) or 0.0) / launch["loop_seconds"])
    return ratios, held


def _tails_of(launches: dict[str, Any]) -> Tails:
    fields = ("point", "ranks", "common_clock", "concurrent", "flags")
    point = {key: value for key, value in launches["point"].items() if value is not None}
    data = {key: launches[key] for key in fields} | {"point": point}
    return tails_of(build(Latency, data, "launch"))


def _tails() -> list[Row]:
    ratios, held = _singles()
    small = [median(some) for size, some in ratios.items() if size <= 2**18]
    large = [median(some) for size, some in ratios.items() if size >= 2**20]
    return [
        (
            "p50 of 2,000 single launches over the launch loop's time, 1M to 16M; 8 B to 256K, where the host limits "
            "the loop only",
            f"{range_of(large)}; {range_of(small)}",
            "3%, missed",
            TAILS,
        ),
        (
            f"a rank delayed by {_HELD_US} µs, 8 B, 1M, 16M",
            f"named alone in {sum(named for named, _ in held)} of {len(held)}, "
            f"{range_of([late for _, late in held], 1)} µs late",
            "± 5 µs",
            TAILS,
        ),
    ]


def repeats() -> list[Row]:
    """Return the rows of how figures repeat."""
    with files.session(PEERS, 4, 3) as bench:
        changes = {(row[0], row[1]): (row[2], row[3]) for row in times.repeat(bench).rows}
    ours, peer = "collbench, all data points", "nccl-tests allreduce, GPUs 0, 1"
    runs = []
    for archive in POSITIONS:
        with files.unpacked(archive) as folder:
            runs += [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("pairs*.json"))]
    position = list(position_rows(collect(runs)))
    hit = [
        int(row["right"]) / int(row["points"])
        for row in files.rows(COVERAGE)
        if row["noise"] == "normal" and row["trials"] != "0" and int(row["points"]) >= _ENOUGH
    ]
    return [
        *(
            (
                f"change from run to run, {name}, median of {changes[ours, key][0]}; nccl-tests",
                f"{changes[ours, key][1]}; {changes[peer, key][1]}",
                bar,
                PEERS,
            )
            for name, key, bar in (("up to 64K", "small", "2%"), ("from 1M", "large", "0.3%"))
        ),
        (
            f"a batch's time does not depend on its position, {len(runs)} `pairs`: rows outside ±0.5% (from 1M) or ±1%",
            f"{sum(missed for _, missed in position)} of {len(position)}",
            "none",
            POSITIONS[0],
        ),
        (
            "95% intervals that hold the true time (*sim*, normal noise), by the number of trials at the end",
            f"{min(hit):.1%} to {max(hit):.1%}",
            "93% to 97%; more is only wide",
            COVERAGE,
        ),
    ]


_ENOUGH = 100


def seconds() -> list[Row]:
    """Return the rows of how long a run takes."""
    with files.session(PEERS, 4, 3) as bench:
        walls = {row[0]: row[1] for row in times.wall(bench).rows}
        shares = {row[0]: row[7] for row in times.growth(bench).rows}
    return [
        ("`pairs` on 4 GPUs, 14 sizes, start to prompt, s", walls["collbench pairs, 4 GPUs"], "5 s", PEERS),
        (
            "nvbandwidth and nccl-tests for the same links and pairs, s; over `pairs`",
            f"{walls['peers']}; {walls['peers / collbench']}",
            "10×, missed",
            PEERS,
        ),
        (
            "share of the measuring time inside timed regions, 2; 4 GPUs",
            f"{shares['2']}; {shares['4']}",
            "50%, missed on 4",
            PEERS,
        ),
    ]
