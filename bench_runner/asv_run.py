"""asv as a process: its command as data, its machine file, and a watch on what it does."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from filelock import FileLock, Timeout

from bench_runner import suite
from bench_runner.capacity import Capacity
from bench_runner.errors import LaunchError, StoreError
from bench_runner.plan import placed, plan
from bench_runner.profile import Profile
from bench_runner.spec import Checkpoint, Collective, Strategy

MACHINE_FILE_VERSION: Final = 1
LOCK_SECONDS: Final = 60.0
POLL_SECONDS: Final = 0.05
DEADLINE_SECONDS: Final = 7 * 24 * 3600.0
"""asv's own; what it waits for has deadlines that are nearer."""
SOME_FAILED: Final = 2
"""asv's exit code when a benchmark failed; everything else was saved."""


def register_machine(entry: dict[str, str | int], results: Path, folder: Path) -> None:
    """Put the machine's entry where asv looks for it: ~/.asv-machine.json, and beside the results.

    Where there is no home folder to write to, asv is given one in ``folder`` (see ``home``).
    """
    path = home(folder) / ".asv-machine.json"
    try:
        # Other nodes of a job may share this home folder, and add themselves at the same moment.
        with FileLock(path.with_name(".asv-machine.lock"), timeout=LOCK_SECONDS):
            _add(path, entry)
    except Timeout as error:
        raise StoreError(f"{path}: another process keeps it locked; end it, or remove {error.lock_file}") from error
    place = results / str(entry["machine"])
    place.mkdir(parents=True, exist_ok=True)
    _write(place / "machine.json", {**entry, "version": MACHINE_FILE_VERSION})


def _add(path: Path, entry: dict[str, str | int]) -> None:
    try:
        document = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    except (OSError, ValueError) as error:
        raise StoreError(f"{path}: unreadable ({error}); asv keeps its machines there: repair or remove it") from error
    _write(path, {**document, str(entry["machine"]): entry, "version": MACHINE_FILE_VERSION})


def home(folder: Path) -> Path:
    """The home folder for asv: the user's, or ``folder`` where that is missing or cannot be written."""
    path = Path(os.path.expanduser("~"))  # noqa: PTH111 - Path.home() raises where this leaves the ~ alone
    return path if path.is_dir() and os.access(path, os.W_OK) else folder


def _write(path: Path, document: dict[str, Any]) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(json.dumps(document, indent=4, sort_keys=True) + "\n", encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise StoreError(f"{path}: cannot be written: {error.strerror}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class AsvRun:
    """One ``asv run`` over the combinations that this machine can measure."""

    root: Path
    folder: Path
    machine: str
    commit: str
    locked: bool
    append: bool
    pairs: tuple[tuple[Strategy, int | str], ...]
    profile: Profile
    capacity: Capacity
    variables: dict[str, str]

    def command(self) -> list[str]:
        """asv's argument vector.  asv has no list of combinations; regular expressions over their names serve."""
        place = ["-E", "conda-lock", f"{self.commit}^!"] if self.locked else ["-E", "existing"]
        saved = [] if self.locked else ["--set-commit-hash", self.commit]
        return [
            sys.executable,
            "-m",
            "asv",
            "run",
            "--machine",
            self.machine,
            "--launch-method",
            "forkserver",
            "--record-samples",
            *(["--append-samples"] if self.append else []),
            *place,
            *saved,
            *(part for regex in self.selections() for part in ("--bench", regex)),
        ]

    def selections(self) -> list[str]:
        """Regular expressions over asv's names, ``training.Training.track_throughput('ddp', 2, 'mlp/fp32/b64')``."""
        found = []
        for strategy, count in self.pairs:
            devices = repr(count if isinstance(count, str) or count in suite.device_parameters() else "all")
            for case in plan(self.profile, strategy, count, self.capacity, (placed(count)[1],)):
                if case.skip is not None:
                    continue
                if isinstance(case.spec.task, Collective):
                    sizes = "|".join(str(size) for size in case.spec.task.message_bytes)
                    found.append(rf"^collectives\..*\('{case.label}', {devices}, ({sizes})\)$")
                elif isinstance(case.spec.task, Checkpoint):
                    label = re.escape(repr(case.label))
                    found.append(rf"^checkpoint\..*\('{strategy}', {devices}, {label}\)$")
                else:
                    label = re.escape(repr(case.label))
                    found.append(rf"^{self._metrics(strategy)}\('{strategy}', {devices}, {label}\)$")
        return found

    def _metrics(self, strategy: Strategy) -> str:
        """The metrics of a training that there are here: a process for each of the others would only say "n/a"."""
        memory = "peak_rss" if self.capacity.kind == "cpu" else "peak_(allocated|reserved)"
        names = ["throughput", "time_per_sample", "step_time"]
        names += ["exposed_communication"] if strategy == "ddp" else []
        names += ["energy_per_sample"] if self.capacity.kind == "cuda" else []
        return rf"(training\.Training\.track_({'|'.join(names)})|memory\.Memory\.track_{memory})"

    def run(
        self, listen: Callable[[dict[str, Any]], None], meanwhile: Callable[[Progress], None] | None = None
    ) -> None:
        """Run asv under the supervisor, handing on the progress of its launches.

        ``meanwhile`` is called once asv has been started; the progress that it gets has to be read on it.  Raises
        LaunchError when asv itself failed, or saved nothing.
        """
        log, result = self.folder / "asv.log", self.folder / "asv-result.txt"
        result.unlink(missing_ok=True)
        supervised = [sys.executable, "-S", "-m", "bench_runner.supervisor", "--parent", str(os.getpid())]
        supervised += ["--deadline", str(DEADLINE_SECONDS), "--output", str(log), "--result", str(result), "--"]
        environment = {**os.environ, **self.variables, "HOME": str(home(self.folder))}
        environment["PYTHONPATH"] = os.pathsep.join([str(suite.ROOT), *_paths(environment)])
        progress = Progress(self.folder / suite.PROGRESS_NAME, listen)
        began = time.time()
        child = subprocess.Popen(
            [*supervised, *self.command()], cwd=self.root, env=environment, stdin=subprocess.DEVNULL
        )
        try:
            if meanwhile is not None:
                meanwhile(progress)
            while child.poll() is None:
                time.sleep(POLL_SECONDS)
                progress.read()
        finally:
            if child.poll() is None:
                child.terminate()
                child.wait()
        progress.read()
        self._judge(result, log, began)

    def _judge(self, result: Path, log: Path, began: float) -> None:
        ended = json.loads(result.read_text(encoding="utf-8")) if result.exists() else {}
        code = ended.get("exit_code")
        if code not in (0, SOME_FAILED):
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
            said = [line for line in lines if line.strip()]
            raise LaunchError(f"asv ended with {code}: {said[-1].strip() if said else 'no output'} (see {log})")
        saved = (self.root / "results" / self.machine).glob(f"{self.commit[:8]}*.json")
        # asv exits with 0 in some cases where it has saved nothing.
        if not any(path.stat().st_mtime >= began - 1 for path in saved):
            raise LaunchError(f"asv saved no results for commit {self.commit[:8]} (see {log})")


class Progress:
    """Follows the file in which the benchmark processes say what they do."""

    def __init__(self, path: Path, listen: Callable[[dict[str, Any]], None]) -> None:
        self._path = path
        self._listen = listen
        self._read = path.stat().st_size if path.exists() else 0

    def read(self) -> None:
        """Hand on every event that was added."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._read)
            content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            self._listen(json.loads(line))


def _paths(environment: dict[str, str]) -> list[str]:
    return [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
