"""This machine, judged with the real torch of this environment."""

from __future__ import annotations

import sys

import pytest

from bench_runner.machine.verify import machine_findings


def test_torch_is_asked_and_the_verdict_is_consistent() -> None:
    torch = pytest.importorskip("torch")
    findings = {finding.check: finding for finding in machine_findings(sys.executable)}
    build = findings["machine.torch-build"]
    assert torch.__version__ in build.message
    kernel = findings["machine.kernel"]
    if torch.cuda.is_available():
        assert kernel.status in ("pass", "fail")
    else:
        assert kernel.status == "skip"
