"""The one place that prints: documents and tables to standard output, notes and progress to standard error."""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def survive_closed_streams() -> None:
    """A caller that closed our standard streams (``>&-``) wants no output; the work and the exit code are the same."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115


def emit_text(text: str) -> None:
    """Print a result meant for people on standard output; what its encoding cannot show is escaped."""
    whole = text if text.endswith("\n") else text + "\n"
    encoding = sys.stdout.encoding or "ascii"
    sys.stdout.write(whole.encode(encoding, "backslashreplace").decode(encoding))
    sys.stdout.flush()


def emit_json(document: dict[str, Any]) -> None:
    """Print the one JSON document of a command run with ``--json``.  ``document`` holds plain values, no NaN."""
    emit_text(json.dumps(document, indent=2, ensure_ascii=True, allow_nan=False))


def note(text: str) -> None:
    """Say something beside the result: progress, warnings, paths.  Control characters from data are shown, not sent."""
    shown = "".join(c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in text)
    try:
        sys.stderr.write(shown + "\n")
        sys.stderr.flush()
    except UnicodeEncodeError:
        sys.stderr.write(shown.encode("ascii", "backslashreplace").decode() + "\n")


def error(text: str) -> None:
    """The one line about a user's error."""
    note("bench-runner: error: " + " ".join(text.split()))
