"""What the numbers mean: from the raw samples of a record to metric values.  Pure, and without numpy or pandas, because
every asv benchmark process imports it.

``METRICS`` is the one table of names, units, directions, clocks and ranks; docs/metrics.md repeats it for people and a
test holds the two together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, fsum
from typing import Final, Literal

from bench_runner.record import DeviceMemory, RankSamples, RunRecord
from bench_runner.spec import Checkpoint, Operation, RunSpec, Training

Direction = Literal["higher", "lower", "none"]
Statistic = Literal["mean", "median", "p10", "p90", "p99", "value"]

CLOCK_TOLERANCE: Final = 0.02
"""The sum of the steps and the independent clock may differ by this fraction before a warning is raised."""

SHORTEST_ENERGY_SECONDS: Final = 1.0
"""The drivers' counters move once in up to a tenth of a second: over less than this their difference says little."""

BUS_FACTORS: Final[dict[Operation, Callable[[int], float]]] = {
    "all_reduce": lambda ranks: 2 * (ranks - 1) / ranks,
    "all_gather": lambda ranks: (ranks - 1) / ranks,
    "reduce_scatter": lambda ranks: (ranks - 1) / ranks,
    "broadcast": lambda _ranks: 1.0,
}
"""busbw / algbw as nccl-tests defines them (its doc/PERFORMANCE.md), for message sizes counted as it counts them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric.  ``clock``: what took the time; ``ranks``: which ranks the value is over."""

    name: str
    unit: str
    direction: Direction
    clock: str
    ranks: str
    meaning: str


_STEPS = "the device's own clock around each whole step (CUDA events; perf_counter on a CPU)"
_PHASES = "the same, in a pass of its own with a synchronisation after each phase"
_CALLS = "the same, around each call"
_LOOP = "CLOCK_MONOTONIC_RAW around all steps, against the clock of the steps"
_LOOP_CLOCK = "CLOCK_MONOTONIC_RAW around all steps, for the least time that is needed"
_HOST = "perf_counter around each call, the device synchronised at both ends"
_NO_CLOCK = "none"
_CELL = "each, on each device"
_SLOWEST_SUM = "the rank with the largest sum of step times"
_SLOWEST = "the rank with the largest value"

_TABLE: tuple[tuple[str, str, Direction, str, str, str], ...] = (
    ("throughput", "samples/s", "higher", _STEPS, _SLOWEST_SUM, "global batch × steps / sum of the step times"),
    ("throughput_per_device", "samples/s", "higher", _STEPS, _SLOWEST_SUM, "throughput / devices"),
    ("step_time", "s", "lower", _STEPS, _SLOWEST, "median step"),
    ("time_per_sample", "s", "lower", _STEPS, _SLOWEST_SUM, "1 / throughput"),
    ("efficiency", "1", "higher", _STEPS, _SLOWEST_SUM, "throughput / (devices × throughput of one device)"),
    ("loop_clock_ratio", "1", "none", _LOOP, "the rank furthest from 1", "loop clock / sum of steps"),
    ("phase_data", "s", "lower", _PHASES, _SLOWEST, "median wait for the next batch"),
    ("phase_forward", "s", "lower", _PHASES, _SLOWEST, "median forward pass with the loss"),
    ("phase_backward", "s", "lower", _PHASES, _SLOWEST, "median backward pass, with DDP's communication"),
    ("phase_optimizer", "s", "lower", _PHASES, _SLOWEST, "median optimizer step"),
    ("exposed_communication", "s", "lower", _STEPS, _SLOWEST, "median step − median step under no_sync, at least 0"),
    ("energy_per_sample", "J", "lower", _LOOP_CLOCK, "all", "energy of all devices over the steps / samples trained"),
    ("latency", "s", "lower", _CALLS, "all", "mean over calls and ranks"),
    ("latency_p10", "s", "lower", _CALLS, "all", "10th percentile over calls and ranks"),
    ("latency_p50", "s", "lower", _CALLS, "all", "50th percentile over calls and ranks"),
    ("latency_p90", "s", "lower", _CALLS, "all", "90th percentile over calls and ranks"),
    ("latency_p99", "s", "lower", _CALLS, "all", "99th percentile over calls and ranks"),
    ("latency_max_over_ranks", "s", "lower", _CALLS, "the slowest of each call", "mean over calls of the largest time"),
    ("algbw", "B/s", "higher", _CALLS, "all", "bytes / latency"),
    ("busbw", "B/s", "higher", _CALLS, "all", "algbw × the operation's bus factor"),
    ("peak_allocated", "B", "lower", _NO_CLOCK, _CELL, "peak of torch's allocated memory since the case began"),
    ("peak_reserved", "B", "lower", _NO_CLOCK, _CELL, "peak of torch's reserved memory since the case began"),
    ("process_used", "B", "lower", _NO_CLOCK, _CELL, "the driver's account of the process on the device"),
    ("device_used", "B", "lower", _NO_CLOCK, _CELL, "the driver's account of the whole device"),
    ("peak_rss", "B", "lower", _NO_CLOCK, "each", "peak resident memory of the process"),
    ("save_time", "s", "lower", _HOST, "rank 0", "median save of a checkpoint to the disk"),
    ("load_time", "s", "lower", _HOST, _SLOWEST, "median load of a checkpoint to the rank's device"),
    ("checkpoint_size", "B", "lower", _NO_CLOCK, "rank 0", "the checkpoint's file"),
    ("largest_batch", "samples", "higher", _NO_CLOCK, "the smallest over ranks", "largest per-device batch that fits"),
)  # fmt: skip

