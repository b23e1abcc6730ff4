"""DDP past the devices that were measured: from the single-device step and the fitted all-reduce.  Pure.

The measured all-reduce over n₀ devices, T(S) = α + β·S in each regime, is taken for a ring's and turned into one link's
α and β (Thakur et al. 2005: 2(n−1) steps of S/n).  Over n devices a message then takes what the cheaper of a ring and
a double binary tree takes over such links.  The buckets and their overlap with the backward pass are those of
``model.predict_ddp_step``.  What the measured step took beyond its own prediction, at the largest measured count, is
taken to stay the same share.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from bench_runner.analysis.metrics import median
from bench_runner.analysis.model import (
    Curve,
    gradient_buckets,
    link_of_ring,
    predict_ddp_step,
    ring_seconds,
    tree_seconds,
)
from bench_runner.analysis.step_gap import StepTimes, all_reduce_curve, comparable, step_times
from bench_runner.record import RunRecord
from bench_runner.spec import Training

FAR: Final = 16
"""From so many times the measured devices on, a prediction is said to be a guess."""
_Z95: Final = 1.96


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """A training on ``devices`` devices.  Steps in seconds, throughput in samples per second over all devices.

    ``low_seconds`` and ``high_seconds`` hold the cheaper and the dearer of ring and tree, each widened by what the
    launches differ by (95 %).  ``measured_seconds``: where that count was measured; it was left out of the fit if
    another count was measured (``held_out``).
    """

    devices: int
    step_seconds: float
    low_seconds: float
    high_seconds: float
    throughput: float
    efficiency: float
    communication_seconds: float
    exposed_seconds: float
    measured_seconds: float | None = None
    held_out: bool = False

    @property
    def error(self) -> float | None:
        """Predicted over measured, less 1."""
        return None if self.measured_seconds is None else self.step_seconds / self.measured_seconds - 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CasePrediction:
    """One training on one machine.  ``measured_devices``: the counts whose DDP step and all-reduce are known."""

    machine: str
    case: str
    per_device_batch: int
    measured_devices: tuple[int, ...]
    slowdown: float
    rows: tuple[Predicted, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Basis:
    """What one DDP record and the all-reduce over its devices give."""

    devices: int
    step_seconds: float
    curve: Curve


@dataclass(frozen=True, slots=True, kw_only=True)
class _Model:
    """A single device's step and one measured all-reduce, ready for any number of devices."""

    phases: tuple[float, float, float]
    waiting_seconds: float
    buckets: tuple[int, ...]
    basis: _Basis
    spread: float

    def message_seconds(self, devices: int, size: float) -> tuple[float, float]:
        """(cheaper, dearer) of ring and tree for one message."""
        regime = self.basis.curve.regime(size)
        if devices == self.basis.devices:
            return regime.seconds(size), regime.seconds(size)
        alpha, beta = link_of_ring(regime, self.basis.devices)
        ways = ring_seconds(devices, size, alpha, beta), tree_seconds(devices, size, alpha, beta)
        return min(ways), max(ways)

    def step(self, devices: int, *, dearer: bool = False) -> tuple[float, float, float]:
        """(step, communication, exposed) in seconds, before the slow-down that was measured."""
        forward, backward, optimizer = self.phases
        found = predict_ddp_step(
            forward_seconds=forward,
            backward_seconds=backward,
            optimizer_seconds=optimizer,
            buckets=self.buckets if devices > 1 else (),
            all_reduce_seconds=lambda size: self.message_seconds(devices, size)[dearer],
        )
        return found.step_seconds + self.waiting_seconds, found.communication_seconds, found.exposed_seconds

    @property
    def slowdown(self) -> float:
        """Measured over predicted step where both are known."""
        return self.basis.step_seconds / self.step(self.basis.devices)[0]


def predictions(records: Sequence[RunRecord], devices: Sequence[int]) -> list[CasePrediction]:
    """Every training that has a single-device record, a DDP record and an all-reduce over as many devices.

    Weak scaling: the batch of each device stays.  Only what ran within one node is a basis.
    """
    ordered = sorted(records, key=lambda one: (one.started_at, one.record_id))
    together: dict[tuple[str, str], list[RunRecord]] = defaultdict(list)
    for record in ordered:
        together[_place(record)].append(record)
    found = []
    for single in _newest_singles(ordered):
        beside = together[_place(single)]
        times, bases = step_times(single), _bases(beside, single)
        if bases and times is not None and times.parameters is not None and times.computing() is not None:
            found.append(_case(single, times, bases, devices, _spread(beside, single)))
    return found


def _place(record: RunRecord) -> tuple[str, str]:
    """Only what ran on one machine in one environment belongs together."""
    return record.machine.fingerprint, record.environment.fingerprint


