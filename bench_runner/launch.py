"""Launch the worker processes of one or several cases and say what became of each.

What is started is data, made by pure functions: ``command`` and ``environment``.  ``run`` carries it out under the
supervisor, so that whatever happens, here or there, no process is left.  Cases that a failed one kept from running
are launched again without it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from bench_runner.errors import LaunchError
from bench_runner.launch_cause import Ending, exit_of_only_rank, parse_exits
from bench_runner.launch_process import Supervised, read_log_tails, read_tail, require_free_port
from bench_runner.launch_verdict import CaseResult, case_results, settled_results
from bench_runner.launch_watch import Limits, Stages, Stop, find_stop
from bench_runner.processes import LAUNCH_ID_VARIABLE, rank_processes
from bench_runner.rank_files import RankFile, rank_path
from bench_runner.spec import CHECKPOINT_FOLDER, RunSpec

if TYPE_CHECKING:
    from bench_runner.nodes.cluster import Cluster
    from bench_runner.nodes.leader import Leader

LAUNCH_SCHEMA: Final = "bench-runner/launch/1"
WORKER_MODULE: Final = "bench_runner.worker"
LOOPBACK: Final = "127.0.0.1"
POLL_SECONDS: Final = 0.05
MONITOR_SECONDS: Final = 0.1
"""How often torchrun's agent looks at its workers.  It is not what ends a good launch, and each look costs CPU time
that the workers are being measured with."""

PACKAGE_ROOT: Final = Path(__file__).resolve().parent.parent

# What torchrun gives its workers or takes from its caller: left over from an outer launch it would be believed.
_FOREIGN: Final = frozenset(
    {
        *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "NODE_RANK"),
        *("ROLE_RANK", "ROLE_NAME", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
        *("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "TORCH_ELASTIC_WORKER_IDENTICAL"),
        *("PYTHON_EXEC", "PYTHONHOME", "PYTHONINSPECT", "LOGLEVEL"),
    }
)
_FOREIGN_PREFIXES: Final = ("TORCHELASTIC_", "PET_")


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """One launch: cases that share strategy, device kind, device count and nodes, so the same processes serve all.

    ``python`` runs torchrun and the workers; ``directory`` is made and takes everything the launch writes; ``options``
    are plain values handed to the workers (``threads``: OMP_NUM_THREADS).  ``port`` is the rendezvous' (None: a free
    one).  With several nodes, ``rendezvous`` is host:port of the first, ``node_rank`` this one's number and
    ``interface`` the network interface that leads to the others; with a ``cluster`` the others are told what to launch,
    and their ranks are followed from here as this node's own.
    """

    specs: tuple[RunSpec, ...]
    python: str
    directory: Path
    options: Mapping[str, Any] = field(default_factory=dict)
    module: str = WORKER_MODULE
    launch_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    port: int | None = None
    startup_deadline_seconds: float = 120.0
    teardown_deadline_seconds: float = 10.0
    node_rank: int = 0
    rendezvous: str | None = None
    interface: str | None = None
    cluster: Cluster | None = None

    def __post_init__(self) -> None:
        kinds = {(s.strategy, s.device_kind, s.device_count, s.nodes) for s in self.specs}
        if len(kinds) != 1:
            raise LaunchError(f"a launch needs cases of one strategy and device count, got {sorted(kinds)!r}")
        if self.specs[0].nodes > 1 and self.rendezvous is None and self.cluster is None:
            raise LaunchError(f"nodes = {self.specs[0].nodes}: name the first node's host:port as the rendezvous")
        if self.port is not None and not 0 < self.port < 65536:
            raise LaunchError(f"port = {self.port}: must be between 1 and 65535, or left out for a free one")

    @property
    def nodes(self) -> int:
        return self.specs[0].nodes

    @property
    def local_world_size(self) -> int:
        """Worker processes on this node."""
        return self.specs[0].world_size // self.nodes

    @property
    def has_agent(self) -> bool:
        """Whether torchrun starts the workers.  A process that is the only one is started without: importing torch a
        second time, in the agent, would cost more than a second for nothing."""
        return self.specs[0].strategy == "ddp" and self.specs[0].world_size > 1

    @property
    def ranks(self) -> range:
        """The ranks on this node."""
        first = self.node_rank * self.local_world_size
        return range(first, first + self.local_world_size)

    @property
    def followed(self) -> range:
        """The ranks that are followed here: all, where the other nodes report theirs."""
        return range(self.specs[0].world_size) if self.nodes > 1 and self.cluster is not None else self.ranks

    @property
    def limits(self) -> Limits:
        return Limits(
            startup_seconds=self.startup_deadline_seconds,
            case_seconds=tuple(spec.deadline_seconds for spec in self.specs),
            teardown_seconds=self.teardown_deadline_seconds,
        )


def command(plan: LaunchPlan, directory: Path) -> list[str]:
    """The argument vector of torchrun, or of the worker itself where it is the only one.

    On one node torchrun gets a rendezvous of ours that keeps to the loopback and needs no port chosen beforehand.
    """
    document = str(directory / "launch.json")
    if not plan.has_agent:
        return [plan.python, "-u", "-m", plan.module, document]
    if plan.nodes == 1:
        agent = "bench_runner.worker.agent"
        rendezvous = ["--rdzv-backend=loopback", f"--rdzv-endpoint={LOOPBACK}:{plan.port or 0}"]
        rendezvous += [f"--local-addr={LOOPBACK}", f"--rdzv-id={plan.launch_id}"]
    else:
        agent = "torch.distributed.run"
        rendezvous = [f"--node-rank={plan.node_rank}", "--rdzv-backend=static", f"--rdzv-endpoint={plan.rendezvous}"]
        rendezvous += ["--rdzv-id=bench-runner"]  # the same on all nodes, which know no other's launch
    return [
        plan.python,
        "-m",
        agent,
        f"--nnodes={plan.nodes}",
        f"--nproc-per-node={plan.local_world_size}",
        *rendezvous,
        "--max-restarts=0",
        f"--monitor-interval={MONITOR_SECONDS}",
        f"--log-dir={directory / 'logs'}",
        "--redirects=3",
        "--module",
        plan.module,
        document,
    ]


def environment(base: Mapping[str, str], plan: LaunchPlan, cores: int) -> dict[str, str]:
    """The environment of torchrun and the workers: ``base`` without what an outer launch left in it, and our own.

    OMP_NUM_THREADS is set here because torchrun would set it to 1 with a warning; ``cores`` are those allowed to us.
    """
    kept = {k: v for k, v in base.items() if k not in _FOREIGN and not k.startswith(_FOREIGN_PREFIXES)}
    on_cpu = plan.specs[0].device_kind == "cpu"
    usual = plan.options.get("cores_per_device", 1) if on_cpu else max(1, cores // plan.local_world_size)
    threads = plan.options.get("threads") or usual
    paths = [str(PACKAGE_ROOT), *(path for path in kept.get("PYTHONPATH", "").split(os.pathsep) if path)]
    return {
        **kept,
        LAUNCH_ID_VARIABLE: plan.launch_id,
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",  # a worker that crashes leaves its stacks in its log
        "OMP_NUM_THREADS": str(threads),
        # Otherwise gloo looks the host's name up and binds whatever address that gives.
        **({"GLOO_SOCKET_IFNAME": "lo"} if plan.nodes == 1 else _interfaces(kept, plan.interface)),
    }


def _interfaces(kept: Mapping[str, str], interface: str | None) -> dict[str, str]:
    """The variables that keep gloo and NCCL on the interface that leads to the other nodes; the user's own count."""
    names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if interface is not None else ()
    exact = {"NCCL_SOCKET_IFNAME": f"={interface}"}  # without the sign NCCL takes every name that begins so
    return {name: exact.get(name, str(interface)) for name in names if name not in kept}


