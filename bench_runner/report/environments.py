"""Environments and their differences as text: values in, strings out."""

from __future__ import annotations

from itertools import groupby

from bench_runner.environment.diff import Difference, EnvironmentDiff, Group, Side

_TITLES: dict[Group, str] = {"variables": "Environment variables", "rest": "The rest"}
_KINDS = {"prefix": "prefix", "lock": "lock", "export": "export", "record": "run record"}
_ABSENT = "–"


def diff_text(diff: EnvironmentDiff) -> str:
    """One block a group, a line a difference; what was not compared at the end."""
    lines = [f"A: {_side(diff.left)}", f"B: {_side(diff.right)}", ""]
    for group, differences in groupby(diff.differences, key=lambda d: d.group):
        lines += [_TITLES.get(group, group), *_rows(list(differences)), ""]
    lines.append("The same." if diff.same else f"{len(diff.differences)} differences.")
    lines += [f"Not compared: {note}." for note in diff.not_compared]
    return "\n".join(_visible(line).rstrip() for line in lines) + "\n"


def _side(side: Side) -> str:
    facts = "".join(f", {name} {value}" for name, value in side.facts.items())
    return f"{side.label} ({_KINDS[side.kind]}, {len(side.packages)} packages{facts})"


def _rows(differences: list[Difference]) -> list[str]:
    cells = [(_name(d), d.left or _ABSENT, d.right or _ABSENT, _what(d)) for d in differences]
    widths = [min(48, max(len(row[column]) for row in cells)) for column in range(3)]
    first, second, third = widths
    return [f"  {name:<{first}}  A {left:<{second}}  B {right:<{third}}  {what}" for name, left, right, what in cells]


def _name(difference: Difference) -> str:
    return difference.name if difference.what != "library" else f"{difference.name} (as loaded)"


def _what(difference: Difference) -> str:
    if difference.fields == ("presence",):
        return "only in B" if difference.left is None else "only in A"
    return ", ".join(difference.fields)


def _visible(line: str) -> str:
    """Names and values come from files: control characters are shown, not sent."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)