METRICS: Final[Mapping[str, Metric]] = {
    name: Metric(name=name, unit=unit, direction=direction, clock=clock, ranks=ranks, meaning=meaning)
    for name, unit, direction, clock, ranks, meaning in _TABLE
}

MEMORY_FIELDS: Final = ("peak_allocated", "peak_reserved", "process_used", "device_used")


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricValue:
    """One value and the samples it was made of.

    ``value`` is ``statistic`` of ``series``, or ``numerator`` divided by it (rates); ``series`` is empty for values
    that were read and not sampled.  ``bytes`` is the message size.
    """

    metric: str
    value: float
    statistic: Statistic = "value"
    series: tuple[float, ...] = ()
    numerator: float | None = None
    operation: Operation | None = None
    bytes: int | None = None
    rank: int | None = None
    device: int | None = None
    denominator: str | None = None

    @property
    def samples(self) -> tuple[float, ...]:
        """The series in the unit of the metric: rates for a rate."""
        if self.numerator is None:
            return self.series
        return tuple(self.numerator / seconds for seconds in self.series)


def mean(series: Sequence[float]) -> float:
    return fsum(series) / len(series)


def quantile(ordered: Sequence[float], fraction: float) -> float:
    """Quantile of an ascending series with linear interpolation, as numpy's default."""
    place = fraction * (len(ordered) - 1)
    low, high = floor(place), ceil(place)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def median(series: Sequence[float]) -> float:
    return quantile(sorted(series), 0.5)


def metric_values(record: RunRecord) -> list[MetricValue]:
    """Every metric of one record that stands on its own (``efficiency`` needs others: analysis/efficiency.py).

    Nothing for a record that is not ok: samples rescued from a failed run are for looking at, not for comparing.
    """
    if record.outcome != "ok":
        return []
    values: list[MetricValue] = []
    if isinstance(record.spec.task, Training):
        values += _training(record.ranks, record.spec, record.spec.task)
    elif isinstance(record.spec.task, Checkpoint):
        values += _checkpoint(record.ranks)
    else:
        values += _collective(record.ranks, record.spec.task.operation, record.spec.device_count)
    values += memory_values(record.ranks)
    return values


