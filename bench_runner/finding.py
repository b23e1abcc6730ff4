"""What a check has to say: one ``Finding`` each, and the verdict over many."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Status = Literal["pass", "warn", "fail", "skip"]
Verdict = Literal["pass", "warn", "fail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The outcome of one check on one thing.

    ``check`` is a stable dotted name such as ``environment.packages.missing``; scripts match on it.
    ``expected`` and ``actual`` are short values, ``evidence`` the lines that prove it (paths, versions, counters),
    ``remedy`` what to do, if possible a command that works when pasted.
    """

    check: str
    status: Status
    message: str
    expected: str | None = None
    actual: str | None = None
    evidence: tuple[str, ...] = ()
    remedy: str | None = None

    def __post_init__(self) -> None:
        if self.status in ("warn", "fail") and not self.remedy:
            raise ValueError(f"{self.check}: a {self.status} finding needs a remedy")


def verdict(findings: Iterable[Finding]) -> Verdict:
    """``fail`` if any check failed, else ``warn`` if any warned, else ``pass``.  A skipped check decides nothing."""
    statuses = {finding.status for finding in findings}
    if "fail" in statuses:
        return "fail"
    return "warn" if "warn" in statuses else "pass"
