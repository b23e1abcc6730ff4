"""A comparison as one JSON document, ``bench-runner/compare/1`` (docs/schemas/compare-1.json), and as text."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any, Final

from bench_runner.analysis.comparison import Comparison, Verdict
from bench_runner.analysis.power import LARGEST_PLAN
from bench_runner.analysis.statistics import Judgement
from bench_runner.comparing import Compared
from bench_runner.report import formats
from bench_runner.sides import Side

SCHEMA: Final = "bench-runner/compare/1"
WIDTH: Final = 80


def compare_document(compared: Compared) -> dict[str, Any]:
    """Plain values; numbers that are not known are null."""
    outcome = compared.outcome
    return {
        "schema": SCHEMA,
        "verdict": outcome.verdict,
        "threshold": outcome.rule.threshold,
        "baseline": _side_document(compared.baseline),
        "candidate": _side_document(compared.candidate),
        "comparisons": [_comparison_document(comparison) for comparison in outcome.comparisons],
        "unmatched": [
            {"key": one.key.to_json(), "side": one.side, "launches": one.launches} for one in outcome.unmatched
        ],
        "differences": [asdict(difference) for difference in compared.differences],
        "notes": list(compared.notes),
        "unreadable": list(compared.unreadable),
    }


def lists(compared: Compared) -> list[tuple[str, list[str]]]:
    """The lists below the table, those that have entries, each with its title."""
    named = (
        ("Only one side has", [f"{one.key.label} (the {one.side})" for one in compared.outcome.unmatched]),
        (
            "What else differs",
            [f"{one.subject} {one.name}: {one.baseline} -> {one.candidate}" for one in compared.differences],
        ),
        ("Notes", list(compared.notes)),
        ("Not read", list(compared.unreadable)),
    )
    return [(title, entries) for title, entries in named if entries]


def _side_document(side: Side) -> dict[str, Any]:
    return {"selector": side.selector, "records": len(side.records), "asv_results": len(side.asv.results)}


def _comparison_document(comparison: Comparison) -> dict[str, Any]:
    told = comparison.judgement
    needed = None if told is None or (told.launches_needed or 0) > LARGEST_PLAN else told.launches_needed
    return {
        "key": comparison.key.to_json(),
        "metric": comparison.metric,
        "bytes": comparison.bytes,
        "unit": comparison.unit,
        "direction": comparison.direction,
        "statistic": comparison.statistic,
        "baseline": asdict(comparison.baseline),
        "candidate": asdict(comparison.candidate),
        "ratio": comparison.ratio,
        "interval": None if told is None or told.interval is None else list(told.interval),
        "p_value": None if told is None else told.p_value,
        "p_adjusted": None if told is None else told.p_adjusted,
        "spread": None if told is None else told.spread,
        "smallest_visible": None if told is None else told.smallest_visible,
        "launches_needed": needed,
        "verdict": comparison.verdict,
        "reason": comparison.reason,
    }


# --- text -------------------------------------------------------------------------------------------------------

COLUMNS: Final = ("metric", "baseline", "candidate", "change %", "90 % interval", "sees %", "verdict")
_WIDTHS: Final = (17, 9, 9, 8, 15, 6, 9)
_LEFT: Final = (0, 6)
"""The columns of words; the others hold numbers and end at the right."""

SHOWN: Final[dict[Verdict, str]] = {
    "regression": "WORSE",
    "improvement": "better",
    "same": "same",
    "inconclusive": "unclear",
    "not-comparable": "no match",
}


def compare_text(compared: Compared) -> str:
    """For a terminal or a log of 80 columns; the worst first."""
    outcome = compared.outcome
    lines = [
        f"baseline   {formats.printable(compared.baseline.selector)}",
        f"candidate  {formats.printable(compared.candidate.selector)}",
        f"asked for  a change of {outcome.rule.threshold:.1%}",
        "",
    ]
    lines += _table(outcome.comparisons)
    statistics = statistics_line(outcome.comparisons)
    lines += [*textwrap.wrap(statistics, WIDTH), ""] if statistics else []
    for title, entries in lists(compared):
        lines += _listed(title, entries)
    return "\n".join([*lines, verdict_line(compared)]) + "\n"


STATISTIC_NAMES: Final = {
    "p25": "the lower quartile of its steps or calls (p25; on a CPU, which others use too)",
    "median": "the median of its steps or calls",
    "mean": "the mean",
    "value": "the value itself",
}


def statistics_line(comparisons: Iterable[Comparison]) -> str:
    """By which number each metric's launches are compared; a report shows means and medians instead."""
    metrics: dict[str, dict[str, None]] = {}
    for comparison in comparisons:
        if comparison.judgement is not None and comparison.statistic is not None:
            metrics.setdefault(comparison.statistic, {})[comparison.metric] = None
    told = [f"{', '.join(names)}: {STATISTIC_NAMES.get(name, name)}" for name, names in metrics.items()]
    return f"One launch is one number: {'; '.join(told)}. A side is the geometric mean of its launches." if told else ""


