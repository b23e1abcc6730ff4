"""``profile-noise`` and ``baseline`` as a user calls them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bench_runner import store
from bench_runner.analysis.noise import from_json
from bench_runner.cli import main
from bench_runner.errors import UnreadableError, UsageError
from bench_runner.noise_file import noise_path, profile_of, profiles_for, read_profile
from bench_runner.record import RunRecord
from tests import builders


def sessions(machine: str = "box", *, count: int = 3, launches: int = 4) -> list[RunRecord]:
    """Sessions 1 % apart, launches a tenth of that."""
    return [
        builders.training_record(
            seconds=0.1 * (1 + 0.01 * session + 0.001 * index),
            machine=builders.machine(machine),
            session_id=f"session-{session}",
            record_id=f"{machine}-{session}-{index}",
            launch_id=f"{machine}-{session}-{index}",
            launch_index=index,
        )
        for session in range(count)
        for index in range(launches)
    ]


@pytest.fixture
def results(tmp_path: Path) -> Path:
    store.write(sessions(), tmp_path / "results", label="box")
    return tmp_path / "results"


def test_profile_noise_stores_with_the_machine(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile-noise", "--results", str(results), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    profile = read_profile(noise_path(results, "box"))
    assert profile == from_json(document, "out")
    assert (profile.sessions, profile.launches) == (3, 12)
    (name,) = [name for name in profile.metrics if "step_time" in name]
    noise = profile.noise(name)
    assert noise is not None
    assert (noise.degrees, noise.session_degrees, noise.session_launches) == (9, 2, 4)
    assert 0.001 < noise.spread < 0.002
    assert noise.session_spread == pytest.approx(0.01, rel=0.05)
    # asv must not take it for one of its results, nor the store for records.
    assert not noise_path(results, "box").name.endswith((".json", ".jsonl"))
    assert store.read_tree(results)[1] == []


def test_profile_noise_as_text(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile-noise", "box", "--results", str(results)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("machine box: 12 launches in 3 sessions\n")
    assert max(len(line) for line in text.splitlines()) <= 80


def test_one_machine_at_a_time(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store.write(sessions("other"), results, label="other")
    assert main(["profile-noise", "--results", str(results)]) == 2
    assert "selected: box, other; name one machine" in capsys.readouterr().err
    assert main(["profile-noise", "--results", str(results), "--machine", "other"]) == 0
    assert noise_path(results, "other").is_file()


def test_single_launches_show_no_noise() -> None:
    with pytest.raises(UsageError, match="no metric was launched twice in one session"):
        profile_of(sessions(launches=1))


def degrees_of(records: list[RunRecord]) -> int:
    profile = profile_of(records)
    return max(noise.degrees for name in profile.metrics if (noise := profile.noise(name)) is not None)


def test_another_commit_is_a_session_of_its_own() -> None:
    first = sessions(count=1, launches=6)
    changed = [replace(r, commit="f" * 40) if r.launch_index > 2 else r for r in first]
    degrees = [degrees_of(records) for records in (first, changed)]
    assert degrees == [5, 4]


def test_profiles_of_other_hardware_are_not_used(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile-noise", "--results", str(results)]) == 0
    found, unfit, damaged = profiles_for(results, [("box", "machine-box"), ("none", "x")])
    assert (list(found), unfit, damaged) == (["machine-box"], [], [])
    found, unfit, damaged = profiles_for(results, [("box", "other-hardware")])
    assert (found, damaged) == ({}, [])
    assert "not used" in unfit[0]


@pytest.mark.parametrize("content", [b"", b"[", b"\xff\xfe", b"[" * 100_000, b"[]"])
def test_damaged_profiles_are_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "noise.profile"
    path.write_bytes(content)
    with pytest.raises(UnreadableError, match="profile-noise again"):
        read_profile(path)


def test_baseline_set_and_list(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["baseline", "set", "good", "box", "--results", str(results)]
    assert main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["launches"] == 12
    assert main(arguments) == 2
    assert "exists" in capsys.readouterr().err
    assert main([*arguments, "--replace"]) == 0
    assert main(["baseline", "list", "--results", str(results), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out.partition("\n")[2])
    assert [one["name"] for one in listed["baselines"]] == ["good"]
    assert main(["baseline", "list", "--results", str(results)]) == 0
    assert "good: 12 records of 12 launches" in capsys.readouterr().out


def test_no_baselines_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["baseline", "list", "--results", str(tmp_path)]) == 0
    assert "no baselines in" in capsys.readouterr().out
