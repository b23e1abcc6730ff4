"""Network interfaces, InfiniBand devices, and ports that somebody listens on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bench_runner.machine.host import ROOT, read_number, read_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """``state`` is the kernel's word (up, down, unknown for loopback); ``speed_mbps`` None: not told."""

    name: str
    state: str | None = None
    speed_mbps: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """``interfaces`` None: the kernel's list cannot be read."""

    interfaces: tuple[Interface, ...] | None = None
    infiniband: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """Who listens on a port; ``pid`` and ``command`` are None when the owner is not ours to see."""

    port: int
    pid: int | None = None
    command: str | None = None


def usable_interfaces(network: Network) -> tuple[str, ...]:
    """The interfaces that are up, without the loopback: by speed, the fastest first, those that tell none last."""
    up = [interface for interface in network.interfaces or () if interface.state == "up" and interface.name != "lo"]
    return tuple(interface.name for interface in sorted(up, key=lambda interface: -(interface.speed_mbps or 0)))


def _names(directory: Path) -> list[str] | None:
    try:
        return sorted(entry.name for entry in directory.iterdir())
    except OSError:
        return None


def read_network(root: Path = ROOT) -> Network:
    """Interfaces under /sys/class/net, devices under /sys/class/infiniband."""
    base = root / "sys/class/net"
    names = _names(base)
    interfaces = None
    if names is not None:
        # bonding_masters is a file among the interfaces' directories.
        interfaces = tuple(_interface(base / name) for name in names if (base / name).is_dir())
    return Network(interfaces=interfaces, infiniband=tuple(_names(root / "sys/class/infiniband") or ()))


def _interface(directory: Path) -> Interface:
    speed = read_number(directory / "speed")
    return Interface(
        name=directory.name,
        state=read_text(directory / "operstate"),
        # A link that is down or virtual says -1.
        speed_mbps=speed if speed is not None and speed > 0 else None,
    )


def _listening(root: Path, port: int) -> bool:
    for table in ("proc/net/tcp", "proc/net/tcp6"):
        for line in (read_text(root / table) or "").splitlines()[1:]:
            words = line.split()
            if len(words) > 3 and words[3] == "0A" and words[1].rpartition(":")[2] == f"{port:04X}":
                return True
    return False


def listener(port: int, root: Path = ROOT) -> Listener | None:
    """Who listens on this TCP port; None when nobody does."""
    if not _listening(root, port):
        return None
    import psutil

    try:
        for connection in psutil.net_connections("tcp"):
            ours = getattr(connection.laddr, "port", None) == port
            if ours and connection.status == psutil.CONN_LISTEN and connection.pid:
                command = " ".join(psutil.Process(connection.pid).cmdline())[:200]
                return Listener(port=port, pid=connection.pid, command=command or None)
    except (psutil.Error, OSError):
        # Another user's process, or one that has just ended: the port is taken all the same.
        return Listener(port=port)
    return Listener(port=port)
