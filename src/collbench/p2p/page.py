"""The page and the JSON of `collbench check --map-p2p`: the answer, a row per link, causes with their fixes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from rich.text import Text

from collbench.machine import labels
from collbench.model.errors import ExitStatus, Failure, FailureKind, WrongData
from collbench.model.run import tags
from collbench.model.units import STAGED_FASTER, abridged, amount, figure, fixed, grouped, span, verb
from collbench.p2p.causes import PeerCause, held_back, workarounds
from collbench.p2p.peer_map import (
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
from collbench.report.layout import Lines, Page, Part, short, table, whole
from collbench.report.sentences import failure, wrong_data
from collbench.report.views import PeerAccess
from collbench.runfile.codec import head, picked

# In JSON with an underscore.
_WORDS = {
    KERNEL_WRITE: "kernel write",
    KERNEL_READ: "kernel read",
    COPY_ENGINE: "copy engine",
    THROUGH_HOST: "via host",
}
_MAX_LINKS = 4
_MAX_ROWS = 12  # as four GPUs have
_FEW = 2  # links of a row that has their names


def told(peer_map: PeerMap, every: Sequence[PeerCause], hidden: Sequence[PeerCause] = ()) -> PeerAccess:
    """Return what commands tell of the links; `hidden` are the causes for which the map lacks GPUs of the machine."""
    found = status(peer_map, every)
    return PeerAccess(
        status=found,
        words=answer(peer_map, every),
        finding=finding(peer_map, every),
        unanswered=unanswered(peer_map),
        part=[*part(peer_map, every, hidden)],
        page=[*page(peer_map, every, hidden)],
        json=as_json(peer_map, every, hidden, found),
    )


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


def page(peer_map: PeerMap, every: Sequence[PeerCause], hidden: Sequence[PeerCause] = ()) -> Page:
    """Yield the answer with its first cause and what to do, what hides GPUs, the links, what went wrong, more causes.

    The short page has one row for links that show the same, if they are many.
    """
    yield Lines(f"answer    {answer(peer_map, every)}")
    yield from map(Lines, (*_to_do(peer_map, every), *_hidden(hidden)))
    yield Text("")
    every_link = _rows(peer_map, [[link] for link in peer_map.links])
    if len(peer_map.links) > _MAX_ROWS:
        yield from (*short(_folded(peer_map)), *whole("tables", every_link))
    else:
        yield every_link
    yield Text("")
    yield from _explained(peer_map, every)
    where = f"SIMULATED machine '{peer_map.fabric}'" if peer_map.fabric else peer_map.hostname
    compared = "nothing was copied or compared" if peer_map.fabric else "every byte was compared"
    count = amount(len(peer_map.links), "link")
    took = f"{figure(peer_map.seconds)} s{' of simulated time' if peer_map.fabric else ''}"
    note = f"{where}, {count}, each alone, in {took}; GB/s; {compared}"
    yield Lines(f"examined  {note}; docs/p2p.md")


def part(peer_map: PeerMap, every: Sequence[PeerCause], hidden: Sequence[PeerCause] = ()) -> Page:
    """Yield what the page of `check` has of it: the answer, what hides GPUs, and what went wrong with causes and fixes.

    It does not explain why the driver offers no P2P for some links.
    """
    if peer_map.links:
        yield Lines(f"p2p       {answer(peer_map, every)}")
    yield from map(Lines, _hidden(hidden))
    if status(peer_map, every) is not ExitStatus.DONE or _unused(peer_map):
        concerned = _concerned(peer_map, every)
        yield from map(Lines, _to_do(peer_map, concerned))
        yield from _explained(peer_map, concerned)


def _hidden(hidden: Sequence[PeerCause]) -> Iterator[str]:
    """Yield why links of other GPUs of this machine are not examined."""
    yield from (f"hidden    {cause.name} ({cause.certainty}): {cause.text}. Fix: {cause.fix}" for cause in hidden)


def finding(peer_map: PeerMap, every: Sequence[PeerCause]) -> str:
    """Return the answer in one line with the first cause of what is offered and does not deliver, and its fix."""
    said, concerned = answer(peer_map, every), _concerned(peer_map, every)
    if not concerned:
        return said
    cause = _first(peer_map, concerned) or concerned[0]
    why = "" if cause.text in said else f" Probable cause: {cause.name}: {cause.text}."
    return f"{said}{why} Fix: {cause.fix}"


def _concerned(peer_map: PeerMap, every: Sequence[PeerCause]) -> list[PeerCause]:
    """Return the causes, without those of links for which the driver offers no P2P."""
    offered = {link.devices for link in peer_map.links if link.state is not PeerState.NONE}
    return [cause for cause in every if offered.intersection(cause.links) or peer_map.nccl_failure]


# A cause is sought for what a link shows, not for an answer that a busy host does not give.
_WRONG = (PeerState.HANGS, PeerState.CORRUPTS, PeerState.FAILS, PeerState.REFUSED, PeerState.SLOW)


def _first(peer_map: PeerMap, every: Sequence[PeerCause]) -> PeerCause | None:
    """Return the surest cause of the worst that links show; None if it has none."""
    states = {link.devices: link.state for link in peer_map.links}
    states |= {link: PeerState.SLOW for cause in held_back(peer_map, every) for link in cause.links}
    worst = min(states.values(), key=list(PeerState).index, default=PeerState.WORKS)
    explains = (cause for cause in every if worst not in _WRONG or worst in {states[link] for link in cause.links})
    return next(explains, None)


def _to_do(peer_map: PeerMap, every: Sequence[PeerCause]) -> Iterator[str]:
    """Yield the surest cause of the worst that links show, and what to do; what can be pasted comes first."""
    meanwhile = [f"meanwhile {text}" for text in workarounds(peer_map)]
    cause = _first(peer_map, every)
    if cause is not None:
        yield _reason(cause, peer_map)
    elif any(link.state in _WRONG for link in peer_map.links):
        yield _not_seen(peer_map)
    if cause is None or not cause.command:
        yield from meanwhile
    if cause is not None:
        yield from _remedy(cause)
        yield from meanwhile if cause.command else []


def _not_seen(peer_map: PeerMap, links: str = "") -> str:
    read = "a simulated machine has no ACS and no IOMMU to read; BAR1, driver and variables"
    read = read if peer_map.fabric else "ACS, IOMMU, BAR1, driver and variables, where they could be read,"
    return f"cause     not seen{links}: {read} do not explain it"


def _remedy(cause: PeerCause) -> Iterator[str]:
    yield f"fix       {cause.command or cause.further}"
    if cause.command and cause.further:
        yield f"then      {cause.further}"


def _reason(cause: PeerCause, peer_map: PeerMap) -> str:
    return f"cause     {cause.name} ({cause.certainty}; {_names(cause.links, peer_map)}): {cause.text}"


def _explained(peer_map: PeerMap, every: Sequence[PeerCause]) -> Page:
    """Yield what went wrong and the causes that follow the first: lines of a name and a sentence.

    On the short page links that failed alike have one line, and causes that an earlier one stands for have only a name.
    """
    devices = peer_map.devices
    failed: dict[tuple[PeerState, str], list[tuple[Link, str]]] = {}
    for link in peer_map.links:
        if told := [crossing for crossing in map(link.of, BY_PEER_ACCESS) if crossing and crossing.state in _TOLD]:
            ways = ", ".join(dict.fromkeys(_WORDS[crossing.work] for crossing in told))
            failed.setdefault((told[0].state, ways), []).append((link.devices, _why(told[0], peer_map)))
    for (_, ways), links in failed.items():
        names = _names([link for link, _ in links], peer_map)
        example = f"{tags(links[0][0], devices, '→')}: " if len(links) > 1 else ""
        yield from short(Lines(f"trouble   {names} ({ways}): {example}{links[0][1]}"))
        every_link = (Lines(f"trouble   {tags(link, devices, '→')} ({ways}): {why}") for link, why in links)
        yield from whole("tables", *every_link)
    if peer_map.nccl_failure is not None:
        yield Lines(f"NCCL      all-to-all: {_trouble(peer_map.nccl_failure, peer_map)}")
    yield from (Lines(line) for _, line in _besides(peer_map))
    first = _first(peer_map, every)
    explained = set(first.links if first else ())
    others: list[str] = []
    for cause in every:
        if cause is first:
            continue
        lines = [*map(Lines, (_reason(cause, peer_map), *_remedy(cause)))]
        if explained.issuperset(cause.links):
            others.append(f"{cause.name} ({cause.certainty})")
            yield from whole("causes", *lines)
        else:
            explained.update(cause.links)
            yield from lines
    left = [link.devices for link in peer_map.links if link.state in _WRONG and link.devices not in explained]
    if first is not None and left:
        yield Lines(_not_seen(peer_map, f" for {_names(left, peer_map)}"))
    if others:
        yield from short(Lines(f"or        {', '.join(others)}"))


def answer(peer_map: PeerMap, every: Sequence[PeerCause] = ()) -> str:
    """Return one sentence: does P2P work here? Causes tell where it works but is slow.

    It says so if the machine is simulated.
    """
    said = _answer(peer_map, every)
    return f"{said.removesuffix('.')} (sim)." if peer_map.fabric else said


def _answer(peer_map: PeerMap, every: Sequence[PeerCause]) -> str:
    if not peer_map.links:
        return "One GPU has no link to examine."
    by_state = grouped((link.state, link.devices) for link in peer_map.links)
    count = len(peer_map.links)
    held = held_back(peer_map, every)
    slow = [link for link in by_state.get(PeerState.WORKS, ()) if any(link in cause.links for cause in held)]
    bad = sorted(
        (state for state in by_state if state not in (PeerState.WORKS, PeerState.NONE)), key=list(PeerState).index
    )
    if bad:
        parts = [f"{_names(by_state[state], peer_map)} {verb(len(by_state[state]), *_SAYS[state])}" for state in bad]
        parts += [f"{_names(slow, peer_map)}: {'; '.join(cause.text for cause in held)}"] if slow else []
        counts = Counter(word for state in bad for word in [_COUNTED_AS[state]] * len(by_state[state]))
        counts.update([_COUNTED_AS[PeerState.SLOW]] * len(slow))
        what = ", ".join(f"{word} on {number}" for word, number in counts.items())
        works = "works, but is" if bad == [PeerState.SLOW] else "is"
        return f"P2P {works} {what} of {count} links: {'; '.join(parts)}."
    if PeerState.WORKS not in by_state:
        answers = (each.get(way) for link in peer_map.links for each in (link.nvml, link.tool) for way in "rw")
        statuses = dict.fromkeys(said for said in answers if said is not None and said.allows is False)
        why = "; ".join(f"{refusal}: {labels.PEER_STATES[refusal]}" for refusal in statuses)
        nccl = "NCCL fails" if peer_map.nccl_failure else "Data goes through host memory"
        return f"No P2P: the driver offers it for no link{f' ({why})' if why else ''}. {nccl}."
    works = "all" if len(by_state[PeerState.WORKS]) == count else f"{len(by_state[PeerState.WORKS])} of"
    links = "simulated links" if peer_map.fabric else "links: kernels and copy engines deliver"
    text = f"P2P works on {works} {count} {links}"
    if PeerState.NONE in by_state:
        text += f"; the driver offers none for {_names(by_state[PeerState.NONE], peer_map)}"
    if held:
        why = "; ".join(cause.text for cause in held)
        text = f"P2P works, but is slow on {len(slow)} of {count} links: {why}"
    # A simulated machine has no NCCL to ask, and no fault keeps NCCL from such links.
    asked = [] if peer_map.fabric and not _unused(peer_map) else [_nccl(peer_map)]
    return f"{'; '.join((text, *asked, *(clause for clause, _ in _besides(peer_map))))}."


def _besides(peer_map: PeerMap) -> Iterator[tuple[str, str]]:
    """Yield what is wrong besides peer access on single links: as a clause of the answer, and as a line."""
    if peer_map.together:
        why = failure(peer_map.together, peer_map.devices)
        line = f"trouble   all GPUs in one process: {why}; each link had a process of its own"
        yield "no process can open all GPUs", line
    if lost := _host_trouble(peer_map):
        names, why = _names([link for link, _ in lost], peer_map), _why(lost[0][1], peer_map)
        yield f"copies through the host fail on {names}", f"trouble   through the host, {names}: {why}"
    if others := _contradicted(peer_map):
        differ = f"CUDA, NVML and nvidia-smi topo -p2p differ for {_names(others, peer_map)}"
        yield differ, f"reported  {differ}"


_SLOWER = f"slower than through host memory by more than {fixed(STAGED_FASTER, 2)} times"
_COUNTED_AS = {
    **dict.fromkeys(filter(lambda state: state.is_broken, PeerState), "broken"),
    PeerState.UNKNOWN: "not known",
    PeerState.REFUSED: "refused",
    PeerState.SLOW: "slow",
}
# What is said of one link, and of several.
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


def _folded(peer_map: PeerMap) -> Part:
    """Return the table with one row for links that show the same, and what differs from most first."""
    alike = grouped((_shown_alike(link, peer_map), link) for link in peer_map.links)
    apart = (part for group in alike.values() for part in _by_rate(group))
    return _rows(peer_map, sorted(apart, key=lambda group: (list(PeerState).index(group[0].state), len(group))))


def _by_rate(group: Sequence[PeerLink]) -> Iterator[list[PeerLink]]:
    """Yield links that show the same, those apart that are slower by as much as decides elsewhere, a GPU's together."""
    usual = {
        work: median(rates)
        for work in WAYS
        if (rates := [crossing.gbs for link in group if (crossing := link.of(work)) and crossing.gbs])
    }

    def is_slower(link: PeerLink) -> bool:
        crossings = [crossing for work in WAYS if (crossing := link.of(work)) and crossing.gbs]
        return any((crossing.gbs or 0.0) * STAGED_FASTER < usual[crossing.work] for crossing in crossings)

    slower = [*filter(is_slower, group)]
    for gpu in sorted({end for link in slower for end in link.devices}):
        every = [link for link in group if gpu in link.devices]
        own = [link for link in slower if gpu in link.devices]
        # The GPU is what slower links have in common only if all its links are slower.
        if len(own) > _FEW and all(map(is_slower, every)):
            yield own
            slower = [link for link in slower if link not in own]
    yield from filter(None, (slower, [link for link in group if not is_slower(link)]))


