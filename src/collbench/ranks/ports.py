"""Counters of network cards' ports: read on each of several hosts, and what changed while these were measured."""

from __future__ import annotations

import pathlib
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from collbench.machine.kernel import FOLDER, read, read_ports
from collbench.model.run import NetworkPort, Run
from collbench.model.units import amount, fixed

# Under counters/ [InfiniBand 1.7, 16.1.3.5 PortCounters] and hw_counters/ of mlx5 [NVIDIA, Understanding mlx5 Linux
# Counters]: what shows that a link loses or repeats packets. With the bits of those that stop at their largest value
# [the same; Linux, drivers/infiniband/core/sysfs.c], None for others.
ERRORS = {
    "symbol_error": 16,
    "link_error_recovery": 8,
    "link_downed": 8,
    "port_rcv_errors": 16,
    "port_rcv_remote_physical_errors": 16,
    "port_xmit_discards": 16,
    "local_link_integrity_errors": 4,
    "excessive_buffer_overrun_errors": 4,
    "VL15_dropped": 16,
    "packet_seq_err": None,
    "implied_nak_seq_err": None,
    "local_ack_timeout_err": None,
    "rnr_nak_retry_err": None,
    "rx_icrc_encapsulated": None,
}
# The same folders: what shows that traffic waited for other traffic. A busy network has some of it, so it is no error.
CONGESTION = (
    "port_xmit_wait",
    "np_cnp_sent",
    "np_ecn_marked_roce_packets",
    "rp_cnp_handled",
    "out_of_buffer",
    "out_of_sequence",  # adaptive routing reorders packets, too
)
_COUNTERS = ("counters", "hw_counters")


def read_counted_ports(root: pathlib.Path) -> tuple[NetworkPort, ...]:
    """Return the ports of all cards with the counters that can be read; `root` holds sys/.

    A card has some of them, and RoCE and InfiniBand differ.
    """
    return tuple(
        replace(port, counters=_counters(root / FOLDER / port.card / "ports" / str(port.number)))
        for port in read_ports(root)
    )


def _counters(folder: pathlib.Path) -> dict[str, int]:
    counters = {}
    for name in (*ERRORS, *CONGESTION):
        texts = (read(folder / subfolder / name).strip() for subfolder in _COUNTERS)
        for text in texts:
            if re.fullmatch("[0-9]{1,20}", text, re.ASCII):
                counters[name] = int(text)
    return counters


@dataclass(frozen=True, slots=True)
class PortChange:
    """What changed on a port of a network card while it was measured."""

    port: NetworkPort
    what: str  # "state", "rate" in Gbit/s, or a counter's name
    before: str | float
    after: str | float | None  # None for a port that is gone, or whose host is
    growth: int = 0  # of a counter; 0 if it was at its largest value already, so that its growth is unknown

    @property
    def congestion(self) -> bool:
        """True for what a busy network has as well."""
        return self.what in CONGESTION


def changes(before: Sequence[NetworkPort], after: Sequence[NetworkPort]) -> Iterator[PortChange]:
    """Yield what changed on each port, by host and name. A counter that fell was reset, and says nothing."""
    later = {(port.host, port.name): port for port in after}
    for port in sorted(before, key=lambda port: (port.host, port.card, port.number)):
        then = later.get((port.host, port.name))
        if then is None:
            yield PortChange(port, "state", port.state, None)
            continue
        if port.state and then.state and port.state != then.state:
            yield PortChange(port, "state", port.state, then.state)
        if port.rate_gbits and then.rate_gbits and port.rate_gbits != then.rate_gbits:
            yield PortChange(port, "rate", port.rate_gbits, then.rate_gbits)
        for name, count in port.counters.items():
            now = then.counters.get(name, count)
            growth = now - count
            bits = ERRORS.get(name)
            if growth > 0 or (bits and count == now == 2**bits - 1):
                yield PortChange(port, name, count, count + growth, growth)


# What changed, in words.


def events(run: Run) -> Iterator[tuple[str, str]]:
    """Yield (kind, line) of what changed on the network cards' ports of a run: "ports", what is "congestion" last."""
    counters: dict[str, list[PortChange]] = defaultdict(list)
    for change in changes(run.ports_before, run.ports_after):
        if change.congestion:
            counters[change.what].append(change)
        else:
            yield "ports", _port_line(change)
    for grown in counters.values():
        rest = f", and no more on {amount(len(grown) - 1, 'other port')}" if len(grown) > 1 else ""
        yield "congestion", f"congestion: {_port_line(max(grown, key=lambda change: change.growth))}{rest}"


def _port_line(change: PortChange) -> str:
    where = f"{change.port.name} of {change.port.host}"
    if change.after is None:
        return f"{where} is gone, or its host is gone"
    if change.what == "state":
        return f"{where} changed from {change.before} to {change.after}"
    if change.what == "rate":
        return f"{where} changed from {fixed(float(change.before))} to {fixed(float(change.after))} Gbit/s"
    if not change.growth:
        return f"{change.what} on {where} has reached its maximum, {change.before}: whether it grew is unknown"
    return f"{change.what} grew by {change.growth:,} on {where}"
