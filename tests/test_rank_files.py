"""The ranks' files: read as they grow, whatever they hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_runner import rank_files
from bench_runner.rank_files import RankFile, RankProgress, rank_path


def line(event: str, at: Any = 1.0, **fields: Any) -> bytes:
    return json.dumps({"event": event, "at": at, **fields}).encode()


def test_states_are_followed_as_the_file_grows(tmp_path: Path) -> None:
    path = rank_path(tmp_path, 3)
    file = RankFile(path, 3)
    assert not file.update(), "there is no file yet"
    path.write_bytes(line("state", state="started", case=None) + b"\n")
    assert file.update()
    assert not file.update(), "nothing new"
    assert (file.progress.state, file.progress.joined) == ("started", False)
    with path.open("ab") as growing:
        growing.write(line("state", state="joined", case=None) + b"\n" + line("state", 7.0, state="case", case=0)[:20])
    assert file.update()
    assert (file.progress.state, file.progress.joined) == ("joined", True)
    assert not file.progress.has_begun(0), "half a line says nothing"
    with path.open("ab") as growing:
        growing.write(line("state", 7.0, state="case", case=0)[20:])
    file.finish()
    assert file.progress.cases[0].began == 7.0, "a whole last line counts without its end"
    assert file.progress.unreadable_lines == 0


def test_a_result_keeps_samples_and_warnings() -> None:
    progress = RankProgress(rank=0)
    progress.take(line("result", 9.0, case=2, samples={"step_seconds": [0.1]}, warnings=["trend"]))
    case = progress.cases[2]
    assert (case.samples, case.warnings, case.settled) == ({"step_seconds": [0.1]}, ("trend",), 9.0)


def test_the_first_error_is_kept() -> None:
    progress = RankProgress(rank=1)
    progress.take(line("error", 5.0, case=0, failure="out-of-memory", message="no memory", traceback="T1"))
    progress.take(line("error", 6.0, case=None, failure="exception", message="closing", traceback="T2"))
    assert progress.error is not None
    assert (progress.error.failure, progress.error.traceback, progress.error.case) == ("out-of-memory", "T1", 0)


def test_a_failure_of_unknown_kind_is_an_exception() -> None:
    progress = RankProgress(rank=1)
    progress.take(line("error", case=0, failure="gremlins", message="no", traceback=None))
    assert progress.error is not None
    assert progress.error.failure == "exception"


def test_an_event_of_a_later_version_is_passed_over() -> None:
    progress = RankProgress(rank=0)
    progress.take(line("weather", sky="blue"))
    assert progress.unreadable_lines == 0


@pytest.mark.parametrize(
    "damaged",
    [
        b"{",
        b"[]",
        b'"event"',
        b"\xff\xfe",
        b"[" * 100_000,
        line("state", at="soon", state="joined"),
        line("state", at=True, state="joined"),
        line("state", at=10**400, state="joined"),
        b'{"event": "state", "at": NaN, "state": "joined"}',
        line("result", case=-1, samples={}),
        line("result", case="0", samples={}),
        line("result", case=0, samples=[1]),
        line("skipped", case=0),
        line("error", case=0),
        b'{"event": ["state"], "at": 1}',
    ],
)
def test_a_damaged_line_is_counted_and_changes_nothing(damaged: bytes) -> None:
    progress = RankProgress(rank=0)
    progress.take(damaged)
    assert progress.unreadable_lines == 1
    assert not progress.joined
    assert not any(case.settled for case in progress.cases.values())


def test_a_line_without_end_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_files, "LARGEST_LINE_BYTES", 100)
    path = rank_path(tmp_path, 0)
    path.write_bytes(b"x" * 200)
    file = RankFile(path, 0)
    file.update()
    with path.open("ab") as growing:
        growing.write(b"xx\n" + line("state", state="joined", case=None) + b"\n")
    file.finish()
    assert (file.progress.unreadable_lines, file.progress.joined) == (1, True)


@given(st.lists(st.binary()), st.lists(st.integers(min_value=1, max_value=50), min_size=1))
def test_any_bytes_in_any_pieces_read_like_the_whole(
    tmp_path_factory: Any, lines: list[bytes], cuts: list[int]
) -> None:
    directory = tmp_path_factory.mktemp("ranks")
    content = b"\n".join([*lines, line("state", state="joined", case=None), b""])
    whole, pieces = rank_path(directory, 0), rank_path(directory, 1)
    whole.write_bytes(content)
    at_once, in_pieces = RankFile(whole, 0), RankFile(pieces, 0)
    at_once.finish()
    with pieces.open("ab", buffering=0) as growing:
        start = 0
        for index in range(len(content)):
            end = min(start + cuts[index % len(cuts)], len(content))
            growing.write(content[start:end])
            in_pieces.update()
            start = end
    in_pieces.finish()
    assert at_once.progress.joined
    assert in_pieces.progress == at_once.progress


KEYS = st.sampled_from(["at", "case", "samples", "state", "warnings", "message", "runtime", "reason"])
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner),
)


@given(ANY_JSON)
def test_any_json_is_taken_or_counted(value: object) -> None:
    progress = RankProgress(rank=0)
    for event in ("state", "result", "skipped", "error", "runtime"):
        fields = value if isinstance(value, dict) else {"samples": value, "case": value, "state": value}
        progress.take(json.dumps({"at": 1.0, **fields, "event": event}).encode())
    assert progress.unreadable_lines <= 5
