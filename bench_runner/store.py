"""Where results stand: ``results/<machine>/runs/<UTC time>-<label>-<id>.jsonl``, a complete ``RunRecord`` a line.

A file appears whole or not at all and is never written again.  Reading never stops at what is damaged: everything
that could not be used is a ``Problem`` that says which file, which line and why, and the rest is read.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

import orjson
from pydantic import TypeAdapter, ValidationError

from bench_runner.errors import StoreError
from bench_runner.record import RECORD_SCHEMA, RunRecord
from bench_runner.spec import TASKS, task_kind

RUNS_FOLDER: Final = "runs"
BASELINES_FOLDER: Final = "baselines"
SUFFIX: Final = ".jsonl"
LARGEST_LINE_BYTES: Final = 64 << 20
MOST_LINES: Final = 100_000
DEEPEST_FOLDER: Final = 32

OLDEST_VERSION: Final = 1
CURRENT_VERSION: Final = int(RECORD_SCHEMA.rpartition("/")[2])
MIGRATIONS: Final[dict[int, Callable[[dict[str, Any]], dict[str, Any]]]] = {}
"""Version n → the function that turns a document of version n into one of version n + 1."""

_SCHEMA_PATTERN: Final = re.compile(r"bench-runner/record/(\d{1,6})")
_SAFE_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
_ESCAPED_NAME: Final = re.compile(r".*-x[0-9a-f]{12}")
_CREATE_NEW: Final = os.O_CREAT | os.O_EXCL | os.O_WRONLY
_NO_HARD_LINKS: Final = {errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK}

ProblemKind = Literal[
    "unreadable", "damaged", "foreign", "no-version", "too-old", "too-new", "invalid", "too-large", "duplicate"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something stored that could not be used.  ``line`` counts from 1; ``None``: the whole file or folder."""

    path: str
    kind: ProblemKind
    message: str
    line: int | None = None

    def __str__(self) -> str:
        place = self.path if self.line is None else f"{self.path}:{self.line}"
        return f"{place}: {self.message}"


class LineProblem(Exception):
    def __init__(self, kind: ProblemKind, message: str) -> None:
        self.kind: ProblemKind = kind
        super().__init__(message)


@cache
def record_adapter() -> TypeAdapter[RunRecord]:
    """The validator of a stored record; built once, it takes a few hundredths of a second."""
    return TypeAdapter(RunRecord)


# --- names ------------------------------------------------------------------------------------------------------


def machine_folder(name: str) -> str:
    """The folder of a machine: its name where that is safe, else a readable form with a hash of the name behind it.

    Never a path, never hidden, never an option, never longer than a file name may be; different names give different
    folders (a name that looks like a hashed one is hashed as well).
    """
    safe = _SAFE_NAME.fullmatch(name) and not _ESCAPED_NAME.fullmatch(name) and not name.lower().endswith(".json")
    safe = safe and name.lower() != BASELINES_FOLDER
    if safe:
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{_word(name, 40) or 'machine'}-x{digest}"


def _word(text: str, longest: int) -> str:
    return re.sub(r"[^A-Za-z0-9_]+", "-", text)[:longest].strip("-")


def runs_folder(root: Path, machine: str) -> Path:
    """Where the records of ``machine`` stand under the results folder ``root``."""
    return root / machine_folder(machine) / RUNS_FOLDER


# --- writing ----------------------------------------------------------------------------------------------------


def to_document(record: RunRecord) -> dict[str, Any]:
    """The stored form of a record: plain values and dataclasses that orjson writes as objects."""
    document = {field.name: getattr(record, field.name) for field in fields(record)}
    return {"schema": document.pop("schema"), **document, "spec": record.spec.to_json()}


def to_line(record: RunRecord) -> bytes:
    """One line of JSON without its end.  NaN becomes null: a loss that is not finite is not known."""
    document = to_document(record)
    try:
        return orjson.dumps(document, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:
        # Paths that are no UTF-8 come from the operating system with surrogates, which JSON cannot hold.
        whole = {**asdict(record), "spec": document["spec"]}
        return orjson.dumps(_without_surrogates(whole), option=orjson.OPT_NON_STR_KEYS)


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_surrogates(item) for item in value]
    return value


