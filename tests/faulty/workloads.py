"""Workloads as ``bench-runner`` takes them, ``(model, loss, batch)``: one right, the others wrong on several ranks."""

import os

import torch


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Linear(8, 16)
        self.drop = torch.nn.Dropout(0.5)
        self.head = torch.nn.Linear(16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.drop(torch.tanh(self.body(x))))


def batch(samples: int, device: torch.device):
    x = torch.randn(samples, 8, device=device)
    return x, x.sum(dim=1, keepdim=True)


def mean_loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output - target).square().mean()


def right():
    return Net(), mean_loss, batch


def summed():
    return Net(), lambda output, target: (output - target).square().sum(), batch


def nan_on(rank: int):
    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        wrong = os.environ.get("RANK") == str(rank)
        return mean_loss(output, target) * (float("nan") if wrong else 1.0)

    return Net(), loss, batch


def nan_on_rank_1():
    return nan_on(1)


def nan_on_rank_3():
    return nan_on(3)


class TwoHeads(Net):
    def __init__(self) -> None:
        super().__init__()
        self.auxiliary = torch.nn.Linear(16, 1)


def unused():
    return TwoHeads(), mean_loss, batch
