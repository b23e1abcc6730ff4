"""What asv's benchmark processes need: which parameters there are, whether a combination can be measured, its values.

asv runs every metric of every combination in a process of its own.  The first one that needs a (strategy, devices)
launches it and leaves all values in the session's folder; the others read them there.  Plain ``asv run`` uses the
working directory that asv shares between the benchmarks of one ``setup_cache``; ``bench-runner run`` names a folder,
and measures there itself (``bench_runner.ahead``) what asv's processes then find.
Imports here are few: every one is paid in each of asv's processes.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench_runner.errors import BenchRunnerError
from bench_runner.locks import locked, machine_lock
from bench_runner.nodes.cluster import Cluster
from bench_runner.processes import die_with_parent
from bench_runner.profile import BUILT_IN, DEVICE_COUNTS, MESSAGE_BYTES, Profile, load
from bench_runner.spec import OPERATIONS, STRATEGIES, Strategy

if TYPE_CHECKING:
    from bench_runner.capacity import Capacity
    from bench_runner.measure import Context

ROOT: Final = Path(__file__).resolve().parent.parent
SESSION_VARIABLE: Final = "BENCH_RUNNER_SESSION"
"""The folder of a session: launches, values, progress."""
PROFILE_VARIABLE: Final = "BENCH_RUNNER_PROFILE"
MACHINE_VARIABLE: Final = "BENCH_RUNNER_MACHINE"
RESULTS_VARIABLE: Final = "BENCH_RUNNER_RESULTS"
PYTHON_VARIABLE: Final = "BENCH_RUNNER_PYTHON"
DEVICE_VARIABLE: Final = "BENCH_RUNNER_DEVICE"
DEVICES_VARIABLE: Final = "BENCH_RUNNER_DEVICES"
LAUNCH_INDEX_VARIABLE: Final = "BENCH_RUNNER_LAUNCH_INDEX"
PORT_VARIABLE: Final = "BENCH_RUNNER_PORT"
OPTIONS_VARIABLE: Final = "BENCH_RUNNER_OPTIONS"
ASV_TIMEOUT_SECONDS: Final = 6 * 3600.0
"""asv's own limit must never be the first to strike: launches have deadlines, and say what hung."""
MOST_BLOCKS: Final = 10
POLL_SECONDS: Final = 0.05
CAPACITY_NAME: Final = "capacity.txt"
VALUES_NAME: Final = "values.txt"
LOCK_NAME: Final = "launch.lock"
PROGRESS_NAME: Final = "progress.jsonl"
ASKED_NAME: Final = "asked"
"""In a launch's folder while asv waits for its values."""


def _prepare_fork_server() -> None:
    """asv's fork server would outlive an asv that was killed, waiting for ever; and what it has imported, its forks
    need not."""
    if Path(sys.argv[0]).name == "benchmark.py" and sys.argv[1:2] == ["run_server"]:
        die_with_parent()
        for name in ("asv_runner.benchmarks.mark", "bench_runner.capacity", "bench_runner.plan"):
            importlib.import_module(name)


_prepare_fork_server()


def profile_in_use() -> Profile:
    """The profile that BENCH_RUNNER_PROFILE names, ``quick`` without it."""
    name = os.environ.get(PROFILE_VARIABLE) or "quick"
    # asv's processes work in a folder of asv's; a relative file name was meant from the source tree.
    return load(name if name in BUILT_IN else str(ROOT / name))


def asked_devices() -> tuple[int | str, ...] | None:
    """The device counts asked for, by BENCH_RUNNER_DEVICES (``1,2,all``) or by the profile."""
    text = os.environ.get(DEVICES_VARIABLE)
    if not text:
        return profile_in_use().devices
    return tuple(int(part) if part.isdigit() else part for part in text.split(","))


def launch_index() -> int:
    """Which repeat of the session this is."""
    return int(os.environ.get(LAUNCH_INDEX_VARIABLE, "0"))


def device_parameters() -> list[int | str]:
    """The device counts that asv knows: the same on every machine, and behind them those asked for and over nodes."""
    cluster = Cluster.from_environment(os.environ)
    more = [*(asked_devices() or ()), *(cluster.counts if cluster is not None else ())]
    return [*DEVICE_COUNTS, *(count for count in more if count not in DEVICE_COUNTS)]