def write(records: Sequence[RunRecord], root: Path, *, label: str, moment: datetime | None = None) -> Path:
    """Store ``records``, all of one machine, in a new file under ``root`` and return its path.

    Raises StoreError (one line) when the disk is full, the folder cannot be written, or a record is one that could not
    be read again; the sound records beside such a one are stored first.  No half file is left.
    """
    if not records:
        raise ValueError("no records to store")
    names = {record.machine.name for record in records}
    if len(names) > 1:
        raise ValueError(f"records of several machines in one file: {', '.join(sorted(names))}")
    lines, refused = _checked_lines(records)
    folder = runs_folder(root, records[0].machine.name)
    path = folder
    if lines:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path = _write_new(folder, _stem(label, moment), b"".join(line + b"\n" for line in lines))
        except OSError as error:
            text = error.strerror or str(error)
            raise StoreError(
                f"{folder}: results cannot be written: {text}; free space or choose another folder"
            ) from error
    if refused:
        raise StoreError(f"{folder}: {refused[0]} (the other {len(lines)} records are stored)")
    return path


def _checked_lines(records: Iterable[RunRecord]) -> tuple[list[bytes], list[str]]:
    lines, refused = [], []
    for record in records:
        line = to_line(record)
        try:
            parse_line(line)
        except LineProblem as problem:
            refused.append(f"record {record.record_id} cannot be stored: {problem}")
        else:
            lines.append(line)
    return lines, refused


def _stem(label: str, moment: datetime | None) -> str:
    utc = (moment or datetime.now(UTC)).astimezone(UTC)
    return f"{utc:%Y%m%dT%H%M%SZ}-{_word(label, 60) or 'run'}"


def _write_new(folder: Path, stem: str, content: bytes) -> Path:
    """Write ``content`` under a name that is not taken.  Whole or not at all, also when the machine loses power."""
    temporary = folder / f".{stem}-{uuid.uuid4().hex}.tmp"
    try:
        with os.fdopen(os.open(temporary, _CREATE_NEW, 0o666), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        while True:
            path = folder / f"{stem}-{uuid.uuid4().hex[:8]}{SUFFIX}"
            try:
                _claim(temporary, path)
            except FileExistsError:
                continue
            break
    finally:
        temporary.unlink(missing_ok=True)
    _sync_folder(folder)
    return path


def _claim(temporary: Path, path: Path) -> None:
    """Give the finished file its name; FileExistsError when the name is taken."""
    try:
        os.link(temporary, path)
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        # A file system without hard links: take the name with an empty file of ours, then rename over it.
        os.close(os.open(path, _CREATE_NEW, 0o666))
        temporary.replace(path)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):  # some network file systems sync no folders
            raise
    finally:
        os.close(descriptor)


# --- reading ----------------------------------------------------------------------------------------------------


def parse_line(line: bytes) -> RunRecord:
    """One stored line as a record; raises an error with the kind of problem for anything else."""
    if len(line) > LARGEST_LINE_BYTES:
        raise LineProblem("too-large", f"a line of more than {LARGEST_LINE_BYTES >> 20} MiB")
    try:
        document = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise LineProblem("damaged", f"damaged or cut off, not JSON: {error}") from None
    version = _version(document)
    if version < CURRENT_VERSION:
        for old in range(version, CURRENT_VERSION):
            document = MIGRATIONS[old](document)
        line = orjson.dumps(document)
    try:
        record = record_adapter().validate_json(line, strict=True)
    except ValidationError as error:
        raise LineProblem("invalid", _first_error(error, document)) from None
    kind = task_kind(record.spec.task)
    stored_kind = document["spec"]["task"].get("kind")
    if stored_kind != kind:
        raise LineProblem("invalid", f"spec.task.kind is {stored_kind!r}, but its fields are those of a {kind}")
    return record


def _version(document: object) -> int:
    if not isinstance(document, dict):
        raise LineProblem("foreign", "not a bench-runner record: no JSON object")
    schema = document.get("schema")
    if schema is None:
        if "record_id" in document or "spec" in document:
            raise LineProblem("no-version", "no schema version: the field schema is missing")
        raise LineProblem("foreign", "not a bench-runner record: no field schema")
    match = _SCHEMA_PATTERN.fullmatch(schema) if isinstance(schema, str) else None
    if match is None:
        raise LineProblem("foreign", f"not a bench-runner record: schema {str(schema)[:80]!r}")
    version = int(match[1])
    if version > CURRENT_VERSION:
        raise LineProblem(
            "too-new",
            f"schema version {version} is newer than this program's {CURRENT_VERSION}: upgrade bench-runner to read it",
        )
    if version < OLDEST_VERSION:
        raise LineProblem(
            "too-old", f"schema version {version} is too old: this program reads {OLDEST_VERSION} to {CURRENT_VERSION}"
        )
    return version


_TASK_NAMES: Final = frozenset(known.__name__ for known in TASKS.values())


