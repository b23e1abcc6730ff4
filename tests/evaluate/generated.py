"""Made-up step times with the structure of real ones: launch effects, correlated steps, spikes, drift, slow launches.

The sizes are those seen on two shared CPU cores and published for GPUs (docs/evaluation.md): spread between launches
1 and 3 % on GPUs; a single CPU process 4 to 15 % in the median of a launch and 2 to 4 % in its lower quartile; two
ranks over gloo 21 to 27 %, with launches that are 0.8 times or 1.3 to 1.7 times as slow as the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

STEPS: Final = 30
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Standard deviations of logs; ``quantile`` is the one fixed beforehand for this kind of machine."""

    name: str
    launch: float
    step: float
    correlation: float = 0.3
    spikes: float = 0.02
    drift: float = 0.002
    odd_launches: float = 0.0
    stolen_launches: float = 0.0
    session: float = 0.0
    shared: float = 0.0
    quantile: float = 0.5


GPU_1: Final = Model(name="GPU-like, 1 %", launch=0.01, step=0.01)
GPU_1_SHARED: Final = Model(name="GPU-like, 1 %, metrics correlated", launch=0.01, step=0.01, shared=0.7)
GPU_3: Final = Model(name="GPU-like, 3 %", launch=0.03, step=0.01)
CPU_SINGLE: Final = Model(
    name="CPU, single process", launch=0.025, step=0.06, spikes=0.05, stolen_launches=0.3, quantile=0.25
)
CPU_DDP: Final = Model(name="CPU, DDP over gloo", launch=0.13, step=0.15, spikes=0.05, odd_launches=0.25, quantile=0.25)


def launches(
    model: Model,
    random: np.random.Generator,
    suites: int,
    metrics: int,
    sides: int,
    count: int,
    change: Floats | float = 0.0,
) -> Floats:
    """Step times in seconds, shape ``(suites, metrics, sides, count, STEPS)``; launches of the sides alternate.

    ``change`` (logs) is added to the last side; shape broadcastable to ``(suites, metrics)``.
    """
    shape = (suites, metrics, sides, count)
    own = random.normal(size=shape)
    common = random.normal(size=(suites, 1, sides, count))
    effect = model.launch * (np.sqrt(model.shared) * common + np.sqrt(1 - model.shared) * own)
    effect += model.session * random.normal(size=(suites, metrics, sides, 1))
    odd = random.random(shape) < model.odd_launches
    effect += odd * np.log(np.where(random.random(shape) < 0.5, 0.8, random.uniform(1.3, 1.7, shape)))
    # The machine warms up over the session, the same for both sides where they alternate.
    effect += model.drift * np.linspace(0, 1, count)
    effect[..., -1, :] += np.broadcast_to(np.asarray(change), (suites, metrics))[..., None]
    steps = effect[..., None] + model.step * _autoregressive(random, (*shape, STEPS), model.correlation)
    spikes = random.random((*shape, STEPS)) < model.spikes
    steps += spikes * np.log1p(random.exponential(0.5, (*shape, STEPS)))
    # A launch that shares its core with a neighbour: some of its steps, up to two in three, take half as long again.
    stolen = (random.random(shape) < model.stolen_launches) * random.uniform(0, 0.65, shape)
    steps += (random.random((*shape, STEPS)) < stolen[..., None]) * np.log(1.5)
    return np.asarray(0.1 * np.exp(steps))


def _autoregressive(random: np.random.Generator, shape: tuple[int, ...], correlation: float) -> Floats:
    noise = random.normal(size=shape)
    for step in range(1, shape[-1]):
        noise[..., step] = correlation * noise[..., step - 1] + np.sqrt(1 - correlation**2) * noise[..., step]
    return noise


def launch_values(model: Model, steps: Floats) -> Floats:
    """Log of one number a launch, the quantile fixed for the model's kind of machine."""
    return np.asarray(np.log(np.quantile(steps, model.quantile, axis=-1)))
