"""Numbers and names as people read them."""

from __future__ import annotations

import math
from typing import Final

NOTHING: Final = "–"
_TIMES: Final = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_RATES: Final = ((1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1.0, "B/s"))
_SIZES: Final = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))
_ASCII: Final = str.maketrans(
    {
        "–": "-",
        "−": "-",
        "×": "x",
        "µ": "u",
        "±": "+-",
        "…": "...",
        "·": "|",
        "≥": ">=",
        "≤": "<=",
        "→": "->",
        "─": "-",
        "α": "alpha",
    }
    | {"β": "beta", "“": '"', "”": '"', "’": "'"}
)


def is_missing(value: float | None) -> bool:
    return value is None or math.isnan(value)


def significant(value: float, digits: int = 3) -> str:
    """``value`` with so many significant digits, without an exponent, thousands separated: 12,300 · 45.6 · 0.00123."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    rounded = float(f"{value:.{digits - 1}e}")
    places = digits - 1 - math.floor(math.log10(abs(rounded)))
    return f"{rounded:,.{max(places, 0)}f}"


def number(value: float | None, digits: int = 4) -> str:
    return NOTHING if value is None or math.isnan(value) else significant(value, digits)


def _scaled(value: float | None, units: tuple[tuple[float, str], ...], digits: int = 3) -> str:
    if value is None or math.isnan(value):
        return NOTHING
    factor, unit = next(((f, u) for f, u in units if abs(value) >= f * 0.9995), units[-1])
    if value == 0:
        return f"0 {units[-1][1] if units is _SIZES else units[0][1]}"
    return f"{significant(value / factor, digits)} {unit}"


def seconds(value: float | None) -> str:
    return _scaled(value, _TIMES)


def rate(value: float | None) -> str:
    """Bytes a second, in powers of ten as link rates are."""
    return _scaled(value, _RATES)


def size(value: float | None) -> str:
    """Bytes, in powers of two as memory is."""
    if value is not None and not math.isnan(value):
        exact = next(((f, u) for f, u in _SIZES if value >= f and value % f == 0), None)
        if exact and value / exact[0] < 10_000:
            return f"{value / exact[0]:.0f} {exact[1]}"
    return _scaled(value, _SIZES)


def percent(value: float | None, digits: int = 1) -> str:
    return NOTHING if value is None or math.isnan(value) else f"{100 * value:.{digits}f}%"


def span(low: str, high: str) -> str:
    """Two ends as one cell: 1.2–1.5 GiB; one when they read alike."""
    if low == high:
        return low
    low_number, _, low_unit = low.partition(" ")
    return f"{low_number}–{high}" if low_unit == high.partition(" ")[2] else f"{low}–{high}"


def printable(text: str) -> str:
    """Control characters of foreign text shown and not sent, line ends as spaces."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in " ".join(text.split()))


def ascii_only(text: str) -> str:
    """For terminals that cannot show more; everything stays legible."""
    return text.translate(_ASCII).encode("ascii", "backslashreplace").decode()


def encodable(text: str, encoding: str | None) -> str:
    """``text`` with what ``encoding`` cannot say replaced legibly."""
    try:
        text.encode(encoding or "ascii")
    except UnicodeEncodeError:
        return ascii_only(text)
    return text
