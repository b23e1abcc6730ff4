"""A whole tree of asv's result files as one frame, quickly: for histories of many machines.

One row a benchmark and combination of parameters.  Columns are built as integer codes while files are read, so that
millions of rows need no Python object each; a Parquet cache beside the tree is used only while every file is the one
that it was made from.
"""

from __future__ import annotations

import gc
import hashlib
import itertools
import json
import math
import os
import uuid
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson
import pandas as pd

from bench_runner.analysis.asv_results import (
    API_VERSION,
    BENCHMARKS_FILE,
    LARGEST_FILE_BYTES,
    MOST_COMBINATIONS,
)

CACHE_NAME: Final = ".asv-frame.parquet"
_CACHE_FORMAT: Final = "bench-runner/asv-frame/1"
_OTHER_FILES: Final = ("machine.json", BENCHMARKS_FILE)
OUTCOMES: Final = ("ok", "skipped", "failed")

# Bare words for numbers that are none become texts that no file holds.  Inside a string the quotes would end it, and
# what follows is no JSON: then the standard library's reader, which is slower and knows these words, has its turn.
_MARK: Final = f"~{uuid.uuid4().hex[:12]}"
_NAN: Final = f"{_MARK}n"
_INFINITE: Final = (f"{_MARK}+", f"{_MARK}-")
_WORDS: Final = tuple(
    (word, f'"{text}"'.encode())
    for word, text in ((b"NaN", _NAN), (b"-Infinity", _INFINITE[1]), (b"Infinity", _INFINITE[0]))
)
_SPOKEN: Final = {_NAN: "nan", _INFINITE[0]: "inf", _INFINITE[1]: "-inf"}
"""What ``str`` makes of these numbers where they stand for names."""
_PLAIN: Final = {float, int}


@dataclass(slots=True)
class _Codes:
    """Texts as numbers, in the order they were met, and the numbers of a column."""

    numbers: dict[str, int] = field(default_factory=dict)
    rows: array[int] = field(default_factory=lambda: array("i"))

    def number(self, text: str) -> int:
        known = self.numbers.get(text)
        if known is not None:
            return known
        # Half a surrogate pair is no Unicode, and no frame holds it.
        sound = text.encode("utf-8", "backslashreplace").decode()
        return self.numbers.setdefault(sound, len(self.numbers))

    def column(self, counts: Sequence[int] | None = None) -> pd.Categorical:
        """The column; ``counts`` says how often each of its numbers is repeated."""
        codes = np.array(self.rows, dtype=np.int32)
        if counts is not None:
            codes = np.repeat(codes, np.array(counts, dtype=np.int64))
        return pd.Categorical.from_codes(codes, categories=pd.Index(list(self.numbers), dtype="str"))


@dataclass(slots=True)
class _Rows:
    """The rows of one file, or of all: values, outcomes and parameters row by row, the rest run by run."""

    values: array[float] = field(default_factory=lambda: array("d"))
    outcomes: bytearray = field(default_factory=bytearray)
    parameters: array[int] = field(default_factory=lambda: array("i"))
    benchmarks: array[int] = field(default_factory=lambda: array("i"))
    versions: array[int] = field(default_factory=lambda: array("i"))
    counts: array[int] = field(default_factory=lambda: array("q"))

    def extend(self, other: _Rows) -> None:
        self.values.extend(other.values)
        self.outcomes.extend(other.outcomes)
        self.parameters.extend(other.parameters)
        self.benchmarks.extend(other.benchmarks)
        self.versions.extend(other.versions)
        self.counts.extend(other.counts)


_BY_FILE: Final = ("machine", "commit", "environment")


@dataclass(slots=True)
class _Columns:
    """The frame while it grows.  ``combinations`` remembers the numbers of parameter products that were met before."""

    by_file: dict[str, _Codes] = field(default_factory=lambda: {name: _Codes() for name in _BY_FILE})
    dates: array[int] = field(default_factory=lambda: array("q"))
    file_rows: array[int] = field(default_factory=lambda: array("q"))
    benchmark: _Codes = field(default_factory=_Codes)
    version: _Codes = field(default_factory=_Codes)
    parameters: _Codes = field(default_factory=_Codes)
    rows: _Rows = field(default_factory=_Rows)
    combinations: dict[Any, array[int]] = field(default_factory=dict)

    def frame(self) -> pd.DataFrame:
        self.benchmark.rows, self.version.rows = self.rows.benchmarks, self.rows.versions
        self.parameters.rows = self.rows.parameters
        dates = np.repeat(np.array(self.dates, dtype=np.int64), np.array(self.file_rows, dtype=np.int64))
        outcomes = np.frombuffer(bytes(self.rows.outcomes), dtype=np.int8)
        return pd.DataFrame(
            {
                **{name: codes.column(self.file_rows) for name, codes in self.by_file.items()},
                "benchmark": self.benchmark.column(self.rows.counts),
                "parameters": self.parameters.column(),
                "version": self.version.column(self.rows.counts),
                "date": pd.to_datetime(dates, unit="ms", utc=True),
                "outcome": pd.Categorical.from_codes(outcomes, categories=pd.Index(OUTCOMES, dtype="str")),
                "value": np.array(self.rows.values, dtype=np.float64),
            }
        )


