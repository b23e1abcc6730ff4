"""What torch makes of this machine, as JSON lines on standard output: one about the build, then one a device.

Run by itself, by path, in the environment under test (``python -P probe_machine.py``): the standard library and torch,
nothing of bench_runner.  Each line is written as soon as it is known, so that a hang or a crash leaves the ones before
it, and tells at which device it happened.
"""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any

_ELEMENTS = 1 << 16


def say(**values: Any) -> None:
    """One line of the answer."""
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


def build(torch: Any) -> dict[str, Any]:
    """The build's own facts; none of them needs a device."""
    architectures = getattr(torch.cuda, "get_arch_list", list)
    nccl = getattr(torch.distributed, "is_nccl_available", lambda: False)
    return {
        "torch": str(torch.__version__),
        "path": str(torch.__file__),
        "cuda": torch.version.cuda,
        "hip": getattr(torch.version, "hip", None),
        "architectures": architectures(),
        "nccl": bool(torch.distributed.is_available() and nccl()),
    }


def availability(torch: Any) -> dict[str, Any]:
    """``is_available`` and ``device_count``, with what torch warned of and the error of an initialisation."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        available = bool(torch.cuda.is_available())
        count = int(torch.cuda.device_count())
    error = None
    if not available and torch.version.cuda:
        try:
            torch.cuda.init()
        except (RuntimeError, AssertionError) as failure:
            error = str(failure).splitlines()[0]
    return {
        "available": available,
        "count": count,
        "warnings": [" ".join(str(w.message).split())[:500] for w in caught],
        "init_error": error,
    }


def try_device(torch: Any, index: int) -> dict[str, Any]:
    """Run kernels on one device and compare their values with the CPU's: exact whole numbers, so equal or wrong."""
    name = torch.device("cuda", index)
    properties = torch.cuda.get_device_properties(index)
    identifier = getattr(properties, "uuid", None)
    facts: dict[str, Any] = {
        "index": index,
        "name": properties.name,
        "capability": [properties.major, properties.minor],
        "uuid": None if identifier is None else str(identifier),
        "pci_bus_id": pci_bus_id(properties),
        "architecture": getattr(properties, "gcnArchName", None),
        "memory_bytes": properties.total_memory,
    }
    try:
        numbers = torch.arange(_ELEMENTS, dtype=torch.int64, device=name)
        total = int((numbers * 3 + 1).sum().item())
        expected = 3 * _ELEMENTS * (_ELEMENTS - 1) // 2 + _ELEMENTS
        square = torch.arange(64 * 64, dtype=torch.float32, device=name).remainder(7).reshape(64, 64)
        product = (square @ square).cpu()
        reference = square.cpu() @ square.cpu()
        torch.cuda.synchronize(index)
    except RuntimeError as failure:
        return {**facts, "works": False, "error": str(failure).splitlines()[0]}
    right = total == expected and bool(torch.equal(product, reference))
    return {**facts, "works": right, "error": None if right else f"wrong values: {total} instead of {expected}"}


def pci_bus_id(properties: Any) -> str | None:
    """``00000000:3b:00.0``, where torch tells."""
    parts = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    domain, bus, device = parts
    if domain is None or bus is None or device is None:
        return None
    return f"{domain:08x}:{bus:02x}:{device:02x}.0"


def main() -> int:
    """Answer and end; 0 even when nothing works: what does not work is the answer."""
    try:
        import torch
    except Exception as failure:  # noqa: BLE001 - a broken installation can raise anything; it is the answer
        say(part="import", error=f"{type(failure).__name__}: {failure}".splitlines()[0][:500])
        return 0
    say(part="build", **build(torch))
    state = availability(torch)
    say(part="availability", **state)
    for index in range(state["count"] if state["available"] else 0):
        say(part="starting", index=index)
        try:
            say(part="device", **try_device(torch, index))
        except (RuntimeError, AssertionError) as failure:
            say(part="device", index=index, name="unknown", works=False, error=str(failure).splitlines()[0])
    say(part="end")
    return 0


if __name__ == "__main__":
    sys.exit(main())
