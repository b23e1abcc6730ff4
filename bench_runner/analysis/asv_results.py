"""Reads the result files of asv (format version 2), also those that other people's asv wrote.

Such files hold bare NaN and Infinity, rows cut off at the right where nothing follows, and ``null`` for what failed;
a skipped benchmark is NaN.  One file is one launch: its samples share processes, so they say nothing of how far
launches differ, and are not taken for launches here.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

from bench_runner.analysis.cases import Case, CaseKey, Launch, MetricKey
from bench_runner.errors import UnreadableError
from bench_runner.record import Outcome

API_VERSION: Final = 2
LARGEST_FILE_BYTES: Final = 64 << 20
MOST_COMBINATIONS: Final = 1_000_000
BENCHMARKS_FILE: Final = "benchmarks.json"
_OTHER_FILES: Final = ("machine.json", BENCHMARKS_FILE)


@dataclass(frozen=True, slots=True, kw_only=True)
class AsvValue:
    """One benchmark with one combination of parameters (as asv wrote them, in its order)."""

    benchmark: str
    parameters: tuple[str, ...]
    outcome: Outcome
    value: float | None = None
    reason: str | None = None
    version: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AsvResult:
    """One result file.  ``machine_facts`` are the fields of asv's machine entry, ``requirements`` the environment's."""

    path: str
    machine: str
    commit: str
    environment: str
    python: str
    date: str
    machine_facts: Mapping[str, str]
    requirements: Mapping[str, str]
    values: tuple[AsvValue, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AsvBenchmark:
    """What benchmarks.json says of one benchmark."""

    unit: str = ""
    type: str = "track"
    parameter_names: tuple[str, ...] = ()
    higher_is_better: bool | None = None

    @property
    def direction(self) -> Literal["higher", "lower"]:
        """asv takes lower for better everywhere; ``higher_is_better`` or a rate as unit say otherwise."""
        if self.higher_is_better is not None:
            return "higher" if self.higher_is_better else "lower"
        return "higher" if self.type == "track" and self.unit.endswith("/s") else "lower"


@dataclass(frozen=True, slots=True, kw_only=True)
class AsvTree:
    """Result files and the benchmarks.json that belongs to each, by the file's path."""

    results: tuple[AsvResult, ...] = ()
    benchmarks: Mapping[str, Mapping[str, AsvBenchmark]] = field(default_factory=dict)


def result_files(folder: Path) -> list[Path]:
    """Files below ``folder`` that look like asv's results: JSON in a machine's folder, hidden ones left out."""
    return sorted(
        path
        for path in folder.rglob("*.json")
        if path.name not in _OTHER_FILES
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
        and (path.parent / "machine.json").is_file()
    )


def read_tree(paths: Iterable[Path]) -> tuple[AsvTree, list[str]]:
    """All of the files, and a line for each that could not be read."""
    results, problems = [], []
    benchmarks: dict[str, Mapping[str, AsvBenchmark]] = {}
    known: dict[Path, Mapping[str, AsvBenchmark]] = {}
    for path in paths:
        try:
            results.append(read_result(path))
            place = benchmarks_file(path)
            if place is not None and place not in known:
                known[place] = read_benchmarks(place)
            benchmarks[str(path)] = known.get(place, {}) if place is not None else {}
        except UnreadableError as error:
            problems.append(str(error))
    return AsvTree(results=tuple(results), benchmarks=benchmarks), problems


def benchmarks_file(path: Path) -> Path | None:
    """The benchmarks.json of a result file: beside the machine's folder, or beside the file if it was moved."""
    places = [folder / BENCHMARKS_FILE for folder in (path.parent.parent, path.parent)]
    return next((place for place in places if place.is_file()), None)


