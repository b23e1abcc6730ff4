"""How long a tree of asv's results takes to load: asv's own way, our frame, and our frame from its cache.

    python -m tests.evaluate.loading_speed [MACHINES] [FILES] [VALUES]

Prints Markdown.  1,000 machines with 50 files of 60 values each unless told otherwise.  Each way runs in a process of
its own, one after the other, after all files were read once; CPU seconds are those of that process.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

COLUMNS = ["result", "params", "version", "started_at", "duration", "stats_ci_99_a", "stats_ci_99_b", "stats_q_25",
           "stats_q_75", "stats_number", "stats_repeat", "samples", "profile"]  # fmt: skip

ASV = """
from asv.results import iter_results
count = sum(1 for _ in iter_results({root!r}))
"""
FRAME = """
from pathlib import Path
from bench_runner.analysis.asv_frame import load_asv_frame
frame, problems = load_asv_frame(Path({root!r}))
assert not problems, problems[:3]
count = len(frame)
"""
MEASURED = """
import resource, time
begin, used = time.perf_counter(), time.process_time()
{body}
wall, cpu = time.perf_counter() - begin, time.process_time() - used
print(wall, cpu, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, count)
"""


def document(machine: str, commit: str, date: int, values: int, random: np.random.Generator) -> str:
    """A result file as asv writes it: benchmarks of 3 x 4 combinations, one of them skipped and one failed."""
    axes = [["'single'", "'data_parallel'", "'ddp'"], ["1", "2", "4", "8"]]
    results = {}
    for number in range(max(values // 12, 1)):
        times = [round(float(x), 6) for x in random.lognormal(0, 0.1, 12)]
        cells: list[float | None] = [*times[:10], float("nan"), None]
        stats: list[float | None] = [*times[:10], None, None]
        row = [cells, axes, "1", date, [1.5] * 12, stats, stats, stats, stats, [1] * 12, [1] * 12]
        results[f"training.Training.track_{number}"] = row
    whole = {
        "commit_hash": commit,
        "env_name": "conda-lock-py3.12",
        "date": date,
        "params": {"arch": "x86_64", "cpu": "A CPU", "machine": machine, "num_cpu": "64", "os": "Linux", "ram": "512"},
        "python": "3.12",
        "requirements": {},
        "env_vars": {},
        "result_columns": COLUMNS,
        "results": results,
        "durations": {},
        "version": 2,
    }
    return json.dumps(whole)


def build(root: Path, machines: int, files: int, values: int) -> None:
    random = np.random.default_rng(1)
    for number in range(machines):
        name = f"node-{number:04d}"
        (root / name).mkdir()
        (root / name / "machine.json").write_text(json.dumps({"machine": name, "version": 1}))
        for run in range(files):
            commit = f"{run:08x}{'0' * 32}"
            text = document(name, commit, 1_700_000_000_000 + run, values, random)
            (root / name / f"{commit[:8]}-conda-lock-py3.12.json").write_text(text)


def measured(code: str, root: Path) -> tuple[float, float, float, int]:
    """Wall and CPU seconds, peak MiB, and what was counted."""
    program = MEASURED.format(body=code.format(root=str(root)).strip())
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, env=os.environ)
    wall, cpu, peak, count = done.stdout.split()[-4:]
    return float(wall), float(cpu), float(peak), int(count)


def main(arguments: Sequence[str]) -> None:
    machines, files, values = (int(x) for x in (*arguments, *("1000", "50", "60")[len(arguments) :]))
    root = Path(tempfile.mkdtemp())
    try:
        build(root, machines, files, values)
        for path in root.rglob("*.json"):
            path.read_bytes()
        asv, frame, cached = (measured(code, root) for code in (ASV, FRAME, FRAME))
    finally:
        shutil.rmtree(root)
    print(f"{machines} machines x {files} files x {values} values ({frame[3]:,} rows)\n")
    print("| way | wall s | CPU s | of asv's wall | limit | peak MiB |\n| --- | --- | --- | --- | --- | --- |")
    for name, one, limit in (
        ("asv, no frame", asv, "–"),
        ("frame", frame, "0.6"),
        ("frame from the cache", cached, "0.1"),
    ):
        print(f"| {name} | {one[0]:.2f} | {one[1]:.2f} | {one[0] / asv[0]:.2f} | {limit} | {one[2]:.0f} |")


if __name__ == "__main__":
    main(sys.argv[1:])
