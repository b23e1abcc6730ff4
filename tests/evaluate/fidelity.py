"""Does the suite report what a hand-written loop takes?  ``python -m tests.evaluate.fidelity`` prints a table.

Both run the same model with the same process settings, launch by launch in turn, in one run.  A row gives the median
over the launches of the ratio suite / bare: of the median step for trainings, of the mean call (over ranks and calls)
against the back-to-back loop for all-reduce.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path

from bench_runner.launch import LaunchPlan, run
from bench_runner.profile import load
from bench_runner.spec import RunSpec, Training
from tests.evaluate.bare_launch import run_bare, specs_of


def suite_figures(specs: list[RunSpec]) -> dict[str, float]:
    """The suite's own: median step of the slowest rank, mean call over calls and ranks, in seconds."""
    with tempfile.TemporaryDirectory() as folder:
        results = run(LaunchPlan(specs=tuple(specs), python=sys.executable, directory=Path(folder) / "launch"))
    figures = {}
    for result in results:
        assert result.outcome == "ok", result.reason
        if isinstance(result.spec.task, Training):
            figures[result.spec.task.workload] = max(statistics.median(rank["step_seconds"]) for rank in result.ranks)
        else:
            for size in result.spec.task.message_bytes:
                calls = [second for rank in result.ranks for second in rank["collective_seconds"][str(size)]]
                figures[f"all-reduce {size}"] = statistics.fmean(calls)
    return figures


def bare_figures(specs: list[RunSpec]) -> dict[str, float]:
    """The same by hand."""
    found = run_bare(specs)
    names = [spec.task.workload for spec in specs if isinstance(spec.task, Training)]
    figures = {name: task["median"] for name, task in zip(names, found["trainings"], strict=True)}
    figures |= {f"all-reduce {size}": seconds for size, seconds in found.get("latency", {}).items()}
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--launches", type=int, default=5)
    launches = parser.parse_args().launches
    cores = len(os.sched_getaffinity(0))
    print("| what | suite, median | bare, median | suite / bare: median | lowest–highest |")
    print("|---|---|---|---|---|")
    for strategy, devices in (("single", 1), ("ddp", 1), ("ddp", 2)):
        if devices > cores:
            continue
        specs = specs_of(load("quick"), strategy, devices, cores)
        pairs = [(suite_figures(specs), bare_figures(specs)) for _ in range(launches)]
        for name in pairs[0][0]:
            ratios = sorted(suite[name] / bare[name] for suite, bare in pairs)
            ours = statistics.median(suite[name] for suite, _ in pairs)
            theirs = statistics.median(bare[name] for _, bare in pairs)
            print(
                f"| {strategy} on {devices}: {name} | {ours * 1e3:.3f} ms | {theirs * 1e3:.3f} ms"
                f" | {statistics.median(ratios):.3f} | {ratios[0]:.3f}–{ratios[-1]:.3f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
