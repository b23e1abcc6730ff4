"""``bench-runner slurm``: run, verify and gate as jobs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bench_runner.cli import output
from bench_runner.errors import EXIT_OK, LaunchError, UsageError

if TYPE_CHECKING:
    from bench_runner.slurm.script import JobRequest, Kind

_PASSED_ON = {"allow_extra_args": True, "allow_interspersed_args": True}

Nodes = Annotated[int, typer.Option(help="Nodes to ask for.")]
Text = str | None
Partition = Annotated[Text, typer.Option(help="Slurm's partition. Default: the cluster's.")]
Gpus = Annotated[Text, typer.Option(help="GPUs to ask for on each node, such as 8 or h100:8.")]
Time = Annotated[Text, typer.Option(help="The job's time limit, such as 00:30:00.")]
Account = Annotated[Text, typer.Option(help="The account to charge.")]
Qos = Annotated[Text, typer.Option(help="Quality of service.")]
Constraint = Annotated[Text, typer.Option(help="Features that the nodes must have.")]
Nodelist = Annotated[Text, typer.Option(help="These nodes, such as node[01-04].")]
Reservation = Annotated[Text, typer.Option(help="The reservation to use.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the batch script and submit nothing.")]
Detach = Annotated[bool, typer.Option("--detach", help="Submit, say the job's number, and do not wait.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(help="run, verify and gate as Slurm jobs, one task on each node.", no_args_is_help=True)
    for command in (run, verify, gate):
        group.command(context_settings=_PASSED_ON)(command)
    app.add_typer(group, name="slurm")


def run(
    context: typer.Context,
    nodes: Nodes,
    each: Annotated[bool, typer.Option("--each", help="Every node by itself, not all of them together.")] = False,
    partition: Partition = None,
    gpus_per_node: Gpus = None,
    time: Time = None,
    account: Account = None,
    qos: Qos = None,
    constraint: Constraint = None,
    nodelist: Nodelist = None,
    reservation: Reservation = None,
    dry_run: DryRun = False,
    detach: Detach = False,
    as_json: AsJson = False,
) -> int:
    """Measure over several nodes, or with --each every node by itself.  What stands behind -- goes to `run`.

    Ctrl-C cancels the job.  A job that Slurm requeues goes on where it was.

    Example: bench-runner slurm run --nodes 4 --gpus-per-node 8 --time 01:00:00 -- --profile standard
    """
    asked = {"partition": partition, "gpus_per_node": gpus_per_node, "time": time, "account": account, "qos": qos}
    asked |= {"constraint": constraint, "nodelist": nodelist, "reservation": reservation}
    request = _request("run", nodes, context.args, asked, each=each, as_json=as_json)
    return _carry_out(request, dry_run=dry_run, detach=detach, as_json=as_json)


def verify(
    context: typer.Context,
    nodes: Nodes,
    partition: Partition = None,
    gpus_per_node: Gpus = None,
    time: Time = None,
    account: Account = None,
    qos: Qos = None,
    constraint: Constraint = None,
    nodelist: Nodelist = None,
    reservation: Reservation = None,
    dry_run: DryRun = False,
    detach: Detach = False,
    as_json: AsJson = False,
) -> int:
    """Verify every node: one task on each, one verdict for each.  What stands behind -- goes to `verify`.

    Exit codes: 0 all pass, 1 something failed on some node, 3 some node gave no answer.

    Example: bench-runner slurm verify --nodes 16 --partition gpu -- --only environment --only machine
    """
    asked = {"partition": partition, "gpus_per_node": gpus_per_node, "time": time, "account": account, "qos": qos}
    asked |= {"constraint": constraint, "nodelist": nodelist, "reservation": reservation}
    request = _request("verify", nodes, context.args, asked)
    return _carry_out(request, dry_run=dry_run, detach=detach, as_json=as_json)


def gate(
    context: typer.Context,
    nodes: Nodes,
    partition: Partition = None,
    gpus_per_node: Gpus = None,
    time: Time = None,
    account: Account = None,
    qos: Qos = None,
    constraint: Constraint = None,
    nodelist: Nodelist = None,
    reservation: Reservation = None,
    dry_run: DryRun = False,
    detach: Detach = False,
    as_json: AsJson = False,
) -> int:
    """Hold every node against a baseline: one task and one verdict for each.  What stands behind -- goes to `gate`.

    Exit codes: 0 all pass, 1 some node fails, 3 some node gave no answer, 4 some node is inconclusive.

    Example: bench-runner slurm gate --nodes 4 --gpus-per-node 8 -- --baseline before-driver-580 --threshold 5
    """
    asked = {"partition": partition, "gpus_per_node": gpus_per_node, "time": time, "account": account, "qos": qos}
    asked |= {"constraint": constraint, "nodelist": nodelist, "reservation": reservation}
    request = _request("gate", nodes, context.args, asked)
    return _carry_out(request, dry_run=dry_run, detach=detach, as_json=as_json)


def _request(
    kind: Kind,
    nodes: int,
    arguments: list[str],
    asked: dict[str, str | None],
    *,
    each: bool = False,
    as_json: bool = False,
) -> JobRequest:
    import uuid

    from bench_runner.session import FOLDER, default_root
    from bench_runner.slurm.script import JobRequest

    for word in arguments:
        if kind == "run" and word.partition("=")[0] in ("--nodes", "--node-rank"):
            raise UsageError(f"{word} behind --: the job says this; give --nodes before --")
    root = default_root().resolve()
    return JobRequest(
        kind=kind,
        nodes=nodes,
        root=root,
        folder=root / FOLDER / "slurm" / f"{kind}-{uuid.uuid4().hex[:8]}",
        python=sys.executable,
        arguments=tuple(arguments),
        each=each,
        as_json=as_json,
        **asked,
    )


def _carry_out(request: JobRequest, *, dry_run: bool, detach: bool, as_json: bool) -> int:
    from bench_runner.slurm import job
    from bench_runner.slurm.script import batch_script

    script = batch_script(request)
    if dry_run:
        if as_json:
            output.emit_json({"schema": "bench-runner/slurm-script/1", "command": request.kind, "script": script})
        else:
            output.emit_text(script)
        return EXIT_OK
    job.require_slurm()
    request.folder.mkdir(parents=True)
    path = request.folder / "job.sh"
    path.write_text(script, encoding="utf-8")
    job_id = job.submit(path)
    output.note(f"job {job_id}: submitted {_relative(path)}")
    if detach:
        if as_json:
            output.emit_json({"schema": "bench-runner/slurm-job/1", "job_id": job_id, "folder": str(request.folder)})
        else:
            output.emit_text(job_id)
        return EXIT_OK
    state = job.follow(job_id, request.folder, output.note)
    return _show(request, job_id, None if state is None else state.state, as_json=as_json)


def _show(request: JobRequest, job_id: str, state: str | None, *, as_json: bool) -> int:
    from bench_runner.report.formats import encodable
    from bench_runner.slurm.job import read_tasks
    from bench_runner.slurm.outcome import exit_code, job_document, job_text, node_outcomes

    tasks = read_tasks(request.folder, request.nodes)
    outcomes = node_outcomes(tasks)
    if all(task.exit_code is None for task in tasks):
        log = _relative(request.folder / "job.log")
        raise LaunchError(f"job {job_id} ended ({(state or 'unknown to Slurm').lower()}) without a result; see {log}")
    if as_json:
        output.emit_json(job_document(request, job_id, state, outcomes, tasks))
    else:
        if request.kind == "run" and not request.each:
            report = (request.folder / "task-0.out").read_text(encoding="utf-8", errors="replace")
            output.emit_text(encodable(report, sys.stdout.encoding))
        output.emit_text(encodable(job_text(request, job_id, outcomes), sys.stdout.encoding))
    output.note(f"the tasks' output is in {_relative(request.folder)}")
    return exit_code(request, outcomes)


def _relative(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