def run(plan: LaunchPlan, keep: Callable[[CaseResult], None] | None = None) -> tuple[CaseResult, ...]:
    """Carry out every case of ``plan``; one result each, in their order.

    Raises LaunchError when nothing could be started at all.  On KeyboardInterrupt and on SIGTERM or SIGHUP the
    processes are ended first, then it goes on as it would have.  ``keep`` is called with each result, when the launch
    that gave it has ended, however it ended: after an interrupt with those that were complete.
    """
    if not os.access(plan.python, os.X_OK) or Path(plan.python).is_dir():
        raise LaunchError(f"python = {plan.python}: not an executable file; name one with BENCH_RUNNER_PYTHON")
    results: list[CaseResult] = []
    with raising_on_termination():
        while len(results) < len(plan.specs):
            first = len(results)
            directory = plan.directory if first == 0 else plan.directory / f"from-case-{first}"
            results.extend(_attempt(plan, first, directory.resolve(), keep or _ignore))
    return tuple(results)


def _ignore(_result: CaseResult) -> None:
    """The caller waits for all results."""


def _attempt(
    plan: LaunchPlan, first_case: int, directory: Path, keep: Callable[[CaseResult], None]
) -> tuple[CaseResult, ...]:
    """Launch once, from ``first_case`` on, and watch until it ends or has to be ended."""
    write_launch(plan, first_case, directory)
    files = [RankFile(rank_path(directory, rank), rank) for rank in plan.followed]
    ranks = [file.progress for file in files]
    try:
        with _others(plan, first_case, directory) as leader:
            ending = _carry_out(leader.plan if leader else plan, first_case, directory, files, leader)
    except BaseException:
        for file in files:
            file.finish()
        for result in settled_results(plan.specs, first_case, ranks, None):
            keep(result)
        raise
    results = case_results(plan.specs, first_case, ranks, ending)
    for result in results:
        keep(result)
    return results


