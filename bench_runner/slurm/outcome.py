"""What a job on many nodes comes to: a verdict for each node and one exit code.  Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from bench_runner.errors import EXIT_FINDINGS, EXIT_INCONCLUSIVE, EXIT_NOT_CARRIED_OUT, EXIT_OK
from bench_runner.slurm.job import TaskResult
from bench_runner.slurm.script import JobRequest

SCHEMA: Final = "bench-runner/slurm/1"
NOT_CARRIED_OUT: Final = "not-carried-out"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOutcome:
    """``verdict``: the command's own word for its exit code, ``not-carried-out`` where there is no answer."""

    rank: int
    node: str | None
    exit_code: int | None
    verdict: str
    reason: str


_VERDICTS: Final = {EXIT_OK: "pass", EXIT_FINDINGS: "fail", EXIT_INCONCLUSIVE: "inconclusive"}


def node_outcomes(tasks: Sequence[TaskResult]) -> tuple[NodeOutcome, ...]:
    """One for each task, in the order of the nodes."""
    return tuple(_outcome(task) for task in tasks)


def _outcome(task: TaskResult) -> NodeOutcome:
    verdict = _VERDICTS.get(task.exit_code, NOT_CARRIED_OUT) if task.exit_code is not None else NOT_CARRIED_OUT
    if task.exit_code is None:
        reason = "it left no result: its node died or the job was ended" + (f"; last: {task.said}" if task.said else "")
    elif verdict == "pass":
        reason = ""
    else:
        reason = _reason(task.document) or task.said or f"exit code {task.exit_code}"
    return NodeOutcome(rank=task.rank, node=task.node, exit_code=task.exit_code, verdict=verdict, reason=reason)


def _reason(document: dict[str, Any] | None) -> str:
    """The first thing that failed, from a document of verify or gate, or the error's own line."""
    if document is None:
        return ""
    findings = document.get("findings")
    for finding in findings if isinstance(findings, list) else ():
        if isinstance(finding, dict) and finding.get("status") == "fail":
            return f"{finding.get('check')}: {finding.get('message')}"
    reasons = document.get("reasons")
    if isinstance(reasons, list) and reasons:
        return str(reasons[0])
    return str(document.get("error", ""))


def exit_code(request: JobRequest, outcomes: Sequence[NodeOutcome]) -> int:
    """Node 0's in a run over all of them; else the worst: something failed, no answer, inconclusive, pass."""
    if request.kind == "run" and not request.each:
        code = outcomes[0].exit_code
        return code if code is not None and 0 <= code <= EXIT_INCONCLUSIVE else EXIT_NOT_CARRIED_OUT
    verdicts = {outcome.verdict for outcome in outcomes}
    for verdict, code in (
        ("fail", EXIT_FINDINGS),
        (NOT_CARRIED_OUT, EXIT_NOT_CARRIED_OUT),
        ("inconclusive", EXIT_INCONCLUSIVE),
    ):
        if verdict in verdicts:
            return code
    return EXIT_OK


def job_document(
    request: JobRequest, job_id: str, state: str | None, outcomes: Sequence[NodeOutcome], tasks: Sequence[TaskResult]
) -> dict[str, Any]:
    """The document of docs/schemas/slurm-1.json."""
    return {
        "schema": SCHEMA,
        "command": request.kind,
        "job_id": job_id,
        "state": state,
        "folder": str(request.folder),
        "exit_code": exit_code(request, outcomes),
        "nodes": [
            {
                "rank": outcome.rank,
                "node": outcome.node,
                "exit_code": outcome.exit_code,
                "verdict": outcome.verdict,
                "reason": outcome.reason or None,
                "document": task.document,
            }
            for outcome, task in zip(outcomes, tasks, strict=True)
        ],
    }


def job_text(request: JobRequest, job_id: str, outcomes: Sequence[NodeOutcome]) -> str:
    """A line for each node that did not pass, the counts last."""
    lines = [
        f"  {outcome.node or f'node {outcome.rank}'}: {outcome.verdict}: {outcome.reason}"
        for outcome in outcomes
        if outcome.verdict != "pass"
    ]
    verdicts = [outcome.verdict for outcome in outcomes]
    counts = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in sorted(set(verdicts)))
    return "\n".join([*lines, f"{request.kind} on {len(outcomes)} node(s), job {job_id}: {counts}"])
