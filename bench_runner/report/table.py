"""A table as values: tables.py and its neighbours make them, text.py, markdown.py and html.py render them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Cells as text.  ``numeric`` says for each column whether it holds numbers (and is set flush right)."""

    title: str
    columns: tuple[str, ...]
    numeric: tuple[bool, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str | None = None