def _others(plan: LaunchPlan, first_case: int, directory: Path) -> AbstractContextManager[Leader | None]:
    """The launch on the other nodes, if it is for this process to order it."""
    if plan.nodes == 1 or plan.cluster is None:
        return nullcontext()
    from bench_runner.nodes.leader import Leader

    return Leader(plan.cluster, plan, first_case, directory)


def _carry_out(
    plan: LaunchPlan, first_case: int, directory: Path, files: list[RankFile], leader: Leader | None
) -> Ending:
    """Start the processes, watch them, and see them gone."""
    started = time.time()
    if plan.port is not None:
        require_free_port(plan.port)
    arguments = command(plan, directory)
    variables = environment(os.environ, plan, len(os.sched_getaffinity(0)))
    with Supervised(arguments, variables, directory, plan.limits.total(first_case), plan.launch_id) as supervised:
        stop = _watch(plan, files, first_case, supervised, leader)
        late = stop is not None and stop.kind == "deadline"
        if leader is not None and stop is not None and stop.kind != "done":
            leader.stop(stacks=late)
        if late:
            supervised.dump_stacks(has_agent=plan.has_agent)
        supervised.end(done=stop is not None and stop.kind == "done")
    shutil.rmtree(directory / CHECKPOINT_FOLDER, ignore_errors=True)  # left by a rank that could not end in order
    remote = leader.end() if leader is not None else None
    for file in files:
        file.finish()
    agent_log, rank_logs = read_log_tails(directory, plan.ranks)
    exits = parse_exits(agent_log)
    if remote is not None:
        rank_logs, exits = {**rank_logs, **remote.rank_logs}, (*exits, *remote.exits)
    if not plan.has_agent:
        rank_logs, exits = {0: agent_log}, exit_of_only_rank(supervised.result)
    return Ending(
        started=started,
        ended=time.time(),
        stop=stop,
        supervised=supervised.result,
        exits=exits,
        agent_log=agent_log,
        rank_logs=rank_logs,
        supervisor_log=read_tail(supervised.log_path),
        lost=remote.lost if remote is not None else "",
    )


def write_launch(plan: LaunchPlan, first_case: int, directory: Path) -> None:
    """Make the launch's directory and its document.  Raises LaunchError."""
    document = {
        "schema": LAUNCH_SCHEMA,
        "launch_id": plan.launch_id,
        "specs": [spec.to_json() for spec in plan.specs],
        "first_case": first_case,
        "options": dict(plan.options),
    }
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.glob("rank-*.jsonl")):
            raise LaunchError(f"directory = {directory}: holds another launch's files; name an empty one")
        (directory / "launch.json").write_text(json.dumps(document), encoding="utf-8")
    except OSError as error:
        raise LaunchError(f"directory = {directory}: cannot be written: {error.strerror}") from error


def _watch(
    plan: LaunchPlan, files: list[RankFile], first_case: int, supervised: Supervised, leader: Leader | None
) -> Stop | None:
    """Follow the ranks' files; why the launch must be ended, or None if it ended by itself."""
    limits = plan.limits
    stages = Stages(launched=time.monotonic())
    ranks = [file.progress for file in files]
    while True:
        ended = supervised.wait(POLL_SECONDS)
        changed = [file.update() for file in files]
        if ended and (leader is None or leader.ended or not _left(plan, files)):
            return None
        now = time.monotonic()
        if any(changed):
            stages.note(ranks, first_case, len(plan.specs), now)
        stop = find_stop(ranks, stages, limits, first_case, now)
        if stop is not None:
            return stop
        if leader is not None and leader.trouble():
            return Stop(kind="lost-node")
        if plan.has_agent and all(rank.leaving for rank in ranks) and not rank_processes(plan.launch_id):
            return Stop(kind="done")  # only the agent is left, and half a second of its own tear-down
        if ended:
            time.sleep(POLL_SECONDS)  # this node's part is over, another's is not


def _left(plan: LaunchPlan, files: Sequence[RankFile]) -> bool:
    """Whether this node's own ranks have all come to their end."""
    return all(file.progress.leaving for file in files if file.progress.rank in plan.ranks)


class _Terminated(BaseException):
    """SIGTERM or SIGHUP has come while processes are to be cleaned up first."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(number)


@contextmanager
def raising_on_termination() -> Iterator[None]:
    """Make a deadly SIGTERM or SIGHUP unwind the stack before it kills; a handler of the caller's own is left alone."""

    def handle(number: int, _frame: FrameType | None) -> None:
        raise _Terminated(number)

    in_main = threading.current_thread() is threading.main_thread()
    deadly = [n for n in (signal.SIGTERM, signal.SIGHUP) if in_main and signal.getsignal(n) is signal.SIG_DFL]
    for number in deadly:
        signal.signal(number, handle)
    try:
        yield
    except _Terminated as terminated:
        signal.signal(terminated.number, signal.SIG_DFL)
        os.kill(os.getpid(), terminated.number)
        raise
    finally:
        for number in deadly:
            signal.signal(number, signal.SIG_DFL)
