"""The templates of the HTML pages: every value escaped, and none that is missing passed over."""

from __future__ import annotations

from functools import cache

import jinja2

from bench_runner.report.formats import printable


@cache
def environment() -> jinja2.Environment:
    """What renders them; ``printable`` is a filter for foreign text."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("bench_runner.report"),
        autoescape=True,
        trim_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    made.filters["printable"] = printable
    return made
