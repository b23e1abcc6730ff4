"""When something was logged, as far as the lines say it: the forms of logging, glog (torch, NCCL) and torchrun."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

Stamp = tuple[int, int, float]
"""Month, day, seconds of the day.  glog names no year, so that none takes part; a new year's night is put wrongly."""

_GLOG: Final = re.compile(r"[IWEF](\d\d)(\d\d) (\d\d):(\d\d):(\d\d(?:\.\d{1,9})?)")
_ISO: Final = re.compile(r"\d{4}-(\d\d)-(\d\d)[T _](\d\d):(\d\d):(\d\d(?:[.,]\d{1,9})?)")
_LOOK_BACK_LINES: Final = 20


def stamp_in(line: str) -> Stamp | None:
    """The first time in a line, in whatever time zone the job had."""
    for pattern in (_ISO, _GLOG):
        if found := pattern.search(line):
            month, day, hours, minutes = (int(found[i]) for i in range(1, 5))
            return month, day, hours * 3600 + minutes * 60 + float(found[5].replace(",", "."))
    return None


def stamp_before(lines: Sequence[tuple[int, str]], number: int) -> Stamp | None:
    """The time of line ``number`` (from 1), or of the nearest of the lines shortly before it that has one."""
    for _, line in reversed(lines[max(0, number - 1 - _LOOK_BACK_LINES) : number]):
        if (stamp := stamp_in(line[:400])) is not None:
            return stamp
    return None
