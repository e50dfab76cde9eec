"""What each measuring command times, and requests from Python's values: the same measurement under the same name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from collbench.api.checking import planned
from collbench.api.evidence import named_nccl
from collbench.api.measuring import new_seed
from collbench.backends import factory
from collbench.bench.plan import Request
from collbench.model.dtypes import REDOPS, parse_dtype
from collbench.model.errors import UsageError
from collbench.model.operations import COLLECTIVES, Operation, Variant, Work
from collbench.model.run import CommandKind
from collbench.model.units import fixed, parse_sizes

# All that a latency needs: the smallest message of the reference tools.
_SMALLEST = 8
_DEFAULTS = ("float32", "sum")


def pairs(request: Request, operations: Sequence[Operation] | None = None, *, copies: bool = True) -> Request:
    """Return the request for every link and pair: raw copies, and these collectives on every pair."""
    timed = (Operation.ALLREDUCE, Operation.BROADCAST) if operations is None else operations
    works = tuple(map(Work, timed))
    return replace(request, copies=(Variant.PLAIN,) if copies else (), collectives=works, pairs=True)


def latency(request: Request) -> Request:
    """Return the request for one access, one copy and one all-reduce of 8 bytes."""
    works = (Work(Operation.ALLREDUCE),)
    return replace(
        request,
        sizes=(_SMALLEST,),
        copies=(Variant.PLAIN,),
        chase=True,
        collectives=works,
        pairs=True,
        launches=True,
    )


def collective(operation: Operation) -> Callable[[Request], Request]:
    """Return what makes a request one for a collective over all devices, its ungraphed launches too."""

    def of(request: Request) -> Request:
        return replace(request, collectives=(Work(operation),), launches=True)

    return of


COMMANDS: dict[str, Callable[[Request], Request]] = {
    "pairs": pairs,
    "latency": latency,
    "check": planned,
    **{operation.value: collective(operation) for operation in COLLECTIVES},
}


def request_of(  # noqa: PLR0913 - keywords, each an option of the command line
    command: str,
    *,
    devices: Iterable[int | str] | None,
    sizes: Iterable[int | str] | None,
    backend: str,
    fabric: str | None,
    dtype: str,
    redop: str,
    precision: float | None,
    budget: float | None,
    quick: bool,
    nccl: str | None,
    seed: int | None,
) -> Request:
    """Return the request for a command's measurement. Raises UsageError for values that mean nothing."""
    _check_words(command, backend, fabric, dtype, redop)
    _check_number("precision", precision, below=1)
    _check_number("budget", budget)
    if quick and (precision is not None or budget is not None):
        raise UsageError("quick=True, precision and budget all say how long to measure: leave quick out")
    if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool) or seed < 0):
        raise UsageError(f"seed={seed!r} is no seed: write a whole number from 0")
    if command == "latency" and sizes is not None:
        raise UsageError("latency has a size of its own: leave out sizes")
    chosen, which = _listed("devices", devices), _listed("sizes", sizes)
    words = [command, "--backend", backend]  # as one would type it: for people
    words += ["--dtype", dtype, "--op", redop] if (dtype, redop) != _DEFAULTS else []
    for option, value in (("--devices", chosen), ("--sizes", which), ("--fabric", fabric)):
        words += [option, value] if value is not None else []
    words += ["--quick"] if quick else []
    words += ["--precision", f"{precision:f}"] if precision is not None else []
    words += ["--budget", f"{budget:f}s"] if budget is not None else []
    request = Request(
        backend=factory.resolve(backend)[0],
        devices=chosen,
        sizes=None if which is None else parse_sizes(which),
        copies=(),
        collectives=(),
        pairs=False,
        dtype=parse_dtype(dtype),
        redop=redop,
        nccl=named_nccl(nccl),
        seed=new_seed() if seed is None else seed,
        command=tuple(words),
        precision=precision,
        budget_seconds=budget,
        quick=quick,
        fabric=fabric,
        kind=CommandKind.of(command),
    )
    return COMMANDS[command](request)


def _check_words(command: object, backend: object, fabric: object, dtype: object, redop: object) -> None:
    """Raise UsageError for words that nothing here is called by, or that do not go together."""
    if not isinstance(command, str) or command not in COMMANDS:
        raise UsageError(f"{command!r} is no measurement: write one of {', '.join(COMMANDS)}")
    if backend not in factory.NAMES:
        raise UsageError(f"backend={backend!r} is unknown: write one of {', '.join(factory.NAMES)}")
    if (backend == "sim") != (fabric is not None):
        raise UsageError("backend='sim' and fabric='NAME' go together: name a machine to simulate, or neither")
    if redop not in REDOPS:
        raise UsageError(f"redop={redop!r} is unknown: write one of {', '.join(REDOPS)}")
    if not isinstance(dtype, str):
        raise UsageError(f"dtype={dtype!r} is no name of a type: write 'float32'")
    if command in ("latency", "check") and (dtype, redop) != _DEFAULTS:
        raise UsageError(f"{command} has a type and a reduction of its own: leave out dtype and redop")


def _check_number(name: str, given: object, below: float | None = None) -> None:
    """Raise UsageError for what is neither None nor a number above zero (and below another)."""
    if given is None:
        return
    good = isinstance(given, int | float) and not isinstance(given, bool) and given > 0
    if not good or (below is not None and isinstance(given, int | float) and given >= below):
        limit = "" if below is None else f" and below {fixed(below)}"
        raise UsageError(f"{name}={given!r} is no number above 0{limit}")


def _listed(name: str, given: object) -> str | None:
    """Return numbers and words as the command line has them, None for None. Raises UsageError."""
    if given is None:
        return None
    several = given if isinstance(given, Iterable) and not isinstance(given, str | bytes) else (given,)
    words = []
    for one in several:
        if isinstance(one, bool) or not isinstance(one, int | str):
            raise UsageError(f"{name} has {one!r}, which is neither a number nor a word")
        words.append(str(one))
    if not words:
        raise UsageError(f"{name}={given!r} is empty: leave it out for all")
    return ",".join(words)
