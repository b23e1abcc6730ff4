"""A report's file: whole or not at all, so that a reader of the old one never meets half of the new one."""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path

from bench_runner.errors import StoreError


def write_file(path: Path, fill: Callable[[Path], object]) -> None:
    """Let ``fill`` write a temporary file beside ``path``, then give it that name.  Raises StoreError.

    A link is followed.  A device or pipe (``/dev/stdout``, ``/dev/null``) is written to and never replaced.
    """
    path = path.resolve()
    if path.exists() and not path.is_file() and not path.is_dir():
        _write_through(path, fill)
        return
    temporary = path.with_name(f".{path.name[:100]}-{uuid.uuid4().hex[:8]}.tmp")
    try:
        if path.is_dir():
            raise StoreError(f"{path}: is a folder; name a file")
        fill(temporary)
        temporary.replace(path)
    except OSError as error:
        raise StoreError(f"{path}: cannot be written: {error.strerror or error}; choose another place") from error
    finally:
        if os.path.lexists(temporary):
            temporary.unlink()


def _write_through(path: Path, fill: Callable[[Path], object]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "made"
        fill(made)
        try:
            path.write_bytes(made.read_bytes())
        except OSError as error:
            raise StoreError(f"{path}: cannot be written: {error.strerror or error}; choose another place") from error


def write_text(path: Path, text: str) -> None:
    """Write ``text`` as UTF-8; what is no Unicode is written with backslashes."""
    write_file(path, lambda temporary: temporary.write_bytes(text.encode("utf-8", "backslashreplace")))
