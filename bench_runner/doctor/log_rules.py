"""What the logs of a job mean: pure rules from a ``LogSummary`` to findings, the cause first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from bench_runner.doctor.desync import RankView, diagnose, rank_list, ranks_do
from bench_runner.doctor.faults import fault_finding
from bench_runner.doctor.log_errors import TERMINATED, died_findings
from bench_runner.doctor.log_ranks import judge_ranks, ranks_not_here, world_size_of
from bench_runner.doctor.logs import LogSummary, Match, NcclTimeout
from bench_runner.doctor.stacks import wait_of
from bench_runner.finding import Finding

_NO_SOURCES: Final[Mapping[str, str]] = {}


def judge_logs(
    summary: LogSummary, sources: Mapping[str, str] = _NO_SOURCES, *, world_size: int | None = None, probe: str = "log"
) -> list[Finding]:
    """The findings, causes before consequences.  ``sources``: file name to text, where the program is at hand."""
    causes = _causes(summary, probe)
    findings = died_findings(summary, probe, causes)
    if not any(finding.status == "fail" for finding in findings):
        findings = (
            _missing(summary, probe)
            or _watchdog(summary, probe, world_size)
            or _late(summary, sources, world_size, probe)
        )
        findings += causes
    findings += judge_ranks(summary, world_size, probe)
    if summary.skipped_bytes:
        findings.append(_skipped(summary, probe))
    spoken = any(finding.status == "fail" or finding in causes for finding in findings)
    return findings if spoken else [*findings, _nothing(summary, probe)]


def _nothing(summary: LogSummary, probe: str) -> Finding:
    message = f"no known fault in {len(summary.sources)} log{'s' if len(summary.sources) != 1 else ''}"
    return Finding(check=f"doctor.{probe}.signatures", status="pass", message=message)


def _skipped(summary: LogSummary, probe: str) -> Finding:
    return Finding(
        check=f"doctor.{probe}.not-read",
        status="skip",
        message=f"{summary.skipped_bytes} bytes in the middle of long logs were not read; split them to have all read",
    )


def _causes(summary: LogSummary, probe: str) -> list[Finding]:
    """One finding for each signature that names a cause."""
    by_name: dict[str, list[Match]] = {}
    for match in summary.matches:
        if not match.signature.symptom:
            by_name.setdefault(match.signature.name, []).append(match)
    return [_of_signature(matches, probe) for matches in by_name.values()]


def _of_signature(matches: Sequence[Match], probe: str) -> Finding:
    signature, first = matches[0].signature, matches[0]
    ranks = [match.rank for match in matches if match.rank is not None]
    who = f"{rank_list(ranks)}: " if ranks else ""
    if signature.name == "loss-not-finite" and first.rank is not None:
        who = f"rank {first.rank} first: "
    return Finding(
        check=f"doctor.{probe}.{signature.name}",
        status=signature.status,
        message=who + signature.cause,
        actual=first.text[:200],
        evidence=tuple(f"{match.where}: {match.text}" for match in matches[:8])
        + ((f"{first.count} such lines in all",) if first.count > len(matches) else ()),
        remedy=signature.remedy,
    )


def _missing(summary: LogSummary, probe: str) -> list[Finding]:
    if summary.joined is None or summary.joined[0] >= summary.joined[1]:
        return []
    came, expected = summary.joined
    message = f"{came} of {expected} ranks came to the rendezvous"
    return [fault_finding(probe, "rank-missing", message, expected=str(expected), actual=str(came))]


def _watchdog(summary: LogSummary, probe: str, world_size: int | None) -> list[Finding]:
    """NCCL's sequence numbers: alike on all ranks means the transport, apart means a rank that is behind."""
    timeouts = summary.timeouts
    if not timeouts:
        return []
    evidence = tuple(_timeout_line(timeout) for timeout in timeouts)
    sequences = {timeout.sequence for timeout in timeouts}
    calls = {(timeout.operation, timeout.elements) for timeout in timeouts}
    ranks = [timeout.rank for timeout in timeouts]
    expected = world_size_of(summary, world_size) or _largest_rank(summary) + 1
    silent = sorted(set(range(expected)) - set(ranks)) if expected <= 1 << 16 else []
    absent = set(ranks_not_here(summary, world_size)) & set(silent)
    if len(sequences) > 1:
        behind = [timeout.rank for timeout in timeouts if timeout.sequence == min(sequences)]
        message = (
            f"the ranks are apart: {ranks_do(behind, 'is', 'are')} behind, at collective {min(sequences)} of"
            f" {max(sequences)}"
        )
        return [fault_finding(probe, "uneven-batches", message, evidence=evidence)]
    if len(calls) > 1:
        message = f"the ranks called different collectives as number {min(sequences)}"
        return [fault_finding(probe, "collective-mismatch", message, evidence=evidence)]
    if absent:
        message = f"which rank is behind cannot be told: the logs of {ranks_do(sorted(absent), 'is', 'are')} not here"
        return [fault_finding(probe, "hang-unexplained", message, evidence=evidence)]
    if silent:
        message = f"{rank_list(silent)} never came to collective {min(sequences)}, in which {rank_list(ranks)} waited"
        return [fault_finding(probe, "straggler", message, evidence=evidence)]
    if len(ranks) == 1:
        message = f"only rank {ranks[0]}'s log is here: give the logs of all ranks to see which one is behind"
        return [fault_finding(probe, "hang-unexplained", message, evidence=evidence)]
    message = f"all {len(ranks)} ranks waited in the same collective (number {min(sequences)}): none was behind"
    return [fault_finding(probe, "device-or-link", message, evidence=evidence)]


