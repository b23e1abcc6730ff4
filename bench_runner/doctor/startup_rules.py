"""What the trials of a job's start mean: pure rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bench_runner.doctor.desync import rank_list
from bench_runner.doctor.startup import INTERFACE, LOOPBACK, StartupReport, Trial, TrialOutcome
from bench_runner.finding import Finding

_CAUSES: Final[Mapping[str, tuple[str, str]]] = {
    "peer-to-peer": (
        "peer-to-peer transfers between these devices are broken (ACS or IOMMU on, or a driver's fault)",
        (
            "switch ACS off in the BIOS or on the bridges and boot with iommu=pt (or off), update the driver; until"
            " then `export NCCL_P2P_DISABLE=1` works and is slower: label such runs"
        ),
    ),
    "shared-memory": (
        "NCCL's transfers through shared memory are broken",
        (
            "give the container a larger /dev/shm (`--shm-size=16g` or `--ipc=host`); until then `export"
            " NCCL_SHM_DISABLE=1`"
        ),
    ),
    "interface": (
        "NCCL takes a network interface that does not carry its connections",
        "set NCCL_SOCKET_IFNAME to an interface that `ip -brief link` shows as UP on every node",
    ),
}
_BY_PHASE: Final[Mapping[str, str]] = {
    "import": "import torch by hand in this environment: `python -c 'import torch'`; then `bench-runner verify`",
    "device": "run `bench-runner verify --only machine`; look into `dmesg` for Xid errors",
    "process-group": "look at the stacks; check NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME, and firewalls between nodes",
    "collective": (
        "leave the named devices out to go on (CUDA_VISIBLE_DEVICES), and look at their links: `nvidia-smi topo -m`"
    ),
    "training": "the collectives work: look at the memory of the devices and at the workload itself",
}


def judge_startup(report: StartupReport) -> list[Finding]:
    """One finding a stage; the failing one names its smallest subset, the ranks behind, and the cause if one showed."""
    findings = [
        _passed(report, stage) for stage in report.stages if report.failed is None or stage != report.failed[0].stage
    ]
    if report.failed is None:
        return findings
    trial, outcome = report.failed
    findings.append(_failed(report, trial, outcome))
    cause = _cause(report, trial)
    return [*findings, cause] if cause is not None else findings


def _passed(report: StartupReport, stage: str) -> Finding:
    trials = [(trial, outcome) for trial, outcome in report.trials if trial.stage == stage]
    seconds = max(outcome.seconds for _, outcome in trials)
    message = f"{len(trials)} trial{'s' if len(trials) != 1 else ''} passed, the longest in {seconds:.1f} s"
    return Finding(check=f"doctor.startup.{stage}", status="pass", message=message)


def _failed(report: StartupReport, trial: Trial, outcome: TrialOutcome) -> Finding:
    kinds = {"hang": "hangs", "error": "fails", "wrong-values": "gives wrong values"}
    devices = ", ".join(map(str, trial.devices))
    few = f"device{'s' if len(trial.devices) > 1 else ''} {devices}"
    behind = f"; {rank_list(outcome.behind)} did not come that far" if outcome.behind else ""
    kind = kinds[outcome.failure or "error"]
    evidence = tuple(_trial_line(t, o) for t, o in report.trials if t.stage == trial.stage)
    for rank, lines in sorted(outcome.stacks.items())[:4]:
        evidence += tuple(f"rank {rank}: {line}" for line in lines)
    return Finding(
        check=f"doctor.startup.{trial.stage}",
        status="fail",
        message=f"{outcome.phase} {kind} with {few}, the smallest subset that fails{behind}: {outcome.detail}",
        expected="all phases, with right values",
        actual=f"{outcome.failure} in {outcome.phase}",
        evidence=evidence,
        remedy=_BY_PHASE.get(outcome.phase or "", _BY_PHASE["training"]),
    )


def _trial_line(trial: Trial, outcome: TrialOutcome) -> str:
    devices = ", ".join(map(str, trial.devices))
    result = "passed" if outcome.failure is None else f"{outcome.failure} in {outcome.phase}"
    return f"devices {f'{devices} {trial.how}'.rstrip()}: {result} ({outcome.seconds:.1f} s)"


def _cause(report: StartupReport, trial: Trial) -> Finding | None:
    """What had to be switched off for the same subset to pass."""
    if not report.reruns:
        return None
    again, outcome = report.reruns[-1]
    evidence = tuple(_trial_line(t, o) for t, o in report.reruns)
    devices = ", ".join(map(str, trial.devices))
    if outcome.failure is not None or again.switched_off is None:
        message = f"devices {devices} fail without peer-to-peer and shared memory too, over every interface"
        remedy = "look at the devices themselves: `dmesg` for Xid errors, `bench-runner verify --only machine`"
        return Finding(
            check="doctor.startup.cause-unknown", status="warn", message=message, evidence=evidence, remedy=remedy
        )
    cause, remedy = _CAUSES[again.switched_off]
    if again.interface is not None and again.interface != LOOPBACK:
        remedy = f"`export {INTERFACE}={again.interface}` on every node; `ip -brief link` shows what they have"
    message = f"devices {devices} pass only {again.how}: {cause}"
    return Finding(
        check=f"doctor.startup.{again.switched_off}", status="fail", message=message, evidence=evidence, remedy=remedy
    )
