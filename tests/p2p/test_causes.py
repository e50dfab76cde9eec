"""Causes of peer access that does not work: each planted alone and in pairs; none where all is well."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from itertools import combinations, permutations
from pathlib import Path as File
from typing import Any, NamedTuple

import pytest

from collbench.model.errors import Cause, Failure, FailureKind, WrongData
from collbench.model.run import NO_PEERS, Path, PeerStatus, SkipKind, Skipped
from collbench.p2p.causes import Certainty, PeerCause, causes, hidden, workarounds
from collbench.p2p.examine import peer_answers
from collbench.p2p.peer_map import BY_PEER_ACCESS, THROUGH_HOST, Crossing, PeerLink, PeerMap
from collbench.preflight.findings import GpuState, MachineFacts, Slot, Space
from tests.preflight.described import GIB, gpu, machine

SIZE = 16 * 2**20
LINKS = ((0, 1), (1, 0))


class Seen(NamedTuple):
    """What the two links of two GPUs show, and the machine."""

    facts: MachineFacts
    links: tuple[PeerLink, ...]
    label: str = "PIX"
    nccl_failure: Failure | None = None

    @property
    def map(self) -> PeerMap:
        paths, devices = (Path((0, 1), self.label),), tuple(one.device for one in self.facts.driver.gpus)
        return PeerMap("cuda", "node7", devices, self.links, paths, nccl_failure=self.nccl_failure)

    def has(self, **changes: Any) -> Seen:
        """Return the same with other facts about the host."""
        return self._replace(facts=replace(self.facts, host=replace(self.facts.host, **changes)))

    def gpus(self, change: Callable[[GpuState], GpuState]) -> Seen:
        """Return the same with other GPUs."""
        driver = replace(self.facts.driver, gpus=tuple(map(change, self.facts.driver.gpus)))
        return self._replace(facts=replace(self.facts, driver=driver))

    def sets(self, **variables: str) -> Seen:
        """Return the same with more variables."""
        return self._replace(facts=replace(self.facts, environment={**self.facts.environment, **variables}))

    def names(self) -> dict[str, Certainty]:
        return {cause.name: cause.certainty for cause in causes(self.map, self.facts)}


def peer_link(
    devices: tuple[int, int], crossing: Crossing | None = None, nccl: str = "P2P/CUMEM", **said: Any
) -> PeerLink:
    """Return a link on which all ways show this; None: they work."""
    direct = crossing or Crossing(BY_PEER_ACCESS[0], SIZE, gbs=24.0)
    ways = tuple(replace(direct, work=work) for work in BY_PEER_ACCESS)
    return PeerLink(devices, (*ways, Crossing(THROUGH_HOST, SIZE, gbs=12.0)), nccl=nccl, **said)


def _machine(name: str = "NVIDIA RTX A6000") -> MachineFacts:
    def pcie(index: int) -> GpuState:
        one = gpu(index, name, links_up=0, bar1_bytes=64 * GIB, pcie_generation=5, pcie_width=16)
        return replace(one, device=replace(one.device, memory_bytes=48 * GIB, pcie_generation=5, pcie_width=16))

    return machine((pcie(0), pcie(1)), driver={"on_the_bus": 2, "virtualization": "none"})


def cards(count: int, **more: Any) -> tuple[GpuState, ...]:
    """Return as many of the machine's cards, which differ in their index alone; each has these facts, too."""
    one = _machine().driver.gpus[0]
    return tuple(replace(one, device=replace(one.device, index=at), **more) for at in range(count))


def _found(
    cards: tuple[GpuState, ...], links: tuple[PeerLink, ...], label_of: Mapping[tuple[int, int], str], **host: Any
) -> tuple[PeerCause, ...]:
    """Return the causes of what the links of these cards show; `label_of` has the label of each link."""
    paths = tuple(Path(end, label) for end, label in label_of.items() if end[0] < end[1])
    facts = machine(cards, host=host, driver={"virtualization": "none"})
    return causes(PeerMap("cuda", "node7", tuple(one.device for one in cards), links, paths), facts)


def _both(crossing: Crossing | None = None, **more: Any) -> Seen:
    return Seen(_machine(), tuple(peer_link(devices, crossing, **more) for devices in LINKS))


