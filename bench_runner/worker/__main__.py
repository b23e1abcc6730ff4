"""One rank of a launch: ``python -m bench_runner.worker LAUNCH_JSON``, started by torchrun.

Carries out the launch's cases in order, telling the control side of each step through its channel.  The first failure
ends the process with 1; the control side decides what is tried again.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Any, Final

from bench_runner.processes import die_with_parent
from bench_runner.worker.channel import Channel
from bench_runner.worker.failures import classify

EXIT_FAILED: Final = 1
HELD_SECONDS_AT_MOST: Final = 30.0


def main(arguments: list[str]) -> int:
    """Run every case from ``first_case`` on; 0 when all of them ended well."""
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)  # the control side asks for the stacks of a rank that hangs
    die_with_parent()
    path = Path(arguments[0])
    launch: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    channel = Channel(path.parent, int(os.environ.get("RANK", "0")))
    channel.state("started")
    progress = Progress()
    try:
        _run(launch, path.parent, channel, progress)
    except BaseException as error:
        _report(error, channel, progress.case)
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        return EXIT_FAILED
    return 0


class Progress:
    """The case that is being carried out, for the report of a failure."""

    case: int | None = None


def _run(launch: dict[str, Any], directory: Path, channel: Channel, progress: Progress) -> None:
    # Imported here so that the file above exists while torch is being imported: a hang in there has a name then.

    from bench_runner.spec import Collective, RunSpec
    from bench_runner.worker import devices, memory, runtime, settings
    from bench_runner.worker.cases import carry_out
    from bench_runner.worker.group import Group, Ranks
    from bench_runner.worker.workloads import WorkloadUnavailable

    options: dict[str, Any] = launch.get("options", {})
    specs = [RunSpec.from_json(document) for document in launch["specs"]]
    ranks = Ranks.from_environment()
    spec = specs[0]
    on_cpu = spec.device_kind == "cpu"
    applied = settings.apply(ranks.local_rank, ranks.local_world_size, on_cpu=on_cpu, options=options)
    channel.state("device")
    driven = spec.device_count if spec.strategy == "data_parallel" else 1
    device = devices.select(spec.device_kind, ranks.local_rank, driven)
    channel.state("joining")
    timeout_seconds = float(options.get("group_timeout_seconds", 600.0))
    group = Group(device, ranks, wanted=spec.strategy == "ddp", timeout_seconds=timeout_seconds)
    group.barrier()
    channel.state("joined")
    channel.runtime(runtime.describe(device.kind))  # a case that fails must say what it ran on, too
    identity = {
        "rank": ranks.rank,
        "local_rank": ranks.local_rank,
        "node": ranks.node,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "device": device.index,
        "uuid": device.uuid(),
        "backend": group.backend,
        "settings": applied,
    }
    if "held_by" in options:
        folder, name = options["held_by"]
        _hold(folder, name, ranks.rank)
        group.barrier()
    for case in range(int(launch.get("first_case", 0)), len(specs)):
        progress.case = case
        channel.state("case", case)
        memory.start_case(device)
        try:
            samples = carry_out(specs[case], device, group, options, directory)
        except WorkloadUnavailable as unavailable:
            channel.skipped(case, str(unavailable))
            continue
        measured_memory = {"memory": memory.device_rows(device), "peak_rss_bytes": memory.peak_rss_bytes()}
        if isinstance(specs[case].task, Collective):
            # A few buffers: the peak of the process would be that of the training before it.
            measured_memory = {}
        channel.result(case, {**identity, **samples, **measured_memory}, [])
    progress.case = None
    channel.runtime(runtime.describe(device.kind))  # with what the cases loaded: the last one counts
    channel.state("leaving")
    group.leave()


def _hold(folder: str, name: str, rank: int) -> None:
    """Get ready while asv gets ready: import what the trainings will, and on rank 0 wait until asv waits for values.

    It then leaves a file ``name`` in a folder below ``folder``.  Without an end to that wait, an asv that never comes
    would be one more way to hang.
    """
    import torch._dynamo  # noqa: F401 - by the first optimizer and by DDP's constructor, a second and a half later

    ends = time.monotonic() + HELD_SECONDS_AT_MOST
    while rank == 0 and time.monotonic() < ends and not any(Path(folder).glob(f"*/{name}")):
        time.sleep(0.05)


def _report(error: BaseException, channel: Channel, case: int | None) -> None:
    failure, message = classify(error)
    channel.error(case, failure, message, "".join(traceback.format_exception(error)))


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # The group is down and the results are written: torch's own tear-down costs half a second and tells nothing.
    os._exit(code)
