"""What a user means by a word such as ``a100-box``, ``a100-box@1a2b3c``, ``before-driver`` or ``results/x.jsonl``.

Selectors, in the order they are tried: ``baseline:NAME`` and ``machine:NAME``; a path; ``MACHINE@WHAT`` and ``@WHAT``
(all machines), where WHAT is the beginning of a commit, a session, an environment's fingerprint or lock, or a name
that git knows (a tag or branch); a bare word that names one thing of all these.  A word that names two is refused.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench_runner import store
from bench_runner.analysis import asv_results
from bench_runner.analysis.asv_results import AsvTree
from bench_runner.baseline import baseline_names, baseline_path
from bench_runner.errors import UsageError
from bench_runner.record import RunRecord

SHORTEST_PREFIX: Final = 4
_GIT_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]{0,200}")
_GIT_SECONDS: Final = 10.0


class AmbiguousError(UsageError):
    """A selector that means more than one thing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One side: records, or results of asv, with a line for all that could not be read and all that was decided."""

    selector: str
    records: tuple[RunRecord, ...] = ()
    asv: AsvTree = field(default_factory=AsvTree)
    unreadable: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def select(selector: str, results: Path) -> Side:
    """Resolve one selector; UsageError (one line) when it names nothing, or more than one thing."""
    word = selector.removeprefix("baseline:")
    if word != selector:
        return _baseline(selector, word, results)
    word = selector.removeprefix("machine:")
    if word != selector:
        return _machine(selector, word, None, results)
    path = Path(selector)
    if path.exists() or selector.endswith((".json", store.SUFFIX)) or "/" in selector:
        return _path(selector, path)
    machine, at, what = selector.rpartition("@")
    if at and not machine:
        return _matching(selector, what, [results])
    if at:
        return _machine(selector, machine, what, results)
    return _word(selector, results)


def several(selectors: Sequence[str], results: Path) -> Side:
    """Several selectors as one side; all of the results folder without any."""
    chosen = [select(selector, results) for selector in selectors] or [_path(str(results), results)]
    records = {record.record_id: record for one in chosen for record in one.records}
    return Side(
        selector=" ".join(one.selector for one in chosen),
        records=tuple(records.values()),
        unreadable=tuple(line for one in chosen for line in one.unreadable),
        notes=tuple(line for one in chosen for line in one.notes),
    )


def machine_names(results: Path) -> list[str]:
    """The machines with records in the results folder."""
    if not results.is_dir():
        return []
    return sorted(folder.name for folder in results.iterdir() if (folder / store.RUNS_FOLDER).is_dir())


def _path(selector: str, path: Path) -> Side:
    if not path.exists():
        raise UsageError(f"{selector}: no such file or folder")
    if path.is_file() and path.suffix == ".json":
        tree, problems = asv_results.read_tree([path])
        return Side(selector=selector, asv=tree, unreadable=tuple(problems))
    records, found = store.read_tree(path)
    unreadable = tuple(str(problem) for problem in found)
    if records or unreadable or path.is_file():
        return Side(selector=selector, records=tuple(records), unreadable=unreadable)
    files = asv_results.result_files(path)
    if not files:
        raise UsageError(f"{selector}: holds neither records ({store.SUFFIX}) nor result files of asv")
    tree, problems = asv_results.read_tree(files)
    return Side(selector=selector, asv=tree, unreadable=tuple(problems))


def _baseline(selector: str, name: str, results: Path) -> Side:
    path = baseline_path(results, name)
    if not path.is_file():
        raise UsageError(f"baseline {name}: not found in {path.parent}{_known('baselines', baseline_names(results))}")
    records, found = store.read_file(path)
    return Side(selector=selector, records=tuple(records), unreadable=tuple(str(problem) for problem in found))


def _machine(selector: str, name: str, what: str | None, results: Path) -> Side:
    folder = store.runs_folder(results, name)
    if not folder.is_dir():
        raise UsageError(f"machine {name}: no results in {folder}{_known('machines', machine_names(results))}")
    if what is not None:
        return _matching(selector, what, [folder])
    records, found = store.read_tree(folder)
    newest, notes = _newest(name, records)
    unreadable = tuple(str(problem) for problem in found)
    return Side(selector=selector, records=tuple(newest), unreadable=unreadable, notes=tuple(notes))


def _newest(name: str, records: Sequence[RunRecord]) -> tuple[list[RunRecord], list[str]]:
    """The records of the commit, environment and hardware that ran last: a history is not one side."""
    if not records:
        return [], []
    states = {_state(record) for record in records}
    last = _state(max(records, key=lambda record: (record.started_at, record.record_id)))
    if len(states) == 1:
        return list(records), []
    commit, environment, _ = last
    note = (
        f"{name}: the newest of {len(states)} combinations of commit, environment and hardware is used "
        f"(commit {(commit or '-')[:12]}, environment {environment[:12]}); name another with {name}@COMMIT"
    )
    return [record for record in records if _state(record) == last], [note]


def _state(record: RunRecord) -> tuple[str | None, str, str]:
    return (record.commit, record.environment.fingerprint, record.machine.fingerprint)


_KINDS: Final[tuple[tuple[str, Callable[[RunRecord], str | None]], ...]] = (
    ("commit", lambda record: record.commit),
    ("session", lambda record: record.session_id),
    ("environment", lambda record: record.environment.fingerprint),
    ("lock", lambda record: record.environment.lock_sha256),
)


def _matching(selector: str, what: str, folders: Sequence[Path]) -> Side:
    """The records of the one commit, session, environment or lock that begins with ``what``."""
    records, found = store.read_tree(folders)
    unreadable = tuple(str(problem) for problem in found)
    matches = _matches(what, records) if len(what) >= SHORTEST_PREFIX else {}
    if not matches and (commit := _git_commit(what)):
        matches = _matches(commit, records)
    # An environment and its lock may be two words for the same records.
    chosen = {tuple(sorted(record.record_id for record in some)): some for some in matches.values()}
    if len(chosen) > 1:
        listed = ", ".join(f"{kind} {value[:16]}" for kind, value in sorted(matches))
        raise AmbiguousError(
            f"{selector}: {what} is the beginning of several: {listed}; write more of the one you mean"
        )
    if not chosen:
        known = ", ".join(sorted({(record.commit or "-")[:12] for record in records}))
        raise UsageError(
            f"{selector}: no commit, session, environment or lock begins with {what!r} (at least {SHORTEST_PREFIX} "
            f"characters); commits there: {known or 'none'}"
        )
    return Side(selector=selector, records=tuple(next(iter(chosen.values()))), unreadable=unreadable)


def _matches(prefix: str, records: Iterable[RunRecord]) -> dict[tuple[str, str], list[RunRecord]]:
    matches: dict[tuple[str, str], list[RunRecord]] = {}
    for record in records:
        for kind, read in _KINDS:
            value = read(record)
            if value is not None and value.startswith(prefix):
                matches.setdefault((kind, value), []).append(record)
    return matches


def _git_commit(name: str) -> str | None:
    """The commit that git knows by ``name`` in the current folder; ``None`` without git, or if it knows none."""
    if not _GIT_NAME.fullmatch(name):
        return None
    command = ["git", "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None if answer.returncode == 0 else None


def _word(word: str, results: Path) -> Side:
    """A bare word: a baseline, a machine, or the beginning of something in the records."""
    kinds = []
    if word in baseline_names(results):
        kinds.append(("baseline", f"baseline:{word}"))
    if store.runs_folder(results, word).is_dir():
        kinds.append(("machine", f"machine:{word}"))
    if len(kinds) > 1:
        listed = " or ".join(f"{selector}" for _, selector in kinds)
        raise AmbiguousError(f"{word}: names a baseline and a machine; write {listed}")
    if kinds:
        chosen = select(kinds[0][1], results)
        return Side(
            selector=word, records=chosen.records, asv=chosen.asv, unreadable=chosen.unreadable, notes=chosen.notes
        )
    try:
        return _matching(word, word, [results] if results.is_dir() else [])
    except AmbiguousError:
        raise
    except UsageError as error:
        known = f"{_known('machines', machine_names(results))}{_known('baselines', baseline_names(results))}"
        raise UsageError(
            f"{word}: no machine, baseline, commit, environment or file of that name (results: {results}{known})"
        ) from error


def _known(what: str, names: Sequence[str]) -> str:
    return f"; {what} there: {', '.join(names[:12])}{', ...' if len(names) > 12 else ''}" if names else ""
