"""One ``bench-runner run``: asv measures a profile on this machine, once or several times over.

A session that was broken off goes on where it stopped when the same run is asked for again: launches whose values are
there are not repeated.  Only one session at a time goes on in a tree.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from filelock import FileLock, Timeout

from bench_runner import store, suite
from bench_runner.ahead import measure_ahead
from bench_runner.asv_run import AsvRun, Progress, register_machine
from bench_runner.capacity import Capacity, find_capacity, keep_capacity, with_devices
from bench_runner.environment.install import locked_environment_available
from bench_runner.errors import MeasuringError, SpecError, StoreError, UsageError
from bench_runner.interpreter import find_worker_python
from bench_runner.launch_process import require_free_port
from bench_runner.machine.fingerprint import check_same_machine
from bench_runner.machine.gather import asv_machine_entry, describe
from bench_runner.machine.info import MachineInfo
from bench_runner.measure import Context, measure
from bench_runner.nodes.cluster import CLUSTER_VARIABLE, Cluster
from bench_runner.nodes.hub import Hub
from bench_runner.nodes.lost import without_lost
from bench_runner.nodes.membership import Membership
from bench_runner.plan import counts_to_run, placements, plan
from bench_runner.profile import BUILT_IN, Profile
from bench_runner.profile import FOLDER as FOLDER_OF_PROFILES
from bench_runner.record import RunRecord
from bench_runner.session_folder import finish_session, open_session
from bench_runner.snapshot import current_commit
from bench_runner.spec import Strategy

EnvironmentChoice = Literal["auto", "locked", "existing"]
FOLDER: Final = ".bench-runner"
REPORT_MODULES: Final = ("bench_runner.report.tables", "bench_runner.report.text")
"""What shows the records of a run at its end; a second of imports."""
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """What ``bench-runner run`` was asked for.  ``root`` holds asv.conf.json and benchmarks/; ``membership`` is that of
    node 0 in a run over several nodes."""

    root: Path
    profile: Profile
    environment: EnvironmentChoice = "auto"
    machine: str | None = None
    launches: int = 1
    device: str | None = None
    devices: tuple[int | str, ...] | None = None
    python: str | None = None
    port: int | None = None
    find_batch: bool = False
    fresh: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    membership: Membership | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.launches <= 1000:
            raise SpecError("launches", self.launches, "must be from 1 to 1000")
        if self.port is not None and not 1 <= self.port <= 65535:
            raise SpecError("port", self.port, "must be from 1 to 65535, or left out for a free one")


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionResult:
    """What came of it.  ``records`` are all of this session, also those of an earlier call that was broken off."""

    session_id: str
    machine: MachineInfo
    capacity: Capacity
    locked: bool
    environment_reason: str
    records: tuple[RunRecord, ...]

    def count(self, *outcomes: str) -> int:
        """Records with one of these outcomes."""
        return sum(record.outcome in outcomes for record in self.records)


def run_session(request: RunRequest, say: Say) -> SessionResult:
    """Measure, store, and return the session's records.  ``say`` gets a line at a time about the progress.

    Raises UsageError (another session in this tree, another machine under this name), DeviceError, LaunchError,
    EnvironmentBuildError (``locked`` asked for and not to be had) or StoreError.  What was measured by then is stored.
    """
    if not (request.root / "asv.conf.json").is_file():
        raise UsageError(f"{request.root}: no asv.conf.json here; run it in a checkout of the suite")
    with _alone(request.root):
        if request.membership is None:
            return _run(request, say, None)
        # Opened before all else: whatever goes wrong here, the other nodes are told and do not wait.
        with Hub(request.membership) as hub:
            return _run(request, say, hub)


@contextmanager
def _alone(root: Path) -> Iterator[None]:
    folder = root / FOLDER
    try:
        folder.mkdir(exist_ok=True)
        lock = FileLock(folder / "run.lock")
        with lock.acquire(timeout=0):
            yield
    except Timeout as error:
        raise UsageError(f"{root}: another bench-runner run goes on in this tree; wait for it or stop it") from error
    except PermissionError as error:
        raise StoreError(f"{error.filename or folder}: {error.strerror}; the run keeps its state there") from error


def _run(request: RunRequest, say: Say, hub: Hub | None) -> SessionResult:
    results = request.root / "results"
    machine = _machine(request, results)
    prefix, reason = locked_prefix(request)
    locked = prefix is not None
    say(f"machine: {machine.name} (fingerprint {machine.fingerprint})")
    if request.environment == "auto" and not locked:
        why = reason.partition(";")[0]  # what to do about it, `bench-runner env create` says
        say(f"environment: the one at hand; this run is not in the locked environment ({why})")
    # The locked environment runs its own Python; which devices there are is asked with whatever has torch by now.
    python = worker_python(request, prefix)
    if request.port is not None:
        require_free_port(request.port)
    capacity = find_capacity(machine, python, kind=request.device)
    say(f"devices: {capacity.count} × {capacity.kind} ({capacity.reason})")
    machine = with_devices(machine, capacity)
    context = Context(
        root=request.root,
        results=results,
        session_id="",
        launch_index=0,
        machine=machine,
        python=python,
        capacity=capacity,
        profile=request.profile,
        asked_devices=request.devices or request.profile.devices,
        port=request.port,
        options=request.options,
        cluster=_cluster(request, hub, capacity, say),
    )
    place = request.root / FOLDER / "session"
    folder, session_id = open_session(place, _identity(request, context, locked), fresh=request.fresh, say=say)
    context = replace(context, session_id=session_id)
    register_machine(asv_machine_entry(machine), results, folder)
    if request.find_batch:
        _find_batches(context, folder, say)
    else:
        _measure(request, context, folder, say, locked=locked)
    finish_session(folder)
    records, _ = store.read_tree(store.runs_folder(results, machine.name))
    return SessionResult(
        session_id=session_id,
        machine=machine,
        capacity=capacity,
        locked=locked,
        environment_reason=reason,
        records=without_lost([record for record in records if record.session_id == session_id]),
    )


def worker_python(request: RunRequest, prefix: Path | None) -> str:
    """The locked environment's Python if that is built, else one that has torch."""
    built = prefix / "bin" / "python" if prefix is not None else None
    return str(built) if built is not None and built.exists() else find_worker_python(request.python).path