WRONG = Crossing(BY_PEER_ACCESS[0], SIZE, wrong=WrongData(BY_PEER_ACCESS[0], SIZE, (0, 1), 1, 0))
HANG = Crossing(BY_PEER_ACCESS[0], SIZE, failure=Failure(FailureKind.HANG, Cause.NO_ANSWER, seconds=8.0))
HEALTHY, BROKEN, HANGING = _both(), _both(WRONG), _both(HANG)
HELD_BACK = _both(Crossing(BY_PEER_ACCESS[0], SIZE, gbs=12.0))
SLOW = _both(Crossing(BY_PEER_ACCESS[0], SIZE, gbs=4.0))
NO = _both(Crossing(BY_PEER_ACCESS[0], SIZE, refusal=NO_PEERS), nccl="SHM/direct/direct")
NOT_ENABLED = _both(Crossing(BY_PEER_ACCESS[0], SIZE, refusal=Skipped(SkipKind.PEERS_REFUSED, detail="error 217")))
STAGED = _both(nccl="SHM/direct/direct")
NCCL_FAILS = NO._replace(nccl_failure=Failure(FailureKind.ERROR, Cause.REPORTED, detail="unhandled system error"))


def _said(seen: Seen, status: PeerStatus) -> Seen:
    return seen._replace(links=tuple(replace(one, nvml={"r": status, "w": status}) for one in seen.links))


def _acs(seen: Seen) -> Seen:
    slots = dict(seen.facts.host.slots)
    return seen.has(slots={**slots, 0: replace(slots[0], redirecting=("0000:00:01.1", "0000:00:03.0"))})


def _translated(seen: Seen) -> Seen:
    slots = {index: replace(slot, iommu_type="DMA-FQ") for index, slot in seen.facts.host.slots.items()}
    return seen.has(slots=slots, iommu_parameters=("amd_iommu=on",))


def _small_bar1(seen: Seen) -> Seen:
    return seen.gpus(lambda one: replace(one, bar1_bytes=256 * 2**20))


def _narrow(seen: Seen) -> Seen:
    return seen.gpus(
        lambda one: replace(one, health=replace(one.health, pcie_width=8)) if one.device.index == 1 else one
    )


def _at_generation(seen: Seen, generation: int | None) -> Seen:
    """Return the same with this generation of the second GPU's link, as copies ended."""
    return seen.gpus(
        lambda one: (
            replace(one, health=replace(one.health, pcie_generation=generation)) if one.device.index == 1 else one
        )
    )


def _geforce(seen: Seen) -> Seen:
    return seen.gpus(lambda one: replace(one, device=replace(one.device, name="NVIDIA GeForce RTX 3090")))


def _virtual(seen: Seen) -> Seen:
    return seen.has(hypervisor="QEMU")


def _forced(seen: Seen) -> Seen:
    return seen.has(registry="ForceP2P=0x11;RMForceP2PType=1")


def _docker(seen: Seen) -> Seen:
    return seen.has(container="docker", shm=Space(64 * 2**20, 64 * 2**20))


ACS, IOMMU, BAR1 = ("ACS", _acs), ("IOMMU", _translated), ("BAR1", _small_bar1)
PLANTS: dict[str, tuple[Seen, tuple[tuple[str, Callable[[Seen], Seen]], ...]]] = {
    "wrong data": (BROKEN, (ACS, IOMMU, BAR1, ("patched driver", _forced))),
    "a hang": (HANGING, (ACS, IOMMU, BAR1, ("patched driver", _geforce))),
    "slow": (
        SLOW,
        (
            ACS,
            IOMMU,
            ("PCIe width", _narrow),
            ("PCIe generation", lambda seen: _at_generation(seen, 4)),  # on 8 lanes 15.75 GB/s; 12 were carried
            ("CPU sockets", lambda seen: seen._replace(label="SYS")),
        ),
    ),
    "no P2P": (
        NO,
        (
            ("GPU model", _geforce),
            ("virtual machine", _virtual),
            ("driver setting", lambda seen: _said(seen, PeerStatus.DR)),
        ),
    ),
    "not enabled": (NOT_ENABLED, (BAR1, ("patched driver", _forced), ("virtual machine", _virtual))),
    "held back": (HELD_BACK, (("PCIe width", _narrow), ("PCIe generation", lambda seen: _at_generation(seen, 4)))),
    "not used": (STAGED, (("NCCL variable", lambda seen: seen.sets(NCCL_P2P_DISABLE="1")),)),
    "NCCL fails": (NCCL_FAILS, (("shared memory", _docker), ("GPU model", _geforce))),
}


