"""Plans the trials of a job's start, from one device to all, and finds the smallest subset that fails.

Pure but for the runner it is given: ``plan_startup`` decides what to try next by what came out before.  Nothing is
concluded for four devices from what two did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Final, Literal

Stage = Literal["devices", "pairs", "subsets", "one-sample", "real-batch"]
Phase = Literal["start", "import", "device", "process-group", "collective", "training"]
Failure = Literal["hang", "error", "wrong-values"]
PHASES: Final[tuple[Phase, ...]] = ("start", "import", "device", "process-group", "collective", "training")
UNTIL: Final[Mapping[Stage, Phase]] = {
    "devices": "device",
    "pairs": "collective",
    "subsets": "collective",
    "one-sample": "training",
    "real-batch": "training",
}

_NO_PEERS: Final[Mapping[str, str]] = {"NCCL_P2P_DISABLE": "1"}
_NO_MEMORY: Final[Mapping[str, str]] = {**_NO_PEERS, "NCCL_SHM_DISABLE": "1"}
INTERFACE: Final = "NCCL_SOCKET_IFNAME"
LOOPBACK: Final = "lo"


def rerun_variables(interfaces: Sequence[str]) -> list[tuple[str, Mapping[str, str]]]:
    """What is switched off, one thing more each time: NCCL uses shared memory only where peer-to-peer is not to be had,
    and sockets where neither is.  These then go over each of ``interfaces``, and over the loopback last."""
    over = [{**_NO_MEMORY, INTERFACE: f"={name}", "NCCL_IB_DISABLE": "1"} for name in (*interfaces, LOOPBACK)]
    steps = [("peer-to-peer", _NO_PEERS), ("shared-memory", _NO_MEMORY)]
    return [*steps, *(("interface", variables) for variables in over)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One launch.  ``devices`` are the indices on this node, a rank each; ``batch`` samples per device."""

    stage: Stage
    devices: tuple[int, ...]
    batch: int = 1
    variables: Mapping[str, str] = field(default_factory=dict)
    switched_off: str | None = None

    @property
    def interface(self) -> str | None:
        """The one that NCCL was told to take."""
        return self.variables[INTERFACE].removeprefix("=") if INTERFACE in self.variables else None

    @property
    def how(self) -> str:
        """What is not as usual, for a sentence; empty for nothing."""
        if self.interface is not None:
            return f"over the interface {self.interface}"
        return f"with {self.switched_off} off" if self.switched_off else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialOutcome:
    """``phase`` is the first that some rank did not get through (None: all did).  ``behind`` are the ranks that had not
    reached it when others had; ``stacks`` the words of each rank that hung or failed."""

    failure: Failure | None = None
    phase: Phase | None = None
    detail: str = ""
    behind: tuple[int, ...] = ()
    stacks: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StartupReport:
    """All trials in their order.  ``failed``: the one with the fewest devices among the first stage's failures;
    ``reruns`` are that subset's, with things switched off."""

    trials: tuple[tuple[Trial, TrialOutcome], ...]
    failed: tuple[Trial, TrialOutcome] | None
    reruns: tuple[tuple[Trial, TrialOutcome], ...]
    stages: tuple[Stage, ...]


def stages_of(count: int) -> tuple[Stage, ...]:
    """The stages that ``count`` devices can go through."""
    middle: tuple[Stage, ...] = () if count < 2 else ("pairs",) if count < 3 else ("pairs", "subsets")
    return ("devices", *middle, "one-sample", "real-batch")


def trials_of(stage: Stage, count: int, batch: int) -> Iterator[Trial]:
    """The trials of one stage: each device, every pair, growing subsets of the first 3, 4 … all, or all."""
    if stage == "devices":
        yield from (Trial(stage=stage, devices=(device,)) for device in range(count))
    elif stage == "pairs":
        yield from (Trial(stage=stage, devices=pair) for pair in combinations(range(count), 2))
    elif stage == "subsets":
        yield from (Trial(stage=stage, devices=tuple(range(size))) for size in range(3, count + 1))
    else:
        samples = 1 if stage == "one-sample" else batch
        yield Trial(stage=stage, devices=tuple(range(count)), batch=samples)


def plan_startup(
    count: int,
    batch: int,
    runner: Callable[[Trial], TrialOutcome],
    *,
    rerun: bool = False,
    interfaces: Sequence[str] = (),
) -> StartupReport:
    """Go through the stages until one fails; within a stage every trial is run (but growing subsets stop at the first
    that fails).  With ``rerun`` (NCCL) the smallest failing subset is then tried with things switched off, and over
    each of ``interfaces``, until it passes."""
    tried: list[tuple[Trial, TrialOutcome]] = []
    gone_through: list[Stage] = []
    failures: list[tuple[Trial, TrialOutcome]] = []
    for stage in stages_of(count):
        gone_through.append(stage)
        for trial in trials_of(stage, count, batch):
            outcome = runner(trial)
            tried.append((trial, outcome))
            if outcome.failure is not None:
                failures.append((trial, outcome))
                if stage == "subsets":
                    break
        if failures:
            break
    failed = min(failures, key=lambda pair: len(pair[0].devices)) if failures else None
    reruns = (
        _rerun(failed[0], runner, interfaces) if failed is not None and rerun and len(failed[0].devices) > 1 else []
    )
    return StartupReport(trials=tuple(tried), failed=failed, reruns=tuple(reruns), stages=tuple(gone_through))


def _rerun(
    trial: Trial, runner: Callable[[Trial], TrialOutcome], interfaces: Sequence[str]
) -> list[tuple[Trial, TrialOutcome]]:
    done: list[tuple[Trial, TrialOutcome]] = []
    for name, variables in rerun_variables(interfaces):
        again = Trial(
            stage=trial.stage, devices=trial.devices, batch=trial.batch, variables=variables, switched_off=name
        )
        outcome = runner(again)
        done.append((again, outcome))
        if outcome.failure is None:
            break
    return done
