"""What links should give: rates by specification, and figures of known machines from public sources.

Rates are bytes per second and direction.

Sources
    PCIe lanes      PCI-SIG: 8, 16, 32, 64 GT/s; 128b/130b coding up to generation 5, FLITs (242 of 256 bytes) in 6
    NVLink          NVIDIA's data sheets of V100, A100, H100/H200 and B200: 6 × 25, 12 × 25, 18 × 25, 18 × 50 GB/s
    8-GPU busbw     https://docs.alayanew.com/en/docs/tech-blog/2026-05-06-nccl-tests: 8 × A100 SXM 230 to 250,
                    8 × H100 SXM 460 to 480 GB/s (nccl-tests all_reduce, large messages).  The latter is reached with
                    in-network reduction (NVLS), which passes what the links alone would give; a ring comes to some
                    80 % of the links' rate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

GB: Final = 1e9
PCIE_LANE: Final = {3: 0.985 * GB, 4: 1.969 * GB, 5: 3.938 * GB, 6: 7.563 * GB}
_NVLINK: Final = (("V100", 25 * GB), ("A100", 25 * GB), ("A800", 25 * GB), ("H100", 25 * GB), ("H200", 25 * GB),
                  ("GH200", 25 * GB), ("B200", 50 * GB), ("GB200", 50 * GB), ("B300", 50 * GB))  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownMachine:
    """Eight devices whose all-reduce over NVLink has been published; ``busbw`` is the lower end of what was seen."""

    name: str
    busbw_bytes_per_second: float
    devices: int = 8


KNOWN_MACHINES: Final = (
    KnownMachine(name="A100-SXM", busbw_bytes_per_second=230 * GB),
    KnownMachine(name="H100 80GB HBM3", busbw_bytes_per_second=460 * GB),
)


def pcie_rate(generation: int | None, width: int | None) -> float | None:
    """Bytes per second and direction of a PCIe link; None when it is not known."""
    lane = PCIE_LANE.get(generation or 0)
    return lane * width if lane is not None and width else None


def nvlink_rate(device_name: str | None, links_up: int | None) -> float | None:
    """Bytes per second and direction of a device's NVLinks together; None for none, or an unknown device."""
    if not device_name or not links_up:
        return None
    rates = [rate for name, rate in _NVLINK if name in device_name]
    return links_up * max(rates) if rates else None


def known_machine(device_name: str | None, devices: int) -> KnownMachine | None:
    """The published machine with these devices; None for none."""
    return next((m for m in KNOWN_MACHINES if device_name and m.name in device_name and m.devices == devices), None)