@pytest.mark.parametrize("symptom", PLANTS)
def test_each_cause_is_named_alone_and_in_pairs(symptom: str) -> None:
    seen, plants = PLANTS[symptom]
    assert seen.names() == {}, "a symptom alone has no cause"
    for name, plant in plants:
        assert set(plant(seen).names()) - ({"ACS"} if plant is _virtual else set()) == {name}
    for (one, plant_one), (other, plant_other) in combinations(plants, 2):
        assert set(plant_other(plant_one(seen)).names()) >= {one, other}, (one, other)


@pytest.mark.parametrize("virtual", [False, True])
@pytest.mark.parametrize(
    ("label", "certainty", "fixes"),
    [
        ("PIX", Certainty.POSSIBLE, ("sudo dmesg | grep -i -e iommu -e NVRM; then NCCL sees this",) * 2),
        ("PHB", Certainty.SHOWN, ("put both GPUs below one PCIe switch; NCCL", "on the host, show the GPUs below one")),
        ("SYS", Certainty.SHOWN, ("put both GPUs below one PCIe switch or CPU root; ", "on the host, show the GPUs ")),
    ],
)
def test_what_the_chipset_does_not_support_is_mended_only_by_a_nearer_path(
    label: str, certainty: Certainty, fixes: tuple[str, str], virtual: bool
) -> None:
    seen = _said(_virtual(NO) if virtual else NO, PeerStatus.CNS)._replace(label=label)
    (chipset,) = [cause for cause in causes(seen.map, seen.facts) if cause.name == "chipset"]
    assert f"the driver says CNS (chipset not supported) for a path {label}" in chipset.text
    assert chipset.certainty is certainty
    assert chipset.fix.startswith(fixes[virtual])


def test_a_healthy_machine_has_no_cause_whatever_its_facts() -> None:
    facts = HEALTHY
    for plant in (_acs, _translated, _small_bar1, _geforce, _virtual, _forced, _docker):
        facts = plant(facts)
    facts = facts._replace(label="SYS").sets(NCCL_P2P_DISABLE="1", NCCL_SHM_DISABLE="1", CUDA_VISIBLE_DEVICES="0,1")
    assert facts.names() == {}
    assert list(workarounds(facts.map)) == []


