"""A report for a terminal or a log of 80 columns."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Final, Literal

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from bench_runner.report.formats import ascii_only, printable
from bench_runner.report.table import Table
from bench_runner.report.tables import Section

WIDTH: Final = 80


def render(sections: Sequence[Section], *, width: int = WIDTH, encoding: str | None = "utf-8") -> str:
    """The report as plain text, no line longer than ``width``.  Other encodings than UTF-8 get ASCII."""
    unicode = (encoding or "ascii").lower().replace("-", "").startswith("utf")
    file = io.StringIO()
    console = Console(
        file=file, width=width, color_system=None, force_terminal=False, markup=False, highlight=False, emoji=False
    )
    for section in sections:
        _print_section(console, section, unicode=unicode)
    text = "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"
    return text if unicode else ascii_only(text)


def _print_section(console: Console, section: Section, *, unicode: bool) -> None:
    def line(text: str, indent: str = "") -> None:
        shown = printable(text)
        shown = shown if unicode else ascii_only(shown)
        for place, part in enumerate(Text(shown).wrap(console, console.width - len(indent))):
            console.print(Text((indent if place else "- " if indent else "") + part.plain), soft_wrap=True)

    for text in section.lines:
        line(text)
    for table in section.tables:
        console.print()
        line(table.title)
        console.print(_rich(table, console.width, unicode=unicode))
        if table.note:
            line(f"({table.note})")
    for title, entries in section.lists:
        console.print()
        line(title)
        for entry in entries:
            line(entry, "  ")
    console.print()


def _rich(table: Table, width: int, *, unicode: bool) -> RichTable:
    def cell(text: str) -> Text:
        shown = printable(text)
        return Text(shown if unicode else ascii_only(shown))

    rich = RichTable(box=box.SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False)
    # Headings wrap at their words and cells do not wrap at all, unless foreign names leave no room for that.
    widths = [
        max(len(text) for text in (*name.split(), *(printable(row[place]) for row in table.rows)))
        for place, name in enumerate(table.columns)
    ]
    fits = sum(widths) + len(widths) - 1 <= width
    for name, numeric, least in zip(table.columns, table.numeric, widths, strict=True):
        heading = Text("\n".join(cell(name).plain.split()))
        justify: Literal["left", "right"] = "right" if numeric else "left"
        rich.add_column(heading, justify=justify, overflow="fold", min_width=least if fits else None)
    for row in table.rows:
        rich.add_row(*(cell(text) for text in row))
    return rich
