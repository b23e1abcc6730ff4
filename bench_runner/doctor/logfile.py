"""Log files read within bounds: any size, any encoding, gzip not among them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from bench_runner.errors import UnreadableError

LARGEST_READ_BYTES: Final = 64 << 20
"""Of a longer file the first and the last half of this are read: first errors stand early, last words late."""

_LONGEST_LINE_BYTES: Final = 16 << 10
_LOOKED_AT_BYTES: Final = 64 << 10
_BINARY_SHARE: Final = 0.05
_TEXT_CONTROLS: Final = frozenset(b"\t\n\r\f\b\x1b\a")
_MAGIC: Final = (
    b"\x1f\x8b",
    b"PK\x03\x04",
    b"\x28\xb5\x2f\xfd",
    b"\xfd7zXZ",
    b"BZh",
    b"\x7fELF",
    b"\x89PNG",
    b"\x80\x02",
)
_RANK_IN_NAME: Final = re.compile(r"(?<!node_)(?<!node-)(?<!node)(?:^|[^a-z])rank[_-]?(\d{1,6})(?!\d)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogText:
    """One log as text.  ``lines`` holds (line number from 1, text); ``skipped_bytes`` were left out in the middle, and
    line numbers behind the gap are counted as if it held no line.  ``rank`` is the one the file's name gives.
    ``binary``: it is no text at all, such as a compressed file."""

    name: str
    lines: tuple[tuple[int, str], ...]
    skipped_bytes: int = 0
    rank: int | None = None
    binary: bool = False


def read_log(path: Path, largest_bytes: int = LARGEST_READ_BYTES) -> LogText:
    """Read a log file; UnreadableError for what is no readable file.  Bytes that are no UTF-8 are shown as escapes."""
    try:
        size = path.stat().st_size
        if not path.is_file():
            raise UnreadableError(f"{path}: is no regular file; name the text file of a job's output")
        with path.open("rb") as file:
            parts = [file.read(largest_bytes)] if size <= largest_bytes else _ends(file, size, largest_bytes // 2)
    except OSError as error:
        raise UnreadableError(
            f"{path}: cannot be read ({error.strerror}); name the text file of a job's output"
        ) from error
    return LogText(
        name=str(path),
        lines=tuple(enumerate((line for part in parts for line in _lines(part)), start=1)),
        skipped_bytes=max(0, size - largest_bytes) if len(parts) > 1 else 0,
        rank=rank_in_name(path),
        binary=is_binary(parts[0]),
    )


def is_binary(data: bytes) -> bool:
    """Whether these bytes are no text in any encoding that keeps ASCII: a known archive, or many control characters."""
    head = data[:_LOOKED_AT_BYTES]
    if head.startswith(_MAGIC):
        return True
    controls = sum(byte < 32 and byte not in _TEXT_CONTROLS for byte in head)
    return controls > _BINARY_SHARE * len(head)


def text_log(name: str, text: str) -> LogText:
    """A log that is already in memory."""
    return LogText(name=name, lines=tuple(enumerate(text.splitlines(), start=1)))


def rank_in_name(path: Path) -> int | None:
    """The rank that a file's name speaks of: ``rank_3.log``, or torchrun's ``attempt_0/3/stderr.log``."""
    found = _RANK_IN_NAME.search(path.stem)
    if found:
        return int(found[1])
    of_torchrun = path.stem in ("stderr", "stdout") and path.parent.name.isdecimal() and len(path.parent.name) < 7
    return int(path.parent.name) if of_torchrun else None


def _ends(file: BinaryIO, size: int, half: int) -> list[bytes]:
    head = file.read(half)
    file.seek(size - half)
    tail = file.read(half)
    return [head[: head.rfind(b"\n") + 1] or head, tail[tail.find(b"\n") + 1 :]]


def _lines(part: bytes) -> Iterator[str]:
    for line in part.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n"):
        yield line[:_LONGEST_LINE_BYTES].decode("utf-8", "backslashreplace")
