"""Shared libraries in a process's memory map, ``/proc/PID/maps`` (proc(5)).  Pure: text in, values out."""

from __future__ import annotations

import re
from typing import Final

_LINE: Final = re.compile(r"[0-9a-f]+-[0-9a-f]+ [-r][-w][-x][-ps] [0-9a-f]+ [0-9a-f]+:[0-9a-f]+ +\d+ +(?P<path>/.*)")
_DELETED: Final = " (deleted)"
_OCTAL: Final = re.compile(r"\\(012|040|134)")
_LIBRARY: Final = re.compile(r".*\.so(\.[\w.]+)?")


def mapped_libraries(text: str) -> tuple[str, ...]:
    """Paths of shared libraries, each once, in order of address; lines that are not of this form are left out.

    A library replaced on the disk since it was mapped keeps its path: what runs is still that file's old content.
    """
    found: dict[str, None] = {}
    for line in text.splitlines():
        match = _LINE.fullmatch(line)
        if match is None:
            continue
        path = _OCTAL.sub(lambda octal: chr(int(octal[1], 8)), match["path"].removesuffix(_DELETED))
        if _LIBRARY.fullmatch(path.rpartition("/")[2]):
            found[path] = None
    return tuple(found)