def read_result(path: Path) -> AsvResult:
    """One result file; UnreadableError names the file and what is wrong with it."""
    document = _load(path)
    try:
        columns = [str(column) for column in document["result_columns"]]
        facts = {str(name): str(value) for name, value in dict(document["params"]).items()}
        return AsvResult(
            path=str(path),
            machine=facts.get("machine") or path.parent.name,
            commit=str(document["commit_hash"]),
            environment=str(document["env_name"]),
            python=str(document["python"]),
            date=_date(document["date"]),
            machine_facts=facts,
            requirements=_requirements(document["requirements"]),
            values=tuple(_values(columns, dict(document["results"]))),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise UnreadableError(f"{path}: not a result file of asv: {_short(error)}") from error


def read_benchmarks(path: Path) -> dict[str, AsvBenchmark]:
    """What benchmarks.json says, by name; UnreadableError names the file."""
    document = _load(path)
    try:
        return {name: _benchmark(entry) for name, entry in document.items() if isinstance(entry, dict)}
    except (TypeError, ValueError) as error:
        raise UnreadableError(f"{path}: not asv's benchmarks.json: {_short(error)}") from error


def _benchmark(entry: Mapping[str, Any]) -> AsvBenchmark:
    better = entry.get("higher_is_better")
    return AsvBenchmark(
        unit=str(entry.get("unit") or ""),
        type=str(entry.get("type") or "track"),
        parameter_names=tuple(str(name) for name in entry.get("param_names") or ()),
        higher_is_better=better if isinstance(better, bool) else None,
    )


def _short(error: Exception) -> str:
    what = f"the field {error} is missing" if isinstance(error, KeyError) else str(error)
    return " ".join(what.split())[:200]


def _load(path: Path) -> dict[str, Any]:
    try:
        if not path.is_file():
            raise UnreadableError(f"{path}: no such file")
        if path.stat().st_size > LARGEST_FILE_BYTES:
            raise UnreadableError(f"{path}: larger than {LARGEST_FILE_BYTES >> 20} MiB; asv's files are not")
        # The standard reader takes NaN and Infinity as asv writes them; RecursionError: nested without end.
        document = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise UnreadableError(f"{path}: damaged, not JSON: {_short(error)}") from error
    except OSError as error:
        raise UnreadableError(f"{path}: {error.strerror or error}") from error
    version = document.get("version") if isinstance(document, dict) else None
    if version != API_VERSION:
        raise UnreadableError(
            f"{path}: asv's format version {str(version)[:20]}; this program reads {API_VERSION} (asv update converts)"
        )
    return dict(document)


def _requirements(written: object) -> dict[str, str]:
    """asv writes a mapping of versions; a list of names stands in some files."""
    if isinstance(written, dict):
        return {str(name): str(version) for name, version in written.items()}
    if isinstance(written, list):
        return {str(name): "any" for name in written}
    raise TypeError("requirements is neither a mapping nor a list")


def _date(milliseconds: object) -> str:
    if isinstance(milliseconds, bool) or not isinstance(milliseconds, int | float):
        raise TypeError("date is not a number of milliseconds")
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _values(columns: Sequence[str], results: Mapping[str, Any]) -> Iterator[AsvValue]:
    for name, row in results.items():
        if not isinstance(row, list):
            raise TypeError(f"the row of {name} is no list")
        cells = dict(zip(columns, row, strict=False))
        yield from _row(str(name), cells.get("result"), cells.get("params") or [], cells.get("version"))


def _row(name: str, result: object, params: Any, version: object) -> Iterator[AsvValue]:
    if not isinstance(params, list) or not all(isinstance(axis, list) for axis in params):
        raise TypeError(f"params of {name} is not a list of lists")
    axes = [[str(value) for value in axis] for axis in params]
    count = math.prod(len(axis) for axis in axes)
    if count > MOST_COMBINATIONS:
        raise ValueError(f"{name} has {count} combinations of parameters")
    if result is not None and (not isinstance(result, list) or len(result) != count):
        raise ValueError(f"{name} has {count} combinations of parameters, and not that many results")
    # One null for all of them: everything failed.
    cells = result if isinstance(result, list) else [None] * count
    told = None if version is None else str(version)
    for combination, cell in zip(itertools.product(*axes), cells, strict=True):
        outcome, value, reason = _cell(cell)
        yield AsvValue(
            benchmark=name, parameters=combination, outcome=outcome, value=value, reason=reason, version=told
        )


def _cell(cell: object) -> tuple[Outcome, float | None, str | None]:
    if cell is None:
        return "failed", None, "asv recorded null: the benchmark failed"
    if isinstance(cell, bool) or not isinstance(cell, int | float):
        raise TypeError(f"a result is {type(cell).__name__}, not a number")
    number = float(cell)
    if math.isnan(number):
        return "skipped", None, "asv recorded NaN: the benchmark was skipped"
    if math.isinf(number):
        return "failed", None, "asv recorded an infinite value"
    return "ok", number, None


def from_asv(tree: AsvTree) -> dict[CaseKey, Case]:
    """The cases of one side.  Versions of a benchmark are settings: unlike ones are not compared."""
    cases: dict[CaseKey, Case] = {}
    for result in sorted(tree.results, key=lambda r: (r.date, r.path)):
        known = tree.benchmarks.get(result.path, {})
        for value in result.values:
            benchmark = known.get(value.benchmark, AsvBenchmark())
            key = CaseKey(kind="asv", name=value.benchmark, parameters=_named(value, benchmark))
            case = cases.setdefault(key, Case(key=key))
            launch = _launch(result, value, benchmark)
            if value.outcome == "ok":
                case.measured[("benchmark version", value.version or "-"),].append(launch)
            else:
                case.broken.append(launch)
    return cases


def _named(value: AsvValue, benchmark: AsvBenchmark) -> tuple[str, ...]:
    names = benchmark.parameter_names
    if len(names) != len(value.parameters):
        return value.parameters
    return tuple(f"{name}={parameter}" for name, parameter in zip(names, value.parameters, strict=True))


def _launch(result: AsvResult, value: AsvValue, benchmark: AsvBenchmark) -> Launch:
    metric = MetricKey(name="value", unit=benchmark.unit, direction=benchmark.direction, statistic="value")
    return Launch(
        machine=result.machine,
        fingerprint=f"asv:{result.machine}",
        session=result.commit,
        started_at=result.date,
        outcome=value.outcome,
        reason=value.reason,
        values={} if value.value is None else {metric: value.value},
    )
