"""CUDA_VISIBLE_DEVICES as torch itself counts it, over the same fake NVML."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench_runner.machine.visible import PhysicalDevice, parse
from tests.fakes.driver import FakeDriver

VALUES = (
    "", "0", "3,1", " 2 , 0 ", "1gpu2,2x", "-1", "0,-1,2", "0,4,1", "1,1", "0,9,0", "0,-1,0", "0,,1", "none",
    "0,GPU-0", "GPU-00000002", "GPU-0000000", "GPU-00000003,GPU-00000001", "GPU-00000002,GPU-zz,GPU-00000003",
    "GPU-00000002,0", "GPU-00000002,GPU-00000002", "9999",
)  # fmt: skip


def test_our_count_is_torch_count(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    driver = FakeDriver(tmp_path, 4)
    imports = (
        "import os, warnings, torch\n"
        "warnings.simplefilter('ignore')\n"
        "def count(value):\n"
        "    os.environ['CUDA_VISIBLE_DEVICES'] = value\n"
        "    return torch.cuda._device_count_nvml()"
    )
    counted = driver.ask(f"[count(value) for value in {VALUES!r}]", imports)
    devices = tuple(PhysicalDevice(index=i, uuid=FakeDriver.uuid(i), name="H100") for i in range(4))
    ours = [parse(value, devices).count for value in VALUES]
    assert dict(zip(VALUES, ours, strict=True)) == dict(zip(VALUES, counted, strict=True))
