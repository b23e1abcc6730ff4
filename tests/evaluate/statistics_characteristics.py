"""How often the rules for comparing are right, on made-up data: ours beside four others.  Prints Markdown.

    python -m tests.evaluate.statistics_characteristics [SUITES] [SEED]

Every rule sees the same step times.  A suite is 50 metrics; an alarm is one or more of them called slower.  The other
rules: ``asv compare`` (Mann and Whitney's test on all steps at p < 0.002 and the asked factor), Welch's t test at 5 %
on launches, the percentage rule (medians differ by more than the asked change), and the variance rule of SuperBench's
data diagnosis (mean of one run against the mean of the baseline's).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from bench_runner.analysis import power, statistics
from bench_runner.analysis.statistics import LARGER, SAME, Floats, Noise, Rule
from tests.evaluate import generated
from tests.evaluate.generated import CPU_DDP, CPU_SINGLE, GPU_1, GPU_1_SHARED, GPU_3, Model

METRICS: Final = 50
CHUNK: Final = 50
Codes = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One row of the table.  ``profile``: launches of a noise profile measured before, in ``sessions`` sessions."""

    model: Model
    launches: int = 5
    threshold: float = 0.05
    change: float = 0.0
    changed_metrics: int = 0
    profile: int = 0
    sessions: int = 1
    interleaved: bool = True
    metrics: int = METRICS


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Fractions: suites with an alarm; of the changed metrics, called slower and called same; of the others, same."""

    alarms: float
    found: float
    same_changed: float
    same_unchanged: float


def chunks(setting: Setting, suites: int, seed: int) -> Iterator[tuple[Floats, Floats | None]]:
    """Step times of shape ``(chunk, metrics, 2, launches, steps)`` and the profile's launch values, if any."""
    for start in range(0, suites, CHUNK):
        random = np.random.default_rng([seed, start])
        count = min(CHUNK, suites - start)
        change = np.zeros(setting.metrics)
        change[: setting.changed_metrics] = np.log1p(setting.change)
        steps = generated.launches(setting.model, random, count, setting.metrics, 2, setting.launches, change)
        before = None
        if setting.profile:
            each = setting.profile // setting.sessions
            seen = generated.launches(setting.model, random, count, setting.metrics, setting.sessions, each)
            before = generated.launch_values(setting.model, seen)
        yield steps, before


def weigh(setting: Setting, rule: Rule, steps: Floats, before: Floats | None) -> statistics.Evidence:
    """Evidence of every metric; with a profile, metric by metric, as each has its own."""
    values = generated.launch_values(setting.model, steps)
    baseline, candidate = values[..., 0, :], values[..., 1, :]
    if before is None:
        return statistics.weigh(baseline, candidate, rule, interleaved=setting.interleaved)
    shape = baseline.shape[:2]
    profiles = profile_noise(before)
    cells = [
        statistics.weigh(baseline[i, j], candidate[i, j], rule, noise=[profiles(i, j)], interleaved=setting.interleaved)
        for i in range(shape[0])
        for j in range(shape[1])
    ]
    names = ("difference", "error", "degrees", "spread", "spread_degrees", "baseline_launches", "candidate_launches")
    columns = {name: np.array([getattr(cell, name) for cell in cells]).reshape(shape) for name in names}
    return statistics.Evidence(**columns)


def profile_noise(before: Floats) -> Callable[[int, int], Noise]:
    """The profile of each metric from launch values of shape ``(chunk, metrics, sessions, launches)``."""
    from bench_runner.analysis.noise import measure

    def of(suite: int, metric: int) -> Noise:
        noise = measure(np.exp(before[suite, metric]).tolist())
        if noise is None:
            raise ValueError("a profile needs two launches in a session")
        return noise

    return of


def ours(setting: Setting, steps: Floats, before: Floats | None) -> Codes:
    rule = Rule(threshold=setting.threshold)
    evidence = weigh(setting, rule, steps, before)
    return statistics.decide(evidence, statistics.benjamini_hochberg(statistics.two_sided_p(evidence)), rule)


