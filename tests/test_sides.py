"""Selectors: what each kind of word means, and how an ambiguous or unknown one is refused."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench_runner import baseline, store
from bench_runner.errors import UsageError
from bench_runner.record import RunRecord
from bench_runner.sides import select, several
from tests import builders
from tests.test_asv_results import write as write_asv


def stored(results: Path, machine: str = "box", *, name: str = "a", count: int = 3, **changes: Any) -> Path:
    """Records of one session, with identities made from ``name``."""

    def build(index: int) -> RunRecord:
        return builders.training_record(
            seconds=0.1 + 0.0002 * index,
            launch_index=index,
            machine=builders.machine(machine),
            session_id=f"session-{name}",
            **changes,
        )

    records = builders.launches(count, build)
    records = [replace(record, record_id=f"{name}-{i}", launch_id=f"{name}-{i}") for i, record in enumerate(records)]
    return store.write(records, results, label=name)


def ids(records: tuple[RunRecord, ...]) -> set[str]:
    return {record.record_id.split("-")[0] for record in records}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    root = tmp_path / "results"
    stored(root, name="a", commit="aaaa1111" + "0" * 32, started_at="2026-11-01T10:00:00Z")
    stored(root, name="b", commit="aaaa2222" + "0" * 32, started_at="2026-11-02T10:00:00Z")
    other = builders.environment(fingerprint="environment-b", lock_sha256="cd" * 32)
    stored(root, "other", name="c", commit="cccc3333" + "0" * 32, environment=other)
    return root


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("other", {"c"}),
        ("machine:other", {"c"}),
        ("box", {"b"}),  # the newest commit
        ("box@aaaa1", {"a"}),
        ("box@session-a", {"a"}),
        ("@cccc", {"c"}),
        ("cccc3333", {"c"}),
        ("environment-b", {"c"}),
        ("cdcdcd", {"c"}),
        ("box@abab", {"a", "b"}),  # the lock of both
    ],
)
def test_words(results: Path, selector: str, expected: set[str]) -> None:
    side = select(selector, results)
    assert ids(side.records) == expected
    assert side.selector == selector


def test_the_newest_of_a_history_is_said(results: Path) -> None:
    notes = select("box", results).notes
    assert len(notes) == 1
    assert "the newest of 2 combinations" in notes[0]
    assert "aaaa2222" in notes[0]


def test_paths(results: Path) -> None:
    assert ids(select(str(results), results).records) == {"a", "b", "c"}
    assert ids(select(str(results / "other"), results).records) == {"c"}
    file = next((results / "other" / "runs").iterdir())
    assert ids(select(str(file), Path("nowhere")).records) == {"c"}


def test_baselines_by_name(results: Path) -> None:
    baseline.freeze(results, "good", select("other", results).records)
    assert ids(select("good", results).records) == {"c"}
    assert ids(select("baseline:good", results).records) == {"c"}


@pytest.mark.parametrize(
    ("selector", "named"),
    [
        ("nothing", "no machine, baseline, commit, environment or file of that name"),
        ("nothing", "machines there: box, other"),
        ("machine:nothing", "machine nothing: no results in"),
        ("baseline:nothing", "baseline nothing: not found"),
        ("baseline:../x", "baseline name '../x'"),
        ("box@ffff", "no commit, session, environment or lock begins with 'ffff'"),
        ("box@aaa", "at least 4 characters"),
        ("box@aaaa", "aaaa is the beginning of several: commit aaaa111100000000, commit aaaa222200000000"),
        ("@aaaa", "beginning of several"),
        ("aaaa", "beginning of several"),
        ("gone/x.jsonl", "no such file or folder"),
        ("x.jsonl", "no such file or folder"),
    ],
)
def test_what_means_nothing_or_too_much_is_one_line(results: Path, selector: str, named: str) -> None:
    with pytest.raises(UsageError) as caught:
        select(selector, results)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_baseline_named_like_a_machine_has_to_be_told_apart(results: Path) -> None:
    baseline.freeze(results, "box", select("other", results).records)
    with pytest.raises(UsageError, match="write baseline:box or machine:box"):
        select("box", results)
    assert ids(select("baseline:box", results).records) == {"c"}


def test_an_empty_folder_says_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="neither records"):
        select(str(tmp_path), tmp_path)


def test_results_of_asv_by_file_and_folder(tmp_path: Path) -> None:
    path = write_asv(tmp_path / "theirs")
    for selector in (str(path), str(tmp_path / "theirs")):
        assert [result.path for result in select(selector, tmp_path).asv.results] == [str(path)]


def test_damage_is_named_and_the_rest_is_read(results: Path) -> None:
    file = next((results / "other" / "runs").iterdir())
    file.write_bytes(file.read_bytes() + b'{"schema": "bench-runner/record/1"\n')
    side = select("other", results)
    assert len(side.records) == 3
    assert len(side.unreadable) == 1
    assert f"{file}:4" in side.unreadable[0]


def test_tags_of_git(results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    project = tmp_path / "project"
    project.mkdir()
    for command in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "x"], ["tag", "v1.2"]):
        subprocess.run([*git, *command], cwd=project, check=True, capture_output=True)
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=project, check=True, capture_output=True, text=True).stdout
    stored(results, name="d", commit=head.strip())
    monkeypatch.chdir(project)
    assert ids(select("box@v1.2", results).records) == {"d"}


def test_several_selectors_are_one_side_and_none_is_everything(results: Path) -> None:
    assert ids(several(["box@aaaa1", "other"], results).records) == {"a", "c"}
    assert ids(several([], results).records) == {"a", "b", "c"}


def test_a_baseline_is_never_overwritten_by_accident(results: Path) -> None:
    path = baseline.freeze(results, "good", select("other", results).records)
    before = path.read_bytes()
    with pytest.raises(UsageError, match="exists; choose another name, or give --replace"):
        baseline.freeze(results, "good", select("box", results).records)
    assert path.read_bytes() == before
    baseline.freeze(results, "good", select("box", results).records, replace=True)
    assert ids(select("good", results).records) == {"b"}
    assert [p.name for p in path.parent.iterdir()] == ["good.jsonl"]


def test_a_baseline_needs_something_that_was_measured(results: Path) -> None:
    with pytest.raises(UsageError, match="nothing was selected"):
        baseline.freeze(results, "empty", [])
    with pytest.raises(UsageError, match="none of the 1 selected records is ok"):
        baseline.freeze(results, "broken", [builders.failed_record()])


def test_summaries_of_baselines(results: Path) -> None:
    assert baseline.summaries(results) == []
    path = baseline.freeze(results, "good", select("other", results).records)
    path.write_bytes(path.read_bytes() + json.dumps({}).encode())
    (summary,) = baseline.summaries(results)
    assert (summary.name, summary.records, summary.launches, summary.machines) == ("good", 3, 3, ("other",))
    assert summary.commits == ("cccc33330000",)
    assert len(summary.unreadable) == 1