def training_parameters() -> list[str]:
    """The labels of all trainings of the built-in profiles, and behind them those of the profile in use."""
    labels = [case.label for name in BUILT_IN for case in load(name).training]
    labels += [case.label for case in profile_in_use().training]
    return list(dict.fromkeys(labels))


def checkpoint_parameters() -> list[str]:
    """The labels of all checkpoints of the built-in profiles, and behind them those of the profile in use."""
    cases = [case for name in BUILT_IN for case in load(name).checkpoints]
    return list(dict.fromkeys(case.label for case in (*cases, *profile_in_use().checkpoints)))


def byte_parameters() -> list[int]:
    """The message sizes that asv knows, and behind them those of the profile in use."""
    sizes = list(MESSAGE_BYTES)
    for case in profile_in_use().collectives:
        sizes += [*case.collective.message_bytes, *case.cpu_message_bytes]
    return list(dict.fromkeys(sizes))


class Launched:
    """Base of the classes in benchmarks/: their metrics share launches.

    ``setup_cache`` is empty on purpose: asv gives all benchmarks that share it one working directory.
    """

    timeout = ASV_TIMEOUT_SECONDS

    def setup_cache(self) -> None:
        """Nothing to prepare; see the class."""


class TrainingMetrics(Launched):
    """Parameters and skips of the training metrics."""

    params = (list(STRATEGIES), device_parameters(), training_parameters())
    param_names = ("strategy", "devices", "case")

    def setup(self, strategy: Strategy, devices: int | str, case: str) -> None:
        """Skip, by NotImplementedError, what this machine or profile does not measure."""
        Session.here().require(strategy, devices, case)

    def value(self, metric: str, strategy: Strategy, devices: int | str, case: str) -> float | dict[str, Any]:
        """The metric's value in the form asv takes."""
        return Session.here().value(strategy, devices, case, metric)


class CheckpointMetrics(TrainingMetrics):
    """The same for checkpoints."""

    params = (["single", "ddp"], device_parameters(), checkpoint_parameters())


class CollectiveMetrics(Launched):
    """Parameters and skips of the collectives' metrics."""

    params = (list(OPERATIONS), device_parameters(), byte_parameters())
    param_names = ("operation", "devices", "bytes")

    def setup(self, operation: str, devices: int | str, message_bytes: int) -> None:
        """Skip, by NotImplementedError, what this machine or profile does not measure."""
        Session.here().require("ddp", devices, operation, message_bytes)

    def value(self, metric: str, operation: str, devices: int | str, message_bytes: int) -> float | dict[str, Any]:
        """The metric's value in the form asv takes."""
        return Session.here().value("ddp", devices, operation, f"{metric}@{message_bytes}")