def asv_compare(setting: Setting, steps: Floats, before: Floats | None) -> Codes:
    pooled = steps.reshape(*steps.shape[:3], -1)
    p_values = stats.mannwhitneyu(pooled[..., 0, :], pooled[..., 1, :], axis=-1, method="asymptotic").pvalue
    ratio = np.median(pooled[..., 1, :], axis=-1) / np.median(pooled[..., 0, :], axis=-1)
    return _codes((p_values < 0.002) & (ratio > 1 + setting.threshold), ratio, setting)


def welch(setting: Setting, steps: Floats, before: Floats | None) -> Codes:
    values = np.log(np.median(steps, axis=-1))
    result = stats.ttest_ind(values[..., 1, :], values[..., 0, :], axis=-1, equal_var=False)
    ratio = np.exp(values[..., 1, :].mean(axis=-1) - values[..., 0, :].mean(axis=-1))
    slower = (result.pvalue < 0.05) & (ratio > 1)
    return np.where(slower, LARGER, SAME)


def percentage(setting: Setting, steps: Floats, before: Floats | None) -> Codes:
    medians = np.median(np.median(steps, axis=-1), axis=-1)
    ratio = medians[..., 1] / medians[..., 0]
    return _codes(ratio > 1 + setting.threshold, ratio, setting)


def superbench(setting: Setting, steps: Floats, before: Floats | None) -> Codes:
    ratio = steps[..., 1, 0, :].mean(axis=-1) / steps[..., 0, :, :].mean(axis=(-1, -2))
    return _codes(ratio > 1 + setting.threshold, ratio, setting)


def _codes(slower: NDArray[np.bool_], ratio: Floats, setting: Setting) -> Codes:
    """Rules that know two answers: slower, or nothing wrong."""
    return np.where(slower, LARGER, SAME)


RULES: Final[dict[str, Callable[[Setting, Floats, Floats | None], Codes]]] = {
    "ours": ours,
    "asv compare": asv_compare,
    "Welch t, 5 %": welch,
    "percentage": percentage,
    "SuperBench-like": superbench,
}


def rates(setting: Setting, rules: Sequence[str], suites: int, seed: int = 1) -> dict[str, Rates]:
    """What each rule says over ``suites`` suites of the setting."""
    told: dict[str, list[Codes]] = {rule: [] for rule in rules}
    for steps, before in chunks(setting, suites, seed):
        for rule in rules:
            told[rule].append(RULES[rule](setting, steps, before))
    return {rule: _rates(np.concatenate(codes), setting) for rule, codes in told.items()}


def _rates(codes: Codes, setting: Setting) -> Rates:
    changed, others = codes[:, : setting.changed_metrics], codes[:, setting.changed_metrics :]
    return Rates(
        alarms=float((others == LARGER).any(axis=-1).mean()) if others.size else 0.0,
        found=float((changed == LARGER).mean()) if changed.size else float("nan"),
        same_changed=float((changed == SAME).mean()) if changed.size else float("nan"),
        same_unchanged=float((others == SAME).mean()) if others.size else float("nan"),
    )


def power_at_stated(setting: Setting, suites: int, seed: int = 2) -> float:
    """How often a change is found that equals what the comparison before it said it could see (this metric alone)."""
    rule = Rule(threshold=setting.threshold)
    found = []
    for steps, before in chunks(setting, suites, seed):
        half = len(steps) // 2
        first, second = (weigh(setting, rule, part, before) for part in (steps[:half], steps[half : 2 * half]))
        stated = power.smallest_visible(first.error, first.degrees, rule)
        moved = statistics.Evidence(
            difference=second.difference + stated,
            error=second.error,
            degrees=second.degrees,
            spread=second.spread,
            spread_degrees=second.spread_degrees,
            baseline_launches=second.baseline_launches,
            candidate_launches=second.candidate_launches,
        )
        found.append(statistics.decide(moved, statistics.two_sided_p(moved), rule) == LARGER)
    return float(np.concatenate(found).mean())


