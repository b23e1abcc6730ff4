"""This machine, judged with the real torch of this environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bench_runner.machine.verify import machine_findings

ROOT = Path(__file__).parent.parent.parent


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


def test_a_container_with_the_usual_small_shared_memory_is_found_out() -> None:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("needs root and unshare for a /dev/shm of its own")
    code = (
        "from bench_runner.machine.state import gather_state\n"
        "from bench_runner.machine.verify import judge\n"
        "(found,) = [f for f in judge(gather_state(None)) if f.check == 'machine.shm']\n"
        "print(found.status, found.actual, found.remedy)"
    )
    script = 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$@"'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, "sh", sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if "mount:" in done.stderr or "unshare:" in done.stderr:
        pytest.skip(f"a file system cannot be mounted here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    status, amount, _, remedy = done.stdout.split(maxsplit=3)
    assert (status, amount) == ("fail", "64")
    assert "shm" in remedy
