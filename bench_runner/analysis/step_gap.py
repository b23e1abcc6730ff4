"""Where a DDP step's time goes: the gap to the single-device step, and to the predicted one, by its parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Final, Literal

from bench_runner.analysis.model import Curve, StepPrediction, fit_curve, gradient_buckets, predict_ddp_step
from bench_runner.record import RunRecord
from bench_runner.spec import Collective, Training

Part = Literal["compute", "exposed communication", "input", "stragglers", "rest"]
_COMPUTE: Final = ("forward", "backward", "optimizer")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Medians of one measurement, in seconds.  ``own_seconds`` is each rank's step without gradient communication."""

    step_seconds: float
    phases: dict[str, float]
    own_seconds: tuple[float, ...] = ()
    parameters: int | None = None

    @property
    def waiting_seconds(self) -> float:
        """Waiting for data."""
        return self.phases.get("data", 0.0)

    @property
    def compute_seconds(self) -> float:
        """The step without its input."""
        return self.step_seconds - self.waiting_seconds

    def computing(self) -> tuple[float, float, float] | None:
        """Forward, backward and optimizer as shares of the undisturbed step; None where a phase is not known.

        The phases were timed with a synchronisation after each; scaled to the undisturbed step they keep their shares.
        """
        if not all(name in self.phases for name in _COMPUTE):
            return None
        forward, backward, optimizer = (self.phases[name] for name in _COMPUTE)
        total = forward + backward + optimizer
        scale = self.compute_seconds / total if total > 0 else 1.0
        return forward * scale, backward * scale, optimizer * scale


@dataclass(frozen=True, slots=True, kw_only=True)
class StepGap:
    """The measured DDP step as a sum of parts, in seconds.

    compute: the single-device step without its input.  exposed communication: the step less the slowest rank's step
    without communication.  input: waiting for data.  stragglers: the slowest rank's own step less the ranks' median.
    rest: what the ranks' median own step takes longer than a single device alone (shared memory bandwidth, heat,
    DDP's own work); negative when the ranks were faster.  ``largest`` is the largest part besides compute.
    """

    measured_seconds: float
    parts: dict[Part, float]
    prediction: StepPrediction | None = None

    @property
    def largest(self) -> Part:
        return max((part for part in self.parts if part != "compute"), key=lambda part: self.parts[part])

    @property
    def prediction_error(self) -> float | None:
        """Measured over predicted step, less 1."""
        if self.prediction is None or self.prediction.step_seconds <= 0:
            return None
        return self.measured_seconds / self.prediction.step_seconds - 1.0


def step_times(record: RunRecord) -> StepTimes | None:
    """The medians of a training record; None without steps.  All ranks' samples count alike."""
    steps = [seconds for rank in record.ranks for seconds in rank.step_seconds]
    if record.outcome != "ok" or not isinstance(record.spec.task, Training) or not steps:
        return None
    names = {name for rank in record.ranks for name in rank.phase_seconds}
    phases = {name: [s for rank in record.ranks for s in rank.phase_seconds.get(name, ())] for name in sorted(names)}
    return StepTimes(
        step_seconds=median(steps),
        phases={name: median(values) for name, values in phases.items() if values},
        own_seconds=tuple(median(rank.no_sync_step_seconds) for rank in record.ranks if rank.no_sync_step_seconds),
        parameters=record.ranks[0].parameters,
    )


def explain(single: StepTimes, ddp: StepTimes, curve: Curve | None = None) -> StepGap | None:
    """The parts of the DDP step; None when the ranks' own steps were not measured.

    Both must be of the same workload with the same per-device batch: see ``comparable``.  With the all-reduce
    ``curve`` of the same ranks, the step is predicted too.
    """
    if not ddp.own_seconds:
        return None
    slowest, middle = max(ddp.own_seconds), median(ddp.own_seconds)
    parts: dict[Part, float] = {
        "compute": single.compute_seconds,
        "exposed communication": ddp.step_seconds - slowest,
        "input": ddp.waiting_seconds,
        "stragglers": slowest - middle,
        "rest": middle - ddp.waiting_seconds - single.compute_seconds,
    }
    return StepGap(measured_seconds=ddp.step_seconds, parts=parts, prediction=_predict(single, ddp, curve))