def _rows(peer_map: PeerMap, groups: Sequence[Sequence[PeerLink]]) -> Part:
    rows = (
        (
            _row_name([link.devices for link in group], peer_map),
            *_told(group[0], peer_map),
            *(_cell([link.of(work) for link in group]) for work in WAYS),
            group[0].nccl.partition("/")[0] or "-",
        )
        for group in groups
    )
    ways = ("write", "read", "copy", "host")
    heads = ("sim link" if peer_map.fabric else "link", "label", "CUDA", "topo -p2p", *ways, "NCCL")
    return table(*heads, rows=rows, left={*heads} - {*ways})


def _row_name(links: Sequence[Link], peer_map: PeerMap) -> str:
    """Return few links by name; many by the GPU that all have in common, or as so many."""
    if len(links) <= _FEW:
        return _names(links, peer_map)
    common = set[int](links[0]).intersection(*links)
    if len(common) != 1:
        return amount(len(links), "link")
    ((at, gpu),) = ((position, peer_map.devices[position].tag) for position in common)
    if len({link[0] for link in links}) == 1 or len({link[1] for link in links}) == 1:
        every, way = len(peer_map.devices) - 1, "from" if links[0][0] == at else "to"
    else:
        every, way = sum(at in link.devices for link in peer_map.links), "of"
    return f"{'all ' if len(links) == every else ''}{len(links)} {way} {gpu}"


