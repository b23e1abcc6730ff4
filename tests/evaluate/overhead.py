"""What the suite costs on top: ``python -m tests.evaluate.overhead`` prints a table.

The wall time of ``bench-runner run --profile quick`` against bare ``torchrun --standalone`` scripts that do the same
steps, one launch per strategy and device count, in turn and in one run.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench_runner.profile import load
from tests.evaluate.bare_launch import ROOT, run_bare, specs_of


def suite_seconds(tree: Path) -> float:
    """A whole run in a copy of the tree, report and all."""
    command = [sys.executable, "-m", "bench_runner", "run", "--profile", "quick", "--env", "existing", "--fresh"]
    environment = {**os.environ, "PYTHONPATH": str(tree), "HOME": str(tree)}
    begin = time.perf_counter()
    subprocess.run(command, cwd=tree, env=environment, check=True, capture_output=True, timeout=900)
    return time.perf_counter() - begin


def bare_seconds(cores: int) -> float:
    """The bare scripts, one after the other."""
    begin = time.perf_counter()
    for strategy, devices in (("single", 1), ("ddp", 1), ("ddp", 2)):
        if devices <= cores:
            run_bare(specs_of(load("quick"), strategy, devices, cores))
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        ignored = shutil.ignore_patterns("results", ".venv", ".git", ".asv", ".bench-runner", "__pycache__", ".*_cache")
        shutil.copytree(ROOT, tree, ignore=ignored)
        (tree / "results").mkdir()
        pairs = [(suite_seconds(tree), bare_seconds(cores)) for _ in range(rounds)]
    print("| round | `bench-runner run --profile quick` | bare torchrun scripts, the same steps | ratio |")
    print("|---|---|---|---|")
    for number, (ours, bare) in enumerate(pairs, 1):
        print(f"| {number} | {ours:.1f} s | {bare:.1f} s | {ours / bare:.2f} |")
    print(f"| median | | | {statistics.median(ours / bare for ours, bare in pairs):.2f} |")


if __name__ == "__main__":
    main()