def _predict(single: StepTimes, ddp: StepTimes, curve: Curve | None) -> StepPrediction | None:
    computing = single.computing()
    if curve is None or ddp.parameters is None or computing is None:
        return None
    forward, backward, optimizer = computing
    return predict_ddp_step(
        forward_seconds=forward,
        backward_seconds=backward,
        optimizer_seconds=optimizer,
        buckets=gradient_buckets(ddp.parameters),
        all_reduce_seconds=curve.seconds,
    )


def comparable(single: RunRecord, ddp: RunRecord) -> str | None:
    """Why the two records do not belong together; None when they do."""
    one, many = single.spec, ddp.spec
    if one.strategy != "single" or many.strategy != "ddp":
        return f"needs a single and a ddp record, not {one.strategy} and {many.strategy}"
    if not isinstance(one.task, Training) or not isinstance(many.task, Training):
        return "needs two trainings"
    batches = one.task.per_device_batch(1), many.task.per_device_batch(many.device_count)
    for name, first, second in (
        ("workload", one.task.workload, many.task.workload),
        ("precision", one.task.precision, many.task.precision),
        ("data", one.task.data, many.task.data),
        ("per-device batch", *batches),
        ("machine", single.machine.fingerprint, ddp.machine.fingerprint),
        ("environment", single.environment.fingerprint, ddp.environment.fingerprint),
    ):
        if first != second:
            return f"{name} differs: {first} and {second}"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedGap:
    """The gap of one DDP record: its case as in reports, its devices, and the parts of its step."""

    case: str
    devices: int
    nodes: int
    gap: StepGap


def gaps(records: Sequence[RunRecord]) -> list[NamedGap]:
    """The gap of every DDP training that has a single-device record to stand beside, in the order of ``records``.

    Of several fitting single-device records, and of all-reduce records, the last one started counts.
    """
    found = []
    for ddp in records:
        times = step_times(ddp) if ddp.spec.strategy == "ddp" else None
        singles = [record for record in records if comparable(record, ddp) is None and step_times(record)]
        if times is None or not singles:
            continue
        single = step_times(max(singles, key=lambda record: record.started_at))
        gap = explain(single, times, all_reduce_curve(records, ddp)) if single else None
        if gap is not None:
            spec = ddp.spec
            found.append(NamedGap(case=spec.task.label, devices=spec.device_count, nodes=spec.nodes, gap=gap))
    return found


def all_reduce_curve(records: Sequence[RunRecord], beside: RunRecord) -> Curve | None:
    """The all-reduce over as many devices and nodes on the same machine in the same environment; None without one."""
    fitting = [
        record
        for record in records
        if record.outcome == "ok"
        and isinstance(record.spec.task, Collective)
        and record.spec.task.operation == "all_reduce"
        and record.spec.device_count == beside.spec.device_count
        and record.spec.nodes == beside.spec.nodes
        and record.spec.device_kind == beside.spec.device_kind
        and record.machine.fingerprint == beside.machine.fingerprint
        and record.environment.fingerprint == beside.environment.fingerprint
    ]
    if not fitting:
        return None
    newest = max(fitting, key=lambda record: record.started_at)
    seconds: dict[int, list[float]] = {}
    for rank in newest.ranks:
        for size, times in rank.collective_seconds.items():
            seconds.setdefault(size, []).extend(times)
    means = {size: fmean(times) for size, times in sorted(seconds.items()) if times}
    if len(means) < 2 or not all(mean > 0 for mean in means.values()):
        return None
    return fit_curve(list(means), list(means.values()))


def gap_line(named: NamedGap) -> str:
    """One sentence for a report: how long the step is, of what it consists, and what was predicted."""
    gap = named.gap
    parts = ", ".join(f"{part} {seconds * 1e3:.2f} ms" for part, seconds in gap.parts.items())
    nodes = f" of {named.nodes} nodes" if named.nodes > 1 else ""
    text = f"{named.case} on {named.devices} devices{nodes}: step {gap.measured_seconds * 1e3:.2f} ms = {parts}"
    if gap.prediction is not None and gap.prediction_error is not None:
        predicted = gap.prediction.step_seconds * 1e3
        text += f"; predicted {predicted:.2f} ms, measured {gap.prediction_error:+.0%} of that"
    return f"{text}; the largest part besides compute: {gap.largest}"
