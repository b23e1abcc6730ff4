"""Trees of asv's files as a frame: equal to the careful reader, and a cache that is never stale."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench_runner.analysis.asv_frame import CACHE_NAME, load_asv_frame
from bench_runner.analysis.asv_results import read_tree, result_files
from tests.test_asv_results import RESULT, write


def rows(frame: pd.DataFrame) -> list[tuple[Any, ...]]:
    values = [None if math.isnan(value) else value for value in frame["value"]]
    names = ["machine", "benchmark", "parameters", "version", "outcome"]
    return sorted(zip(*(frame[name].tolist() for name in names), values, strict=True), key=str)


def careful(root: Path) -> list[tuple[Any, ...]]:
    """The same rows by the reader that compare uses."""
    tree, _ = read_tree(result_files(root))
    return sorted(
        (
            (r.machine, v.benchmark, ", ".join(v.parameters), v.version or "", v.outcome, v.value)
            for r in tree.results
            for v in r.values
        ),
        key=str,
    )


def test_both_readers_agree(tmp_path: Path) -> None:
    write(tmp_path)
    write(tmp_path, RESULT.replace('"lab"', '"other"').replace("[0.5]", "[1]"), machine="other")
    frame, problems = load_asv_frame(tmp_path, cache=False)
    assert problems == []
    assert len(frame) == 14
    assert rows(frame) == careful(tmp_path)
    assert str(frame["date"].iloc[0]) == "2023-11-14 22:13:20+00:00"
    assert frame["machine"].dtype == "category"


@pytest.mark.parametrize("word", ["NaN", "[1, NaN]", "x, -Infinity, y", '"NaN"', " NaN "])
def test_words_inside_strings_stay(tmp_path: Path, word: str) -> None:
    write(tmp_path, RESULT.replace('[["1", "2"]]]', f"[[{json.dumps(word)}, {json.dumps('b')}]]]"))
    frame, problems = load_asv_frame(tmp_path, cache=False)
    assert problems == []
    assert rows(frame) == careful(tmp_path)
    assert word in set(frame["parameters"])


def test_half_a_surrogate_pair_is_shown(tmp_path: Path) -> None:
    write(tmp_path, RESULT.replace('"time_it"', '"time_\\ud800"'))
    frame, problems = load_asv_frame(tmp_path)
    assert problems == []
    assert "time_\\ud800" in set(frame["benchmark"])


def test_damaged_files_are_named_and_leave_no_rows(tmp_path: Path) -> None:
    write(tmp_path)
    half = write(tmp_path, RESULT[: len(RESULT) // 2], "89abcdef-env.json")
    late = write(tmp_path, RESULT.replace('"track_failed": [null', '"track_failed": ["x"'), "99abcdef-env.json")
    frame, problems = load_asv_frame(tmp_path)
    assert len(frame) == 7
    assert [problem.partition(":")[0] for problem in problems] == [str(half), str(late)]
    assert load_asv_frame(tmp_path)[1] == problems


def test_an_empty_tree_is_an_empty_frame(tmp_path: Path) -> None:
    for _ in range(2):
        frame, problems = load_asv_frame(tmp_path)
        assert (len(frame), problems) == (0, [])
        assert "value" in frame


def test_the_cache_gives_the_same_frame(tmp_path: Path) -> None:
    write(tmp_path)
    first, _ = load_asv_frame(tmp_path)
    assert (tmp_path / CACHE_NAME).is_file()
    second, _ = load_asv_frame(tmp_path)
    pd.testing.assert_frame_equal(first, second)


def test_the_cache_is_really_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path)
    load_asv_frame(tmp_path)
    monkeypatch.setattr("bench_runner.analysis.asv_frame._load", lambda files: pytest.fail("loaded again"))
    assert len(load_asv_frame(tmp_path)[0]) == 7


def changed(path: Path) -> None:
    path.write_text(path.read_text().replace("[0.5]", "[0.7]"))


def changed_with_its_times_kept(path: Path) -> None:
    before = path.stat()
    changed(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def replaced(path: Path) -> None:
    other = path.with_name("new.tmp")
    other.write_text(path.read_text().replace("[0.5]", "[0.7]"))
    before = path.stat()
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.replace(path)


def removed(path: Path) -> None:
    path.unlink()


def joined(path: Path) -> None:
    path.with_name("89abcdef-env.json").write_text(RESULT)


@pytest.mark.parametrize("change", [changed, changed_with_its_times_kept, replaced, removed, joined])
def test_the_cache_is_never_stale(tmp_path: Path, change: Any) -> None:
    path = write(tmp_path)
    load_asv_frame(tmp_path)
    change(path)
    assert rows(load_asv_frame(tmp_path)[0]) == careful(tmp_path)


@pytest.mark.parametrize("content", [b"", b"PAR1 no parquet", b"PAR1" * 100])
def test_a_damaged_cache_is_made_anew(tmp_path: Path, content: bytes) -> None:
    write(tmp_path)
    (tmp_path / CACHE_NAME).write_bytes(content)
    assert len(load_asv_frame(tmp_path)[0]) == 7
    assert (tmp_path / CACHE_NAME).stat().st_size > 1000


cells = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats() | st.text(max_size=8)
rows_of_asv = st.lists(st.none() | cells | st.lists(cells | st.lists(cells, max_size=3), max_size=4), max_size=4)


@settings(max_examples=60, deadline=None)
@given(rows_of_asv)
def test_any_row_is_read_alike_by_both_or_refused(tmp_path_factory: pytest.TempPathFactory, row: list[Any]) -> None:
    folder = tmp_path_factory.mktemp("fuzzed")
    document = json.loads(RESULT)
    document["results"] = {"fuzzed": row}
    write(folder, json.dumps(document))
    frame, problems = load_asv_frame(folder, cache=False)
    _, careful_problems = read_tree(result_files(folder))
    assert len(problems) == len(careful_problems)
    assert rows(frame) == careful(folder)
