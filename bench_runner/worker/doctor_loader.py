"""One rank of ``doctor loader``: runs the user's loader without the training and records what it gave.

Which samples: for a data set with indices, those the sampler drew (through Subsets to the data set below) and beside
them a digest of each sample's content; else the digest alone.
"""

from __future__ import annotations

import hashlib
import os
import time
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset, Subset

from bench_runner.errors import UsageError
from bench_runner.worker.doctor_program import call_factory, calls_method, load_factory, program_files
from bench_runner.worker.doctor_ranks import start_group

MOST_IDS: Final = 4_000_000
"""Ids kept for each rank and epoch (8 bytes each); of a larger data set only the numbers are told."""


class RecordingSampler:
    """Stands in a loader's place of a sampler and notes what it draws."""

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler
        self.drawn: list[list[int] | int] = []

    def __iter__(self) -> Iterator[Any]:
        self.drawn = []
        for item in self._sampler:
            self.drawn.append(list(item) if isinstance(item, list | tuple) else item)
            yield item

    def __len__(self) -> int:
        return len(self._sampler)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_sampler"], name)


def run(rank: int, world: dict[str, Any], directory: Path, say: Any) -> None:
    """Build the loader as this rank would, run its epochs, and say for each what came."""
    options = world["options"]
    start_group(rank, world, directory)
    factory = load_factory(options["factory"])
    loader = call_factory(factory, rank, world["world_size"])
    if not isinstance(loader, Iterable):
        raise UsageError(
            f"{options['factory']}: must return a DataLoader or another iterable of batches, not {loader!r}"
        )
    set_epoch_at = calls_method(program_files(factory), "set_epoch")
    recorder = _record_indices(loader)
    say("loader", **describe(loader, set_epoch_at))
    for epoch in range(options["epochs"] if iter(loader) is not loader else 1):
        if set_epoch_at is not None:
            _set_epoch(loader, epoch)
        _epoch(loader, recorder, epoch, options, say, directory / f"epoch-{rank}-{epoch}")
    dist.destroy_process_group()


def _set_epoch(loader: Any, epoch: int) -> None:
    """As the program's own loop does, on whatever has the method."""
    for name in ("sampler", "batch_sampler", "dataset"):
        set_epoch = getattr(getattr(loader, name, None), "set_epoch", None)
        if callable(set_epoch):
            set_epoch(epoch)


def _record_indices(loader: Any) -> RecordingSampler | None:
    """Put a recorder where the loader draws its indices from; None where there are none."""
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return None
    name = "batch_sampler" if loader.batch_sampler is not None else "sampler"
    recorder = RecordingSampler(getattr(loader, name))
    object.__setattr__(loader, name, recorder)  # DataLoader refuses a plain assignment after its construction
    return recorder


def describe(loader: Any, set_epoch_at: str | None) -> dict[str, Any]:
    """What is known of the loader before it runs, as plain values; None where it has no such thing."""
    dataset = getattr(loader, "dataset", None)
    iterable = isinstance(dataset, IterableDataset)
    sampler = None if iterable else getattr(loader, "sampler", None)
    shuffles = getattr(sampler, "shuffle", None)
    if sampler is not None and shuffles is None:
        shuffles = {"RandomSampler": True, "SequentialSampler": False}.get(type(sampler).__name__)
    return {
        "type": type(loader).__name__,
        "style": "other" if not isinstance(loader, DataLoader) else "iterable" if iterable else "map",
        "dataset": type(dataset).__name__ if dataset is not None else None,
        "subset": isinstance(dataset, Subset),
        "dataset_length": _length(dataset) if dataset is not None else None,
        "batches_promised": _length(loader),
        "batch_size": getattr(loader, "batch_size", None),
        "drop_last": getattr(loader, "drop_last", None),
        "num_workers": getattr(loader, "num_workers", 0),
        "sampler": type(sampler).__name__ if sampler is not None else None,
        "shuffles": shuffles,
        "has_set_epoch": hasattr(sampler, "set_epoch") or hasattr(dataset, "set_epoch"),
        "set_epoch_at": set_epoch_at,
        "cores": len(os.sched_getaffinity(0)),
    }