def load_asv_frame(root: Path, *, cache: bool = True) -> tuple[pd.DataFrame, list[str]]:
    """All results under ``root`` (folders of machines), and a line for each file that could not be read.

    Columns: machine, commit, environment, benchmark, parameters, version, date, outcome, value (NaN unless ok).  A
    cache that cannot be written or read is none; a file that changed, came or went makes it anew.
    """
    files = list(_files(root))
    state = _state(files)
    place = root / CACHE_NAME
    if cache:
        known = _read_cache(place, state)
        if known is not None:
            return known
    frame, problems = _load(files)
    if cache:
        _write_cache(place, state, frame, problems)
    return frame, problems


def _files(root: Path) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """The result files of every machine's folder with its name, sorted."""
    with os.scandir(root) as folders:
        machines = sorted((f for f in folders if not f.name.startswith(".") and f.is_dir()), key=lambda f: f.name)
    for machine in machines:
        with os.scandir(machine.path) as entries:
            found = sorted((e for e in entries if e.name.endswith(".json")), key=lambda e: e.name)
        if any(entry.name == "machine.json" for entry in found):
            for entry in found:
                if entry.name not in _OTHER_FILES and not entry.name.startswith(".") and entry.is_file():
                    yield machine.name, entry


def _state(files: Sequence[tuple[str, os.DirEntry[str]]]) -> str:
    """A hash over what identifies each file's content: a change that keeps size and time still moves the ctime."""
    lines = [_CACHE_FORMAT]
    for _, entry in files:
        status = entry.stat()
        lines.append(f"{entry.path}\0{status.st_ino}\0{status.st_size}\0{status.st_mtime_ns}\0{status.st_ctime_ns}")
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


def _load(files: Sequence[tuple[str, os.DirEntry[str]]]) -> tuple[pd.DataFrame, list[str]]:
    columns = _Columns()
    problems: list[str] = []
    collecting = gc.isenabled()
    # Documents come and go by reference counts; looking for cycles among them costs a twelfth of the time.
    gc.disable()
    try:
        _add_all(columns, files, problems)
    finally:
        if collecting:
            gc.enable()
    return columns.frame(), problems


def _add_all(columns: _Columns, files: Sequence[tuple[str, os.DirEntry[str]]], problems: list[str]) -> None:
    for folder, entry in files:
        try:
            document, quoted_words = _document(entry)
            _add(columns, document, folder, quoted_words=quoted_words)
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError, OSError) as error:
            what = f"the field {error} is missing" if isinstance(error, KeyError) else str(error)
            problems.append(f"{entry.path}: {' '.join(what.split())[:200]}")


def _content(entry: os.DirEntry[str]) -> bytes:
    size = entry.stat().st_size
    if size > LARGEST_FILE_BYTES:
        raise ValueError(f"larger than {LARGEST_FILE_BYTES >> 20} MiB; asv's files are not")
    descriptor = os.open(entry.path, os.O_RDONLY)
    try:
        # One call reads nearly every file; the loop is for those that a signal or a network file system cuts short.
        content = os.read(descriptor, size + 1)
        while len(content) < size and (more := os.read(descriptor, size + 1 - len(content))):
            content += more
    finally:
        os.close(descriptor)
    return content


def _document(entry: os.DirEntry[str]) -> tuple[dict[str, Any], bool]:
    """The file's content, and whether bare words in it were made texts (else they are floats that are no numbers)."""
    content = text = _content(entry)
    for word, quoted in _WORDS:
        text = text.replace(word, quoted)
    quoted_words = True
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError:
        document, quoted_words = json.loads(content), False
    if not isinstance(document, dict) or document.get("version") != API_VERSION:
        raise ValueError(f"not a result file of asv in format version {API_VERSION}")
    return document, quoted_words


