"""A workload that can be slowed by a known part, in the worker, for ``live_comparison``; only workers import it.

The environment variable ``EVALUATE_SLOWED_BY`` is a fraction: before each forward pass the process spins for that part
of what the step before took without its own spinning.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn


class Slowed(nn.Module):
    """Three layers, and the spinning."""

    def __init__(self, part: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
        )
        self.part = part
        self.began: float | None = None
        self.spun = 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        now = time.perf_counter()
        # A pause between passes (warm-up to timing) is no step: no more than a second is taken for one.
        own = 0.0 if self.began is None else min(now - self.began - self.spun, 1.0)
        self.began, self.spun = now, self.part * own
        while time.perf_counter() < now + self.spun:
            pass
        return self.layers(x)


def build() -> tuple[nn.Module, Callable[..., Any], Callable[..., Any]]:
    """The workload: model, loss and batches."""

    def batch(samples: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(samples, 256, device=device), torch.randint(10, (samples,), device=device)

    return Slowed(float(os.environ.get("EVALUATE_SLOWED_BY", "0"))), nn.functional.cross_entropy, batch