def _told(link: PeerLink, peer_map: PeerMap) -> tuple[str, str, str]:
    """Return the label, and what the driver and the tools say of a link; once, if all their answers are alike."""
    path = peer_map.path(link.devices)
    answers = [link.nvml.get(letter) or link.tool.get(letter) for letter in CAPABILITIES]
    different = set(filter(None, answers))
    reported = str(different.pop()) if len(different) == 1 else " ".join(str(said or "-") for said in answers)
    return path.label if path else labels.UNKNOWN, "yes" if link.cuda else "no", reported


def _shown_alike(link: PeerLink, peer_map: PeerMap) -> tuple[str, ...]:
    """Return all that a row shows but rates."""
    crossings = map(link.of, WAYS)
    states = (str(crossing.state) if crossing and crossing.gbs is None else "" for crossing in crossings)
    return (link.state, *_told(link, peer_map), *states, link.nccl.partition("/")[0])


def _cell(alike: Sequence[Crossing | None]) -> str:
    """Return what alike links show by one way: their rates, or what all of them do."""
    rates = [crossing.gbs for crossing in alike if crossing and crossing.gbs is not None]
    first = alike[0]
    if rates:
        return span(rates, figure, "-")
    return str(first.state) if first else "-"


def _names(links: Sequence[Link], peer_map: PeerMap) -> str:
    """Return the links by name, as all of them, or as those of the one GPU that many have in common."""
    if len(links) == len(peer_map.links) > 2:
        return f"all {len(links)} links"
    if len(links) > _MAX_LINKS and len(common := set[int](links[0]).intersection(*links)) == 1:
        return f"{len(links)} links of {peer_map.devices[common.pop()].tag}"
    return abridged([tags(link, peer_map.devices, "→") for link in links], _MAX_LINKS)


