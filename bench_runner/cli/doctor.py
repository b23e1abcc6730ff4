"""``bench-runner doctor``: find and name the faults of training jobs on several devices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bench_runner.errors import EXIT_FINDINGS, EXIT_OK

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bench_runner.finding import Finding

_Json = Annotated[bool, typer.Option("--json", help="Print one JSON document (bench-runner/doctor/1).")]


def register(app: typer.Typer) -> None:
    """Add the group of commands."""
    group = typer.Typer(
        help="Find and name the faults of training jobs on several devices.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    for name, function in _COMMANDS.items():
        group.command(name)(function)
    app.add_typer(group, name="doctor")


def _finish(probe: str, findings: Sequence[Finding], as_json: bool, details: Mapping[str, Any] | None = None) -> int:
    """Print what a probe found; 1 if anything failed."""
    from bench_runner.cli import output
    from bench_runner.doctor.document import doctor_document, doctor_text

    if as_json:
        output.emit_json(doctor_document(probe, findings, details))
    else:
        output.emit_text(doctor_text(findings))
    return EXIT_FINDINGS if any(finding.status == "fail" for finding in findings) else EXIT_OK


def log(
    files: Annotated[list[Path], typer.Argument(help="Output of a job that is over; one file, or one for each rank.")],
    world_size: Annotated[int | None, typer.Option(min=1, help="Number of ranks the job had, if known.")] = None,
    as_json: _Json = False,
) -> int:
    """Name the fault in the logs of a job that is over.

    Example: bench-runner doctor log logs/rank_*.log
    """
    from bench_runner.doctor.log_ranks import judge_blank, require_something
    from bench_runner.doctor.log_rules import judge_logs
    from bench_runner.doctor.logfile import read_log
    from bench_runner.doctor.logs import summarise
    from bench_runner.doctor.sources import read_sources

    summary = summarise([read_log(path) for path in files])
    require_something(summary)
    sources = read_sources(frame for error in summary.errors for frame in error.frames)
    findings = [*judge_logs(summary, sources, world_size=world_size), *judge_blank(summary)]
    return _finish("log", findings, as_json)


def loader(
    factory: Annotated[str, typer.Argument(help="module:factory or file.py:factory; called without arguments.")],
    world_size: Annotated[int, typer.Option(help="Number of ranks, each a process.")] = 2,
    epochs: Annotated[int, typer.Option(min=1, max=100, help="Epochs to run.")] = 2,
    max_batches: Annotated[int, typer.Option(min=0, help="Run at most so many batches an epoch; 0: all.")] = 0,
    deadline: Annotated[float, typer.Option(min=1, max=86400, help="Seconds after which it ends anyhow.")] = 300,
    as_json: _Json = False,
) -> int:
    """Run a data loader as every rank would, without the training, and judge what it gives.

    The factory returns the loader, or any iterable of batches. It is called within a gloo process group, with RANK,
    WORLD_SIZE and the rest set; parameters called rank and world_size are filled in.

    Example: bench-runner doctor loader train.py:make_loader --world-size 4
    """
    from bench_runner.doctor.loader import probe_loader
    from bench_runner.doctor.loader_rules import judge_loader

    probe = probe_loader(
        factory,
        world_size,
        python=_worker_python(),
        epochs=epochs,
        max_batches=max_batches,
        deadline_seconds=deadline,
    )
    counts = {str(view.rank): [epoch.batches for epoch in view.epochs] for view in probe.views}
    loaders = {str(view.rank): view.described for view in probe.views}
    return _finish("loader", judge_loader(probe), as_json, {"batches": counts, "loaders": loaders})


def checkpoint(
    file: Annotated[Path, typer.Argument(help="What torch.save wrote.")],
    model: Annotated[
        str | None, typer.Option(help="module:factory or file.py:factory of the model to load it into.")
    ] = None,
    deadline: Annotated[float, typer.Option(min=1, max=86400, help="Seconds after which it ends anyhow.")] = 300,
    as_json: _Json = False,
) -> int:
    """Say what a checkpoint holds, from which devices its tensors were saved, and whether it fits a model.

    The file is read as data (weights_only) in a process of its own, and no GPU is needed.

    Example: bench-runner doctor checkpoint last.pt --model train.py:make_model
    """
    from bench_runner.doctor.checkpoint import probe_checkpoint
    from bench_runner.doctor.checkpoint_rules import judge_checkpoint

    probe = probe_checkpoint(file, python=_worker_python(), model=model, deadline_seconds=deadline)
    return _finish("checkpoint", judge_checkpoint(probe), as_json, {"content": probe.content, "model": probe.model})


def watch(
    command: Annotated[list[str] | None, typer.Argument(help="The job's command, after `--`.")] = None,
    pid: Annotated[int | None, typer.Option(min=1, help="Watch a job that runs: the PID of its launcher.")] = None,
    quiet: Annotated[float, typer.Option(min=1, help="Seconds without progress after which it is a hang.")] = 60,
    max_seconds: Annotated[float, typer.Option(min=1, help="Seconds after which the watch ends anyhow.")] = 7 * 86400,
    output: Annotated[Path | None, typer.Option(help="File for the job's output (default: a temporary one).")] = None,
    stacks: Annotated[str, typer.Option(help="How stacks are read: auto, py-spy or faulthandler.")] = "auto",
    kill: Annotated[bool, typer.Option("--kill", help="End the job if it hangs, or when the watch is over.")] = False,
    as_json: _Json = False,
) -> int:
    """Watch a training job until it ends or hangs, and say why.

    Its output goes to standard error. A job that hangs is left as it is, unless --kill is given.

    Example: bench-runner doctor watch --quiet 120 -- torchrun --nproc-per-node 4 train.py
    """
    from bench_runner.cli import output as printer
    from bench_runner.doctor.watching import WatchPlan, require_method, watch_and_judge

    plan = WatchPlan(
        command=tuple(command or ()),
        pid=pid,
        quiet_seconds=quiet,
        max_seconds=max_seconds,
        output=output,
        method=require_method(stacks),
        kill=kill,
    )
    findings, details = watch_and_judge(plan, printer.note)
    return _finish("watch", findings, as_json, details)


def startup(
    device: Annotated[str, typer.Option(help="cpu, cuda, xpu, npu or hpu.")] = "cpu",
    devices: Annotated[int, typer.Option(min=1, max=64, help="Number of devices (on the CPU: of processes).")] = 2,
    workload: Annotated[
        str, typer.Option(help="Built-in workload or module:factory, for the last two stages.")
    ] = "mlp",
    batch: Annotated[int, typer.Option(min=1, help="Samples per device in the last stage.")] = 32,
    deadline: Annotated[float, typer.Option(min=1, max=86400, help="Seconds for each trial.")] = 120,
    as_json: _Json = False,
) -> int:
    """Go through the start of a job stage by stage: each device, every pair, growing subsets, all.

    Names the first stage that fails and the smallest subset of devices that does, and what has to be switched off for
    it to pass. Wrong values are a failure too.

    Example: bench-runner doctor startup --device cuda --devices 4
    """
    from bench_runner.cli import output as printer
    from bench_runner.doctor.startup import plan_startup
    from bench_runner.doctor.startup_rules import judge_startup
    from bench_runner.doctor.startup_run import make_runner, require_device_kind, require_workload
    from bench_runner.machine.network import read_network, usable_interfaces

    runner = make_runner(
        device_kind=require_device_kind(device),
        python=_worker_python(),
        workload=require_workload(workload),
        deadline_seconds=deadline,
        note=printer.note,
    )
    interfaces = usable_interfaces(read_network()) if device == "cuda" else ()
    report = plan_startup(devices, batch, runner, rerun=device == "cuda", interfaces=interfaces)
    tried = [
        {
            "stage": t.stage,
            "devices": list(t.devices),
            "switched_off": t.switched_off,
            "interface": t.interface,
            "failure": o.failure,
            "phase": o.phase,
        }
        for t, o in (*report.trials, *report.reruns)
    ]
    return _finish("startup", judge_startup(report), as_json, {"trials": tried})


def staged(
    workload: Annotated[
        str, typer.Option(help="Built-in workload, or module:factory of (model, loss, batch).")
    ] = "mlp",
    device: Annotated[str, typer.Option(help="cpu, cuda, xpu, npu or hpu.")] = "cpu",
    devices: Annotated[int, typer.Option(min=1, max=64, help="Number of devices (on the CPU: of processes).")] = 2,
    batch: Annotated[int, typer.Option(min=1, help="Samples per device.")] = 4,
    tolerance: Annotated[float, typer.Option(min=0, help="Relative difference of gradients that is allowed.")] = 1e-3,
    deadline: Annotated[float, typer.Option(min=1, max=86400, help="Seconds for each stage.")] = 120,
    as_json: _Json = False,
) -> int:
    """Compare the gradients of one global batch: one process, with a sampler, DDP with 1, 2, 4 ... ranks.

    Names the first stage that differs from the single process, or fails.

    Example: bench-runner doctor staged --workload train:workload --devices 4
    """
    from bench_runner.cli import output as printer
    from bench_runner.doctor.staged import run_staged
    from bench_runner.doctor.staged_rules import judge_staged
    from bench_runner.doctor.startup_run import require_device_kind, require_workload

    outcomes = run_staged(
        require_workload(workload),
        device_kind=require_device_kind(device),
        devices=devices,
        per_device_batch=batch,
        python=_worker_python(),
        deadline_seconds=deadline,
        note=printer.note,
    )
    stages = [
        {"stage": o.stage, "ranks": o.world_size, "error": o.error, "seconds": round(o.seconds, 1)} for o in outcomes
    ]
    return _finish("staged", judge_staged(outcomes, tolerance), as_json, {"stages": stages})


def memory(
    command: Annotated[list[str] | None, typer.Argument(help="The job's command, after `--`.")] = None,
    pid: Annotated[int | None, typer.Option(min=1, help="A job that runs: the PID of its launcher.")] = None,
    max_seconds: Annotated[float, typer.Option(min=1, help="Seconds after which it ends anyhow.")] = 600,
    kill: Annotated[bool, typer.Option("--kill", help="End the job when the time is up.")] = False,
    device: Annotated[str, typer.Option(help="Without a job: cpu, cuda, xpu, npu or hpu.")] = "cpu",
    devices: Annotated[int, typer.Option(min=1, max=64, help="Without a job: number of ranks.")] = 2,
    as_json: _Json = False,
) -> int:
    """Show which rank of a job holds how much memory on which device, and name what fits.

    The job runs on when the time is up, unless --kill is given. Without a job, show what loading a checkpoint costs
    each rank on this machine, as it was saved and mapped to where it belongs.

    Example: bench-runner doctor memory --max-seconds 120 --kill -- torchrun --nproc-per-node 4 train.py
    """
    from bench_runner.doctor.memory import probe_job
    from bench_runner.doctor.memory_rules import judge_memory, judge_skew
    from bench_runner.doctor.memory_skew import probe_skew
    from bench_runner.doctor.startup_run import require_device_kind
    from bench_runner.doctor.watch import WatchPlan

    if not command and pid is None:
        skew = probe_skew(require_device_kind(device), devices, python=_worker_python(), deadline_seconds=max_seconds)
        return _finish("memory", judge_skew(skew), as_json, asdict(skew))
    probe = probe_job(WatchPlan(command=tuple(command or ()), pid=pid, max_seconds=max_seconds, kill=kill))
    matrix = [
        {
            "rank": rank.rank,
            "pid": rank.pid,
            "resident_bytes": rank.resident_bytes,
            "helper_bytes": rank.helper_bytes,
            "device_bytes": {str(device): held for device, held in rank.device_bytes.items()},
        }
        for rank in probe.ranks
    ]
    details = {"matrix": matrix, "devices": probe.devices, "samples": probe.samples, "exit_code": probe.exit_code}
    return _finish("memory", judge_memory(probe), as_json, details)


def _worker_python() -> str:
    from bench_runner.interpreter import find_worker_python

    return find_worker_python().path


_COMMANDS: dict[str, Callable[..., int]] = {
    "watch": watch,
    "log": log,
    "startup": startup,
    "loader": loader,
    "checkpoint": checkpoint,
    "staged": staged,
    "memory": memory,
}
