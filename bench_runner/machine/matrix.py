"""Which process holds how much on which device: the ranks joined with the driver's lists of processes.  Pure.

In a container the driver lists the host's process numbers, and a number of ours may by accident be somebody else's.
So a rank counts as matched only when its number is listed on its own device; else all its cells are unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bench_runner.finding import Finding
from bench_runner.machine.memory import DeviceUse, normalised

_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RankProcess:
    """A rank's process and the device it was given; ``uuid`` None: not known."""

    rank: int
    pid: int
    uuid: str | None
    node: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One process on one device.  ``matched`` False: the rank could not be found in the driver's lists.

    ``bytes_held`` is 0 for a matched rank that the device's list does not name, and None for "unknown": the rank is
    not matched, the list could not be read, or the driver does not tell how much.
    """

    rank: int
    uuid: str
    own: bool
    matched: bool
    listed: bool
    bytes_held: int | None


def memory_matrix(uses: Sequence[DeviceUse], ranks: Sequence[RankProcess]) -> tuple[Cell, ...]:
    """A cell for every rank and every device of ``uses``, rank by rank."""
    return tuple(cell for rank in ranks for cell in _row(uses, rank))


def _row(uses: Sequence[DeviceUse], rank: RankProcess) -> list[Cell]:
    own_uuid = None if rank.uuid is None else normalised(rank.uuid)
    names = {use.key: use.uuid or normalised(use.key) for use in uses}
    matched = any(names[use.key] == own_uuid and rank.pid in (use.processes or {}) for use in uses)
    cells = []
    for use in uses:
        listed = matched and use.processes is not None and rank.pid in use.processes
        held: int | None = None
        if matched and use.processes is not None:
            held = use.processes[rank.pid] if listed else 0
        own = names[use.key] == own_uuid
        cells.append(
            Cell(rank=rank.rank, uuid=names[use.key], own=own, matched=matched, listed=listed, bytes_held=held)
        )
    return cells


def stray_finding(cells: Sequence[Cell]) -> Finding:
    """Does a rank hold memory on a device that is not its own?  Mostly device 0, a context of some hundred MiB."""
    check = "memory.stray"
    unmatched = sorted({cell.rank for cell in cells if not cell.matched})
    strays = [cell for cell in cells if cell.matched and cell.listed and not cell.own]
    unknown = tuple(f"rank {rank}: unknown, the driver's list does not name its process" for rank in unmatched)
    if not strays:
        if len(unmatched) == len({cell.rank for cell in cells}):
            message = (
                "no rank is found in the driver's lists of processes (in a container they carry the host's numbers)"
            )
            return Finding(check=check, status="skip", message=message, evidence=unknown)
        return Finding(check=check, status="pass", message="every rank keeps to its own device", evidence=unknown)
    shown = [_shown(cell) for cell in strays]
    return Finding(
        check=check,
        status="warn",
        message=f"{', '.join(f'rank {rank}' for rank in sorted({cell.rank for cell in strays}))} holds memory on a "
        "device of another rank",
        expected="each rank on its own device",
        actual=shown[0],
        evidence=(*shown, *unknown),
        remedy="torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) before anything else, and "
        "torch.load(..., map_location='cpu')",
    )


def _shown(cell: Cell) -> str:
    held = "unknown memory" if cell.bytes_held is None else f"{cell.bytes_held / _MIB:.0f} MiB"
    return f"rank {cell.rank} holds {held} on {cell.uuid}"


def duplicate_finding(ranks: Sequence[RankProcess]) -> Finding:
    """Two ranks of one node on one device: NCCL refuses them, or they share what each takes for its own."""
    check = "machine.duplicate-device"
    holders: dict[tuple[int, str], list[int]] = {}
    for rank in ranks:
        if rank.uuid is not None:
            holders.setdefault((rank.node, normalised(rank.uuid)), []).append(rank.rank)
    if not holders:
        return Finding(check=check, status="skip", message="no rank knows its device's UUID")
    shared = {key: found for key, found in holders.items() if len(found) > 1}
    if not shared:
        return Finding(check=check, status="pass", message="every rank has a device of its own")
    lines = tuple(f"node {node}, {uuid}: ranks {', '.join(map(str, found))}" for (node, uuid), found in shared.items())
    return Finding(
        check=check,
        status="fail",
        message=f"ranks {', '.join(map(str, next(iter(shared.values()))))} were given the same device",
        expected="one device a rank",
        actual=f"{len(shared)} devices shared",
        evidence=lines,
        remedy="torch.cuda.set_device(int(os.environ['LOCAL_RANK'])): the local rank, not the global one, and not 0",
    )