UNCHANGED: Final = (
    Setting(model=GPU_1, launches=3),
    Setting(model=GPU_1),
    Setting(model=GPU_1_SHARED),
    Setting(model=GPU_3),
    Setting(model=CPU_SINGLE),
    Setting(model=CPU_SINGLE, threshold=0.25),
    Setting(model=CPU_DDP, threshold=0.25),
    Setting(model=CPU_DDP, threshold=0.25, profile=16),
)
CHANGED: Final = (
    Setting(model=GPU_1, change=0.05, changed_metrics=1, metrics=1),
    Setting(model=GPU_1, change=0.05, changed_metrics=1),
    Setting(model=GPU_1, change=0.05, changed_metrics=1, profile=16),
    Setting(model=GPU_3, change=0.05, changed_metrics=1),
    Setting(model=GPU_3, change=0.10, changed_metrics=1, threshold=0.10, launches=8),
    Setting(model=CPU_SINGLE, change=0.25, changed_metrics=1, threshold=0.25),
    Setting(model=CPU_DDP, change=0.25, changed_metrics=1, threshold=0.25),
)
STATED: Final = (
    Setting(model=GPU_1, launches=3),
    Setting(model=GPU_1),
    Setting(model=GPU_3),
    Setting(model=GPU_3, launches=10),
    Setting(model=GPU_3, profile=16),
    Setting(model=CPU_SINGLE, threshold=0.25),
    Setting(model=CPU_DDP, threshold=0.25),
)


def percent(value: float) -> str:
    return "–" if np.isnan(value) else f"{100 * value:.1f} %"


def label(setting: Setting) -> str:
    parts = [setting.model.name, f"{setting.launches} + {setting.launches} launches"]
    if setting.profile:
        parts.append(f"{setting.profile}-launch profile")
    return ", ".join(parts)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def unchanged_table(suites: int, seed: int) -> str:
    rows = []
    for setting in UNCHANGED:
        told = rates(setting, list(RULES), suites, seed)
        alarms = [percent(told[rule].alarms) for rule in RULES]
        rows.append([label(setting), f"{setting.threshold:.0%}", *alarms, percent(told["ours"].same_unchanged)])
    return table(["Nothing changed: suites with an alarm", "asked", *RULES, "ours: same"], rows)


def changed_table(suites: int, seed: int) -> str:
    rows = []
    for setting in CHANGED:
        # A single metric is one draw a suite: as many draws as the suites of fifty have metrics.
        told = rates(setting, list(RULES), suites * 4 if setting.metrics == 1 else suites, seed)
        where = "alone" if setting.metrics == 1 else f"1 of {setting.metrics}"
        found = [percent(told[rule].found) for rule in RULES]
        rows.append([label(setting), f"{setting.change:.0%}, {where}", *found, percent(told["ours"].same_changed)])
    return table(["Slower by the asked change: found", "change", *RULES, "ours: same"], rows)


def stated_table(suites: int, seed: int) -> str:
    rows = [[label(s), percent(power_at_stated(s, max(suites // 4, 10), seed))] for s in STATED]
    return table(["A change of the stated smallest size", "found"], rows)


def sessions_table(suites: int, seed: int) -> str:
    """Sessions that differ by 2 % by themselves, with and without counting it."""
    from dataclasses import replace

    apart = replace(GPU_1, name="GPU-like, 1 %, sessions 2 % apart", session=0.02)
    rows = []
    for name, setting in (
        ("taken for interleaved", Setting(model=apart)),
        ("profile of 5 sessions × 4", Setting(model=apart, profile=20, sessions=5, interleaved=False)),
        ("profile of 10 sessions × 4", Setting(model=apart, profile=40, sessions=10, interleaved=False)),
    ):
        told = rates(setting, ["ours"], suites, seed)["ours"]
        rows.append([f"{apart.name}; {name}", percent(told.alarms), percent(told.same_unchanged)])
    return table(["Nothing changed, sides in sessions apart", "suites with an alarm", "same"], rows)


def main(arguments: Sequence[str]) -> None:
    suites = int(arguments[0]) if arguments else 1000
    seed = int(arguments[1]) if len(arguments) > 1 else 1
    print(f"{suites} suites of {METRICS} metrics, {generated.STEPS} steps a launch, seed {seed}.")
    for part in (unchanged_table, changed_table, stated_table, sessions_table):
        print("\n" + part(suites, seed), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
