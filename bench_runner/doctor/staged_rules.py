"""How the gradients of each stage compare with the single process: pure rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from bench_runner.doctor.desync import rank_list
from bench_runner.doctor.logfile import text_log
from bench_runner.doctor.logs import summarise
from bench_runner.doctor.staged import StageOutcome
from bench_runner.finding import Finding

DEFAULT_TOLERANCE: Final = 1e-3
"""Relative, of the largest element of each parameter's gradient: float32 sums in another order differ by less."""

_RATIO_SLACK: Final = 0.02


def judge_staged(outcomes: Sequence[StageOutcome], tolerance: float = DEFAULT_TOLERANCE) -> list[Finding]:
    """One finding a stage, up to and with the first that fails."""
    findings: list[Finding] = []
    for outcome in outcomes:
        finding = _judge(outcome, tolerance)
        findings.append(finding)
        if finding.status == "fail":
            break
    return findings


def _judge(outcome: StageOutcome, tolerance: float) -> Finding:
    check = f"doctor.staged.{outcome.stage}"
    if outcome.error is not None:
        remedy = _known_remedy(outcome) or _stage_remedy(outcome.stage)
        return Finding(check=check, status="fail", message=outcome.error, evidence=outcome.evidence, remedy=remedy)
    ranks = sorted(outcome.gradients.items())
    bad = [(rank, said) for rank, said in ranks if said["not_finite"]]
    if bad:
        message = f"gradients that are no numbers on {rank_list([rank for rank, _ in bad])}"
        remedy = "find the operation with torch.autograd.set_detect_anomaly(True), on that rank's part of the batch"
        evidence = tuple(bad[0][1]["not_finite"][:8])
        return Finding(check=check, status="fail", message=message, evidence=evidence, remedy=remedy)
    missing = [(rank, said) for rank, said in ranks if said["missing"]]
    if missing:
        message = f"parameters without a gradient on {rank_list([rank for rank, _ in missing])}, which one process has"
        evidence = tuple(missing[0][1]["missing"][:8])
        return Finding(
            check=check, status="fail", message=message, evidence=evidence, remedy=_stage_remedy(outcome.stage)
        )
    rank, worst = max(ranks, key=lambda pair: pair[1]["worst"])
    if worst["worst"] > tolerance:
        return _differs(outcome, rank, worst, tolerance)
    message = (
        f"loss {worst['loss']:.6g}, gradients as of one process (largest relative difference {worst['worst']:.1e})"
    )
    if outcome.stage == "single":
        message = f"loss {worst['loss']:.6g}, {worst['parameters']} parameters: the reference"
    return Finding(check=check, status="pass", message=message)


def _differs(outcome: StageOutcome, rank: int, worst: dict[str, Any], tolerance: float) -> Finding:
    ratio = worst["ratio"]
    remedy = _stage_remedy(outcome.stage)
    hint = ""
    if ratio is not None and outcome.world_size > 1 and abs(ratio * outcome.world_size - 1) < _RATIO_SLACK:
        hint = f": all are 1/{outcome.world_size} of it, as with a loss that sums over samples"
        remedy = "average the loss over samples (reduction='mean'), or multiply it by the number of ranks"
    return Finding(
        check=f"doctor.staged.{outcome.stage}",
        status="fail",
        message=f"the gradients differ from one process's on rank {rank}, most in {worst['where']}{hint}",
        expected=f"relative difference of at most {tolerance:g}",
        actual=f"{worst['worst']:.3g}",
        evidence=(
            f"length of the gradient against the reference: {ratio:.4g}" if ratio is not None else "reference is 0",
        ),
        remedy=remedy,
    )


def _stage_remedy(stage: str) -> str:
    if stage == "single":
        return "repair the workload on one process first: nothing here is about several devices"
    if stage == "sampler":
        return "look at how a batch is taken from the data: the samples or their order are not those of the whole batch"
    if stage == "ddp-1":
        return (
            "DDP itself changes the result with one rank: look at hooks, unused parameters, and code that asks for DDP"
        )
    return "look for what differs between ranks: data, random numbers, code that depends on the rank"


def _known_remedy(outcome: StageOutcome) -> str | None:
    """The remedy of a known signature in the error, such as unused parameters."""
    text = "\n".join((outcome.error or "", *outcome.evidence))
    matches = [m for m in summarise([text_log(outcome.stage, text)]).matches if not m.signature.symptom]
    return matches[0].signature.remedy if matches else None