def _trouble(what: Failure | WrongData | None, peer_map: PeerMap) -> str:
    if isinstance(what, WrongData):
        return wrong_data(what, peer_map.devices, peer_map.paths, causes=False)  # the map has its own
    return failure(what, peer_map.devices) if what else ""


def _why(crossing: Crossing, peer_map: PeerMap) -> str:
    return _trouble(crossing.failure or crossing.wrong, peer_map) or (
        crossing.refusal.detail if crossing.refusal else ""
    )


def as_json(
    peer_map: PeerMap, every: Sequence[PeerCause], hidden: Sequence[PeerCause], exit_status: int
) -> dict[str, Any]:
    """Return the map in JSON's own types (docs/p2p.md)."""
    devices = peer_map.devices
    return head("p2p", peer_map.backend) | {
        **picked(peer_map, "hostname", "fabric"),
        "exit_status": exit_status,
        "answer": answer(peer_map, every),
        "seconds": round(peer_map.seconds, 3),
        "devices": [picked(device, "index", "uuid", "name") for device in devices],
        "links": [_link_json(link, peer_map) for link in peer_map.links],
        "together": _trouble(peer_map.together, peer_map),
        "nccl_failure": _trouble(peer_map.nccl_failure, peer_map),
        "causes": [picked(cause, "name", "certainty", "links", "text", "fix") for cause in every],
        "hidden": [picked(cause, "name", "certainty", "text", "fix") for cause in hidden],
        "meanwhile": list(workarounds(peer_map)),
    }


def _link_json(link: PeerLink, peer_map: PeerMap) -> dict[str, Any]:
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
                "why": _why(crossing, peer_map),
            }
            for crossing in link.crossings
        ],
    }