def _cluster(request: RunRequest, hub: Hub | None, capacity: Capacity, say: Say) -> Cluster | None:
    """The other nodes, once all of them are there."""
    if hub is None or request.membership is None:
        return None
    fewest = hub.wait_for_nodes(capacity.kind, capacity.count, say)
    devices = request.devices or request.profile.devices
    counts = placements(request.membership.nodes, replace(capacity, count=fewest), devices)
    return hub.cluster(counts)


def _machine(request: RunRequest, results: Path) -> MachineInfo:
    """This machine under the name asked for, else the one it has in ``results``, else the host's.

    A container's host name is another each time; the fingerprint finds the machine again.
    """
    machine = describe(request.machine)
    entries = {path.parent.name: _entry(path) for path in sorted(results.glob("*/machine.json"))}
    if request.machine is None:
        known = [entry["machine"] for entry in entries.values() if entry.get("fingerprint") == machine.fingerprint]
        machine = replace(machine, name=str(known[0])) if known and machine.name not in known else machine
    stored = entries.get(machine.name)
    check_same_machine(machine.name, machine.fingerprint, stored, asv_machine_entry(machine))
    if store.machine_folder(machine.name) != machine.name:
        raise UsageError(f"--machine {machine.name}: must be letters, digits, '.', '_' or '-' (it names a folder)")
    return machine


def _entry(path: Path) -> dict[str, Any]:
    try:
        entry = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: unreadable ({error}); restore or remove it") from error
    if not isinstance(entry, dict) or not isinstance(entry.get("machine", ""), str):
        raise UsageError(f"{path}: not asv's machine entry; restore or remove it")
    return {"machine": path.parent.name, **entry}


def locked_prefix(request: RunRequest) -> tuple[Path | None, str]:
    """The locked environment's prefix if it is to be measured in, built or not, and why or why not."""
    if request.environment == "existing" or request.python is not None:
        return None, "asked for"
    prefix, reason = locked_environment_available(request.root)
    if prefix is None and request.environment == "locked":
        raise UsageError(f"--env locked: {reason}; --env existing measures in the environment at hand")
    return prefix, reason


def _identity(request: RunRequest, context: Context, locked: bool) -> str:
    """What has to be the same for a session to be continued."""
    document = [
        request.profile.source.read_text(encoding="utf-8"),
        context.machine.name,
        context.machine.fingerprint,
        context.python,
        current_commit(request.root),
        [context.capacity.kind, context.capacity.count],
        list(context.asked_devices or ()),
        request.launches,
        request.find_batch,
        request.options,
        locked,
        context.cluster.counts if context.cluster is not None else (),
    ]
    return hashlib.sha256(json.dumps(document).encode()).hexdigest()


def combinations(context: Context) -> list[tuple[Strategy, int | str, bool]]:
    """Every (strategy, device count) of the run, and whether anything can be measured under it."""
    found = []
    over_nodes = context.cluster.counts if context.cluster is not None else ()
    for strategy in context.profile.strategies:
        counts: list[int | str] = [1]
        if strategy != "single":
            counts = [*counts_to_run(context.asked_devices, context.capacity)]
        if strategy == "ddp":
            counts += over_nodes
        for count in counts:
            cases = plan(context.profile, strategy, count, context.capacity, context.asked_devices)
            found.append((strategy, count, any(case.skip is None for case in cases)))
    return found


