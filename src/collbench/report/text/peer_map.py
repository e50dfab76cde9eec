"""The page and the JSON of `collbench check --map-p2p`: the answer, a row per link, causes with their fixes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from rich.text import Text

from collbench.machine import labels
from collbench.machine.doctor.peer_causes import PeerCause, held_back, workarounds
from collbench.model.errors import ExitStatus, Failure, FailureKind, WrongData
from collbench.model.peer_map import (
    BY_PEER_ACCESS,
    CAPABILITIES,
    COPY_ENGINE,
    KERNEL_READ,
    KERNEL_WRITE,
    THROUGH_HOST,
    WAYS,
    Crossing,
    Link,
    PeerLink,
    PeerMap,
    PeerState,
)
from collbench.model.run import Device, PeerStatus, tags
from collbench.model.units import STAGED_FASTER, abridged, amount, figure, fixed, verb
from collbench.report.sentences import failure, wrong_data
from collbench.report.text.layout import Lines, Part, table
from collbench.runfile.codec import document, head, picked

# In JSON with an underscore.
_WORDS = {
    KERNEL_WRITE: "kernel write",
    KERNEL_READ: "kernel read",
    COPY_ENGINE: "copy engine",
    THROUGH_HOST: "via host",
}
_MAX_LINKS = 4


def status(peer_map: PeerMap, every: Sequence[PeerCause] = ()) -> ExitStatus:
    """Return how the command ends: peer access that the driver does not offer is no failure."""
    states = {link.state for link in peer_map.links} | {crossing.state for _, crossing in _host_trouble(peer_map)}
    trouble = peer_map.nccl_failure
    failures = [found for found in (peer_map.together, trouble) if isinstance(found, Failure)]
    states |= {Crossing(KERNEL_WRITE, 0, failure=found).state for found in failures}
    if states & {PeerState.HANGS, PeerState.CORRUPTS} or isinstance(trouble, WrongData):
        return ExitStatus.UNTRUSTED
    if states & {PeerState.REFUSED, PeerState.SLOW} or _contradicted(peer_map) or held_back(peer_map, every):
        return ExitStatus.CONTRADICTION
    return ExitStatus.FAILED if states & {PeerState.FAILS, PeerState.UNKNOWN} or trouble else ExitStatus.DONE


def unanswered(peer_map: PeerMap) -> bool:
    """Return whether a busy host left links without an answer, and all others work as the driver says."""
    states = {link.state for link in peer_map.links}
    return PeerState.UNKNOWN in states <= {PeerState.UNKNOWN, PeerState.WORKS, PeerState.NONE}


def _host_trouble(peer_map: PeerMap) -> list[tuple[Link, Crossing]]:
    """Return what failed of copies through the host."""
    through = [(link.devices, crossing) for link in peer_map.links if (crossing := link.of(THROUGH_HOST)) is not None]
    return [(link, crossing) for link, crossing in through if crossing.state.is_broken]


def _contradicted(peer_map: PeerMap) -> list[Link]:
    """Return the links for which CUDA, NVML and nvidia-smi do not say the same."""
    return [
        link.devices
        for link in peer_map.links
        if any(
            answers[way].allows not in (None, link.cuda)
            for answers in (link.nvml, link.tool)
            for way in "rw"
            if way in answers
        )
        or any(link.nvml[way] is not link.tool[way] for way in link.nvml.keys() & link.tool.keys())
    ]


def page(peer_map: PeerMap, every: Sequence[PeerCause]) -> Iterator[Part]:
    """Yield the answer, the links, what went wrong, and the causes with their fixes."""
    yield Lines(f"answer    {answer(peer_map, every)}")
    yield Text("")
    yield _links(peer_map)
    yield Text("")
    yield from map(Lines, _explained(peer_map, every))
    where = f"SIMULATED machine '{peer_map.fabric}'" if peer_map.fabric else peer_map.hostname
    compared = "nothing was copied or compared" if peer_map.fabric else "every byte was compared"
    count = amount(len(peer_map.links), "link")
    took = f"{figure(peer_map.seconds)} s{' of simulated time' if peer_map.fabric else ''}"
    note = f"{where}, {count}, each alone, in {took}; GB/s; {compared}"
    yield Lines(f"examined  {note}; docs/p2p.md")


def part(peer_map: PeerMap, every: Sequence[PeerCause]) -> Iterator[Part]:
    """Yield what the page of `check` has of it: the answer, and what went wrong with causes and fixes.

    That the driver offers none for some links needs no explanation there.
    """
    yield Lines(f"p2p       {answer(peer_map, every)}")
    if status(peer_map, every) is not ExitStatus.DONE or _unused(peer_map):
        yield from map(Lines, _explained(peer_map, _concerned(peer_map, every)))


def finding(peer_map: PeerMap, every: Sequence[PeerCause]) -> str:
    """Return the answer in one line with the first cause of what is offered and does not deliver, and its fix."""
    said, concerned = answer(peer_map, every), _concerned(peer_map, every)
    if not concerned:
        return said
    cause = concerned[0]
    why = "" if cause.text in said else f" Probable cause: {cause.name}: {cause.text}."
    return f"{said}{why} Fix: {cause.fix}"


def _concerned(peer_map: PeerMap, every: Sequence[PeerCause]) -> list[PeerCause]:
    """Return the causes but those for which the driver offers none."""
    offered = {link.devices for link in peer_map.links if link.state is not PeerState.NONE}
    return [cause for cause in every if offered.intersection(cause.links) or peer_map.nccl_failure]


def _explained(peer_map: PeerMap, every: Sequence[PeerCause]) -> Iterator[str]:
    """Yield what went wrong, causes, fixes: lines of a name and a sentence."""
    devices = peer_map.devices
    for link in peer_map.links:
        if told := [crossing for crossing in map(link.of, BY_PEER_ACCESS) if crossing and crossing.state in _TOLD]:
            ways = ", ".join(dict.fromkeys(_WORDS[crossing.work] for crossing in told))
            yield f"trouble   {_link(link.devices, devices)} ({ways}): {_why(told[0], devices)}"
    if peer_map.together is not None:
        why = failure(peer_map.together, devices)
        yield f"trouble   all GPUs in one process: {why}; each link had a process of its own"
    if lost := _host_trouble(peer_map):
        links = _names([link for link, _ in lost], peer_map)
        yield f"trouble   through the host, {links}: {_why(lost[0][1], devices)}"
    if peer_map.nccl_failure is not None:
        yield f"NCCL      all-to-all: {_trouble(peer_map.nccl_failure, devices)}"
    if others := _contradicted(peer_map):
        yield f"reported  {_DIFFER}{_names(others, peer_map)}"
    for cause in every:
        yield f"cause     {cause.name} ({cause.certainty}; {_names(cause.links, peer_map)}): {cause.text}"
        yield f"fix       {cause.fix}"
    yield from (f"meanwhile {text}" for text in workarounds(peer_map))


def answer(peer_map: PeerMap, every: Sequence[PeerCause] = ()) -> str:
    """Return one sentence: does P2P work here? Causes tell where it works, and is slow all the same.

    Of a simulated machine it says so.
    """
    said = _answer(peer_map, every)
    return f"{said.removesuffix('.')} (sim)." if peer_map.fabric else said


def _answer(peer_map: PeerMap, every: Sequence[PeerCause]) -> str:
    by_state: dict[PeerState, list[Link]] = {}
    for link in peer_map.links:
        by_state.setdefault(link.state, []).append(link.devices)
    count = len(peer_map.links)
    bad = sorted(
        (state for state in by_state if state not in (PeerState.WORKS, PeerState.NONE)), key=list(PeerState).index
    )
    if bad:
        parts = [f"{_names(by_state[state], peer_map)} {verb(len(by_state[state]), *_SAYS[state])}" for state in bad]
        known = [state for state in bad if state is not PeerState.UNKNOWN]
        what = "is broken" if known else "is not known"
        if known == [PeerState.SLOW]:
            what = "works, but is slow"
        return (
            f"P2P {what} on {sum(len(by_state[state]) for state in known or bad)} of {count} links: {'; '.join(parts)}."
        )
    if PeerState.WORKS not in by_state:
        statuses = Counter(refusal for link in peer_map.links for refusal in _refusing(link))
        why = "; ".join(f"{refusal}: {labels.PEER_STATES[refusal]}" for refusal in statuses)
        nccl = "NCCL fails" if peer_map.nccl_failure else "Data goes through host memory"
        return f"No P2P: the driver offers it for no link{f' ({why})' if why else ''}. {nccl}."
    works = "all" if len(by_state[PeerState.WORKS]) == count else f"{len(by_state[PeerState.WORKS])} of"
    links = "simulated links" if peer_map.fabric else "links: kernels and copy engines deliver"
    text = f"P2P works on {works} {count} {links}"
    if PeerState.NONE in by_state:
        text += f"; the driver offers none for {_names(by_state[PeerState.NONE], peer_map)}"
    if held := held_back(peer_map, every):
        slow = {link for cause in held for link in cause.links}
        why = "; ".join(cause.text for cause in held)
        text = f"P2P works, but is slow on {len(slow)} of {count} links: {why}"
    # Of a simulated machine no NCCL was asked, and no fault keeps it from such links.
    asked = [] if peer_map.fabric and not _unused(peer_map) else [_nccl(peer_map)]
    return f"{'; '.join((text, *asked, *_besides(peer_map)))}."


def _besides(peer_map: PeerMap) -> Iterator[str]:
    """Yield what else is wrong where every link that is offered works."""
    if lost := _host_trouble(peer_map):
        yield f"copies through the host fail on {_names([link for link, _ in lost], peer_map)}"
    if peer_map.together:
        yield "no process can open all GPUs"
    if others := _contradicted(peer_map):
        yield f"{_DIFFER}{_names(others, peer_map)}"


_DIFFER = "CUDA, NVML and nvidia-smi topo -p2p differ for "
_SLOWER = f"slower than through host memory by more than {fixed(STAGED_FASTER, 2)} times"
# Of one link, and of several.
_SAYS = {
    PeerState.HANGS: ("hangs", "hang"),
    PeerState.CORRUPTS: ("delivers wrong data", "deliver wrong data"),
    PeerState.FAILS: ("fails", "fail"),
    PeerState.UNKNOWN: ("gave no answer on a busy host", "gave no answer on a busy host"),
    PeerState.REFUSED: (
        "is offered by the driver, which then refuses it",
        "are offered by the driver, which then refuses them",
    ),
    PeerState.SLOW: (f"is {_SLOWER}", f"are {_SLOWER}"),
}


_TOLD = (PeerState.HANGS, PeerState.CORRUPTS, PeerState.FAILS, PeerState.UNKNOWN, PeerState.REFUSED)


def _refusing(link: PeerLink) -> list[PeerStatus]:
    answers = (*(link.nvml.get(way) for way in "rw"), *(link.tool.get(way) for way in "rw"))
    return [said for said in answers if said is not None and said.allows is False]


def _nccl(peer_map: PeerMap) -> str:
    """Return what NCCL does with the links that work."""
    if isinstance(peer_map.nccl_failure, Failure) and peer_map.nccl_failure.kind is FailureKind.BUSY:
        return "NCCL gave no answer on a busy host"
    if peer_map.nccl_failure is not None:
        return "NCCL fails"
    working = [link for link in peer_map.links if link.state is PeerState.WORKS]
    if unused := _unused(peer_map):
        where = "on none" if len(unused) == len(working) else f"on all but {_names(unused, peer_map)}"
        return f"NCCL uses it {where}"
    return "NCCL uses it" if all(link.nccl for link in working) else "what NCCL uses is not known"


def _unused(peer_map: PeerMap) -> list[Link]:
    working = (link for link in peer_map.links if link.state is PeerState.WORKS)
    return [link.devices for link in working if link.nccl and "P2P/" not in link.nccl]


def _links(peer_map: PeerMap) -> Part:
    rows = (
        (
            _link(link.devices, peer_map.devices),
            path.label if (path := peer_map.path(link.devices)) else labels.UNKNOWN,
            "yes" if link.cuda else "no",
            _reported(link),
            *(_cell(link.of(work)) for work in WAYS),
            link.nccl.partition("/")[0] or "-",
        )
        for link in peer_map.links
    )
    ways = ("write", "read", "copy", "host")
    heads = ("sim link" if peer_map.fabric else "link", "label", "CUDA", "rwnap", *ways, "NCCL")
    return table(*heads, rows=rows, left={*heads} - {*ways})


def _reported(link: PeerLink) -> str:
    """Return what NVML, or else nvidia-smi, answers to CAPABILITIES: once, if all answers are alike."""
    answers = [link.nvml.get(letter) or link.tool.get(letter) for letter in CAPABILITIES]
    different = set(filter(None, answers))
    return str(different.pop()) if len(different) == 1 else " ".join(str(said or "-") for said in answers)


def _cell(crossing: Crossing | None) -> str:
    if crossing is None:
        return "-"
    if crossing.state is not PeerState.WORKS:
        return str(crossing.state)
    return "works" if crossing.gbs is None else figure(crossing.gbs)


def _link(link: Link, devices: Sequence[Device]) -> str:
    return tags(link, devices, "→")


def _names(links: Sequence[Link], peer_map: PeerMap) -> str:
    if len(links) == len(peer_map.links) > 2:
        return f"all {len(links)} links"
    return abridged([_link(link, peer_map.devices) for link in links], _MAX_LINKS)


def _trouble(what: Failure | WrongData | None, devices: Sequence[Device]) -> str:
    if isinstance(what, WrongData):
        return wrong_data(what, devices)
    return failure(what, devices) if what else ""


def _why(crossing: Crossing, devices: Sequence[Device]) -> str:
    return _trouble(crossing.failure or crossing.wrong, devices) or (
        crossing.refusal.detail if crossing.refusal else ""
    )


def dumps(peer_map: PeerMap, every: Sequence[PeerCause], exit_status: int) -> str:
    """Return the map as JSON text (docs/p2p.md)."""
    return document("p2p", as_json(peer_map, every, exit_status))


def as_json(peer_map: PeerMap, every: Sequence[PeerCause], exit_status: int) -> dict[str, Any]:
    """Return the same in JSON's own types."""
    devices = peer_map.devices
    return head("p2p", peer_map.backend) | {
        **picked(peer_map, "hostname", "fabric"),
        "exit_status": exit_status,
        "answer": answer(peer_map, every),
        "seconds": round(peer_map.seconds, 3),
        "devices": [picked(device, "index", "uuid", "name") for device in devices],
        "links": [_link_json(link, devices) for link in peer_map.links],
        "together": _trouble(peer_map.together, devices),
        "nccl_failure": _trouble(peer_map.nccl_failure, devices),
        "causes": [picked(cause, "name", "certainty", "links", "text", "fix") for cause in every],
        "meanwhile": list(workarounds(peer_map)),
    }


def _link_json(link: PeerLink, devices: Sequence[Device]) -> dict[str, Any]:
    return {
        "source": link.devices[0],
        "destination": link.devices[1],
        "state": link.state,
        "cuda_can_access": link.cuda,
        "nvml": dict(link.nvml),
        "nvidia_smi": dict(link.tool),
        "nccl": link.nccl or None,
        "messages": [
            {
                "by": _WORDS[crossing.work].replace(" ", "_"),
                **picked(crossing, "size_bytes", "state", "gbs"),
                "why": _why(crossing, devices),
            }
            for crossing in link.crossings
        ],
    }
