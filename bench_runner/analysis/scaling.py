"""What the models of analysis/model.py say about stored runs: fitted collectives and predicted DDP throughput."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan

from bench_runner.analysis.model import Curve, fit_curve, gradient_buckets, predict_ddp_step
from bench_runner.analysis.summary import Case, Group


def fitted(points: Mapping[int, Sequence[tuple[int, float]]]) -> dict[int, Curve]:
    """ranks → the curve fitted to (message bytes, seconds); nothing where there are too few sizes for a fit."""
    return {
        ranks: fit_curve([size for size, _ in found], [seconds for _, seconds in found])
        for ranks, found in sorted(points.items())
        if len({size for size, _ in found}) >= 3 and all(seconds > 0 for _, seconds in found)
    }


def predicted_throughput(case: Case, groups: Sequence[Group], curves: Mapping[int, Curve]) -> dict[int, float]:
    """devices → samples/s of DDP, from the phases of one plain device and the all-reduce at that many ranks.

    Empty under strong scaling, where one device's phases are those of another per-device batch.
    """
    if case.scaling != "weak":
        return {}
    alone = next((group for group in groups if group.setting.strategy == "single"), None)
    if alone is None:
        return {}
    parameters = alone.records[0].ranks[0].parameters
    parts = [alone.median(f"phase_{phase}") for phase in ("data", "forward", "backward", "optimizer")]
    if parameters is None or any(isnan(part) for part in parts):
        return {}
    data, forward, backward, optimizer = parts
    buckets = gradient_buckets(parameters)
    rates: dict[int, float] = {}
    for group in groups:
        devices = group.setting.devices
        if group.setting.strategy == "ddp" and group.setting.nodes == 1 and devices in curves:
            step = predict_ddp_step(
                forward_seconds=data + forward,
                backward_seconds=backward,
                optimizer_seconds=optimizer,
                buckets=buckets,
                all_reduce_seconds=curves[devices].seconds,
            )
            rates[devices] = case.batch * devices / step.step_seconds
    return rates
