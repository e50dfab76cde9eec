#!/usr/bin/env python3
"""What `select K` loses on machines that collbench's own simulator and predictor cannot make (sim).

    python benchmarks/choosing.py [--machines N] [--seconds S] [--seed S] [--jobs J] [--family NAME …] [--out FILE]

Machines with up to three slow elements come from judging/machines.py, those of the families cube, quads, bridges, numa
and switch from judging/boxes.py; what NCCL reaches on k of their GPUs comes from judging/rings.py or judging/boxes.py,
times what as many ranks reach of a pair's bandwidth on some published machine; plan, stopping rule, prediction and
choice are collbench's. The regret is 1 − the chosen set's true all-reduce bandwidth / the best set's. FILE gets a line
for each choice at once; the families take turns, so both may be cut short. 100 machines a family take ten minutes on
two cores.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from itertools import combinations
from multiprocessing import Pool
from pathlib import Path
from statistics import fmean

import numpy as np
from scipy.stats import beta

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # deciding imports the tests' random machines
from deciding.bench import LARGE, selection_request, verification_request
from judging import boxes
from judging.boxes import PairNoise
from judging.machines import FAMILIES, Made, make_sized
from judging.measured import Noise, Situation, measure
from judging.rings import RingsBackend, busbw, over_links

from collbench.choose.select import by_finalists, choose
from collbench.model.run import Run

_LAUNCH_S = 9e-6  # of a collective, as judging/measured.py has it
_MAX_SLOW = 3
_SIGMAS, _BETWEEN = (0.001, 0.03), 0.002  # of a trial in boxes.py, and from run to run
# All-reduce bandwidth from 64 MiB on, as a share of that on two ranks: least and most on published machines, none with
# a mesh, on three and four ranks, then on more (docs/method/choosing.md 3).
_OF_PAIRS = {
    "switch": ((1.06, 1.24), (0.92, 1.56)),
    "links": ((1.06, 1.24), (0.92, 1.24)),
    "slots": ((0.68, 1.0), (0.54, 1.0)),
}


@dataclass(frozen=True, slots=True)
class Chosen:
    """One choice. Rates are true all-reduce busbw in GB/s; `outside` counts finalists whose band misses theirs."""

    family: str
    number: int
    gpus: int
    k: int
    nccl: str
    sigma: float
    slow: str
    chosen: str
    best: str
    regret: float
    unverified: float
    finalists: int
    outside_2: int
    outside_5: int
    worst_ratio: float
    gain: str
    gain_holds: bool


def machine(family: str, rng: np.random.Generator) -> tuple[Made, str]:
    """Return a machine with up to three slow elements, and these in words."""
    made = make_sized(family, rng, int(rng.choice([4, 8, 8, 8, 16])))
    names = sorted(name for name in made.capacity if _may_be_slow(made, name))
    slow = {}
    for _ in range(int(rng.integers(_MAX_SLOW + 1))):
        name, factor = names[int(rng.integers(len(names)))], round(float(rng.uniform(0.25, 0.95)), 2)
        slow[name] = factor
        if rng.random() < 0.7:
            slow[_other_way(name)] = factor
    slow = {name: factor for name, factor in slow.items() if name in made.capacity}
    return made.slowed(slow), "; ".join(f"{name} {factor}" for name, factor in slow.items())


def _may_be_slow(made: Made, name: str) -> bool:
    if made.family in ("mesh", "nvswitch"):
        return name.startswith(("NVLinks", "port"))
    return not name.startswith("root")


def _other_way(name: str) -> str:
    words = {"in": "out", "out": "in", "up": "down", "down": "up"}
    kind, *rest = name.split()
    if rest[-1] in words:
        return " ".join((kind, *rest[:-1], words[rest[-1]]))
    return f"{kind} {rest[2]} to {rest[0]}" if len(rest) == 3 else name


@dataclass(frozen=True, slots=True)
class Case:
    """A machine, what is slow in it, how its NCCL works, what NCCL reaches on a set and over what, and the noise."""

    made: Made
    slow: str
    nccl: str
    reached: Callable[[tuple[int, ...]], tuple[float, str]]
    noise: Noise


def case(family: str, rng: np.random.Generator) -> Case:
    """Return a machine of machines.py or of boxes.py."""
    if family in boxes.FAMILIES:
        box, sigma = boxes.draw(family, rng), float(np.exp(rng.uniform(*np.log(_SIGMAS))))
        nccl = f"{box.units} a link, chains {box.chains:.2f}{', switch reduces' if box.reduces else ''}"
        return Case(box.made, box.slow, nccl, box.reached, PairNoise(sigma, _BETWEEN, rng))
    made, slow = machine(family, rng)
    by_rate, sigma = bool(rng.random() < 0.5), float(rng.uniform(0.001, 0.01))

    def reached(some: tuple[int, ...]) -> tuple[float, str]:
        return busbw(made, some, by_rate=by_rate), _over(made, some, by_rate)

    return Case(made, slow, "by rate" if by_rate else "by label", reached, Noise(sigma, rng))


def choices(family: str, seed: int, number: int) -> list[Chosen]:
    """Return the choices of 2, half, all but one and some other number of a machine's GPUs."""
    place = (*FAMILIES, *boxes.FAMILIES).index(family)
    rng = np.random.default_rng((seed, place, number))
    drawn = case(family, rng)
    made, situation = drawn.made, Situation(drawn.noise)
    run = measure(made, situation, selection_request(), int(rng.integers(2**31)))
    n = made.count
    ks = {4: (2, 3), 8: (2, 4, 7, int(rng.choice([3, 5, 6]))), 16: (2, 4, 15)}[n]
    found = []
    for k in ks:
        sets = list(combinations(range(n), k))
        shares = _of_pairs(made, k, np.random.default_rng((seed, place, number, k)))
        gbs = {some: rate * shares[over] for some in sets for rate, over in [drawn.reached(some)]}
        truth = dict(zip(sets, _with_launch(np.array([*gbs.values()]) * made.nccl, k).tolist(), strict=True))
        backend = partial(RingsBackend, gbs=gbs)

        def measured(
            some: Iterable[tuple[int, ...]], backend: Callable[[Made, Situation], RingsBackend] = backend
        ) -> tuple[Run, None]:
            drawn.noise.next_run()
            request = verification_request(tuple(some))
            return measure(made, situation, request, int(rng.integers(2**31)), backend), None

        choice = settled = choose(run, k)
        if not choice.tied and len(choice.finalists) > 1:
            settled, _ = by_finalists(choice, run, measured)
        best = max(truth, key=lambda some: truth[some])
        ratios = [truth[one.members] / _near(one.band.lo, one.band.hi, truth[one.members]) for one in settled.finalists]
        default = next((finalist.members for finalist in settled.finalists if finalist.default), settled.members)
        low, high = (settled.gain[0], settled.gain[2]) if settled.gain else (1.0, 1.0)
        gain = truth[settled.members] / truth[default]
        found.append(
            Chosen(
                family,
                number,
                n,
                k,
                drawn.nccl,
                round(drawn.noise.sigma, 4),
                drawn.slow,
                _text(settled.members),
                _text(best),
                round(float(1 - truth[settled.members] / truth[best]), 5),
                round(float(1 - truth[choice.members] / truth[best]), 5),
                len(settled.finalists),
                sum(abs(ratio - 1) > 0.02 for ratio in ratios),
                sum(abs(ratio - 1) > 0.05 for ratio in ratios),
                round(max(ratios, key=lambda ratio: abs(np.log(ratio)), default=1.0), 3),
                f"{low:.4f} {gain:.4f} {high:.4f}" if settled.gain else "",
                bool(low <= gain <= high),
            )
        )
    return found


