"""What tells this host, and this process's way to the others, apart."""

from __future__ import annotations

import fcntl
import pathlib
import socket
import struct

_SIOCGIFADDR = 0x8915  # <linux/sockios.h>
_NAME_BYTES, _ADDRESS_AT = 256, 20  # struct ifreq: a name of up to 16 bytes, then a sockaddr_in with the address


def host_key() -> str:
    """Return what two processes share when loopback joins them: the kernel's boot and the network namespace.

    Host names do not tell: containers have their own on one machine, and cloned machines share one.
    """
    boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot}/{pathlib.Path('/proc/self/ns/net').stat().st_ino}"


def interface_of(address: str) -> str:
    """Return the network interface that has an address, or "" where it cannot be told."""
    if ":" in address:
        return _interface_of_ipv6(address)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            request = struct.pack(f"{_NAME_BYTES}s", name.encode())
            try:
                found = fcntl.ioctl(any_socket, _SIOCGIFADDR, request)[_ADDRESS_AT : _ADDRESS_AT + 4]
            except OSError:
                continue  # an interface without an IPv4 address
            if socket.inet_ntoa(found) == address:
                return name
    return ""


def _interface_of_ipv6(address: str) -> str:
    wanted = socket.inet_pton(socket.AF_INET6, address.partition("%")[0]).hex()
    try:
        lines = pathlib.Path("/proc/net/if_inet6").read_text(encoding="ascii").splitlines()
    except OSError:
        return ""
    return next((line.split()[-1] for line in lines if line.startswith(wanted)), "")
