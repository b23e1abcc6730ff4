"""The host as its kernel describes it: CPU, cores allowed, memory, NUMA, container.

Every reader takes the root of the file system, so that a test can hand in a /proc and a /sys of its own.  A file that
cannot be read gives None.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Final

ROOT: Final = Path("/")
_MOST_BYTES: Final = 1 << 20
# Before cgroup v2 "no limit" is written as a number near 2**63, rounded down to the page size.
_NO_LIMIT: Final = 1 << 60
_ARM_IMPLEMENTERS: Final = {"0x41": "ARM", "0x4e": "NVIDIA", "0xc0": "Ampere", "0x61": "Apple"}


def read_text(path: Path) -> str | None:
    """The beginning of a small text file, stripped; None when it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(_MOST_BYTES).decode("utf-8", "replace").strip()
    except OSError:
        return None


def read_number(path: Path) -> int | None:
    """The file's content as a whole number; None for anything else (``max``, a missing file)."""
    text = read_text(path) or ""
    return int(text) if re.fullmatch(r"-?\d{1,20}", text, re.ASCII) else None


def cpu_model(root: Path = ROOT) -> str:
    """The processor's name: ``model name`` on x86, implementer and part on ARM, else the architecture."""
    fields: dict[str, str] = {}
    for line in (read_text(root / "proc/cpuinfo") or "").splitlines():
        key, colon, value = line.partition(":")
        if colon:
            fields.setdefault(key.strip().lower(), " ".join(value.split()))
    for key in ("model name", "cpu model", "cpu"):
        if fields.get(key):
            return fields[key]
    if "cpu part" in fields:
        maker = _ARM_IMPLEMENTERS.get(fields.get("cpu implementer", ""), fields.get("cpu implementer", "?"))
        return f"{maker} part {fields['cpu part']}"
    return platform.machine() or "unknown"


def cgroup_directories(controller: str, root: Path = ROOT) -> Iterator[Path]:
    """Directories of this process's control group and its ancestors that may hold limits of ``controller``.

    Version 2 mounts one tree at /sys/fs/cgroup, version 1 one per controller below it.  A container often sees its own
    group at the mount's root although /proc names a longer path: the root is always among the directories.
    """
    for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
        parts = line.split(":", 2)
        if len(parts) != 3:
            continue
        number, controllers, path = parts
        if number == "0" and not controllers:
            base = root / "sys/fs/cgroup"
        elif controller in controllers.split(","):
            base = root / "sys/fs/cgroup" / controller
        else:
            continue
        inside = PurePosixPath(path.lstrip("/"))
        if ".." in inside.parts:
            inside = PurePosixPath()
        for ancestor in (inside, *inside.parents) if inside.parts else (inside,):
            yield base / ancestor


def cpu_quota(root: Path = ROOT) -> float | None:
    """The smallest CPU quota of the control groups, in cores; None without one."""
    quotas: list[float] = []
    for directory in cgroup_directories("cpu", root):
        words = (read_text(directory / "cpu.max") or "").split()
        if len(words) == 2 and words[0].isdecimal() and words[1].isdecimal() and int(words[1]):
            quotas.append(int(words[0]) / int(words[1]))
        quota, period = (read_number(directory / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
        if quota is not None and period is not None and quota > 0 and period > 0:
            quotas.append(quota / period)
    return min(quotas, default=None)


def cores_allowed(affinity: int | None = None, root: Path = ROOT) -> int:
    """Cores this process may use: the affinity mask, cut by the quota (rounded down, at least 1)."""
    mask = affinity if affinity is not None else len(os.sched_getaffinity(0))
    quota = cpu_quota(root)
    return mask if quota is None else max(1, min(mask, int(quota)))


def memory_total(root: Path = ROOT) -> int | None:
    """The host's memory in bytes."""
    match = re.search(r"^MemTotal:\s+(\d+) kB", read_text(root / "proc/meminfo") or "", re.MULTILINE)
    return int(match[1]) * 1024 if match else None


def memory_allowed(root: Path = ROOT) -> int | None:
    """Memory this process may use, in bytes: the host's, cut by the smallest limit of the control groups."""
    limits = [memory_total(root)]
    for directory in cgroup_directories("memory", root):
        limits += [read_number(directory / name) for name in ("memory.max", "memory.limit_in_bytes")]
    return min((limit for limit in limits if limit is not None and 0 < limit < _NO_LIMIT), default=None)


def numa_nodes(root: Path = ROOT) -> int | None:
    """Number of NUMA nodes; None where the kernel does not tell."""
    try:
        names = [entry.name for entry in (root / "sys/devices/system/node").iterdir()]
    except OSError:
        return None
    return sum(re.fullmatch(r"node\d+", name) is not None for name in names) or None


def container_hint(environ: Mapping[str, str], root: Path = ROOT) -> str | None:
    """What kind of container this looks like; None for none that left a trace."""
    for variable, kind in (
        ("KUBERNETES_SERVICE_HOST", "kubernetes"),
        ("APPTAINER_CONTAINER", "apptainer"),
        ("SINGULARITY_CONTAINER", "singularity"),
    ):
        if environ.get(variable):
            return kind
    if (root / ".dockerenv").exists():
        return "docker"
    if (root / "run/.containerenv").exists():
        return "podman"
    if environ.get("container"):
        return environ["container"]
    return read_text(root / "run/systemd/container") or None


def kernel_driver_version(root: Path = ROOT) -> str | None:
    """Version of NVIDIA's kernel module that is loaded; None without one."""
    text = read_text(root / "proc/driver/nvidia/version") or ""
    match = re.search(r"Kernel Module[^\n]*?\s(\d+\.\d+(?:\.\d+)?)\s", text + " ")
    return match[1] if match else None