def choices_until(end: float, seed: int, place: tuple[str, int]) -> list[Chosen]:
    """Return the choices of a family's machine of a number, none after `end` on the monotonic clock."""
    return choices(place[0], seed, place[1]) if time.monotonic() < end else []


def _of_pairs(made: Made, k: int, rng: np.random.Generator) -> dict[str, float]:
    """Return k ranks' bandwidth as a share of a pair's; over direct links at most that of copies."""
    if k == 2:
        return dict.fromkeys(_OF_PAIRS, 1.0)
    shares = {what: float(np.exp(rng.uniform(*np.log(ends[k > 4])))) for what, ends in _OF_PAIRS.items()}
    return {**shares, "links": min(shares["links"], 1 / made.nccl)}


def _over(made: Made, members: Sequence[int], by_rate: bool) -> str:
    if made.family == "nvswitch":
        return "switch"
    return "links" if len(members) > 2 and over_links(made, members, by_rate=by_rate) else "slots"


def _with_launch(gbs: np.ndarray, k: int) -> np.ndarray:
    """Return busbw with the time of a launch, as all-reduces of `LARGE` show it."""
    moved = LARGE * 2 * (k - 1) / k
    return moved / 1e9 / (_LAUNCH_S + moved / (gbs * 1e9))


def _near(low: float, high: float, value: float) -> float:
    return float(min(max(value, low), max(high, 1e-9)))


def _text(members: Sequence[int]) -> str:
    return "-".join(map(str, members))


def line(family: str, found: Sequence[Chosen]) -> str:
    regrets = [one.regret for one in found]
    sets, gains = sum(one.finalists for one in found), [one for one in found if one.gain]
    worse = sum(regret > 0.02 for regret in regrets)
    most = float(beta.ppf(0.975, worse + 1, len(found) - worse)) if worse < len(found) else 1.0
    outside = [sum(getattr(one, field) for one in found) / max(sets, 1) for field in ("outside_2", "outside_5")]
    return (
        f"{family:9} {len(found):4} choices: regret mean {fmean(regrets):.3%}, above 2% in {worse} (95%: at most "
        f"{most:.2%}), worst {max(regrets):.1%} (unmeasured: mean {fmean(one.unverified for one in found):.2%}); "
        f"{sets / len(found):.1f} finalists, outside their band by more than 2% {outside[0]:.1%}, 5% {outside[1]:.1%}; "
        f"gain's interval holds in {sum(gain.gain_holds for gain in gains)} of {len(gains)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--machines", type=int, default=100, metavar="N", help="machines of each family")
    parser.add_argument("--seconds", type=float, default=math.inf, metavar="S", help="start no machine after so many")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--family", nargs="+", choices=(*FAMILIES, *boxes.FAMILIES), default=list(FAMILIES))
    parser.add_argument("--out", type=Path, default=os.devnull, metavar="FILE", help="a line of CSV for each choice")
    options = parser.parse_args()
    places = [(family, number) for number in range(options.machines) for family in options.family]
    until = partial(choices_until, time.monotonic() + options.seconds, options.seed)
    every: list[Chosen] = []
    with Pool(options.jobs) as pool, options.out.open("w", encoding="utf-8", newline="", buffering=1) as lines:
        writer = csv.DictWriter(lines, [field.name for field in fields(Chosen)], lineterminator="\n")
        writer.writeheader()
        for found in pool.imap(until, places):
            writer.writerows(map(asdict, found))
            every += found
    print(f"choices (sim), {len({(one.family, one.number) for one in every})} machines, seed {options.seed}")
    for family in dict.fromkeys(one.family for one in every):
        print(f"  {line(family, [one for one in every if one.family == family])}")
    print(f"  {line('all', every)}")


if __name__ == "__main__":
    main()
