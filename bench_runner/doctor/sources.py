"""The user's program as text, for rules that ask in what block a line stands."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from bench_runner.doctor.stacks import Frame

_LARGEST_SOURCE_BYTES: Final = 2 << 20
_MOST_SOURCES: Final = 64


def read_sources(frames: Iterable[Frame], root: Path | None = None) -> dict[str, str]:
    """File name to text for the frames of the user's own program; files that are not here are left out.

    ``root`` stands before absolute names, for a process in another mount namespace (``/proc/PID/root``).
    """
    names = dict.fromkeys(frame.file for frame in frames if not frame.foreign and frame.file.startswith("/"))
    texts: dict[str, str] = {}
    for name in list(names)[:_MOST_SOURCES]:
        path = Path(name) if root is None else root / name.lstrip("/")
        if not path.is_file() or path.suffix not in (".py", "") or path.stat().st_size > _LARGEST_SOURCE_BYTES:
            continue
        texts[name] = path.read_bytes().decode("utf-8", "replace")
    return texts
