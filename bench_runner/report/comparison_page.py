"""A comparison as Markdown and as one HTML page: the structure of the text, every foreign name escaped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bench_runner.analysis.comparison import Comparison, Verdict
from bench_runner.comparing import Compared
from bench_runner.report.comparison import (
    COLUMNS,
    SHOWN,
    launches_told,
    lists,
    number_cells,
    statistics_line,
    verdict_line,
)
from bench_runner.report.formats import printable
from bench_runner.report.markdown import escape, table_lines
from bench_runner.report.table import Table
from bench_runner.report.templating import environment

TEMPLATE: Final = "compare.html.j2"
_NUMERIC: Final = (False, True, True, True, True, True, False, False)
_STATUS: Final[dict[Verdict, str]] = {
    "regression": "fail",
    "improvement": "pass",
    "same": "pass",
    "inconclusive": "warn",
    "not-comparable": "warn",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One case.  ``statuses`` has for each row of the table what colour its verdict has."""

    table: Table
    statuses: tuple[str, ...]


def blocks_of(compared: Compared) -> list[Block]:
    """A table for each case, in the order of the worst that happened to it."""
    cases: dict[str, list[Comparison]] = {}
    for comparison in compared.outcome.comparisons:
        cases.setdefault(comparison.key.label, []).append(comparison)
    return [
        Block(
            table=Table(
                title=label,
                columns=(*COLUMNS, "why"),
                numeric=_NUMERIC,
                rows=tuple(_cells(comparison) for comparison in block),
            ),
            statuses=tuple(_STATUS[comparison.verdict] for comparison in block),
        )
        for label, block in cases.items()
    ]


def _cells(comparison: Comparison) -> tuple[str, ...]:
    told = comparison.judgement
    if told is None:
        empty = ("-",) * (len(COLUMNS) - 2)
        return (comparison.metric, *empty, SHOWN[comparison.verdict], comparison.reason)
    why = "" if comparison.verdict == "same" else f"{launches_told(comparison)}: {comparison.reason}"
    return (*number_cells(comparison, told), SHOWN[comparison.verdict], why)


def _head(compared: Compared) -> tuple[str, ...]:
    return (
        f"baseline: {compared.baseline.selector}",
        f"candidate: {compared.candidate.selector}",
        f"asked for: a change of {compared.outcome.rule.threshold:.1%}",
    )


def compare_markdown(compared: Compared) -> str:
    """GitHub-flavoured Markdown, fit for a pull request or a ticket."""
    lines = ["## Comparison", "", f"**{escape(verdict_line(compared))}**", ""]
    lines += [f"- {escape(line)}" for line in _head(compared)]
    for block in blocks_of(compared):
        lines += ["", f"### {escape(block.table.title)}", "", *table_lines(block.table)]
    statistics = statistics_line(compared.outcome.comparisons)
    lines += ["", escape(statistics)] if statistics else []
    for title, entries in lists(compared):
        lines += ["", f"### {title}", "", *(f"- {escape(entry)}" for entry in entries)]
    return "\n".join(lines) + "\n"


def compare_html(compared: Compared) -> str:
    """One file without scripts that loads nothing."""
    return (
        environment()
        .get_template(TEMPLATE)
        .render(
            title=f"Comparison of {printable(compared.baseline.selector)} and {printable(compared.candidate.selector)}",
            verdict=verdict_line(compared),
            status=_STATUS[compared.outcome.verdict],
            head=_head(compared),
            blocks=blocks_of(compared),
            statistics=statistics_line(compared.outcome.comparisons),
            lists=lists(compared),
            verdict_column=len(COLUMNS) - 1,
        )
    )
