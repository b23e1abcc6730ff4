"""Which of this machine's addresses and interfaces lead to another node."""

from __future__ import annotations

import ipaddress
import socket

import psutil

from bench_runner.errors import UsageError, shortened


def resolve(host: str) -> str:
    """The first address of ``host``; raises UsageError with what the resolver says."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else "no name of a host"
        raise UsageError(f"{shortened(host)}: {why}; name node 0 by an address that this node knows") from error
    return str(found[0][4][0])


def own_address_towards(address: str, port: int = 9) -> str | None:
    """The address that this machine would use to reach ``address``; None where no route leads there.  Sends nothing."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, port))
        except OSError:
            return None
        return str(probe.getsockname()[0])


def is_own(address: str) -> bool:
    """Whether ``address`` belongs to this machine."""
    if ipaddress.ip_address(address.partition("%")[0]).is_loopback:
        return True
    return any(entry.address.partition("%")[0] == address for _, entry in _entries())


def interface_towards(address: str) -> str | None:
    """The network interface over which ``address`` is reached; for an own address the one that has it."""
    if ipaddress.ip_address(address.partition("%")[0]).is_loopback:
        return "lo"
    own = own_address_towards(address)
    return next((name for name, entry in _entries() if entry.address.partition("%")[0] == own), None)


def _entries() -> list[tuple[str, psutil._ntuples.snicaddr]]:
    wanted = (socket.AF_INET, socket.AF_INET6)
    return [(name, e) for name, entries in psutil.net_if_addrs().items() for e in entries if e.family in wanted]
