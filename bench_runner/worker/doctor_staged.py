"""One rank of ``doctor staged``: the gradients of one and the same global batch, however many processes share it.

The model is in eval mode: dropout and batch statistics, which depend on the division of the batch, take no part.
With equal shards and a loss that averages over samples, the average of the ranks' gradients is the gradient of the
whole batch: that is what DDP promises and what is compared here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from bench_runner.worker.devices import select
from bench_runner.worker.doctor_ranks import start_group
from bench_runner.worker.doctor_startup import BACKENDS
from bench_runner.worker.workloads import Workload, build

_SEED: Final = 1234


class _Places(Dataset[int]):
    """The numbers 0 … n − 1, for a sampler to choose from."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> int:
        return index


def run(rank: int, world: dict[str, Any], directory: Path, say: Any) -> None:
    """Compute the gradients of this stage; rank 0 says how they compare with the reference file."""
    options = world["options"]
    size = world["world_size"]
    device = select(options["device_kind"], 0 if options["device_kind"] == "cpu" else rank, 1)
    torch.manual_seed(_SEED)
    workload = build(options["workload"])
    model = workload.model.to(device.torch).eval()
    torch.manual_seed(_SEED)
    inputs, target = workload.batch(options["global_batch"], device.torch)
    if options["stage"] == "single":
        say("gradients", **_compute(workload, model, inputs, target, None, options))
        return
    places = _places(options["global_batch"], size, rank).to(device.torch)
    mine, wanted = part(inputs, places), part(target, places)
    if options["stage"] == "sampler":
        say("gradients", **_compute(workload, model, mine, wanted, None, options))
        return
    start_group(rank, world, directory, BACKENDS.get(options["device_kind"], "gloo"))
    ids = None if device.is_cpu else [device.index]
    ddp = DistributedDataParallel(model, device_ids=ids)
    say("gradients", **_compute(workload, model, mine, wanted, ddp, options))
    dist.destroy_process_group()


def _places(global_batch: int, world_size: int, rank: int) -> torch.Tensor:
    """Which samples of the global batch are this rank's, by the sampler that a training would use."""
    data = _Places(global_batch)
    sampler: DistributedSampler[int] = DistributedSampler(data, num_replicas=world_size, rank=rank, shuffle=False)
    return torch.cat([torch.as_tensor(batch) for batch in DataLoader(data, batch_size=global_batch, sampler=sampler)])


def part(value: Any, places: torch.Tensor) -> Any:
    """The samples at ``places`` of a batch: a tensor, or tuples, lists and dictionaries of them."""
    if isinstance(value, torch.Tensor):
        return value[places]
    if isinstance(value, dict):
        return {key: part(item, places) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(part(item, places) for item in value)
    return value


def _compute(
    workload: Workload, model: torch.nn.Module, inputs: Any, target: Any, ddp: Any, options: dict[str, Any]
) -> dict[str, Any]:
    """One backward pass, two under DDP: it finds unused parameters only when the next one begins."""
    loss = torch.zeros(())
    for _ in range(1 if ddp is None else 2):
        model.zero_grad()
        loss = workload.loss((model if ddp is None else ddp)(inputs), target)
        loss.backward()
    gradients = {name: p.grad.detach().cpu() for name, p in model.named_parameters() if p.grad is not None}
    path = Path(options["reference"])
    said: dict[str, Any] = {"loss": float(loss.detach()), "parameters": len(list(model.parameters()))}
    if options["stage"] == "single":
        torch.save(gradients, path)
        reference = gradients
    else:
        reference = torch.load(path, weights_only=True)
    return {**said, **compare(gradients, reference)}


def compare(gradients: dict[str, torch.Tensor], reference: dict[str, torch.Tensor]) -> dict[str, Any]:
    """The largest relative difference over all parameters, ‖g − r‖∞ / ‖r‖∞, where it is, and ‖g‖ / ‖r‖ over all."""
    worst, where = 0.0, ""
    not_finite = [name for name, gradient in gradients.items() if not bool(torch.isfinite(gradient).all())]
    for name, expected in reference.items():
        found = gradients.get(name)
        if found is None or name in not_finite:
            continue
        scale = float(expected.abs().max())
        difference = float((found - expected).abs().max()) / scale if scale > 0 else float(found.abs().max())
        if difference > worst:
            worst, where = difference, name
    finite = [name for name in reference if name in gradients and name not in not_finite]
    length = sum(float(reference[name].double().square().sum()) for name in finite) ** 0.5
    own = sum(float(gradients[name].double().square().sum()) for name in finite) ** 0.5
    return {
        "worst": worst,
        "where": where,
        "ratio": own / length if length > 0 else None,
        "not_finite": not_finite[:20],
        "missing": sorted(set(reference) - set(gradients))[:20],
    }
