"""Fault: a checkpoint saved from device 0 is loaded without map_location, by every rank."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=int(os.environ.get("PG_TIMEOUT", "1800"))))
    model = torch.nn.Linear(8, 1)
    state = torch.load(os.environ["CHECKPOINT"], weights_only=True)
    model.load_state_dict(state)
    model = DistributedDataParallel(model)
    for _ in range(5):
        model(torch.randn(4, 8)).square().mean().backward()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