def _length(thing: Any) -> int | None:
    try:
        return len(thing)
    except (TypeError, NotImplementedError):
        return None  # an iterable need not know


@dataclass(slots=True)
class Pass:
    """What one epoch gave, sample by sample."""

    sizes: list[int] = field(default_factory=list)
    digests: array[int] = field(default_factory=lambda: array("q"))
    first_digests: list[int] = field(default_factory=list)


def _epoch(
    loader: Any, recorder: RecordingSampler | None, epoch: int, options: dict[str, Any], say: Any, stem: Path
) -> None:
    began = time.monotonic()
    seen = _iterate(loader, epoch, options["max_batches"], say)
    ids, first = seen.digests, seen.first_digests
    if recorder is not None:
        drawn = [_indices(item) for item in recorder.drawn[: len(seen.sizes)]]
        first = _below_subsets(loader.dataset, drawn[0]) if drawn else []
        ids = array("q", _below_subsets(loader.dataset, list(chain.from_iterable(drawn))[:MOST_IDS]))
    stem.with_suffix(".ids").write_bytes(ids.tobytes())
    stem.with_suffix(".digests").write_bytes(seen.digests.tobytes())
    samples = sum(seen.sizes)
    say(
        "epoch",
        epoch=epoch,
        batches=len(seen.sizes),
        samples=samples,
        first_size=seen.sizes[0] if seen.sizes else 0,
        last_size=seen.sizes[-1] if seen.sizes else 0,
        first_ids=first[:64],
        ids_complete=len(ids) == samples,
        seconds=time.monotonic() - began,
    )


def _iterate(loader: Any, epoch: int, max_batches: int, say: Any) -> Pass:
    seen = Pass()
    said = time.monotonic()
    for number, batch in enumerate(loader):
        if max_batches and number >= max_batches:
            break
        seen.sizes.append(batch_size(batch))
        if len(seen.digests) < MOST_IDS:
            seen.digests.extend(content_ids(batch))
        if number == 0:
            seen.first_digests = list(seen.digests)
        if number == 0 or time.monotonic() - said > 1:
            said = time.monotonic()
            say("progress", epoch=epoch, batches=len(seen.sizes))
    return seen


def _below_subsets(dataset: Any, indices: list[int]) -> list[int]:
    """Indices into the data set below any number of Subsets."""
    while isinstance(dataset, Subset):
        indices = [int(dataset.indices[index]) for index in indices]
        dataset = dataset.dataset
    return indices


def _indices(item: list[int] | int) -> list[int]:
    return [int(index) for index in item] if isinstance(item, list) else [int(item)]


def batch_size(batch: Any) -> int:
    """Samples in a batch: the first dimension of the first tensor in it, or the length of the first list; else 1."""
    for leaf in _leaves(batch):
        if isinstance(leaf, torch.Tensor):
            return int(leaf.shape[0]) if leaf.dim() else 1
    return len(batch) if isinstance(batch, list | tuple) else 1


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for item in value.values():
            yield from _leaves(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def content_ids(batch: Any) -> list[int]:
    """A 63-bit digest of each sample in the batch, over all its tensors; of other values over their text."""
    size = batch_size(batch)
    leaves = list(_leaves(batch))
    digests = [hashlib.blake2b(digest_size=8) for _ in range(size)]
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor) and leaf.dim() and leaf.shape[0] == size:
            rows = leaf.detach().cpu().contiguous()
            for digest, row in zip(digests, rows, strict=True):
                digest.update(row.contiguous().flatten().view(torch.uint8).numpy().tobytes())
        elif not isinstance(leaf, torch.Tensor):
            for digest in digests[:1] if len(leaves) == size else digests:
                digest.update(repr(leaf).encode())
    return [int.from_bytes(digest.digest(), "little") >> 1 for digest in digests]
