"""The verdicts on this machine as it is: the same against itself, and against a worker that is 25 % slower.

    python -m tests.evaluate.live_comparison [LAUNCHES] [PYTHON]

Launches LAUNCHES (20) times each, alternating: as it is, slowed by 25 % in the worker; for a single process and for two
DDP ranks.  Then 200 draws of 5 + 5 launches, without replacement within a draw, are compared: A against A from the
unslowed ones, and A against B.  Takes about 10 seconds a launch and case; leave the machine alone meanwhile.
"""

from __future__ import annotations

import os
import sys
import tempfile
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from bench_runner import launch
from bench_runner.analysis.cases import from_records
from bench_runner.analysis.compare import compare
from bench_runner.analysis.statistics import Rule
from bench_runner.interpreter import find_worker_python
from bench_runner.measure import record_of
from bench_runner.record import RunRecord
from bench_runner.spec import RunSpec, Training
from tests import builders

SLOWED = 0.25
THRESHOLD = 0.25
A_SIDE = 5
DRAWS = 200
WORKLOAD = "tests.evaluate.slowed_workload:build"


def spec(strategy: str, devices: int) -> RunSpec:
    task = Training(workload=WORKLOAD, batch=32, steps=100, warmup_steps=20, phase_steps=0)
    return RunSpec(strategy=strategy, device_kind="cpu", device_count=devices, task=task)  # type: ignore[arg-type]


def launched(case: RunSpec, python: str, slowed: float, index: int) -> RunRecord:
    """One launch; the variable reaches the workers through this process's environment."""
    os.environ["EVALUATE_SLOWED_BY"] = str(slowed)
    with tempfile.TemporaryDirectory() as folder:
        plan = launch.LaunchPlan(specs=(case,), python=python, directory=Path(folder) / "launch")
        (result,) = launch.run(plan)
    shared = {
        "record_id": uuid.uuid4().hex,
        "session_id": "live",
        "launch_id": plan.launch_id,
        "launch_index": index,
        "machine": builders.machine("live"),
    }
    record = record_of(result, builders.environment(), shared)
    if record.outcome != "ok":
        raise SystemExit(f"{case.label}: {record.outcome}: {record.reason}")
    return record


def verdict(baseline: Sequence[RunRecord], candidate: Sequence[RunRecord]) -> str:
    """The verdict on the step time, the two sides as alternating launches."""

    def side(records: Sequence[RunRecord], second: int) -> list[RunRecord]:
        return [replace(r, started_at=f"2026-11-01T00:{i:02d}:{second:02d}Z") for i, r in enumerate(records)]

    cases = [from_records(side(records, second), ["step_time"]) for second, records in enumerate((baseline, candidate))]
    outcome = compare(*cases, Rule(threshold=THRESHOLD))
    (comparison,) = outcome.comparisons
    return comparison.verdict


def drawn(
    plain: Sequence[RunRecord], slowed: Sequence[RunRecord] | None, random: np.random.Generator
) -> tuple[list[RunRecord], list[RunRecord]]:
    """Five and five launches in the order they ran; both from ``plain`` when there is nothing else."""
    if slowed is None:
        order = random.permutation(len(plain))[: 2 * A_SIDE]
        return [plain[i] for i in sorted(order[:A_SIDE])], [plain[i] for i in sorted(order[A_SIDE:])]
    first, second = (sorted(random.permutation(len(side))[:A_SIDE]) for side in (plain, slowed))
    return [plain[i] for i in first], [slowed[i] for i in second]


def measured(case: RunSpec, python: str, launches: int) -> tuple[list[RunRecord], list[RunRecord]]:
    plain, slowed = [], []
    for index in range(launches):
        plain.append(launched(case, python, 0.0, index))
        slowed.append(launched(case, python, SLOWED, index))
        print(f"{case.label}: {index + 1} of {launches}", file=sys.stderr)
    return plain, slowed


def main(arguments: Sequence[str]) -> None:
    launches = int(arguments[0]) if arguments else 20
    if launches < 2 * A_SIDE:
        raise SystemExit(f"at least {2 * A_SIDE} launches are needed")
    python = find_worker_python(arguments[1] if len(arguments) > 1 else None).path
    print(f"{launches} launches a side, {DRAWS} draws of {A_SIDE} + {A_SIDE}, step time, asked for {THRESHOLD:.0%}.\n")
    print("| run | spread | found slower | same | A/A: alarms | A/A: same |\n| --- | --- | --- | --- | --- | --- |")
    for case in (spec("single", 1), spec("ddp", 2)):
        plain, slowed = measured(case, python, launches)
        random = np.random.default_rng(1)
        changed = Counter(verdict(*drawn(plain, slowed, random)) for _ in range(DRAWS))
        unchanged = Counter(verdict(*drawn(plain, None, random)) for _ in range(DRAWS))
        alarms = unchanged["regression"] + unchanged["improvement"]
        cells = [changed["regression"], changed["same"], alarms, unchanged["same"]]
        shown = " | ".join(f"{100 * cell / DRAWS:.1f} %" for cell in cells)
        print(f"| {case.strategy}, {case.device_count} | {100 * spread(plain):.1f} % | {shown} |", flush=True)


def spread(records: Sequence[RunRecord]) -> float:
    """Standard deviation of the logarithms of the launches' values."""
    (case,) = from_records(records, ["step_time"]).values()
    values = [value for some in case.measured.values() for one in some for value in one.values.values()]
    return float(np.log(values).std(ddof=1))


if __name__ == "__main__":
    main(sys.argv[1:])
