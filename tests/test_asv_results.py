"""Reading asv's result files: every kind of value, files cut or foreign, and the way into a comparison."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench_runner.analysis.asv_results import (
    AsvBenchmark,
    AsvTree,
    AsvValue,
    from_asv,
    read_benchmarks,
    read_result,
    read_tree,
    result_files,
)
from bench_runner.analysis.compare import compare
from bench_runner.analysis.statistics import Rule
from bench_runner.errors import UnreadableError

# Written by hand after asv's own format; NaN is bare, rows are cut off after the last column that holds something.
RESULT = """{
 "commit_hash": "0123456789abcdef0123456789abcdef01234567", "env_name": "conda-py3.11-numpy", "date": 1700000000000,
 "params": {"arch": "x86_64", "cpu": "A CPU", "machine": "lab", "num_cpu": "8", "os": "Linux", "ram": "16"},
 "python": "3.11", "requirements": {"numpy": "2.0"}, "env_vars": {},
 "result_columns": ["result", "params", "version", "started_at", "duration", "stats_ci_99_a", "samples"],
 "results": {
  "time_it": [[0.5], [], "v1", 1700000000000, 1.5, [0.4], [[0.4, 0.5, 0.6]]],
  "track_many": [[1.0, NaN, null, Infinity], [["1", "2"], ["'a'", "'b'"]], "v2"],
  "track_failed": [null, [["1", "2"]]]
 },
 "durations": {}, "version": 2}"""

BENCHMARKS = {
    "time_it": {"type": "time", "unit": "seconds", "param_names": [], "params": [], "version": "v1"},
    "track_many": {"type": "track", "unit": "samples/s", "param_names": ["n", "kind"], "params": [], "version": "v2"},
    "version": 2,
}


def write(folder: Path, text: str = RESULT, name: str = "01234567-env.json", machine: str = "lab") -> Path:
    place = folder / machine
    place.mkdir(parents=True, exist_ok=True)
    (place / "machine.json").write_text('{"machine": "lab", "version": 1}')
    (folder / "benchmarks.json").write_text(json.dumps(BENCHMARKS))
    (place / name).write_text(text)
    return place / name


def test_every_kind_of_value(tmp_path: Path) -> None:
    result = read_result(write(tmp_path))
    assert (result.machine, result.python, result.date) == ("lab", "3.11", "2023-11-14T22:13:20Z")
    assert result.requirements == {"numpy": "2.0"}
    told = {(v.benchmark, v.parameters): (v.outcome, v.value) for v in result.values}
    assert told == {
        ("time_it", ()): ("ok", 0.5),
        ("track_many", ("1", "'a'")): ("ok", 1.0),
        ("track_many", ("1", "'b'")): ("skipped", None),
        ("track_many", ("2", "'a'")): ("failed", None),
        ("track_many", ("2", "'b'")): ("failed", None),
        ("track_failed", ("1",)): ("failed", None),
        ("track_failed", ("2",)): ("failed", None),
    }
    assert all(value.reason for value in result.values if value.outcome != "ok")


def test_benchmarks_give_units_names_and_directions(tmp_path: Path) -> None:
    write(tmp_path)
    known = read_benchmarks(tmp_path / "benchmarks.json")
    assert known["track_many"] == AsvBenchmark(unit="samples/s", type="track", parameter_names=("n", "kind"))
    assert [known[name].direction for name in ("time_it", "track_many")] == ["lower", "higher"]
    assert AsvBenchmark(unit="GB/s", higher_is_better=False).direction == "lower"
    assert AsvBenchmark(higher_is_better=True).direction == "higher"
    assert AsvBenchmark().direction == "lower"


def test_several_files_are_launches_and_compare_in_the_right_direction(tmp_path: Path) -> None:
    def side(name: str, seconds: float, rate: float) -> AsvTree:
        for index in range(3):
            text = RESULT.replace("[0.5]", f"[{seconds + index / 1000}]").replace(
                "[1.0, NaN", f"[{rate + index / 1000}, NaN"
            )
            write(tmp_path / name, text, f"0000000{index}-env.json")
        tree, problems = read_tree(result_files(tmp_path / name))
        assert problems == []
        return tree

    before, after = side("a", 0.5, 1.0), side("b", 1.0, 2.0)
    outcome = compare(from_asv(before), from_asv(after), Rule())
    found = {c.key.label: c.verdict for c in outcome.comparisons if c.judgement is not None}
    assert found == {"time_it": "regression", "track_many/(n=1, kind='a')": "improvement"}
    failed = {c.key.label: c.verdict for c in outcome.comparisons if c.metric == "outcome"}
    assert failed["track_failed/(1)"] == "inconclusive"


def test_one_file_is_one_launch_whatever_its_samples(tmp_path: Path) -> None:
    tree, _ = read_tree([write(tmp_path)])
    outcome = compare(from_asv(tree), from_asv(tree), Rule())
    timed = next(c for c in outcome.comparisons if c.key.name == "time_it")
    assert (timed.verdict, timed.baseline.launches) == ("inconclusive", 1)


def test_another_version_of_a_benchmark_is_not_compared(tmp_path: Path) -> None:
    before, _ = read_tree([write(tmp_path / "a")])
    after, _ = read_tree([write(tmp_path / "b", RESULT.replace('"v1"', '"v9"'))])
    outcome = compare(from_asv(before), from_asv(after), Rule())
    timed = next(c for c in outcome.comparisons if c.key.name == "time_it")
    assert timed.verdict == "not-comparable"
    assert "benchmark version v1 against v9" in timed.reason


def test_only_results_are_found_in_a_tree(tmp_path: Path) -> None:
    path = write(tmp_path)
    (tmp_path / "lab" / ".hidden.json").write_text("{}")
    (tmp_path / "other.json").write_text("{}")
    assert result_files(tmp_path) == [path]


def test_damaged_files_are_named_and_the_others_read(tmp_path: Path) -> None:
    good, bad = write(tmp_path), write(tmp_path, RESULT[: len(RESULT) // 2], "89abcdef-env.json")
    tree, problems = read_tree([bad, good])
    assert [result.path for result in tree.results] == [str(good)]
    assert len(problems) == 1
    assert problems[0].startswith(f"{bad}: damaged, not JSON")


@pytest.mark.parametrize(
    ("before", "after", "named"),
    [
        ('"version": 2}', '"version": 1}', "format version 1"),
        ('"version": 2}', '"version": 3}', "format version 3"),
        ('"durations": {}, "version": 2', '"durations": {}', "format version None"),
        ('"commit_hash"', '"hash"', "the field 'commit_hash' is missing"),
        ("[1.0, NaN, null, Infinity]", "[1.0]", "track_many has 4 combinations"),
        ("[0.5]", '["0.5"]', "a result is str"),
        ("1700000000000,\n", '"now",\n', "date is not a number"),
        ("1700000000000,\n", "1e300,\n", "not a result file"),
        ('[["1", "2"], ["\'a\'"', '5, [["1", "2"], ["\'a\'"', "not a result file"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, before: str, after: str, named: str) -> None:
    assert before in RESULT
    path = write(tmp_path, RESULT.replace(before, after))
    with pytest.raises(UnreadableError) as caught:
        read_result(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_huge_product_of_parameters_is_refused_before_it_is_made(tmp_path: Path) -> None:
    axes = json.dumps([[str(i) for i in range(1000)]] * 3)
    with pytest.raises(UnreadableError, match="1000000000 combinations"):
        read_result(write(tmp_path, RESULT.replace('[["1", "2"]]]', f"{axes}]")))


def test_nesting_without_end_is_damage(tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match="damaged"):
        read_result(write(tmp_path, "[" * 200_000))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=10,
)
top_level = st.sampled_from(sorted(json.loads(RESULT)))


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(top_level, json_values, max_size=3), st.lists(json_values, max_size=4))
def test_anything_is_read_or_refused_in_one_line(
    tmp_path_factory: pytest.TempPathFactory, changes: dict[str, Any], row: list[Any]
) -> None:
    document = json.loads(RESULT)
    document["results"]["fuzzed"] = row
    path = write(tmp_path_factory.getbasetemp() / "fuzzed", json.dumps({**document, **changes}))
    tree, problems = read_tree([path])
    assert len(tree.results) + len(problems) == 1
    assert all("\n" not in problem for problem in problems)
    values: list[AsvValue] = [value for result in tree.results for value in result.values]
    assert all((value.outcome == "ok") == (value.value is not None) for value in values)
    from_asv(tree)
