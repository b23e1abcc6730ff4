"""Findings of a verification as read back from its JSON document."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import orjson

from bench_runner.errors import UnreadableError

LARGEST_BYTES: Final = 16 << 20


def read_findings(path: Path) -> dict[str, Any]:
    """``verdict`` and ``findings`` (check, status, message, remedy) of a file.  Raises UnreadableError."""
    remedy = "write one with bench-runner verify --json"
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_BYTES + 1)
        document = orjson.loads(content)
    except OSError as error:
        raise UnreadableError(f"{path}: cannot be read: {error.strerror or error}; {remedy}") from error
    except orjson.JSONDecodeError as error:
        raise UnreadableError(f"{path}: not JSON: {error}; {remedy}") from None
    schema = document.get("schema") if isinstance(document, dict) else None
    if not isinstance(schema, str) or not schema.startswith("bench-runner/verify/"):
        raise UnreadableError(f"{path}: not a document of bench-runner verify (schema {schema!r:.80}); {remedy}")
    if schema != "bench-runner/verify/1":
        raise UnreadableError(f"{path}: schema {schema!r:.80} is another version than 1; upgrade bench-runner")
    findings = document.get("findings")
    if not isinstance(findings, list) or not all(isinstance(finding, dict) for finding in findings):
        raise UnreadableError(f"{path}: its findings are no list of objects; {remedy}")
    fields = ("check", "status", "message", "remedy")
    return {
        "verdict": str(document.get("verdict")),
        "findings": [{name: finding.get(name) for name in fields} for finding in findings],
    }