def test_a_fact_that_is_also_on_sound_links_comes_after_one_that_is_not() -> None:
    """The IOMMU translates for all four GPUs, and only links between two sockets are slow."""
    far = Crossing(BY_PEER_ACCESS[0], SIZE, gbs=4.0)
    label_of = {end: "SYS" if end[0] // 2 != end[1] // 2 else "PIX" for end in permutations(range(4), 2)}
    links = tuple(peer_link(end, far if label == "SYS" else None) for end, label in label_of.items())
    found = _found(cards(4), links, label_of, slots={at: Slot("DMA-FQ") for at in range(4)})
    assert [cause.name for cause in found] == ["CPU sockets", "IOMMU"]


@pytest.mark.parametrize(
    ("labels", "slow", "cause", "command"),
    [
        (("PHB", "SYS"), {"SYS"}, "CPU sockets", "export NCCL_P2P_LEVEL=PHB"),
        (("PHB", "SYS"), {"PHB", "SYS"}, "root complex", "export NCCL_P2P_LEVEL=PXB"),
        (("PIX", "NODE"), {"NODE"}, "root complex", "export NCCL_P2P_LEVEL=PXB"),
        (("PIX", "SYS"), {"PIX", "SYS"}, None, None),
    ],
)
def test_no_level_is_proposed_that_leaves_p2p_on_where_it_is_slow(
    labels: tuple[str, str], slow: set[str], cause: str | None, command: str | None
) -> None:
    """Four GPUs in pairs: the first label within a pair, the second between them."""
    found = _in_pairs(labels, slow)
    many = 8 if len(slow) == 1 else 12
    assert [(one.name, one.command, len(one.links)) for one in found] == ([(cause, command, many)] if cause else [])


@pytest.mark.parametrize(
    ("label", "slow", "sound_gbs", "expected"),
    [
        ("PHB", [(0, 2)], 24.0, {}),
        ("PHB", [(0, 2)], 4.1, {"root complex": ""}),  # as slow, and only faster than through the host
        ("PHB", [(0, 2), (0, 3), (1, 2), (1, 3)], 24.0, {"root complex": "export NCCL_P2P_LEVEL=PXB"}),
        ("SYS", [(0, 2), (0, 3), (1, 2)], 24.0, {}),
        ("SYS", [(0, 2), (0, 3), (1, 2), (1, 3)], 24.0, {"CPU sockets": "export NCCL_P2P_LEVEL=PHB"}),
        ("SYS", [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3)], 24.0, {"CPU sockets": ""}),  # P2P stays on at 0-1
    ],
)
def test_a_part_that_other_links_cross_faster_is_no_cause(
    label: str, slow: list[tuple[int, int]], sound_gbs: float, expected: dict[str, str]
) -> None:
    """Four GPUs, two below each switch: the label is of the paths between switches."""
    label_of = {end: label if end[0] // 2 != end[1] // 2 else "PIX" for end in permutations(range(4), 2)}
    links = []
    for end, own in label_of.items():
        is_slow, sound = (min(end), max(end)) in slow, 24.0 if own == "PIX" else sound_gbs
        link = peer_link(end, Crossing(BY_PEER_ACCESS[0], SIZE, gbs=4.0 if is_slow else sound))
        through_host = Crossing(THROUGH_HOST, SIZE, gbs=12.0 if is_slow else 3.0)
        links.append(replace(link, crossings=(*link.crossings[:-1], through_host)))
    assert {one.name: one.command for one in _found(cards(4), tuple(links), label_of)} == expected


def test_a_root_complex_is_slow_for_the_gpus_of_its_cpu_alone() -> None:
    """Two CPUs, each with two GPUs: the first CPU's paths are slow, those to the other CPU, too."""
    label_of = {end: "PHB" if end[0] // 2 == end[1] // 2 else "SYS" for end in permutations(range(4), 2)}
    slow = Crossing(BY_PEER_ACCESS[0], SIZE, gbs=4.0)
    links = tuple(peer_link(end, None if set(end) == {2, 3} else slow) for end in label_of)
    (cause,) = _found(cards(4), links, label_of)
    assert (cause.name, len(cause.links), cause.command) == ("root complex", 10, "")


def test_lanes_that_other_links_of_the_gpu_exceed_are_no_cause_of_one_slow_link() -> None:
    """GPU1 has 8 lanes, and copies of 12 GB/s reach it from GPU2: they do not explain the 4 GB/s with GPU0."""
    narrow = tuple(
        replace(card, health=replace(card.health, pcie_width=8)) if card.device.index == 1 else card
        for card in cards(3)
    )
    label_of = dict.fromkeys(permutations(range(3), 2), "PHB")
    links = tuple(
        peer_link(end, Crossing(BY_PEER_ACCESS[0], SIZE, gbs=4.0 if set(end) == {0, 1} else 12.0)) for end in label_of
    )
    (cause,) = _found(narrow, links, label_of)
    assert (cause.name, set(cause.links)) == ("PCIe width", {(1, 2), (2, 1)})


def _in_pairs(labels: tuple[str, str], slow: set[str], unused: Collection[str] = ()) -> tuple[PeerCause, ...]:
    """Return the causes of slow links of four GPUs, by label; those `unused` are sound, and NCCL takes another way."""
    label_of = {end: labels[end[0] // 2 != end[1] // 2] for end in permutations(range(4), 2)}
    far = Crossing(BY_PEER_ACCESS[0], SIZE, gbs=4.0)
    links = tuple(
        peer_link(end, far if label in slow else None, "SHM/direct/direct" if label in unused else "P2P/CUMEM")
        for end, label in label_of.items()
    )
    return _found(cards(4), links, label_of)


def test_nccl_is_not_told_to_use_p2p_everywhere_where_some_links_are_slow() -> None:
    (sound,) = _in_pairs(("PHB", "SYS"), set(), unused=["SYS"])
    assert (sound.name, sound.command) == ("NCCL's distance", "export NCCL_P2P_LEVEL=SYS")
    (distance,) = _in_pairs(("PHB", "SYS"), {"PHB"}, unused=["SYS"])
    assert distance.command == ""
    assert distance.further == "none: NCCL_P2P_LEVEL=SYS would use P2P on links where it is slow, too"


def test_lanes_that_copies_through_the_host_cross_too_are_only_a_possible_cause() -> None:
    assert _narrow(SLOW).names() == {"PCIe width": Certainty.POSSIBLE}
    assert list(_translated(_narrow(SLOW)).names()) == ["IOMMU", "PCIe width"]


@pytest.mark.parametrize(
    ("setting", "named"), [("ForceP2P=0x11", True), ("ForceP2P=0x0", False), ("ForceP2P=0", False)]
)
def test_a_setting_that_switches_p2p_off_does_not_force_it(setting: str, named: bool) -> None:
    assert ("patched driver" in BROKEN.has(registry=setting).names()) is named


def test_nvlinks_do_not_pass_bridges_nor_bar1() -> None:
    for plant in (_acs, _translated, _small_bar1, _geforce, _virtual):
        assert plant(BROKEN._replace(label="NV4")).names() == {}
    assert len(list(workarounds(BROKEN.map))) == 2


@pytest.mark.parametrize(
    ("generation", "named"),
    [
        (5, False),  # at its best
        (4, True),
        (3, True),  # 15.75 GB/s, and 12 were carried
        (2, False),  # 7.88 GB/s, less than it carried: it was read at rest
    ],
)
def test_a_generation_is_a_cause_only_if_the_link_carried_no_more(generation: int | None, named: bool) -> None:
    found = causes(_at_generation(SLOW, generation).map, _at_generation(SLOW, generation).facts)
    assert [cause.name for cause in found] == (["PCIe generation"] if named else [])
    assert all(f"GPU1 gen {generation} of gen 5" in cause.text and "GPU0" not in cause.text for cause in found)


@pytest.mark.parametrize(
    ("modules", "flavor"), [(True, " (open kernel modules)"), (False, " (proprietary kernel modules)"), (None, "")]
)
def test_modules_that_do_not_say_their_flavor_are_not_called_proprietary(modules: bool | None, flavor: str) -> None:
    seen = _forced(BROKEN.has(open_modules=modules))
    (cause,) = causes(seen.map, seen.facts)
    assert cause.text.startswith(f"the driver {seen.facts.driver.version}{flavor} is patched: settings force P2P")


def test_bridges_above_both_gpus_see_nothing_of_their_traffic() -> None:
    shared = {index: Slot(redirecting=("0000:00:01.1",)) for index in (0, 1)}
    assert BROKEN.has(slots=shared).names() == {}
    (cause,) = causes(_acs(BROKEN).map, _acs(BROKEN).facts)
    assert "setpci -s 0000:00:01.1 ECAP_ACS+0x6.w=0000; sudo setpci -s 0000:00:03.0" in cause.fix
    assert "risk" in cause.further


def test_a_less_sure_cause_of_what_is_wrong_comes_before_a_sure_one_of_what_is_not_offered() -> None:
    """Two links hang and may have a small BAR1; that the driver offers none on two others is shown, and no fault."""
    ends = list(permutations(range(3), 2))
    hangs = {(0, 1), (1, 0)}
    chipset = {"r": PeerStatus.CNS, "w": PeerStatus.CNS}
    none = Crossing(BY_PEER_ACCESS[0], SIZE, refusal=NO_PEERS)
    links = tuple(peer_link(end, HANG) if end in hangs else peer_link(end, none, nvml=chipset) for end in ends)
    found = _found(cards(3, bar1_bytes=2**28), links, dict.fromkeys(ends, "PHB"))
    assert [cause.name for cause in found] == ["BAR1", "chipset"]
    assert [cause.certainty for cause in found] == [Certainty.POSSIBLE, Certainty.SHOWN]


def test_links_that_differ_in_the_parts_alone_have_one_cause_and_one_command() -> None:
    """Below a bridge of its own each, which redirects: three pairs, six links, three bridges."""
    ends = list(permutations(range(3), 2))
    slots = {at: Slot(redirecting=(f"0000:0{at}:01.0",)) for at in range(3)}
    links = tuple(peer_link(end, HANG) for end in ends)
    (cause,) = _found(cards(3), links, dict.fromkeys(ends, "PXB"), slots=slots)
    assert set(cause.links) == set(ends)
    assert cause.command.split("; ") == [f"sudo setpci -s 0000:0{at}:01.0 ECAP_ACS+0x6.w=0000" for at in range(3)]


def test_what_only_root_may_read_is_only_possible() -> None:
    unreadable = {index: Slot(unreadable=1) for index in (0, 1)}
    assert BROKEN.has(slots=unreadable).names() == {"ACS": Certainty.POSSIBLE}


@pytest.mark.parametrize(
    ("level", "label", "expected"),
    [("PIX", "PHB", True), ("PHB", "NODE", False), ("PIX", "PIX", False), ("NVL", "PIX", True), ("2", "PHB", True),
     ("SYS", "SYS", False), ("loc", "NV4", True)],
)  # fmt: skip
def test_a_level_is_a_cause_only_for_farther_paths(level: str, label: str, expected: bool) -> None:
    seen = STAGED._replace(label=label).sets(NCCL_P2P_LEVEL=level)
    assert ("NCCL variable" in seen.names()) is expected


@pytest.mark.parametrize(("value", "expected"), [("1", True), ("0", False), ("2", False), ("", False), ("true", False)])
def test_a_value_that_nccl_does_not_read_as_1_is_no_cause(value: str, expected: bool) -> None:
    assert ("NCCL variable" in STAGED.sets(NCCL_P2P_DISABLE=value).names()) is expected


def test_a_variable_of_nccls_file_is_named_with_the_file() -> None:
    facts = replace(STAGED.facts, configured=(("/etc/nccl.conf", "NCCL_P2P_DISABLE", "1"),))
    (cause,) = causes(STAGED.map, facts)
    assert cause.fix == "remove NCCL_P2P_DISABLE from /etc/nccl.conf"


@pytest.mark.parametrize(
    ("transport", "certainty", "said", "fix"),
    [
        ("P2P/CUMEM", Certainty.SHOWN, "; without the variable it took P2P", "unset NCCL_P2P_LEVEL"),
        ("SHM/direct/direct", Certainty.POSSIBLE, ", so this is not the only cause", "unset NCCL_P2P_LEVEL"),
        ("", Certainty.CONSISTENT, "; without the variable NCCL failed", "leave it set"),
    ],
)
def test_a_variable_is_as_surely_the_cause_as_nccl_shows_without_it(
    transport: str, certainty: Certainty, said: str, fix: str
) -> None:
    links = tuple(replace(one, without={"NCCL_P2P_LEVEL": transport}) for one in STAGED.links)
    seen = STAGED._replace(links=links, label="PHB").sets(NCCL_P2P_LEVEL="PXB")
    first, *others = causes(seen.map, seen.facts)
    assert (first.name, first.certainty, first.fix) == ("NCCL variable", certainty, fix)
    assert first.text.endswith(said)
    assert [cause.name for cause in others] == (["NCCL's distance"] if certainty is Certainty.POSSIBLE else [])


def test_shared_memory_that_nccl_may_not_use_is_named() -> None:
    seen = _both(Crossing(BY_PEER_ACCESS[0], SIZE, refusal=NO_PEERS), nccl="NET/Socket/0").sets(NCCL_SHM_DISABLE="1")
    assert seen.names() == {"NCCL_SHM_DISABLE": Certainty.CONSISTENT}
    seen = seen.sets(NCCL_SHM_DISABLE="1", NCCL_IB_DISABLE="1")
    assert "NCCL_IB_DISABLE=1 leaves it no InfiniBand" in causes(seen.map, seen.facts)[0].text


def test_nccl_that_fails_where_every_link_has_p2p_wants_no_shared_memory() -> None:
    fails = _docker(HEALTHY._replace(nccl_failure=NCCL_FAILS.nccl_failure))
    assert fails.names() == {}
    assert _docker(STAGED._replace(nccl_failure=NCCL_FAILS.nccl_failure)).names() == {
        "shared memory": Certainty.CONSISTENT
    }
    assert _docker(NOT_ENABLED._replace(nccl_failure=NCCL_FAILS.nccl_failure)).names() == {}


def test_one_geforce_card_that_is_offered_p2p_shows_that_the_driver_is_patched() -> None:
    seen = _geforce(HEALTHY)
    links = (seen.links[0], NO.links[1])
    assert "GPU model" not in _said(seen._replace(links=links), PeerStatus.CNS).names()


def test_a_link_that_was_read_at_rest_is_known_by_what_crossed_its_gpus_other_links() -> None:
    """GPU1 has half its lanes, which slow one link; GPU0 carried 24 GB/s to GPU2, so it is not at generation 1."""
    narrow = _at_generation(_narrow(HELD_BACK), 5)
    first = replace(narrow.facts.driver.gpus[0], health=replace(narrow.facts.driver.gpus[0].health, pcie_generation=1))
    second = narrow.facts.driver.gpus[1]
    third = replace(second, device=replace(second.device, index=2), health=replace(second.health, pcie_width=16))
    facts = replace(narrow.facts, driver=replace(narrow.facts.driver, gpus=(first, second, third)))
    links = (*narrow.links, replace(HEALTHY.links[0], devices=(0, 2)))
    peer_map = PeerMap("cuda", "node7", tuple(one.device for one in (first, second, third)), links)
    assert [(cause.name, cause.text) for cause in causes(peer_map, facts)] == [
        ("PCIe width", "PCIe lanes are missing: GPU1 x8 of x16")
    ]


def test_nccls_own_limit_of_distance_is_named() -> None:
    assert STAGED._replace(label="NODE").names() == {"NCCL's distance": Certainty.POSSIBLE}


REPORTS = {  # as people posted them, of GeForce cards over PCIe
    "NS of two cards": ("\tGPU0\tGPU1\nGPU0\tX\tNS\nGPU1\tNS\tX\n", PeerStatus.NS, Certainty.CONSISTENT),
    "GNS of two cards": ("\tGPU0\tGPU1\t\n GPU0\tX\tGNS\t\n GPU1\tGNS\tX\t\n", PeerStatus.GNS, Certainty.SHOWN),
}


@pytest.mark.parametrize("case", REPORTS)
def test_what_people_see_is_explained(case: str) -> None:
    text, status, certainty = REPORTS[case]
    answers = peer_answers({"r": text, "w": "no matrix"})
    assert answers["GPU0", "GPU1"] == {"r": status}
    seen = _geforce(NO)._replace(links=tuple(replace(one, tool=answers["GPU0", "GPU1"]) for one in NO.links))
    assert seen.names() == {"GPU model": certainty}
    (cause,) = causes(seen.map, seen.facts)
    assert "no software fix" in cause.fix
    assert cause.links == LINKS


BOUND = {"SLURM_GPUS_ON_NODE": "4"}
DOCKER: dict[str, Any] = {"host": {"container": "docker"}, "driver": {"on_the_bus": 8}}


@pytest.mark.parametrize(
    ("case", "facts", "found"),
    [
        ("all GPUs are seen", machine(), {}),
        ("others belong to other jobs", machine(driver={"on_the_bus": 8}, environment=BOUND), {}),
        ("Slurm counts MIG devices", machine(tuple(gpu(n, mig=True) for n in range(2)), environment=BOUND), {}),
        (
            "a task is bound to two, of which a variable leaves one",
            machine((gpu(0), gpu(1)), environment=BOUND | {"CUDA_VISIBLE_DEVICES": "1"}),
            {
                "CUDA_VISIBLE_DEVICES": (Certainty.SHOWN, "1 of 2 GPUs", "unset CUDA_VISIBLE_DEVICES"),
                "Slurm": (Certainty.CONSISTENT, "has 2 more", "srun --gpu-bind=none"),
            },
        ),
        (
            "a container has half of the GPUs",
            machine(**DOCKER),
            {"docker": (Certainty.POSSIBLE, "4 more, which the docker container was not given", "docker run --gpus")},
        ),
        (
            "a GPU fell off the bus",
            machine(driver={"on_the_bus": 5}),
            {"PCI": (Certainty.POSSIBLE, "1 more, which the driver does not show", "collbench doctor")},
        ),
    ],
)
def test_gpus_that_a_process_does_not_see_are_named_with_what_hides_them(
    case: str, facts: MachineFacts, found: dict[str, tuple[Certainty, str, str]]
) -> None:
    every = {cause.name: cause for cause in hidden(facts)}
    assert every.keys() == found.keys(), case
    for name, (certainty, text, fix) in found.items():
        assert every[name].certainty is certainty
        assert text in every[name].text
        assert fix in every[name].fix


def test_every_cause_is_in_the_document() -> None:
    document = (File(__file__).parents[2] / "docs" / "p2p.md").read_text(encoding="utf-8")
    for names in (
        ("NCCL's distance", "NCCL_SHM_DISABLE", "chipset"),
        *([n for n, _ in row] for _, row in PLANTS.values()),
    ):
        assert all(f"| {name} |" in document for name in names), names
