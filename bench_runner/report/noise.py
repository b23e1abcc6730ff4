"""A noise profile as text."""

from __future__ import annotations

import math
import textwrap

from bench_runner.analysis.noise import NoiseProfile
from bench_runner.report.formats import printable

WIDTH = 80


def noise_text(profile: NoiseProfile) -> str:
    """Metric by metric, noisiest first: the spread between launches and between sessions, in percent."""
    lines = [
        *textwrap.wrap(
            printable(f"machine {profile.machine}: {profile.launches} launches in {profile.sessions} sessions"), WIDTH
        ),
        "",
        "launches %  degrees  sessions %  degrees  metric",
    ]
    known = {name: noise for name in profile.metrics if (noise := profile.noise(name)) is not None}
    for name, noise in sorted(known.items(), key=lambda item: (-item[1].spread, item[0])):
        sessions = "-" if noise.session_spread is None else _percent(noise.session_spread)
        numbers = f"{_percent(noise.spread):>10}  {noise.degrees:>7}  {sessions:>10}  {noise.session_degrees:>7}  "
        place, *rest = textwrap.wrap(printable(name), WIDTH - len(numbers))
        lines += [numbers + place, *(" " * len(numbers) + line for line in rest)]
    return "\n".join(lines) + "\n"


def _percent(spread: float) -> str:
    return f"{100 * math.expm1(spread):.2f}" if spread < 7 else ">1000"
