"""What communication should cost: latency and bandwidth fitted to measured collectives, and the DDP step predicted.

The model of one message is T(S) = α + β·S: α the latency in seconds, β the seconds a byte takes.  Libraries change
their algorithm with the size, so α and β are fitted per regime, a range of sizes.

Sources of the formulas: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication Operations in
MPICH" (2005) for ring and tree; S. Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel
Training" (2020) for buckets and their overlap with the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, inf, log, log2
from typing import Final

import numpy as np
from scipy.optimize import nnls

MIB: Final = 1 << 20
GRADIENT_BYTES: Final = 4
"""Parameters, and so DDP's gradients, are float32 under every precision here (autocast keeps them)."""
FIRST_BUCKET_BYTES: Final = 1 * MIB
BUCKET_BYTES: Final = 25 * MIB
_FEWEST_POINTS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Regime:
    """α and β for messages of ``low_bytes`` to ``high_bytes``, with their standard errors (None with two points)."""

    low_bytes: int
    high_bytes: int
    points: int
    alpha_seconds: float
    beta_seconds_per_byte: float
    alpha_error_seconds: float | None
    beta_error_seconds_per_byte: float | None

    def seconds(self, message_bytes: float) -> float:
        """Time of one message of this size."""
        return self.alpha_seconds + self.beta_seconds_per_byte * message_bytes

    @property
    def bandwidth_bytes_per_second(self) -> float:
        """1/β; infinite where no part of the time grows with the size."""
        return 1.0 / self.beta_seconds_per_byte if self.beta_seconds_per_byte > 0 else inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Regimes in ascending order of size."""

    regimes: tuple[Regime, ...]

    def regime(self, message_bytes: float) -> Regime:
        """The regime that a message falls into, or the nearest."""
        return next((regime for regime in self.regimes if message_bytes <= regime.high_bytes), self.regimes[-1])

    def seconds(self, message_bytes: float) -> float:
        """Time of a message."""
        return self.regime(message_bytes).seconds(message_bytes)

    @property
    def alpha_seconds(self) -> float:
        """Latency: α of the smallest messages."""
        return self.regimes[0].alpha_seconds

    @property
    def beta_seconds_per_byte(self) -> float:
        """β of the largest messages."""
        return self.regimes[-1].beta_seconds_per_byte


def fit_regime(sizes: Sequence[int], seconds: Sequence[float]) -> Regime:
    """α, β ≥ 0 by least squares of the *relative* error, so that small messages count as much as large ones.

    Needs two different sizes, and positive times.  The errors are those of the linear model with the residuals'
    variance; they are None where only two points leave no residual.
    """
    if len(sizes) != len(seconds):
        raise ValueError(f"{len(sizes)} sizes, {len(seconds)} times: must be as many")
    if len(set(sizes)) < 2:
        raise ValueError(f"sizes = {sorted(set(sizes))}: a fit needs two different ones")
    if not all(time > 0 for time in seconds):
        raise ValueError("seconds: every time must be positive")
    times = np.asarray(seconds, dtype=float)
    # In units of the largest size both columns are of the same order, which keeps the problem well conditioned.
    unit = float(max(sizes))
    design = np.column_stack([1.0 / times, np.asarray(sizes, dtype=float) / unit / times])
    solution, _ = nnls(design, np.ones(len(times)))
    residual = design @ solution - 1.0
    degrees = len(times) - 2
    errors: tuple[float | None, float | None] = (None, None)
    if degrees > 0:
        covariance = np.linalg.inv(design.T @ design) * float(residual @ residual) / degrees
        errors = (float(np.sqrt(covariance[0, 0])), float(np.sqrt(covariance[1, 1])) / unit)
    return Regime(
        low_bytes=min(sizes),
        high_bytes=max(sizes),
        points=len(sizes),
        alpha_seconds=float(solution[0]),
        beta_seconds_per_byte=float(solution[1]) / unit,
        alpha_error_seconds=errors[0],
        beta_error_seconds_per_byte=errors[1],
    )


def _relative_squares(regime: Regime, points: Sequence[tuple[int, float]]) -> float:
    return sum((regime.seconds(size) / time - 1.0) ** 2 for size, time in points)


def fit_curve(sizes: Sequence[int], seconds: Sequence[float], most_regimes: int = 3) -> Curve:
    """One to ``most_regimes`` regimes of at least three sizes each, as many as Schwarz's criterion (BIC)
    favours."""
    points = sorted(zip(sizes, seconds, strict=True))
    best: tuple[float, tuple[Regime, ...]] | None = None
    for cuts in _partitions(len(points), most_regimes):
        parts = [points[begin:end] for begin, end in cuts]
        if any(len({size for size, _ in part}) < 2 for part in parts):
            continue
        regimes = tuple(fit_regime([size for size, _ in part], [time for _, time in part]) for part in parts)
        squares = sum(_relative_squares(regime, part) for regime, part in zip(regimes, parts, strict=True))
        # Two parameters a regime, and a cut counts as four more: it is chosen among many places, which plain BIC does
        # not see (it cut half of all straight curves with 3 % noise).  No measurement is better than a per mille.
        parameters = 2 * len(regimes) + 4 * (len(regimes) - 1)
        score = len(points) * log(max(squares / len(points), 1e-6)) + parameters * log(len(points))
        if best is None or score < best[0]:
            best = (score, regimes)
    if best is None:
        raise ValueError(f"sizes = {sorted(set(sizes))}: a fit needs two different ones")
    return Curve(regimes=best[1])


def _partitions(count: int, most: int) -> list[list[tuple[int, int]]]:
    """Ways to cut ``count`` points in order into 1 to ``most`` parts of at least three points (one part: any)."""
    found = [[(0, count)]]
    for first in range(_FEWEST_POINTS, count - _FEWEST_POINTS + 1):
        if most >= 2:
            found.append([(0, first), (first, count)])
        if most >= 3:
            seconds = range(first + _FEWEST_POINTS, count - _FEWEST_POINTS + 1)
            found.extend([(0, first), (first, second), (second, count)] for second in seconds)
    return found


def ring_seconds(ranks: int, message_bytes: float, alpha_seconds: float, beta_seconds_per_byte: float) -> float:
    """Ring all-reduce: 2(n−1) steps, each with 1/n of the message, over links of α and β."""
    return 2 * (ranks - 1) * (alpha_seconds + beta_seconds_per_byte * message_bytes / ranks)


def tree_seconds(ranks: int, message_bytes: float, alpha_seconds: float, beta_seconds_per_byte: float) -> float:
    """Double binary tree all-reduce, pipelined: up and down ⌈log₂ n⌉ levels, the message twice over each link."""
    if ranks < 2:
        return 0.0
    return 2 * ceil(log2(ranks)) * alpha_seconds + 2 * beta_seconds_per_byte * message_bytes


def link_of_ring(regime: Regime, ranks: int) -> tuple[float, float]:
    """α in seconds and β in seconds per byte of one link, from an all-reduce's regime, taking it for a ring."""
    if ranks < 2:
        raise ValueError(f"ranks = {ranks}: a ring needs two")
    steps = 2 * (ranks - 1)
    return regime.alpha_seconds / steps, regime.beta_seconds_per_byte * ranks / steps


