"""The models that are trained, each with its loss and its way to make a batch."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn
from torch.nn import functional

from bench_runner.errors import UsageError
from bench_runner.worker.factories import find_callable

MakeBatch = Callable[[int, torch.device], tuple[Any, Any]]


class WorkloadUnavailable(Exception):
    """This workload cannot be built in this environment, for a reason that is not an error of the user's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """``loss(model(inputs), target)`` gives a scalar; ``batch(samples, device)`` gives ``(inputs, target)``, tensors
    whose first dimension is the number of samples."""

    model: nn.Module
    loss: Callable[[Any, Any], torch.Tensor]
    batch: MakeBatch


class TransformerBlock(nn.Module):
    """A GPT-2 block: pre-norm causal self-attention and an MLP of four times the width, residual around both.

    Input and output: (samples, positions, width).
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        samples, positions, width = x.shape
        qkv = self.qkv(self.attention_norm(x)).view(samples, positions, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection(attended.transpose(1, 2).reshape(samples, positions, width))
        return x + self.mlp(self.mlp_norm(x))


class Transformer(nn.Module):
    """A decoder-only language model.  Input (samples, positions) of token numbers, output (samples, positions,
    vocabulary) of logits; the output weights are those of the token embedding, as in GPT-2."""

    def __init__(self, *, layers: int, width: int, heads: int, vocabulary: int, positions: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.zeros(positions, width))
        self.blocks = nn.ModuleList(TransformerBlock(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return functional.linear(self.norm(x), self.tokens.weight)


TRANSFORMERS: Final[dict[str, dict[str, int]]] = {
    "tiny": {"layers": 2, "width": 128, "heads": 4, "vocabulary": 512, "positions": 64},
    "small": {"layers": 6, "width": 384, "heads": 6, "vocabulary": 8192, "positions": 256},
    "124m": {"layers": 12, "width": 768, "heads": 12, "vocabulary": 50257, "positions": 1024},
}
"""Presets; ``124m`` has the shape of GPT-2 small (Radford et al., 2019)."""


def _transformer(preset: str) -> Workload:
    shape = TRANSFORMERS[preset]
    model = Transformer(**shape)

    def loss(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(logits.flatten(0, 1).float(), target.flatten())

    def batch(samples: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = torch.randint(shape["vocabulary"], (samples, shape["positions"] + 1), device=device)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    return Workload(model=model, loss=loss, batch=batch)


def _mlp() -> Workload:
    # Small products and 2.1 million parameters: what is seen is launches and communication, not arithmetic.
    model = nn.Sequential(
        nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 768), nn.ReLU()
    )
    model.append(nn.Linear(768, 10))

    def batch(samples: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(samples, 256, device=device), torch.randint(10, (samples,), device=device)

    return Workload(model=model, loss=_cross_entropy, batch=batch)


def _resnet50() -> Workload:
    try:
        from torchvision.models import resnet50
    except (ImportError, RuntimeError, OSError) as error:
        # An installed torchvision that does not fit torch fails with RuntimeError ("operator … does not exist").
        first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise WorkloadUnavailable(f"resnet50 needs torchvision, which does not import: {first_line}") from error

    def batch(samples: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(samples, 3, 224, 224, device=device), torch.randint(1000, (samples,), device=device)

    return Workload(model=resnet50(), loss=_cross_entropy, batch=batch)


def _cross_entropy(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(output.float(), target)


def _from_factory(name: str) -> Workload:
    """A user's own workload: ``module:factory``, called without arguments, returns ``(model, loss, batch)``."""
    module_name, _, attribute = name.partition(":")
    # As ``python -m`` does: the folder the user stands in comes first.
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    factory = find_callable(f"workload {name}", module_name, attribute)
    made = factory()
    if not (isinstance(made, tuple) and len(made) == 3):
        raise UsageError(f"workload {name}: the factory must return (model, loss, batch), not {type(made).__name__}")
    model, loss, batch = made
    if not isinstance(model, nn.Module) or not callable(loss) or not callable(batch):
        kinds = ", ".join(type(part).__name__ for part in made)
        raise UsageError(f"workload {name}: (model, loss, batch) must be a Module and two functions, not ({kinds})")
    return Workload(model=model, loss=loss, batch=batch)


def build(name: str) -> Workload:
    """The workload of that name.  Raises WorkloadUnavailable, or UsageError about a user's factory."""
    if ":" in name:
        return _from_factory(name)
    if name == "mlp":
        return _mlp()
    if name == "resnet50":
        return _resnet50()
    return _transformer(name.removeprefix("transformer-"))