def _add(columns: _Columns, document: dict[str, Any], folder: str, *, quoted_words: bool) -> None:
    """All rows of a file, or none."""
    date = int(document["date"])
    if not 0 <= date < 1 << 43:
        raise ValueError("date is out of range")
    told = {
        "machine": str(document["params"].get("machine") or folder),
        "commit": str(document["commit_hash"]),
        "environment": str(document["env_name"]),
    }
    rows = _rows(columns, document, quoted_words=quoted_words)
    for name, text in told.items():
        codes = columns.by_file[name]
        codes.rows.append(codes.number(text))
    columns.dates.append(date)
    columns.file_rows.append(len(rows.values))
    columns.rows.extend(rows)


def _rows(columns: _Columns, document: dict[str, Any], *, quoted_words: bool) -> _Rows:
    place = document["result_columns"].index
    result_at, params_at, version_at = place("result"), place("params"), place("version")
    rows = _Rows()
    for name, row in document["results"].items():
        length = len(row)
        params = row[params_at] if length > params_at and row[params_at] else []
        parameters = _combinations(columns, params)
        count = len(parameters)
        cells = row[result_at] if length > result_at else None
        cells = [None] * count if cells is None else cells
        if not isinstance(cells, list) or len(cells) != count:
            raise ValueError(f"{name} has {count} combinations of parameters, and not that many results")
        version = row[version_at] if length > version_at else None
        _fill(rows, cells, quoted_words=quoted_words)
        rows.parameters.extend(parameters)
        rows.benchmarks.append(columns.benchmark.number(name))
        rows.versions.append(columns.version.number("" if version is None else _text(version)))
        rows.counts.append(count)
    return rows


def _combinations(columns: _Columns, params: Any) -> array[int]:
    """The numbers of all combinations, as asv orders them."""
    if type(params) is not list or not all(type(axis) is list for axis in params):
        raise TypeError("params is not a list of lists")
    try:
        for axis in params:
            "".join(axis)
        key: Any = tuple(map(tuple, params))
    except TypeError:
        # Values that are no texts: equal ones, as 1 and True, may stand for different names.
        key = str(params)
    known = columns.combinations.get(key)
    if known is None:
        axes = [[_text(value) for value in axis] for axis in params]
        if math.prod(len(axis) for axis in axes) > MOST_COMBINATIONS:
            raise ValueError("too many combinations of parameters")
        number = columns.parameters.number
        known = array("i", (number(", ".join(combination)) for combination in itertools.product(*axes)))
        columns.combinations[key] = known
    return known


def _text(value: object) -> str:
    return _SPOKEN.get(value, value) if isinstance(value, str) else str(value)


def _fill(rows: _Rows, cells: list[Any], *, quoted_words: bool) -> None:
    """Values and outcomes of one benchmark; one that is no number is NaN with its outcome."""
    if quoted_words:
        outcomes = [0 if type(cell) is float else 2 if cell is None else _outcome(cell) for cell in cells]
        rows.outcomes.extend(outcomes)
        rows.values.extend([cell if type(cell) in _PLAIN else math.nan for cell in cells] if any(outcomes) else cells)
    else:
        outcomes = [_outcome(cell) for cell in cells]
        rows.outcomes.extend(outcomes)
        rows.values.extend([math.nan if code else cell for code, cell in zip(outcomes, cells, strict=True)])


def _outcome(cell: Any) -> int:
    """The place in ``OUTCOMES``; TypeError for what is neither a number nor a word for none."""
    if type(cell) in _PLAIN:
        return 1 if math.isnan(cell) else 2 if math.isinf(cell) else 0
    if cell is None or cell in _INFINITE:
        return 2
    if cell == _NAN:
        return 1
    raise TypeError(f"a result is {type(cell).__name__}, not a number")


def _read_cache(place: Path, state: str) -> tuple[pd.DataFrame, list[str]] | None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(place, memory_map=False)
        told = json.loads((table.schema.metadata or {})[_CACHE_FORMAT.encode()])
        if told["state"] != state:
            return None
        return table.to_pandas(), [str(line) for line in told["problems"]]
    except (OSError, pa.ArrowException, KeyError, ValueError, TypeError):
        # No cache, or one that a broken-off writer or another version left: it is made anew.
        return None


def _write_cache(place: Path, state: str, frame: pd.DataFrame, problems: list[str]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from bench_runner.errors import StoreError
    from bench_runner.report.files import write_file

    table = pa.Table.from_pandas(frame, preserve_index=False)
    words = [name for name in frame.columns if name != "value"]
    told = json.dumps({"state": state, "problems": problems})
    table = table.replace_schema_metadata({**(table.schema.metadata or {}), _CACHE_FORMAT.encode(): told.encode()})
    try:
        write_file(place, lambda temporary: pq.write_table(table, temporary, compression="lz4", use_dictionary=words))
    except StoreError:
        # A tree that may only be read is loaded each time.
        return