def verdict_line(compared: Compared) -> str:
    """The verdict and how often each was given, in one line."""
    counted = Counter(comparison.verdict for comparison in compared.outcome.comparisons)
    parts = [f"{counted[name]} {name}" for name in SHOWN if counted[name]]
    return f"verdict: {compared.outcome.verdict} ({', '.join(parts)})"


def _table(comparisons: Sequence[Comparison]) -> list[str]:
    """One block a case, in the order of the worst that happened to it."""
    cases: dict[str, list[Comparison]] = {}
    for comparison in comparisons:
        cases.setdefault(comparison.key.label, []).append(comparison)
    lines = []
    if any(comparison.judgement is not None for comparison in comparisons):
        lines += [_row(COLUMNS), ""]
    for label, block in cases.items():
        lines += textwrap.wrap(formats.printable(label), WIDTH)
        for comparison in block:
            lines += _comparison_lines(comparison)
        lines.append("")
    return lines


def _comparison_lines(comparison: Comparison) -> list[str]:
    shown = SHOWN[comparison.verdict]
    if comparison.judgement is None:
        where = "" if comparison.metric == "all" else f"{comparison.metric} "
        return _wrapped(f"{where}{shown}: {comparison.reason}")
    told = comparison.judgement
    lines = [_row((*number_cells(comparison, told), shown))]
    if comparison.verdict != "same":
        lines += _wrapped(f"{launches_told(comparison)}: {comparison.reason}")
    return lines


def number_cells(comparison: Comparison, told: Judgement) -> tuple[str, ...]:
    """The cells below all of ``COLUMNS`` but the last."""
    return (
        comparison.metric if comparison.bytes is None else f"{comparison.metric} {formats.size(comparison.bytes)}",
        amount(comparison.baseline.value, comparison.unit),
        amount(comparison.candidate.value, comparison.unit),
        "-" if told.ratio is None else _percent(told.ratio - 1),
        "-" if told.interval is None else f"{_percent(told.interval[0] - 1)} {_percent(told.interval[1] - 1)}",
        "-" if told.smallest_visible is None else f"{100 * told.smallest_visible:.3g}",
    )


def launches_told(comparison: Comparison) -> str:
    return f"{comparison.baseline.launches} + {comparison.candidate.launches} launches"


def _row(cells: Sequence[str]) -> str:
    placed = [
        cell.ljust(width) if place in _LEFT else cell.rjust(width)
        for place, (cell, width) in enumerate(zip(cells, _WIDTHS, strict=True))
    ]
    return (" ".join(placed)).rstrip()


def _percent(change: float) -> str:
    return f"{100 * change:+.3g}" if abs(change) < 10 else f"{100 * change:+.0f}"


def amount(value: float | None, unit: str | None) -> str:
    """A value with its unit where it has one; the units are ours and asv's names for them."""
    if value is None:
        return "-"
    if unit in ("s", "seconds"):
        return formats.seconds(value)
    if unit in ("B", "bytes"):
        return formats.size(value)
    if unit in ("B/s", "bytes/s"):
        return formats.rate(value)
    return formats.number(value)


def _wrapped(text: str, indent: str = "    ") -> list[str]:
    return textwrap.wrap(formats.printable(text), WIDTH, initial_indent=indent, subsequent_indent=indent)


def _listed(title: str, entries: Iterable[str]) -> list[str]:
    shown = [line for entry in entries for line in textwrap.wrap(
        formats.printable(entry), WIDTH, initial_indent="- ", subsequent_indent="  ")]  # fmt: skip
    return [title, *shown, ""] if shown else []
