"""NVIDIA's two driver libraries, faked: compiled with gcc on first use, told what to answer by a file.

The real nvidia-ml-py reads them in a child process, through LD_LIBRARY_PATH.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Self

import pytest

SOURCES = Path(__file__).parent
LIBRARIES = {"nvml": "libnvidia-ml.so.1", "cuda": "libcuda.so.1"}
GIB = 1 << 30
# An H100 SXM as NVML describes it when idle; watts and joules in thousandths, as in NVML.
H100: dict[str, object] = {
    "name": "NVIDIA H100 80GB HBM3",
    "memory_total": 80 * GIB,
    "memory_used": 1 * GIB,
    "memory_reserved": GIB // 2,
    "power": 100_000,
    "power_limit": 700_000,
    "power_limit_default": 700_000,
    "clock.1": 1980,
    "clock_max.1": 1980,
    "clock_application.1": 1980,
    "clock.2": 2619,
    "clock_max.2": 2619,
    "temperature.0": 35,
    "throttle": 1,
    "persistence": 1,
    "compute_mode": 0,
    "ecc_corrected": 0,
    "ecc_uncorrected": 0,
    "remapping_failed": 0,
    "pcie_generation": 5,
    "pcie_generation_max": 5,
    "pcie_width": 16,
    "pcie_width_max": 16,
    "nvlinks": "1" * 18,
    "mig": 0,
    "capability": 90,
    "utilisation": 0,
    "energy": 1_000_000,
}


@functools.cache
def _compiled(library: str) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler for the fake driver libraries")
    folder = Path(tempfile.mkdtemp(prefix="fake-driver-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    target = folder / LIBRARIES[library]
    command = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", target, SOURCES / f"{library}.c"]
    subprocess.run([*command, "-lpthread"], check=True, capture_output=True, timeout=120)
    return folder


class FakeDriver:
    """What the fake libraries answer.  ``devices`` healthy H100s to begin with."""

    def __init__(self, folder: Path, devices: int = 1, *, nvml: bool = True, cuda: bool = True) -> None:
        self.folder = folder
        self.lines = [f"set * count {devices}", "set * driver 575.57.08", "set * cuda 12090"]
        self.lines += [f"set * {key} {value}" for key, value in H100.items()]
        for index in range(devices):
            self.device(index, uuid=self.uuid(index), pci=f"00000000:{16 + index:02X}:00.0")
        self.paths = [_compiled(name) for name, wanted in (("nvml", nvml), ("cuda", cuda)) if wanted]

    @staticmethod
    def uuid(index: int) -> str:
        """The UUID of a fake device."""
        return f"GPU-{index:08x}-1111-2222-3333-444444444444"

    def device(self, index: int | str, **fields: object) -> Self:
        """Set fields of one device (``*``: of all, and of the system); ``_1`` at the end stands for ``.1``."""
        for key, value in fields.items():
            name = f"{key[:-2]}.{key[-1]}" if key[-2:-1] == "_" and key[-1].isdecimal() else key
            self.lines.insert(0, f"set {index} {name} {value}")
        return self

    def without(self, key: str) -> Self:
        """Nothing answers this key any more: not supported."""
        self.lines = [line for line in self.lines if line.split()[2:3] != [key]]
        return self

    def error(self, function: str, code: int, device: int | str = "*") -> Self:
        self.lines.append(f"error {device} {function} {code}")
        return self

    def delay(self, function: str, microseconds: int) -> Self:
        self.lines.append(f"delay {function} {microseconds}")
        return self

    def vanish(self, device: int, after_calls: int) -> Self:
        self.lines.append(f"vanish {device} {after_calls}")
        return self

    def process(self, device: int, pid: int, memory_bytes: int) -> Self:
        self.lines.append(f"process {device} {pid} {memory_bytes}")
        return self

    def environment(self, **extra: str) -> dict[str, str]:
        """The environment in which a child process meets these libraries, and no real ones."""
        config = self.folder / "fake-gpu.conf"
        config.write_text("\n".join(self.lines) + "\n", encoding="utf-8")
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("CUDA_")}
        path = os.pathsep.join(map(str, self.paths))
        return {**inherited, "LD_LIBRARY_PATH": path, "FAKE_GPU_CONFIG": str(config), **extra}

    def ask(self, expression: str, imports: str = "", **extra: str) -> Any:
        """The value of a Python expression in such a child process, through JSON (dataclasses become dicts)."""
        code = (
            f"import dataclasses, json\n{imports}\n"
            f"value = {expression}\n"
            "print(json.dumps(value, default=dataclasses.asdict))"
        )
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", code],
            env=self.environment(**extra),
            cwd=SOURCES.parent.parent,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)
