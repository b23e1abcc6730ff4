"""A report as GitHub-flavoured Markdown, fit for a pull request or a ticket."""

from __future__ import annotations

import re
from collections.abc import Sequence

from bench_runner.report.formats import printable
from bench_runner.report.table import Table
from bench_runner.report.tables import Section


def escape(text: str) -> str:
    """Foreign text as text: no markup, no HTML, no table cell, nobody mentioned."""
    shown = printable(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    shown = re.sub(r"([\\`*_\[\]{}#|~!$])", r"\\\1", shown)
    # A zero-width space keeps an address from becoming a mention and a scheme from becoming a link.
    return re.sub(r"@(?=\w)", "@\u200b", shown).replace("://", ":\u200b//").replace("www.", "www\u200b.")


def render(sections: Sequence[Section]) -> str:
    return "\n".join(_section(section) for section in sections)


def _section(section: Section) -> str:
    lines = [f"## {escape(section.machine)}", ""]
    lines += [f"- {escape(text)}" for text in section.lines]
    for table in section.tables:
        lines += ["", f"### {escape(table.title)}", "", *table_lines(table)]
    for title, entries in section.lists:
        lines += ["", f"### {title}", "", *(f"- {escape(entry)}" for entry in entries)]
    return "\n".join(lines) + "\n"


def table_lines(table: Table) -> list[str]:
    """A table's lines, its note below it."""
    lines = [
        _row([escape(name) for name in table.columns]),
        _row(["---:" if numeric else "---" for numeric in table.numeric]),
    ]
    lines += [_row([escape(cell) for cell in row]) for row in table.rows]
    return [*lines, "", f"{escape(table.note)}."] if table.note else lines


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
