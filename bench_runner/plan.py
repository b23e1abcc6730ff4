"""From a profile and a machine to specs, or to the reason why there is none.  Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from bench_runner.capacity import Capacity
from bench_runner.errors import SpecError
from bench_runner.profile import DEVICE_COUNTS, CheckpointCase, CollectiveCase, Profile, TrainingCase
from bench_runner.spec import RunSpec, Strategy, Task

_PLACEMENT: Final = re.compile(r"[1-9]\d{0,4}x[1-9]\d{0,4}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """``devices`` in all, on ``nodes`` nodes alike."""

    devices: int
    nodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """One case under one strategy and device count.  ``skip`` says why it is not measured; ``spec`` stands anyway."""

    label: str
    spec: RunSpec
    skip: str | None = None


def resolve_count(count: int | str, capacity: Capacity) -> int | str:
    """A device count as it is run: a number (``all`` is what there is), or a placement over nodes such as 2x4."""
    if isinstance(count, str) and _PLACEMENT.fullmatch(count):
        return count
    return capacity.count if count == "all" else int(count)


def placed(count: int | str) -> tuple[int, int]:
    """(nodes, devices on each of them): a number is one node's, 2x4 are two nodes with four devices each."""
    nodes, cross, each = str(count).partition("x")
    return (int(nodes), int(each)) if cross else (1, int(count))


def placements(nodes: int, capacity: Capacity, asked: tuple[int | str, ...] | None) -> tuple[str, ...]:
    """What is measured over several nodes: on 2, 4, … and all nodes, each count that was asked for on every node.

    With nothing asked for, all devices of every node, and as many in all as one node can have at most: those stand
    beside the same number within a node, and differ in nothing but the network.
    """
    found: list[str] = []
    powers = [1 << exponent for exponent in range(1, nodes.bit_length()) if 1 << exponent < nodes]
    for count in [*powers, nodes]:
        if asked is not None:
            each = counts_to_run(asked, capacity)
        else:
            each = tuple(sorted({capacity.count // count, capacity.count} - {0}))
        found += [f"{count}x{devices}" for devices in each]
    return tuple(found)


def counts_to_run(asked: tuple[int | str, ...] | None, capacity: Capacity) -> tuple[int, ...]:
    """The device counts of a run, rising: those asked for, or 1, 2, 4, … and all there are."""
    if asked is not None:
        return tuple(sorted({capacity.count if count == "all" else int(count) for count in asked}))
    usual = {count for count in DEVICE_COUNTS if isinstance(count, int) and count <= capacity.count}
    return tuple(sorted(usual | {capacity.count}))


def skip_reason(
    strategy: Strategy, count: int, capacity: Capacity, asked: tuple[int | str, ...] | None, nodes: int = 1
) -> str | None:
    """Why nothing can be measured under this strategy on ``count`` devices of each node, or None.

    On a CPU more ranks than cores are possible, and marked oversubscribed, but only when asked for by number.
    """
    if nodes > 1 and strategy != "ddp":
        return "only DDP spans several nodes"
    if strategy == "single" and count != 1:
        return "single-device training uses one device"
    if strategy == "data_parallel" and capacity.kind == "cpu":
        return "DataParallel needs a CUDA device"
    if count > capacity.count and not (capacity.kind == "cpu" and asked is not None and count in asked):
        noun = "cores to use" if capacity.kind == "cpu" else f"{capacity.kind} devices"
        return f"needs {count} devices; this machine has {capacity.count} {noun}"
    return None


def plan(
    profile: Profile,
    strategy: Strategy,
    count: int | str,
    capacity: Capacity,
    asked: tuple[int | str, ...] | None = None,
) -> tuple[Planned, ...]:
    """Every case of the profile under ``strategy`` on ``count`` devices (or a placement, see ``placed``), trainings
    first.

    A collective belongs to ddp alone, a checkpoint to single and ddp on one node; otherwise they are no case at all.
    """
    nodes, each = placed(count)
    whole = skip_reason(strategy, each, capacity, asked, nodes)
    # Several nodes under another strategy make no spec: one that says so on as many devices of one node does.
    place = _Place(devices=nodes * each, nodes=nodes if strategy == "ddp" else 1)
    planned = [_training(case, profile, strategy, place, capacity, whole) for case in profile.training]
    if strategy == "ddp":
        planned += [_collective(case, profile, place, capacity, whole) for case in profile.collectives]
    if strategy in ("single", "ddp") and place.nodes == 1:
        planned += [_checkpoint(case, profile, strategy, place, capacity, whole) for case in profile.checkpoints]
    return tuple(planned)


def _checkpoint(
    case: CheckpointCase, profile: Profile, strategy: Strategy, place: _Place, capacity: Capacity, whole: str | None
) -> Planned:
    place = _Place(devices=1, nodes=1) if strategy == "single" else place
    skip = whole or _kind_reason(case, capacity)
    spec = _spec(case.checkpoint, profile, strategy, place, capacity, case.deadline_seconds)
    return Planned(label=case.label, spec=spec, skip=skip)


def _training(
    case: TrainingCase, profile: Profile, strategy: Strategy, place: _Place, capacity: Capacity, whole: str | None
) -> Planned:
    place = _Place(devices=1, nodes=1) if strategy == "single" else place
    training = case.training
    skip = whole or _kind_reason(case, capacity)
    if skip is None and training.precision == "fp16" and capacity.kind == "cpu":
        skip = "fp16 training needs an accelerator"
    try:
        spec = _spec(training, profile, strategy, place, capacity, case.deadline_seconds)
    except SpecError as error:
        # A global batch that so many devices cannot share: the case stands in the results with that reason.
        spec = _spec(replace(training, scaling="weak"), profile, strategy, place, capacity, case.deadline_seconds)
        skip = skip or f"{error.field} {error.value}: {error.requirement}"
    return Planned(label=case.label, spec=spec, skip=skip)


def _collective(
    case: CollectiveCase, profile: Profile, place: _Place, capacity: Capacity, whole: str | None
) -> Planned:
    sizes = case.cpu_message_bytes if capacity.kind == "cpu" else case.collective.message_bytes
    skip = whole or _kind_reason(case, capacity)
    if skip is None and place.devices < 2:
        skip = "a collective needs at least two ranks"
    task = replace(case.collective, message_bytes=sizes)
    return Planned(
        label=case.label, spec=_spec(task, profile, "ddp", place, capacity, case.deadline_seconds), skip=skip
    )


def _spec(
    task: Task,
    profile: Profile,
    strategy: Strategy,
    place: _Place,
    capacity: Capacity,
    deadline_seconds: float,
) -> RunSpec:
    return RunSpec(
        strategy=strategy,
        device_kind=capacity.kind,
        device_count=place.devices,
        nodes=place.nodes,
        task=task,
        seed=profile.seed,
        deadline_seconds=deadline_seconds,
    )


def _kind_reason(case: TrainingCase | CollectiveCase | CheckpointCase, capacity: Capacity) -> str | None:
    if case.device_kinds and capacity.kind not in case.device_kinds:
        return f"the profile measures it on {' and '.join(case.device_kinds)} only"
    return None
