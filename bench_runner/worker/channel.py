"""A rank's only way to the control side: one line of JSON per event, appended to its own file and flushed at once.

What a rank wrote before it died is kept, and its last state tells what it was doing.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Literal

State = Literal["started", "device", "joining", "joined", "case", "leaving"]


class Channel:
    """The event file ``rank-<rank>.jsonl`` of one rank in the launch's directory."""

    def __init__(self, directory: Path, rank: int) -> None:
        self._file = (directory / f"rank-{rank}.jsonl").open("a", encoding="utf-8")

    def _send(self, event: str, **fields: Any) -> None:
        self._file.write(json.dumps({"event": event, "at": time.time(), **fields}) + "\n")
        self._file.flush()

    def state(self, state: State, case: int | None = None) -> None:
        """Say what this rank does now."""
        self._send("state", state=state, case=case)

    def runtime(self, runtime: dict[str, Any]) -> None:
        """Say what was loaded: versions, libraries, variables."""
        self._send("runtime", runtime=runtime)

    def result(self, case: int, samples: dict[str, Any], warnings: list[str]) -> None:
        """Deliver the samples of a finished case: the fields of ``RankSamples`` as plain values."""
        self._send("result", case=case, samples=samples, warnings=warnings)

    def skipped(self, case: int, reason: str) -> None:
        """Say that this case cannot be measured here; every rank decides alike."""
        self._send("skipped", case=case, reason=reason)

    def error(self, case: int | None, failure: str, message: str, traceback: str) -> None:
        """Say why this rank gives up; it exits next."""
        self._send("error", case=case, failure=failure, message=message, traceback=traceback)