class Session:
    """The folder in which the launches of one ``asv run`` leave their values."""

    def __init__(self, folder: Path, on_progress: Callable[[], None] | None = None) -> None:
        """``on_progress`` is called after each line that goes into the session's progress file."""
        self.folder = folder
        self._on_progress = on_progress

    @staticmethod
    def here() -> Session:
        """The session that BENCH_RUNNER_SESSION names, else the directory that asv shares between benchmarks."""
        return Session(Path(os.environ.get(SESSION_VARIABLE) or Path.cwd()).resolve())

    def context(self) -> Context:
        """What the measurements share; gathered anew in each process that needs it, except what is slow."""
        from bench_runner.capacity import cached_capacity, with_devices
        from bench_runner.interpreter import find_worker_python
        from bench_runner.machine.gather import describe
        from bench_runner.measure import Context

        machine = describe(os.environ.get(MACHINE_VARIABLE) or asv_machine_name())
        python = find_worker_python(os.environ.get(PYTHON_VARIABLE)).path
        kind = os.environ.get(DEVICE_VARIABLE) or None
        self.folder.mkdir(parents=True, exist_ok=True)
        capacity = cached_capacity(self.folder / CAPACITY_NAME, machine, python, kind=kind)
        return Context(
            root=ROOT,
            results=Path(os.environ.get(RESULTS_VARIABLE) or ROOT / "results").resolve(),
            session_id=self._session_id(),
            launch_index=launch_index(),
            machine=with_devices(machine, capacity),
            python=python,
            capacity=capacity,
            profile=profile_in_use(),
            asked_devices=asked_devices(),
            port=int(os.environ[PORT_VARIABLE]) if os.environ.get(PORT_VARIABLE) else None,
            options=json.loads(os.environ.get(OPTIONS_VARIABLE, "{}")),
            cluster=Cluster.from_environment(os.environ),
        )

    def _session_id(self) -> str:
        """One id for all launches of the session, made by the first process that needs it."""
        path = self.folder / "session-id"
        try:
            with path.open("x", encoding="ascii") as file:
                file.write(uuid.uuid4().hex)
        except FileExistsError:
            pass
        return path.read_text(encoding="ascii")

    def require(self, strategy: Strategy, devices: int | str, label: str, message_bytes: int | None = None) -> None:
        """Raise NotImplementedError, asv's skip, with the reason if the combination is not to be measured."""
        from bench_runner.plan import placed, plan, resolve_count

        profile = profile_in_use()
        if label not in {case.label for case in profile.cases}:
            raise NotImplementedError(f"not in the profile {profile.name}")
        if strategy not in profile.strategies:
            raise NotImplementedError(f"the profile {profile.name} leaves {strategy} out")
        capacity = self._capacity()
        count = resolve_count(devices, capacity)
        if devices == "all" and count in DEVICE_COUNTS:
            raise NotImplementedError(f"the same as {count} devices")
        asked = asked_devices()
        over_nodes = placed(count)[0] > 1
        if asked is not None and not over_nodes and devices not in asked and count not in asked:
            raise NotImplementedError(f"{devices} devices were not asked for")
        for case in plan(profile, strategy, count, capacity, asked):
            if case.label == label:
                if case.skip is not None:
                    raise NotImplementedError(case.skip)
                sizes = getattr(case.spec.task, "message_bytes", ())
                if message_bytes is not None and message_bytes not in sizes:
                    raise NotImplementedError(f"{message_bytes} bytes are not in the profile {profile.name}")

    def _capacity(self) -> Capacity:
        """The devices that there are; asked by the first process that needs to know."""
        from bench_runner.capacity import known_capacity

        return known_capacity(self.folder / CAPACITY_NAME) or self.context().capacity

    def value(self, strategy: Strategy, devices: int | str, label: str, key: str) -> float | dict[str, Any]:
        """A value in asv's form.  Raises asv's SkipNotImplemented for a skip and RuntimeError for a failure."""
        from asv_runner.benchmarks.mark import SkipNotImplemented

        case = self.values(strategy, devices)[label]
        if case["outcome"] == "skipped":
            raise SkipNotImplemented(case["reason"])
        if case["outcome"] != "ok":
            raise RuntimeError(f"{label}: {case['outcome']}: {case['reason']}")
        value = case["values"].get(key)
        if value is None:
            raise SkipNotImplemented(f"{key} has no meaning here")
        return value  # type: ignore[no-any-return]

    def values(self, strategy: Strategy, devices: int | str) -> dict[str, Any]:
        """The values of every case under ``strategy`` on ``devices``; measured now if nobody has yet."""
        from bench_runner.plan import resolve_count

        count = resolve_count(devices, self._capacity())
        folder = self.launch_folder(strategy, count, launch_index())
        path = folder / VALUES_NAME
        # Most processes come when all is measured: they wait for nobody, and gather nothing.
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            (folder / ASKED_NAME).touch()
            die_with_parent()  # asv, killed, leaves its benchmark processes behind: a launch would go on in this one
        # Whoever measures may begin the next launch before a process that sleeps on the lock could take it.
        while not path.exists():
            with locked(self.folder / LOCK_NAME, wait=False) as taken:
                if taken and not path.exists():
                    self._measure(self.context(), strategy, count)
            if not taken:
                time.sleep(POLL_SECONDS)
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return values

    def measure_once(self, context: Context, strategy: Strategy, count: int | str) -> None:
        """Measure every case under ``strategy`` on ``count`` devices unless that has been done."""
        with locked(self.folder / LOCK_NAME, wait=True):
            if not (self.launch_folder(strategy, count, context.launch_index) / VALUES_NAME).exists():
                self._measure(context, strategy, count)

    def repeat_folder(self, index: int) -> Path:
        """Where the launches of one repeat have their folders."""
        return self.folder / f"launch-{index}"

    def launch_folder(self, strategy: Strategy, count: int | str, index: int) -> Path:
        """Where one launch of the repeat ``index`` has its files."""
        return self.repeat_folder(index) / f"{strategy}-{count}"

    def _measure(self, context: Context, strategy: Strategy, count: int | str) -> None:
        from bench_runner.measure import measure

        folder = self.launch_folder(strategy, count, context.launch_index)
        folder.mkdir(parents=True, exist_ok=True)
        what = {"strategy": strategy, "devices": count, "launch": context.launch_index}
        self._progress({"event": "launch", **what})
        begin = time.monotonic()
        try:
            with machine_lock(lambda: self._progress({"event": "waiting", **what})):
                records = measure(context, strategy, count, folder)
        except BenchRunnerError as error:
            # asv would run into it again with every metric; whoever follows the progress ends it here.
            self._progress({"event": "error", **what, "message": str(error), "exit_code": error.exit_code})
            raise
        outcomes = [record.outcome for record in records]
        summary = {"outcomes": outcomes, "seconds": round(time.monotonic() - begin, 1)}
        reasons = [record.reason for record in records if record.outcome in ("failed", "timeout")]
        path = folder / VALUES_NAME
        temporary = path.with_name(path.name + ".new")
        temporary.write_text(json.dumps({r.spec.task.label: asv_case(r) for r in records}), encoding="utf-8")
        temporary.rename(path)
        (folder / ASKED_NAME).unlink(missing_ok=True)
        self._progress({"event": "done", **what, **summary, "reasons": reasons})

    def _progress(self, event: dict[str, Any]) -> None:
        with (self.folder / PROGRESS_NAME).open("a", encoding="utf-8") as file:
            file.write(json.dumps(event) + "\n")
        if self._on_progress is not None:
            self._on_progress()