def _first_error(error: ValidationError, document: dict[str, Any]) -> str:
    """The first complaint in one line; of a task's, those about the kind it says it is."""
    spec = document.get("spec")
    task = spec.get("task") if isinstance(spec, dict) else None
    kind = task.get("kind") if isinstance(task, dict) else None
    others = {known.__name__ for name, known in TASKS.items() if name != kind}
    errors = error.errors(include_url=False, include_input=False, include_context=False)
    chosen = next((e for e in errors if not others & set(e["loc"])), errors[0])
    place = ".".join(str(part) for part in chosen["loc"] if part not in _TASK_NAMES)
    return f"{place or 'record'}: {' '.join(chosen['msg'].removeprefix('Value error, ').split())[:300]}"


def read_file(path: Path) -> tuple[list[RunRecord], list[Problem]]:
    """The records of one file in their order, and what could not be read of it."""
    records: list[RunRecord] = []
    problems: list[Problem] = []
    try:
        for number, line in _lines(path):
            try:
                records.append(parse_line(line))
            except LineProblem as problem:
                problems.append(Problem(path=str(path), line=number, kind=problem.kind, message=str(problem)))
    except LineProblem as problem:
        problems.append(Problem(path=str(path), kind=problem.kind, message=str(problem)))
    except OSError as error:
        problems.append(Problem(path=str(path), kind="unreadable", message=error.strerror or str(error)))
    return records, problems


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    # O_NONBLOCK: opening a named pipe would otherwise wait for a writer for ever.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise LineProblem("unreadable", "not a regular file")
        for number in range(1, MOST_LINES + 2):
            line = file.readline(LARGEST_LINE_BYTES + 1)
            if not line:
                return
            if len(line) > LARGEST_LINE_BYTES:
                raise LineProblem("too-large", f"line {number} is longer than {LARGEST_LINE_BYTES >> 20} MiB")
            if number > MOST_LINES:
                raise LineProblem("too-large", f"more than {MOST_LINES} lines; the rest is not read")
            if not line.isspace():
                yield number, line


def read_tree(paths: Path | Iterable[Path]) -> tuple[list[RunRecord], list[Problem]]:
    """All records under files and folders, in the order of their paths.

    A record that stands there twice (a copied file) counts once; two different ones with one id are a problem.  Hidden
    files are left out, links are followed, and no folder is entered twice.
    """
    found, problems = read_sources(paths)
    return [record for _, record in found], problems


def read_sources(paths: Path | Iterable[Path]) -> tuple[list[tuple[Path, RunRecord]], list[Problem]]:
    """As ``read_tree``, each record with the file it stands in."""
    problems: list[Problem] = []
    places: dict[str, tuple[Path, RunRecord]] = {}
    for path, problem in _files([paths] if isinstance(paths, Path) else paths):
        if problem is not None:
            problems.append(problem)
            continue
        found, bad = read_file(path)
        problems += bad
        for record in found:
            known_path, known = places.setdefault(record.record_id, (path, record))
            if known != record:
                message = f"record {record.record_id} differs from the one with that id in {known_path}; left out"
                problems.append(Problem(path=str(path), kind="duplicate", message=message))
    return list(places.values()), problems


def _files(paths: Iterable[Path]) -> Iterator[tuple[Path, Problem | None]]:
    seen: set[tuple[int, int]] = set()
    for path in paths:
        yield from _walk(path, seen, 0, named=True)


def _walk(path: Path, seen: set[tuple[int, int]], depth: int, *, named: bool) -> Iterator[tuple[Path, Problem | None]]:
    try:
        status = path.stat()
        if (status.st_dev, status.st_ino) in seen:
            return
        if stat.S_ISDIR(status.st_mode):
            seen.add((status.st_dev, status.st_ino))
            if depth > DEEPEST_FOLDER:
                raise OSError(errno.ELOOP, f"folders nested more than {DEEPEST_FOLDER} deep")
            for entry in sorted(path.iterdir()):
                # Frozen baselines are copies: results are read where they were written.
                if not entry.name.startswith(".") and entry.name != BASELINES_FOLDER:
                    yield from _walk(entry, seen, depth + 1, named=False)
        elif named or path.suffix == SUFFIX:
            seen.add((status.st_dev, status.st_ino))
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.EINVAL, "not a regular file")
            yield path, None
    except OSError as error:
        if named or path.suffix == SUFFIX or not isinstance(error, FileNotFoundError):
            yield path, Problem(path=str(path), kind="unreadable", message=error.strerror or str(error))