def headline(record: RunRecord, metric: str, *, message_bytes: int | None = None) -> MetricValue | None:
    """The one value of a metric (of one message size), or None when the record does not have it.

    Of a metric with a value for each rank and device it is the largest.
    """
    found = [v for v in metric_values(record) if v.metric == metric and message_bytes in (None, v.bytes)]
    return max(found, key=lambda value: value.value, default=None)


def throughput(record: RunRecord) -> float | None:
    """Samples a second of the whole job, or None where no steps were timed: as in ``metric_values``, and quicker."""
    task = record.spec.task
    timed = [rank for rank in record.ranks if fsum(rank.step_seconds) > 0]
    if record.outcome != "ok" or not timed or not isinstance(task, Training):
        return None
    return task.global_batch(record.spec.device_count) / mean(max((rank.step_seconds for rank in timed), key=fsum))


# --- training ---------------------------------------------------------------------------------------------------


def _training(ranks: Sequence[RankSamples], spec: RunSpec, task: Training) -> Iterator[MetricValue]:
    # A sum of zero is no measurement; no rate can be made of it.
    timed = [rank for rank in ranks if fsum(rank.step_seconds) > 0]
    if timed:
        yield from _rates(timed, task.global_batch(spec.device_count), spec.device_count)
    clocks = [rank.loop_seconds / fsum(rank.step_seconds) for rank in timed if rank.loop_seconds is not None]
    if clocks:
        yield MetricValue(metric="loop_clock_ratio", value=max(clocks, key=lambda ratio: abs(ratio - 1)))
    for phase in ("data", "forward", "backward", "optimizer"):
        series = [rank.phase_seconds[phase] for rank in ranks if rank.phase_seconds.get(phase)]
        if series:
            slowest = max(series, key=median)
            yield MetricValue(metric=f"phase_{phase}", value=median(slowest), statistic="median", series=slowest)
    exposed = [
        max(0.0, median(rank.step_seconds) - median(rank.no_sync_step_seconds))
        for rank in timed
        if rank.no_sync_step_seconds
    ]
    if exposed:
        yield MetricValue(metric="exposed_communication", value=max(exposed))
    energy = _energy_per_sample(timed, task.global_batch(spec.device_count)) if len(timed) == len(ranks) else None
    if energy is not None:
        yield MetricValue(metric="energy_per_sample", value=energy)
    batches = [rank.largest_batch for rank in ranks if rank.largest_batch is not None]
    if batches:
        yield MetricValue(metric="largest_batch", value=float(min(batches)))


def _energy_per_sample(ranks: Sequence[RankSamples], global_batch: int) -> float | None:
    """Joules; None unless every rank knows what its devices took, over a loop that was long enough for the counters."""
    joules = [rank.loop_energy_joules for rank in ranks if (rank.loop_seconds or 0.0) >= SHORTEST_ENERGY_SECONDS]
    known = [amount for amount in joules if amount is not None]
    if not ranks or len(known) != len(ranks):
        return None
    return fsum(known) / (global_batch * len(ranks[0].step_seconds))


def _rates(timed: Sequence[RankSamples], global_batch: int, devices: int) -> Iterator[MetricValue]:
    """Rates of the whole job: it is as fast as its slowest rank."""
    series = max((rank.step_seconds for rank in timed), key=fsum)
    step = mean(series)
    for metric, numerator in (("throughput", float(global_batch)), ("throughput_per_device", global_batch / devices)):
        yield MetricValue(metric=metric, value=numerator / step, statistic="mean", series=series, numerator=numerator)
    per_sample = tuple(seconds / global_batch for seconds in series)
    yield MetricValue(metric="time_per_sample", value=step / global_batch, statistic="mean", series=per_sample)
    slowest = max((rank.step_seconds for rank in timed), key=median)
    yield MetricValue(metric="step_time", value=median(slowest), statistic="median", series=slowest)


# --- checkpoints ------------------------------------------------------------------------------------------------