def _newest_singles(ordered: Sequence[RunRecord]) -> list[RunRecord]:
    newest: dict[tuple[str, str, str], RunRecord] = {}
    for record in ordered:
        if record.spec.strategy == "single" and isinstance(record.spec.task, Training) and step_times(record):
            newest[record.machine.name, record.environment.fingerprint, record.spec.task.label] = record
    return list(newest.values())


def _bases(ordered: Sequence[RunRecord], single: RunRecord) -> dict[int, _Basis]:
    """By device count, the newest DDP record that belongs to the single one, where its all-reduce was measured."""
    newest: dict[int, tuple[RunRecord, StepTimes]] = {}
    for ddp in ordered:
        if ddp.spec.nodes > 1 or ddp.spec.device_count < 2 or comparable(single, ddp) is not None:
            continue
        times = step_times(ddp)
        if times is not None:
            newest[ddp.spec.device_count] = ddp, times
    curves = {count: all_reduce_curve(ordered, ddp) for count, (ddp, _) in newest.items()}
    return {
        count: _Basis(devices=count, step_seconds=newest[count][1].step_seconds, curve=curve)
        for count, curve in curves.items()
        if curve is not None
    }


def _spread(records: Sequence[RunRecord], single: RunRecord) -> float:
    """The standard deviation of the logarithms of the single-device step over launches; 0 with one launch."""
    logs = [
        math.log(times.step_seconds)
        for record in records
        if record.machine.name == single.machine.name
        and record.spec.strategy == "single"
        and record.spec.task.label == single.spec.task.label
        and (times := step_times(record)) is not None
    ]
    return float(np.std(logs, ddof=1)) if len(logs) > 1 else 0.0


def _model(times: StepTimes, basis: _Basis, spread: float) -> _Model:
    computing = times.computing()
    assert computing is not None, "a case without its phases is none"
    return _Model(
        phases=computing,
        waiting_seconds=times.waiting_seconds,
        buckets=gradient_buckets(times.parameters or 0),
        basis=basis,
        spread=spread,
    )


def _case(
    single: RunRecord, times: StepTimes, bases: dict[int, _Basis], devices: Sequence[int], spread: float
) -> CasePrediction:
    task = single.spec.task
    assert isinstance(task, Training)
    batch, largest = task.per_device_batch(1), max(bases)
    rows = []
    for count in sorted({*devices, *bases}):
        others = [other for other in bases if other != count]
        held_out = count in bases and bool(others)
        basis = bases[max(others)] if held_out else bases[largest]
        rows.append(_row(_model(times, basis, spread), count, batch, times, bases.get(count), held_out=held_out))
    model = _model(times, bases[largest], spread)
    return CasePrediction(
        machine=single.machine.name,
        case=task.label,
        per_device_batch=batch,
        measured_devices=tuple(sorted(bases)),
        slowdown=model.slowdown,
        rows=tuple(rows),
        warnings=_warnings(single, bases, devices, spread),
    )


def _row(
    model: _Model, count: int, batch: int, single: StepTimes, measured: _Basis | None, *, held_out: bool
) -> Predicted:
    slowdown = model.slowdown if count > 1 else 1.0
    step, communication, exposed = model.step(count)
    dearer, *_ = model.step(count, dearer=True)
    width = math.exp(_Z95 * model.spread)
    return Predicted(
        devices=count,
        step_seconds=step * slowdown,
        low_seconds=step * slowdown / width,
        high_seconds=dearer * slowdown * width,
        throughput=count * batch / (step * slowdown),
        efficiency=single.step_seconds / (step * slowdown),
        communication_seconds=communication,
        exposed_seconds=exposed,
        measured_seconds=measured.step_seconds if measured else None,
        held_out=held_out,
    )


def _warnings(single: RunRecord, bases: dict[int, _Basis], devices: Sequence[int], spread: float) -> tuple[str, ...]:
    largest, farthest = max(bases), max(devices, default=0)
    said = []
    if farthest > FAR * largest:
        said.append(f"{farthest} devices are {farthest / largest:.0f} times what was measured: a guess, not a forecast")
    if farthest > max(single.machine.cores_allowed if single.spec.device_kind == "cpu" else 0, largest):
        said.append(
            "links within one node were measured; over nodes the network's are slower: run --nodes measures them"
        )
    if len(bases) == 1:
        said.append(f"one device count was measured ({largest}): how good this is cannot be told; measure another")
    if spread == 0.0:
        said.append("one launch: the interval holds the algorithms' difference only; run --launches 5 gives the rest")
    fitted = bases[largest].curve.regimes
    if fitted[0].low_bytes > 1 << 20:
        said.append("the all-reduce was measured from 1 MiB on only")
    return tuple(said)


def median_error(cases: Sequence[CasePrediction]) -> float | None:
    """The median of |predicted over measured − 1| where a measured count was left out of the fit; None without one."""
    errors = [abs(row.error) for case in cases for row in case.rows if row.held_out and row.error is not None]
    return median(errors) if errors else None
