"""What was seen of the ranks' data loaders, as values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from bench_runner.doctor.faults import probe_finding


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochView:
    """One pass of one rank.  ``ids``: of all its samples in order, None where they were too many to keep; ``digests``
    of their contents, in the same order, None where these could not be assigned to them."""

    batches: int
    samples: int
    first_size: int
    last_size: int
    first_ids: tuple[int, ...]
    ids: Sequence[int] | None
    digests: Sequence[int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderView:
    """One rank.  ``described`` is what ``worker.doctor_loader.describe`` says; ``error`` what ended the rank."""

    rank: int
    described: dict[str, Any]
    epochs: tuple[EpochView, ...]
    error: str | None = None
    trace: str = ""
    batches_so_far: int = 0
    stacks: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderProbe:
    """All ranks.  ``max_batches`` is 0 when every epoch was run to its end."""

    factory: str
    views: tuple[LoaderView, ...]
    timed_out: bool = False
    max_batches: int = 0
    seconds: float = 0.0


loader_finding = partial(probe_finding, "loader")