def _timeout_line(timeout: NcclTimeout) -> str:
    size = f" of {timeout.elements} elements" if timeout.elements is not None else ""
    enqueued = f", last enqueued {timeout.last_enqueued}" if timeout.last_enqueued is not None else ""
    return f"rank {timeout.rank}: timed out in collective {timeout.sequence}, {timeout.operation}{size}{enqueued}"


def _largest_rank(summary: LogSummary) -> int:
    ranks = [t.rank for t in summary.timeouts] + [e.rank for e in summary.errors if e.rank is not None]
    return max([*ranks, *summary.exits, 0])


def _late(summary: LogSummary, sources: Mapping[str, str], world_size: int | None, probe: str) -> list[Finding]:
    """Time-outs and broken connections without a cause of their own: where did each rank stand?"""
    errors = [e for e in summary.errors if e.consequence and e.rank is not None and not e.of_launcher]
    symptoms = [match for match in summary.matches if match.signature.symptom]
    if not errors:
        return [_of_signature([match], probe) for match in symptoms[:1]]
    views: dict[int, RankView] = {}
    for error in errors:
        if error.rank is not None and error.rank not in views:
            wait = wait_of(tuple(reversed(error.frames)))
            views[error.rank] = RankView(rank=error.rank, condition="failed", wait=wait)
    expected = world_size_of(summary, world_size) or max(_largest_rank(summary) + 1, 2)
    absent = set(ranks_not_here(summary, world_size))
    silent = [rank for rank in range(min(expected, 1 << 16)) if rank not in views and rank not in absent]
    still_there = [rank for rank in silent if summary.exits.get(rank) == TERMINATED]
    lines = tuple(f"{error.where}: rank {error.rank}: {error.error[:200]}" for error in errors[:8])
    if still_there and len({view.wait.place for view in views.values() if view.wait}) == 1:
        message = f"{rank_list(still_there)} never came to the collective in which {rank_list(list(views))} waited"
        return [fault_finding(probe, "straggler", message, evidence=lines)]
    gone = "peer-gone" in {match.signature.name for match in symptoms}
    for rank in silent:
        if rank not in summary.exits and gone:
            views[rank] = RankView(rank=rank, condition="left")
    found = diagnose(list(views.values()), sources, world_size=world_size, evidence=lines)
    return [fault_finding(probe, found.fault, found.message, evidence=found.evidence)]
