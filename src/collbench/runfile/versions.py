"""What earlier versions of the run file wrote differently, brought to today's version.

In version 1 the request stood in the command line alone. Up to version 2 some fields had other names, and flags,
failures and skips were sentences.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from collbench.model.errors import UsageError
from collbench.model.failures import Cause
from collbench.model.operations import COLLECTIVES, Operation, Variant, Work
from collbench.model.run import CommandKind, Device, FlagKind, Layout, PeerStatus, SkipKind
from collbench.model.units import parse_size, parse_sizes
from collbench.runfile.codec import build

_T = TypeVar("_T")
# Options of version 1's command lines that stand alone; each other option has a value.
_SWITCHES = ("--quick", "--force", "--pairs", "--in-place", "--algorithms", "--one-way")
_LETTERS = {
    "--minbytes": "-b",
    "--maxbytes": "-e",
    "--stepbytes": "-i",
    "--stepfactor": "-f",
    "--iters": "-n",
    "--warmup_iters": "-w",
    "--check": "-c",
    "--cudagraph": "-G",
    "--ngpus": "-g",
    "--nthreads": "-t",
    "--json": "-J",
    "--output_file": "-J",
}
_SIZE_OPTIONS = {"-b", "-e", "-i", "-f"}


class _Timed(NamedTuple):
    """What a command timed, whatever its options: the layout is that of its collectives."""

    collectives: tuple[Operation, ...] = ()
    copies: tuple[Variant, ...] = ()
    layout: Layout = Layout.ALL


_ALLREDUCE = (Operation.ALLREDUCE,)
_ALL_COPIES = (
    Variant.PLAIN,
    Variant.BOTH_WAYS,
    Variant.ONE_TO_ALL,
    Variant.ALL_TO_ONE,
    Variant.STAGED,
    Variant.HOST,
)
_CHECKED_COPIES = (Variant.PLAIN, Variant.STAGED, Variant.HOST)
_TIMED = {
    CommandKind.PAIRS: _Timed(layout=Layout.PAIRS),
    CommandKind.COPIES: _Timed(copies=_ALL_COPIES),
    CommandKind.LATENCY: _Timed(_ALLREDUCE, (Variant.PLAIN,), Layout.PAIRS),
    CommandKind.CHECK: _Timed((Operation.ALLREDUCE, Operation.BROADCAST), _CHECKED_COPIES, Layout.PAIRS),
    CommandKind.SELECT: _Timed(_ALLREDUCE, layout=Layout.SETS),
    CommandKind.NODES: _Timed(_ALLREDUCE),
}
_QUICK_CHECK = _Timed(_ALLREDUCE, (Variant.PLAIN,), Layout.PAIRS)


def from_version_2(fields: dict[str, Any]) -> None:
    """Bring the fields of a run file of version 2, as JSON has them, to version 3.

    A value of a wrong type is left as it is: reading it reports what is wrong.
    """
    tags = _tags(fields.get("devices"))
    _rename(fields, {"audits": "interference_checks"})
    _rename(fields.get("settings"), {"visits": "trials"})
    _rename(fields.get("phases"), {"audit": "interference check", "visits": "trials"})
    replace_sentences(fields.get("measurements"), tags)
    skipped = fields.get("skipped")
    if isinstance(skipped, list):
        fields["skipped"] = [_typed_skip(left, tags) if isinstance(left, dict) else left for left in skipped]


def from_version_1(fields: dict[str, Any]) -> None:
    """Bring the fields of a run file of version 1 to version 3, as `from_version_2` does."""
    from_version_2(fields)
    for path in _objects(fields.get("paths")):
        _type_peer_access(path)
    settings = fields.get("settings")
    if isinstance(settings, dict):
        command, sizes = _all_of(settings.get("command"), str), _all_of(settings.get("sizes"), int)
        if command is not None and sizes is not None:
            settings.update(_settings_of(command, sizes, fields))


def _tags(devices: Any) -> tuple[str, ...]:
    """Return the names of the devices by position; none if they cannot be read, which is reported later."""
    try:
        return tuple(device.tag for device in build(tuple[Device, ...], devices, "run.devices"))
    except ValueError:
        return ()


def _rename(fields: Any, names: Mapping[str, str]) -> None:
    for old, new in names.items() if isinstance(fields, dict) else ():  # in their order: pages list phases in it
        if old in fields:
            fields[new] = fields.pop(old)


def _objects(items: Any) -> list[dict[str, Any]]:
    """Return a list's JSON objects, none of anything else."""
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