def asv_case(record: Any) -> dict[str, Any]:
    """Outcome, reason and values of a record, a value for each metric (``metric@bytes`` for a collective's)."""
    from bench_runner.analysis.metrics import metric_values

    values: dict[str, float | dict[str, Any]] = {}
    for value in metric_values(record):
        key = value.metric if value.bytes is None else f"{value.metric}@{value.bytes}"
        found = asv_value(value)
        known = values.get(key)
        # asv holds one number: of memory, which has a value for each rank and device, the largest.
        if isinstance(known, float) and isinstance(found, float):
            found = max(known, found)
        values[key] = found
    return {"outcome": record.outcome, "reason": record.reason, "values": values}


def asv_value(value: Any) -> float | dict[str, Any]:
    """A metric value as asv takes it: with samples where there are some.

    asv stores the median of the samples.  Where our value is a mean, as for throughput and latency, the samples are
    means of up to ten consecutive blocks: the median of single calls would read far too fast on a bimodal series.
    """
    if len(value.series) < 2:
        return float(value.value)
    series = list(value.series)
    if value.statistic == "mean":
        size = -(-len(series) // MOST_BLOCKS)
        blocks = [series[i : i + size] for i in range(0, len(series), size)]
        series = [sum(block) / len(block) for block in blocks if len(block) == size]
    elif value.statistic != "median":
        return float(value.value)
    if value.numerator is not None:
        series = [value.numerator / seconds for seconds in series]
    return {"samples": [float(sample) for sample in series], "number": 1}


def asv_machine_name() -> str:
    """The name under which plain ``asv run`` stores its results: asv's only machine, else the host's name."""
    path = Path("~/.asv-machine.json").expanduser()
    try:
        names = [name for name in json.loads(path.read_text(encoding="utf-8")) if name != "version"]
    except (OSError, ValueError):
        names = []
    return names[0] if len(names) == 1 else platform.node()
