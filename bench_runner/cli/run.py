"""``bench-runner run``."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bench_runner.cli import output
from bench_runner.errors import EXIT_FINDINGS, EXIT_NOT_CARRIED_OUT, EXIT_OK, UsageError

if TYPE_CHECKING:
    from bench_runner.nodes.membership import Membership
    from bench_runner.session import RunRequest, SessionResult

ENVIRONMENTS = ("auto", "locked", "existing")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="run")(run)


def run(
    profile: Annotated[str, typer.Option(help="quick, standard, full, or a .toml file.")] = "quick",
    env: Annotated[str, typer.Option(help="auto, locked or existing: the environment to measure in.")] = "auto",
    machine: Annotated[
        str | None, typer.Option(help="Name for this machine's results. Default: known, or host.")
    ] = None,
    launches: Annotated[int, typer.Option(help="Repeat everything so often, in turns.")] = 1,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, …; default: what the machine has.")] = None,
    devices: Annotated[str | None, typer.Option(help="Device counts such as 1,2,all.")] = None,
    python: Annotated[str | None, typer.Option(help="Python with torch for the workers; implies existing.")] = None,
    port: Annotated[int | None, typer.Option(help="Port of the ranks' rendezvous. Default: a free one.")] = None,
    find_batch: Annotated[bool, typer.Option("--find-batch", help="Find the largest batch that fits instead.")] = False,
    largest_batch: Annotated[int, typer.Option(help="Where --find-batch stops looking.")] = 1 << 16,
    memory_limit_mib: Annotated[int | None, typer.Option(help="For --find-batch on a CPU: MiB for each rank.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Do not go on with a broken-off run.")] = False,
    nodes: Annotated[
        str | None, typer.Option(help="Over so many nodes: the same command on each; all: those of the Slurm step.")
    ] = None,
    rdzv_endpoint: Annotated[
        str | None,
        typer.Option(help="HOST:PORT of node 0. Default: MASTER_ADDR and MASTER_PORT, or Slurm's first node."),
    ] = None,
    node_rank: Annotated[
        int | None, typer.Option(help="This node's number. Default: Slurm's, or 0 where HOST is, and any elsewhere.")
    ] = None,
    join_timeout: Annotated[float, typer.Option(help="Seconds that the nodes wait for each other.")] = 300.0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
) -> int:
    """Measure this machine with asv, store the results and show them.

    With --nodes node 0 measures, stores and shows; the others take part until it is done and say one line.

    Example: bench-runner run --profile standard --launches 5

    Example: bench-runner run --nodes 2 --rdzv-endpoint 192.168.1.10:29400
    """
    request = _request(profile, env, machine, launches, device, devices, python)
    from dataclasses import replace

    options = _find_options(largest_batch, memory_limit_mib)
    request = replace(request, port=port, find_batch=find_batch, fresh=fresh, options=options if find_batch else {})
    from bench_runner.session import run_session

    begin = time.monotonic()
    membership = _membership(nodes, rdzv_endpoint, node_rank, join_timeout)
    if membership is not None and membership.node_rank != 0:
        return _follow(request, membership, as_json=as_json)
    request = replace(request, membership=membership)
    try:
        result = run_session(request, output.note)
    except KeyboardInterrupt:
        output.note("interrupted: what was measured is kept; the same command goes on from here")
        raise
    _show(result, request, time.monotonic() - begin, as_json=as_json)
    if result.count("failed", "timeout"):
        return EXIT_FINDINGS if result.count("ok") else EXIT_NOT_CARRIED_OUT
    return EXIT_OK if result.count("ok") else EXIT_NOT_CARRIED_OUT


def _find_options(largest_batch: int, memory_limit_mib: int | None) -> dict[str, Any]:
    """What --find-batch tells the workers; UsageError for limits below 1, whether it is asked for or not."""
    if largest_batch < 1 or (memory_limit_mib is not None and memory_limit_mib < 1):
        raise UsageError("--largest-batch and --memory-limit-mib: must be at least 1")
    limit = {} if memory_limit_mib is None else {"memory_limit_bytes": memory_limit_mib << 20}
    return {"largest_batch": largest_batch, **limit}


def _membership(
    nodes: str | None, endpoint: str | None, node_rank: int | None, join_seconds: float
) -> Membership | None:
    from bench_runner.nodes.membership import find_membership

    found = find_membership(nodes, endpoint, node_rank, os.environ, join_seconds=join_seconds)
    if found is None:
        return None
    from bench_runner.nodes.taking_part import settled

    return settled(found)


def _follow(request: RunRequest, membership: Membership, *, as_json: bool) -> int:
    from bench_runner.nodes.taking_part import take_part

    followed = take_part(request, membership, output.note)
    if as_json:
        document = {"node_rank": followed.node_rank, "nodes": membership.nodes, "launches": followed.launches}
        output.emit_json({"schema": "bench-runner/node/1", **document})
    output.note(f"node {followed.node_rank}: node 0 is done; took part in {followed.launches} launches")
    return EXIT_OK


def _request(
    profile: str,
    env: str,
    machine: str | None,
    launches: int,
    device: str | None,
    devices: str | None,
    python: str | None,
) -> RunRequest:
    from bench_runner.profile import device_counts, load
    from bench_runner.session import RunRequest, default_root

    if env not in ENVIRONMENTS:
        raise UsageError(f"--env {env}: must be one of {', '.join(ENVIRONMENTS)}")
    counts = None
    if devices is not None:
        parts = [part.strip() for part in devices.split(",")]
        counts = device_counts([int(part) if part.isdecimal() and len(part) < 9 else part for part in parts])
    return RunRequest(
        root=default_root(),
        profile=load(profile),
        environment=env,  # type: ignore[arg-type]
        machine=machine,
        launches=launches,
        device=device,
        devices=counts,
        python=python,
    )


def _show(result: SessionResult, request: RunRequest, seconds: float, *, as_json: bool) -> None:
    from bench_runner.report.tables import sections

    results = request.root / "results" / result.machine.name
    records = list(result.records)
    if as_json:
        from bench_runner.analysis.frame import frame_of
        from bench_runner.report.document import report_document

        output.emit_json(report_document(frame_of(records), sections(records), []))
    else:
        from bench_runner.report import text
        from bench_runner.report.formats import encodable

        shown = text.render(sections(records), encoding=sys.stdout.encoding)
        output.emit_text(encodable(shown, sys.stdout.encoding))
    output.note(
        f"took {seconds:.0f} s; records in {_relative(results / 'runs')}, asv's results in {_relative(results)}"
    )
    if result.count("failed", "timeout"):
        output.note(f"tracebacks: the field traceback of the records in {_relative(results / 'runs')}")
    if request.launches == 1 and not request.find_batch:
        output.note("to compare: --launches 5; one launch cannot tell a change from chance")
    output.note("again: bench-runner report; for a ticket: bench-runner report --format markdown -o report.md")


def _relative(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
