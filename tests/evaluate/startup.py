"""How quickly things start: ``python -m tests.evaluate.startup`` prints a table of CPU times (user + system).

``bench-runner --help``, a bare Python beside it; asv's discovery of this suite and of an empty one.
"""

from __future__ import annotations

import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.evaluate.bare_launch import ROOT

ROUNDS = 7


def cpu_seconds(command: list[str], folder: Path) -> float:
    """CPU time of a command and its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "HOME": str(folder), "PYTHONPATH": str(folder)}
    subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True, timeout=300)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        tree, empty = Path(place) / "tree", Path(place) / "empty"
        for folder in (tree, empty):
            shutil.copytree(
                ROOT / "bench_runner", folder / "bench_runner", ignore=shutil.ignore_patterns("__pycache__")
            )
            shutil.copy(ROOT / "asv.conf.json", folder)
            (folder / "results").mkdir()
        shutil.copytree(ROOT / "benchmarks", tree / "benchmarks", ignore=shutil.ignore_patterns("__pycache__"))
        (empty / "benchmarks").mkdir()
        (empty / "benchmarks" / "__init__.py").touch()
        (empty / "benchmarks" / "nothing.py").write_text("def track_nothing():\n    return 1.0\n")
        discover = [sys.executable, "-m", "asv", "check", "-E", "existing"]
        commands = {
            "`python -c pass`": ([sys.executable, "-c", "pass"], tree),
            "`bench-runner --help`": ([sys.executable, "-m", "bench_runner", "--help"], tree),
            "asv discovers this suite": (discover, tree),
            "asv discovers a suite of one empty benchmark": (discover, empty),
        }
        times: dict[str, list[float]] = {name: [] for name in commands}
        for round_number in range(ROUNDS + 1):
            for name, (command, folder) in commands.items():
                seconds = cpu_seconds(command, folder)
                if round_number:  # the first writes the .pyc files
                    times[name].append(seconds)
    print("| what | CPU seconds, median | lowest–highest |")
    print("|---|---|---|")
    for name, seconds in times.items():
        print(f"| {name} | {statistics.median(seconds):.3f} | {min(seconds):.3f}–{max(seconds):.3f} |")


if __name__ == "__main__":
    main()
