"""The trial run of an environment on a real device."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bench_runner.environment.loaded import probe_loaded
from bench_runner.environment.shadows import TELLING_LIBRARY
from tests.gpu.test_gpu import DEVICES

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(DEVICES == 0, reason="no CUDA device that torch can use"),
]


def test_a_kernel_runs_and_cudas_libraries_are_in_the_map() -> None:
    loaded = probe_loaded(Path(sys.executable))
    assert loaded.ended == ""
    cuda = loaded.step("cuda")
    assert (cuda.state, cuda.values["available"]) == ("passed", True), cuda.error
    assert tuple(cuda.values["capability"]) >= (5, 0)
    names = [Path(path).name for path in loaded.libraries]
    assert any(name.startswith("libcuda.so") for name in names)
    assert any(TELLING_LIBRARY.fullmatch(name) and "cublas" in name for name in names)