def _all_of(items: Any, kind: type[_T]) -> list[_T] | None:
    """Return a list whose items are all of the kind, None for anything else."""
    return items if isinstance(items, list) and all(type(item) is kind for item in items) else None


def _type_peer_access(path: dict[str, Any]) -> None:
    """Replace the words on a path's peer access: "CNS", "read TNS, write OK" of NVML's, "OK, GNS" of nvidia-smi's."""
    text = path.get("peer_access")
    if isinstance(text, str):
        read, _, write = text.removeprefix("read ").partition(", write ")
        path["peer_access"] = {"read": _status(read), "write": _status(write or read)}
    text = path.get("tool_peer_access")
    if isinstance(text, str):
        there, _, back = text.partition(", ")
        path["tool_peer_access"] = [_status(there), _status(back or there)]
    elif text is None:
        path["tool_peer_access"] = []


def _status(text: str) -> PeerStatus:
    return next((status for status in PeerStatus if status.value == text), PeerStatus.UNKNOWN)


def _settings_of(command: list[str], sizes: list[int], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that version 1 did not have, from its command line; `sizes` are those of the plan."""
    name, options = (command[0] if command else ""), _options(command[1:])
    kind = CommandKind.of(name)
    quick = "--quick" in options
    return {
        "kind": kind,
        "devices": _devices(options, fields),
        "requested_sizes": _requested_sizes(kind, options, sizes),
        "quick": quick,
        "fabric": options.get("--fabric", ""),
        **_of_the_command(kind, name, options, quick=quick, on_host=fields.get("backend") == "host"),
    }


def _of_the_command(
    kind: CommandKind, name: str, options: Mapping[str, str], *, quick: bool, on_host: bool
) -> dict[str, Any]:
    """Return the settings of one command alone."""
    if kind is CommandKind.COLLECTIVE:
        return _of_a_collective(name, options, on_host=on_host)
    quick_check = quick and kind is CommandKind.CHECK
    operations, copies, layout = _QUICK_CHECK if quick_check else _TIMED.get(kind, _Timed())
    if kind is CommandKind.PAIRS:
        named = _list(options.get("--operations", "copy,allreduce,broadcast"))
        operations = tuple(one for one in COLLECTIVES if one in named)
        copies = (Variant.PLAIN,) if "copy" in named else ()
    elif kind is CommandKind.COPIES and "--patterns" in options:
        patterns = [Variant.PLAIN if one == "one-way" else one for one in _list(options["--patterns"])]
        copies = tuple(one for one in copies if one in patterns)
    elif kind is CommandKind.NODES and "--one-way" in options:
        operations = (Operation.BROADCAST,)
    return {
        "copies": [*copies],
        "chase": kind is CommandKind.LATENCY,
        "collectives": [_work(operation) for operation in operations],
        "layout": layout,
        "isolated": quick_check,
        "launches": kind is CommandKind.LATENCY,
    }


def _of_a_collective(name: str, options: Mapping[str, str], *, on_host: bool) -> dict[str, Any]:
    as_nccl_tests = options.get("--format") == "nccl-tests" or "-J" in options
    both = "--in-place" in options or (as_nccl_tests and not on_host)
    split = _number(options, "--split") or 1
    return {
        "collectives": [_work(name, variant) for variant in (Variant.PLAIN, Variant.IN_PLACE)[: 2 if both else 1]],
        "layout": Layout.PAIRS if "--pairs" in options else Layout.SPLIT if split > 1 else Layout.ALL,
        "split": split,
        "launches": True,
        "iterations": _number(options, "-n") or None,
        "warmup": _number(options, "-w"),
        "verify": _number(options, "-c") != 0,
        "algorithms": "--algorithms" in options,
        "graph": _number(options, "-G") or 0,
    }


def _options(arguments: Sequence[str]) -> dict[str, str]:
    """Return the options with their values: of "--sizes 8 -n20 --quick" {"--sizes": "8", "-n": "20", "--quick": ""}."""
    options, rest = {}, iter(arguments)
    for argument in rest:
        name, equals, value = argument.partition("=")
        if argument in _SWITCHES:
            options[argument] = ""
        elif argument.startswith("--"):
            options[_LETTERS.get(name, name)] = value if equals else next(rest, "")
        elif argument.startswith("-"):
            options[argument[:2]] = argument[2:] or next(rest, "")
    return options


def _work(operation: str, variant: Variant = Variant.PLAIN) -> dict[str, Any]:
    return {"operation": operation, "variant": variant, "numa_node": None}


def _devices(options: Mapping[str, str], fields: Mapping[str, Any]) -> list[str]:
    if "--devices" in options:
        return _list(options["--devices"])
    # -g N takes the first N devices; of several processes it counts those of each.
    counted = ("-g" in options or "-t" in options) and fields["settings"].get("processes", 1) == 1
    return [str(device.get("index")) for device in _objects(fields.get("devices"))] if counted else []


def _requested_sizes(kind: CommandKind, options: Mapping[str, str], planned: list[int]) -> list[int] | None:
    if "--sizes" in options:
        try:
            return [*parse_sizes(options["--sizes"])]
        except UsageError:
            return planned or None
    if kind in (CommandKind.PAIRS, CommandKind.COLLECTIVE):
        return planned if planned and options.keys() & _SIZE_OPTIONS else None
    return planned[-1:] or None  # these commands have one size of their own; host copies may add a smaller one


def _list(text: str) -> list[str]:
    return [*dict.fromkeys(entry.strip() for entry in text.split(","))]


def _number(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name, "")
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else None


_PATTERNS = {
    FlagKind.THROTTLED: re.compile(r"throttled: (?P<reason>.+) on (?P<tag>.+)", re.DOTALL),
    FlagKind.HOT: re.compile(r"hot: (?P<tag>.+) at (?P<figure>\d{1,9}) °C", re.DOTALL),
    FlagKind.SHARED: re.compile(r"shared: (?P<figure>\d{1,9}) other process(?:es)? on (?P<tag>.+)", re.DOTALL),
}


def replace_sentences(measurements: Any, tags: Sequence[str]) -> None:
    """Replace sentences of measurements, as JSON has them, by what they say: failures, and flags of devices by tag.

    A value of a wrong type is left as it is: reading it reports what is wrong.
    """
    for measurement in _objects(measurements):
        if isinstance(measurement.get("failure"), str):
            kind = measurement.pop("failure_kind", None)
            measurement["failure"] = _typed_failure(measurement["failure"], kind) if measurement["failure"] else None
        _rename(measurement, {"cell": "point"})
        for sample in _objects(measurement.get("samples")):
            if isinstance(flags := sample.get("flags"), list):
                sample["flags"] = [_typed_flag(flag, tags) if isinstance(flag, str) else flag for flag in flags]


def _typed_flag(sentence: str, tags: Sequence[str]) -> dict[str, Any]:
    """Return what a flag's sentence says; one that is not known is kept as its reason."""
    for kind, pattern in _PATTERNS.items():
        match = pattern.fullmatch(sentence)
        if match and match["tag"] in tags:
            said = match.groupdict()
            figure = int(said["figure"]) if "figure" in said else None
            return {
                "kind": kind,
                "devices": [tags.index(said["tag"])],
                "figure": figure,
                "reason": said.get("reason", ""),
            }
    return {"kind": FlagKind.OTHER, "devices": [], "figure": None, "reason": sentence}


_NO_ANSWER = re.compile(
    r"hang: no answer within (?P<seconds>\d{1,9}(?:\.\d{1,9})?) s, so the worker process was killed"
)
_DIED = re.compile(
    r"crash: the worker process died "
    r"\((?:exit status (?P<exit>\d{1,3})|signal (?P<signal>\d{1,3}), [^)]*)\): (?P<said>.*)",
    re.DOTALL,
)


def _typed_failure(sentence: str, kind: Any) -> dict[str, Any]:
    """Return what a failure's sentence says; one that is not known is kept as its detail."""
    if match := _NO_ANSWER.fullmatch(sentence):
        return {"kind": kind, "cause": Cause.NO_ANSWER, "seconds": float(match["seconds"])}
    if match := _DIED.fullmatch(sentence):
        ended, signal = (None if number is None else int(number) for number in (match["exit"], match["signal"]))
        return {"kind": kind, "cause": Cause.DIED, "exit_status": ended, "signal": signal, "detail": match["said"]}
    return {"kind": kind, "cause": Cause.REPORTED, "detail": sentence}


# Sentences of version 1 on why something was skipped, and their kinds today.
_SKIPS = (
    (SkipKind.NO_PEERS, re.compile(r"no peer access, so a kernel cannot address the other GPU's memory")),
    (SkipKind.PROCESSES, re.compile(r"copies are timed by one process, not by one for each device")),
    (
        SkipKind.CACHE,
        re.compile(r"the (?P<limit>.+) that are free for a buffer are too few against the reader's cache"),
    ),
    (SkipKind.SMALL_BLOCK, re.compile(r"smaller than 16 bytes for each of (?P<count>\d{1,9}) ranks, as .*")),
    (SkipKind.SMALL_ELEMENT, re.compile(r"smaller than one \w+, which takes \d+ bytes")),
    (SkipKind.NODE_LIMIT, re.compile(r"(?P<limit>.+) is the most with the memory of each NUMA node, which .*")),
    (SkipKind.ROOM, re.compile(r"the fullest device has room for messages of (?P<limit>[^;]+); (?P<free>.*)")),
    (
        SkipKind.CONCURRENT_ROOM,
        re.compile(r"(?P<count>\d{1,9}) messages at once do not fit the (?P<limit>.+) of a buffer"),
    ),
)
# Kinds whose sentence was the kernel's, NCCL's or an exception's, by what the first version said that it skipped.
_QUOTED = {
    "host copies by NUMA node": SkipKind.NUMA,
    "algorithms, protocols and channels": SkipKind.ALGORITHMS,
    "all that was left": SkipKind.WRONG_DATA,
}
_WORKS = {str(work): work for work in (Work(one, variant) for one in Operation for variant in Variant)}
_FREE = re.compile(r"\S+ (\d{1,9}(?:\.\d{1,9})? [KMGT]?i?B)(?:, |$)")


def _typed_skip(left: dict[str, Any], tags: Sequence[str]) -> dict[str, Any]:
    """Return what the sentences of something skipped say; those that are not known are kept as its detail."""
    what, reason, location = left.get("what"), left.get("reason"), _location(left, tags)
    if not isinstance(what, str) or not isinstance(reason, str):
        return left
    quoted = _QUOTED.get(what) or {"numa": SkipKind.NUMA}.get(str(left.get("kind")))
    if quoted:
        return {**location, "kind": quoted, "detail": reason}
    for kind, pattern in _SKIPS:
        match = pattern.fullmatch(reason)
        figures = _figures(kind, match.groupdict(), what) if match else None
        if figures is not None and (figures.get("sizes") or location["members"]):
            return {**location, "kind": kind, **figures}
    return {**location, "kind": SkipKind.OTHER, "detail": f"{what}: {reason}"}


def _location(left: Mapping[str, Any], tags: Sequence[str]) -> dict[str, Any]:
    """Return the work and the positions in "sm-write GPU0 → GPU1": the first version had only these words."""
    location = {"work": left.get("work"), "members": left.get("members", [])}
    first, *others = str(left.get("what")).split(" → ")
    work, _, tag = first.rpartition(" ")
    if location["work"] is not None or work not in _WORKS or not {tag, *others} <= {*tags}:
        return location
    known = _WORKS[work]
    return {"work": _work(known.operation, known.variant), "members": [tags.index(one) for one in (tag, *others)]}


def _figures(kind: SkipKind, said: Mapping[str, str], what: str) -> dict[str, Any] | None:
    """Return the figures of a sentence on what was skipped, None if one cannot be read."""
    figures: dict[str, Any] = {}
    try:
        if kind not in (SkipKind.NO_PEERS, SkipKind.PROCESSES, SkipKind.CACHE):
            work, _, sizes = what.removeprefix("sizes ").rpartition(" of ")
            figures["sizes"] = [parse_size(one) for one in sizes.split(", ")]
            if work in _WORKS:
                figures["work"] = _work(_WORKS[work].operation, _WORKS[work].variant)
        if "count" in said:
            figures["count"] = int(said["count"])
        if "limit" in said:
            figures["limit_bytes"] = _bytes(said["limit"])
        if "free" in said:
            figures["free_bytes"] = [_bytes(one) for one in _FREE.findall(said["free"].removeprefix("free now: "))]
    except (UsageError, ValueError):
        return None
    return figures


def _bytes(text: str) -> int:
    """Return the bytes of "139.2 GiB", rounded as they are. Raises ValueError."""
    number, _, unit = text.partition(" ")
    return round(float(number) * parse_size(f"1{unit}")) if unit else parse_size(text)