def bucket_bytes(
    parameter_bytes: Sequence[int], first: int = FIRST_BUCKET_BYTES, following: int = BUCKET_BYTES
) -> tuple[int, ...]:
    """Sizes of DDP's buckets in the order in which they become ready.

    ``parameter_bytes`` are the gradients in the order of the parameters; DDP fills buckets from the last one on, and
    closes a bucket as soon as it has reached its limit: the first one's is 1 MiB, the others' 25 MiB.
    """
    buckets: list[int] = []
    filling = 0
    for size in reversed(parameter_bytes):
        filling += size
        if filling >= (first if not buckets else following):
            buckets.append(filling)
            filling = 0
    return (*buckets, filling) if filling else tuple(buckets)


def evenly(total_bytes: int, piece_bytes: int = 1 << 18) -> tuple[int, ...]:
    """``total_bytes`` of gradients in pieces of one size, where only the total is known."""
    if total_bytes < 0 or piece_bytes < 1:
        raise ValueError(f"total_bytes = {total_bytes}, piece_bytes = {piece_bytes}: must be at least 0 and 1")
    whole, rest = divmod(total_bytes, piece_bytes)
    return (*([piece_bytes] * whole), *([rest] if rest else []))


def gradient_buckets(parameters: int) -> tuple[int, ...]:
    """DDP's buckets in bytes for a model of which only the number of parameters is known."""
    return bucket_bytes(evenly(parameters * GRADIENT_BYTES))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPrediction:
    """A DDP step in seconds: ``compute_seconds`` as on a single device, and the communication that nothing hides."""

    compute_seconds: float
    communication_seconds: float
    exposed_seconds: float
    buckets: tuple[int, ...]

    @property
    def step_seconds(self) -> float:
        return self.compute_seconds + self.exposed_seconds


def predict_ddp_step(
    *,
    forward_seconds: float,
    backward_seconds: float,
    optimizer_seconds: float,
    buckets: Sequence[int],
    all_reduce_seconds: Callable[[float], float],
) -> StepPrediction:
    """The DDP step from a single device's phases and the measured time of all-reduce over message sizes.

    Bucket b is ready when its share of the gradients has been computed, taken as its share of the bytes, and ends at
    e_b = max(ready_b, e_{b−1}) + T(S_b).  Exposed is what lies behind the end of the backward pass.
    """
    total = sum(buckets)
    ended = seen = communication = 0.0
    for size in buckets:
        seen += size
        ready = backward_seconds * seen / total if total else backward_seconds
        took = all_reduce_seconds(size)
        communication += took
        ended = max(ready, ended) + took
    return StepPrediction(
        compute_seconds=forward_seconds + backward_seconds + optimizer_seconds,
        communication_seconds=communication,
        exposed_seconds=max(0.0, ended - backward_seconds),
        buckets=tuple(buckets),
    )
