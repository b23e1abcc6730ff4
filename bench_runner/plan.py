"""From a profile and a machine to specs, or to the reason why there is none.  Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from bench_runner.capacity import Capacity
from bench_runner.errors import SpecError
from bench_runner.profile import DEVICE_COUNTS, CollectiveCase, Profile, TrainingCase
from bench_runner.spec import Collective, RunSpec, Strategy, Training


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """One case under one strategy and device count.  ``skip`` says why it is not measured; ``spec`` stands anyway."""

    label: str
    spec: RunSpec
    skip: str | None = None


def resolve_count(count: int | str, capacity: Capacity) -> int:
    """A device count as a number: ``all`` is what there is."""
    return capacity.count if count == "all" else int(count)


def counts_to_run(asked: tuple[int | str, ...] | None, capacity: Capacity) -> tuple[int, ...]:
    """The device counts of a run, rising: those asked for, or 1, 2, 4, … and all there are."""
    if asked is not None:
        return tuple(sorted({resolve_count(count, capacity) for count in asked}))
    usual = {count for count in DEVICE_COUNTS if isinstance(count, int) and count <= capacity.count}
    return tuple(sorted(usual | {capacity.count}))


def skip_reason(strategy: Strategy, count: int, capacity: Capacity, asked: tuple[int | str, ...] | None) -> str | None:
    """Why nothing can be measured under this strategy on so many devices, or None.

    On a CPU more ranks than cores are possible, and marked oversubscribed, but only when asked for by number.
    """
    if strategy == "single" and count != 1:
        return "single-device training uses one device"
    if strategy == "data_parallel" and capacity.kind == "cpu":
        return "DataParallel needs a CUDA device"
    if count > capacity.count and not (capacity.kind == "cpu" and asked is not None and count in asked):
        noun = "cores to use" if capacity.kind == "cpu" else f"{capacity.kind} devices"
        return f"needs {count} devices; this machine has {capacity.count} {noun}"
    return None


def plan(
    profile: Profile, strategy: Strategy, count: int, capacity: Capacity, asked: tuple[int | str, ...] | None = None
) -> tuple[Planned, ...]:
    """Every case of the profile under ``strategy`` on ``count`` devices, trainings first.

    A collective belongs to ddp alone; under the other strategies it is no case at all.
    """
    whole = skip_reason(strategy, count, capacity, asked)
    planned = [_training(case, profile, strategy, count, capacity, whole) for case in profile.training]
    if strategy == "ddp":
        planned += [_collective(case, profile, count, capacity, whole) for case in profile.collectives]
    return tuple(planned)


def _training(
    case: TrainingCase, profile: Profile, strategy: Strategy, count: int, capacity: Capacity, whole: str | None
) -> Planned:
    devices = 1 if strategy == "single" else count
    training = case.training
    skip = whole or _kind_reason(case, capacity)
    if skip is None and training.precision == "fp16" and capacity.kind == "cpu":
        skip = "fp16 training needs an accelerator"
    try:
        spec = _spec(training, profile, strategy, devices, capacity, case.deadline_seconds)
    except SpecError as error:
        # A global batch that so many devices cannot share: the case stands in the results with that reason.
        spec = _spec(replace(training, scaling="weak"), profile, strategy, devices, capacity, case.deadline_seconds)
        skip = skip or f"{error.field} {error.value}: {error.requirement}"
    return Planned(label=case.label, spec=spec, skip=skip)


def _collective(case: CollectiveCase, profile: Profile, count: int, capacity: Capacity, whole: str | None) -> Planned:
    sizes = case.cpu_message_bytes if capacity.kind == "cpu" else case.collective.message_bytes
    skip = whole or _kind_reason(case, capacity)
    if skip is None and count < 2:
        skip = "a collective needs at least two ranks"
    task = replace(case.collective, message_bytes=sizes)
    return Planned(
        label=case.label, spec=_spec(task, profile, "ddp", count, capacity, case.deadline_seconds), skip=skip
    )


def _spec(
    task: Training | Collective,
    profile: Profile,
    strategy: Strategy,
    count: int,
    capacity: Capacity,
    deadline_seconds: float,
) -> RunSpec:
    return RunSpec(
        strategy=strategy,
        device_kind=capacity.kind,
        device_count=count,
        task=task,
        seed=profile.seed,
        deadline_seconds=deadline_seconds,
    )


def _kind_reason(case: TrainingCase | CollectiveCase, capacity: Capacity) -> str | None:
    if case.device_kinds and capacity.kind not in case.device_kinds:
        return f"the profile measures it on {' and '.join(case.device_kinds)} only"
    return None