def _measure(request: RunRequest, context: Context, folder: Path, say: Say, *, locked: bool) -> None:
    pairs = combinations(context)
    _store_skips(context, [(s, c) for s, c, possible in pairs if not possible], folder)
    possible = [(s, c) for s, c, possible in pairs if possible]
    if not possible:
        return
    keep_capacity(folder / suite.CAPACITY_NAME, context.capacity)
    listen = say_progress(say, len(possible) * request.launches)
    for index in range(request.launches):
        asv = AsvRun(
            root=request.root,
            folder=folder,
            machine=context.machine.name,
            commit=current_commit(request.root),
            locked=locked,
            append=index > 0,
            pairs=tuple(possible),
            profile=context.profile,
            capacity=context.capacity,
            variables=_variables(request, context, folder, index),
        )
        if locked or context.cluster is not None:
            # In the locked environment asv may have to build first what the launches need.
            asv.run(listen)
        else:
            asv.run(listen, partial(_measure_ahead, replace(context, launch_index=index), folder, possible))


def _measure_ahead(context: Context, folder: Path, pairs: list[tuple[Strategy, int | str]], progress: Progress) -> None:
    measure_ahead(context, folder, pairs, progress.read, later=REPORT_MODULES)


def _variables(request: RunRequest, context: Context, folder: Path, index: int) -> dict[str, str]:
    """What the benchmark processes are told through their environment."""
    variables = {
        suite.SESSION_VARIABLE: str(folder),
        suite.PROFILE_VARIABLE: context.profile.name
        if context.profile.name in BUILT_IN and context.profile.source.parent == FOLDER_OF_PROFILES
        else str(context.profile.source.resolve()),
        suite.MACHINE_VARIABLE: context.machine.name,
        suite.RESULTS_VARIABLE: str(context.results),
        suite.LAUNCH_INDEX_VARIABLE: str(index),
        suite.DEVICE_VARIABLE: context.capacity.kind,
        suite.OPTIONS_VARIABLE: json.dumps(request.options),
    }
    if context.cluster is not None:
        variables[CLUSTER_VARIABLE] = context.cluster.to_text()
    if request.port is not None:
        variables[suite.PORT_VARIABLE] = str(request.port)
    if context.asked_devices is not None:
        variables[suite.DEVICES_VARIABLE] = ",".join(str(count) for count in context.asked_devices)
    if request.python is not None or not os.environ.get(suite.PYTHON_VARIABLE):
        variables[suite.PYTHON_VARIABLE] = context.python
    return variables


def _store_skips(context: Context, pairs: list[tuple[Strategy, int | str]], folder: Path) -> None:
    """Records for what cannot be measured here at all, once per session; nothing is launched for them."""
    done = folder / "skips-stored"
    if done.exists():
        return
    for strategy, count in pairs:
        measure(context, strategy, count, folder)
    done.touch()


def _find_batches(context: Context, folder: Path, say: Say) -> None:
    """Look for the largest batch that fits, for every training of the profile under every strategy."""
    trainings = tuple(
        replace(case, training=replace(case.training, find_batch=True, data="device", loader_workers=0))
        for case in context.profile.training
    )
    unique = {case.label: case for case in trainings}
    context = replace(
        context, profile=replace(context.profile, training=tuple(unique.values()), collectives=(), checkpoints=())
    )
    for strategy, count, possible in combinations(context):
        done = folder / f"find-{strategy}-{count}"
        if done.exists():
            continue
        if possible:
            say(f"{strategy} on {count}: looking for the largest batch that fits")
        measure(context, strategy, count, folder / f"finding-{strategy}-{count}")
        done.touch()


def say_progress(say: Say, total: int) -> Callable[[dict[str, Any]], None]:
    """A listener for the events of suite.Session that says them in words.

    Raises MeasuringError when the benchmark processes cannot go on: what they would say again with every metric.
    """
    begun = time.monotonic()
    finished = 0

    def listen(event: dict[str, Any]) -> None:
        nonlocal finished
        what = f"{event['strategy']} on {event['devices']}"
        if event["event"] == "launch":
            say(f"{what}: measuring …")
        elif event["event"] == "waiting":
            say(f"{what}: waiting for another measurement on this machine to end")
        elif event["event"] == "error":
            raise MeasuringError(f"{what}: {event['message']}", event["exit_code"])
        else:
            finished += 1
            outcomes = event["outcomes"]
            counts = ", ".join(f"{outcomes.count(o)} {o}" for o in dict.fromkeys(outcomes))
            so_far = f"{finished} of {total}, {time.monotonic() - begun:.0f} s"
            say(f"{what}: {counts} in {event['seconds']:.0f} s ({so_far})")
            for reason in event["reasons"]:
                say(f"  {reason}")

    return listen


def default_root() -> Path:
    """The tree to measure in: the nearest folder upwards with asv.conf.json and benchmarks/."""
    for folder in (Path.cwd(), *Path.cwd().parents):
        if (folder / "asv.conf.json").is_file() and (folder / "benchmarks").is_dir():
            return folder
    return suite.ROOT