def _checkpoint(ranks: Sequence[RankSamples]) -> Iterator[MetricValue]:
    for metric, series in (
        ("save_time", [rank.save_seconds for rank in ranks if rank.save_seconds]),
        ("load_time", [rank.load_seconds for rank in ranks if rank.load_seconds]),
    ):
        if series:
            slowest = max(series, key=median)
            yield MetricValue(metric=metric, value=median(slowest), statistic="median", series=slowest)
    sizes = [rank.checkpoint_bytes for rank in ranks if rank.checkpoint_bytes is not None]
    if sizes:
        yield MetricValue(metric="checkpoint_size", value=float(sizes[0]))


# --- collectives ------------------------------------------------------------------------------------------------


def _collective(ranks: Sequence[RankSamples], operation: Operation, size: int) -> Iterator[MetricValue]:
    """A size for which a rank has no times (it saw wrong values) gives nothing."""
    sizes = sorted({message for rank in ranks for message in rank.collective_seconds})
    for message in sizes:
        series = [rank.collective_seconds.get(message, ()) for rank in ranks]
        if all(series):
            yield from _message(series, operation, message, size)


def _message(series: Sequence[Sequence[float]], operation: Operation, message: int, size: int) -> Iterator[MetricValue]:
    calls = list(zip(*series, strict=False))
    per_call = tuple(mean(call) for call in calls)
    latency = mean(per_call)
    bus_bytes = message * BUS_FACTORS[operation](size)

    def value(
        metric: str, amount: float, statistic: Statistic, samples: tuple[float, ...], numerator: float | None = None
    ) -> MetricValue:
        return MetricValue(
            metric=metric,
            value=amount,
            statistic=statistic,
            series=samples,
            numerator=numerator,
            operation=operation,
            bytes=message,
        )

    yield value("latency", latency, "mean", per_call)
    pooled = tuple(sorted(seconds for call in calls for seconds in call))
    yield value("latency_p10", quantile(pooled, 0.10), "p10", pooled)
    yield value("latency_p50", quantile(pooled, 0.50), "median", pooled)
    yield value("latency_p90", quantile(pooled, 0.90), "p90", pooled)
    yield value("latency_p99", quantile(pooled, 0.99), "p99", pooled)
    slowest = tuple(max(call) for call in calls)
    yield value("latency_max_over_ranks", mean(slowest), "mean", slowest)
    if latency <= 0:
        return
    yield value("algbw", message / latency, "mean", per_call, float(message))
    yield value("busbw", bus_bytes / latency, "mean", per_call, bus_bytes)


# --- memory -----------------------------------------------------------------------------------------------------


def memory_values(ranks: Iterable[RankSamples]) -> Iterator[MetricValue]:
    """The process × device matrix: never a sum, a mean or the own device alone.  What is not known gives no value."""
    for rank in ranks:
        for cell in rank.memory:
            for metric, amount in zip(MEMORY_FIELDS, _amounts(cell), strict=True):
                if amount is not None:
                    yield MetricValue(metric=metric, value=float(amount), rank=rank.rank, device=cell.device)
        if rank.peak_rss_bytes is not None:
            yield MetricValue(metric="peak_rss", value=float(rank.peak_rss_bytes), rank=rank.rank)


def _amounts(cell: DeviceMemory) -> tuple[int | None, ...]:
    """In the order of ``MEMORY_FIELDS``."""
    return cell.peak_allocated_bytes, cell.peak_reserved_bytes, cell.process_used_bytes, cell.device_used_bytes


# --- doubts -----------------------------------------------------------------------------------------------------


def clock_warning(record: RunRecord) -> str | None:
    """A sentence when the sum of the steps and the independent clock around the loop disagree."""
    ratio = headline(record, "loop_clock_ratio")
    if ratio is None or abs(ratio.value - 1) <= CLOCK_TOLERANCE:
        return None
    return (
        f"the clock around all steps read {ratio.value:.3f} × the sum of the steps "
        f"(tolerance {CLOCK_TOLERANCE:.0%}): the step times do not account for the whole run"
    )
