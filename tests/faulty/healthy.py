"""A trainer with no fault: every command of the doctor must stay silent about it."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

EPOCHS = 2


def make_loader() -> DataLoader:
    data = TensorDataset(torch.arange(64, dtype=torch.float32).reshape(64, 1))
    return DataLoader(data, batch_size=4, sampler=DistributedSampler(data, shuffle=True))


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=int(os.environ.get("PG_TIMEOUT", "1800"))))
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    loader = make_loader()
    for epoch in range(EPOCHS):
        loader.sampler.set_epoch(epoch)
        for step, (x,) in enumerate(loader):
            loss = model(x / 64).square().mean()
            model.zero_grad()
            loss.backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.1 * parameter.grad
            if dist.get_rank() == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)
    total = torch.ones(1)
    dist.all_reduce(total)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
