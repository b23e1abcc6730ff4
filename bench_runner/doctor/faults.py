"""The faults that the doctor can name by what ranks do, each with its usual cause and its remedy.

A fault's name is the last part of the check's name (``doctor.watch.uneven-batches``); scripts match on it.  Faults
that are known by what a log says stand in ``signatures``; docs/troubleshooting.md shows both tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bench_runner.finding import Finding, Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One kind of fault: what commonly causes it, and what to do."""

    name: str
    cause: str
    remedy: str


FAULTS: Final = {
    fault.name: fault
    for fault in (
        Fault(
            name="uneven-batches",
            cause="Ranks run different numbers of steps, so one issues a collective that the others never join.",
            remedy=(
                "give every rank the same number of batches: DistributedSampler (it pads) or drop_last=True, or wrap "
                "the loop in `with model.join():`; show the counts with "
                "`bench-runner doctor loader module:factory --world-size N`"
            ),
        ),
        Fault(
            name="rank-0-only-collective",
            cause="A collective stands in a branch that only some ranks take, such as `if rank == 0:`.",
            remedy="move the collective out of the branch, so that every rank comes to it equally often",
        ),
        Fault(
            name="rank-missing",
            cause="Fewer processes were started than the world size says, or one cannot reach the master's address.",
            remedy=(
                "start as many processes as the world size says (--nproc-per-node × --nnodes), and check "
                "MASTER_ADDR and MASTER_PORT on every node; do not raise the time-out"
            ),
        ),
        Fault(
            name="rank-died",
            cause="One rank ended with an error or was killed; what the other ranks report is only the consequence.",
            remedy=(
                "repair the first error shown in the evidence; a rank that was killed without one most often ran out of"
                " memory: look into `dmesg` and the limits of the container"
            ),
        ),
        Fault(
            name="loader-stuck",
            cause="A data loader's worker process delivers no more batches, and its rank waits for it.",
            remedy=(
                "look at the line in which the worker stands (a lock held across fork, a file system that does not "
                "answer); try num_workers=0, multiprocessing_context='spawn', and DataLoader(timeout=60)"
            ),
        ),
        Fault(
            name="straggler",
            cause="One rank does something else for a long time while the others wait for it in a collective.",
            remedy=(
                "look at the line in which the named rank stands: let all ranks do that work, do it before the"
                " training, or do it in a process that is no rank"
            ),
        ),
        Fault(
            name="collective-mismatch",
            cause="The ranks called different collectives, or the same one with different sizes or in another order.",
            remedy="make every rank call the same collectives in the same order; compare the lines in the evidence",
        ),
        Fault(
            name="device-or-link",
            cause=(
                "All ranks wait in the same collective at the same place: none is behind, the transport does not move."
            ),
            remedy=(
                "run `bench-runner doctor startup`, which finds the smallest subset of devices that fails, and look "
                "into `dmesg` for Xid and PCIe errors; a longer time-out will not help"
            ),
        ),
        Fault(
            name="hang-unexplained",
            cause="Nothing moves, and what could be gathered does not say why.",
            remedy=(
                "look at the stacks in the evidence; run again as a user who may trace the processes (py-spy needs "
                "ptrace: in a container `--cap-add SYS_PTRACE`)"
            ),
        ),
    )
}


def probe_finding(
    probe: str,
    name: str,
    status: Status,
    message: str,
    *,
    expected: str | None = None,
    actual: str | None = None,
    evidence: tuple[str, ...] = (),
    remedy: str | None = None,
) -> Finding:
    """A finding ``doctor.<probe>.<name>``."""
    return Finding(
        check=f"doctor.{probe}.{name}",
        status=status,
        message=message,
        expected=expected,
        actual=actual,
        evidence=evidence,
        remedy=remedy,
    )


def fault_finding(
    probe: str,
    name: str,
    message: str,
    *,
    status: Status = "fail",
    expected: str | None = None,
    actual: str | None = None,
    evidence: tuple[str, ...] = (),
) -> Finding:
    """The same with the fault's own remedy; KeyError for a fault not in the table."""
    remedy = FAULTS[name].remedy
    return probe_finding(
        probe, name, status, message, expected=expected, actual=actual, evidence=evidence, remedy=remedy
    )
