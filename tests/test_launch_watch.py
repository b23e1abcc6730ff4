"""When a running launch must be ended: every stage has a deadline of its own."""

from __future__ import annotations

import json

from bench_runner.launch_watch import ERROR_GRACE_SECONDS, Limits, Stages, Stop, find_stop
from bench_runner.rank_files import RankProgress

LIMITS = Limits(startup_seconds=60.0, case_seconds=(10.0, 20.0), teardown_seconds=5.0)


def rank(number: int, *events: dict[str, object]) -> RankProgress:
    progress = RankProgress(rank=number)
    for event in events:
        progress.take(json.dumps({"at": 1.0, **event}).encode())
    assert progress.unreadable_lines == 0
    return progress


def state(name: str, case: int | None = None) -> dict[str, object]:
    return {"event": "state", "state": name, "case": case}


def result(case: int) -> dict[str, object]:
    return {"event": "result", "case": case, "samples": {}}


def stages(ranks: list[RankProgress], *moments: float) -> Stages:
    """Everything the ranks said was first seen at the first moment."""
    found = Stages(launched=0.0)
    for moment in moments:
        found.note(ranks, 0, 2, moment)
    return found


def test_starting_has_its_own_deadline() -> None:
    ranks = [rank(0, state("joining")), rank(1, state("started"))]
    seen = stages(ranks, 1.0)
    assert find_stop(ranks, seen, LIMITS, 0, 60.0) is None
    assert find_stop(ranks, seen, LIMITS, 0, 61.0) == Stop(kind="missing-rank", case=0, seconds=61.0)


def test_a_case_is_timed_from_the_first_rank_that_began_it() -> None:
    ranks = [rank(0, state("case", 0)), rank(1, state("joined"))]
    seen = stages(ranks, 50.0, 55.0)
    assert find_stop(ranks, seen, LIMITS, 0, 59.0) is None
    assert find_stop(ranks, seen, LIMITS, 0, 61.0) == Stop(kind="deadline", case=0, seconds=11.0)


def test_a_case_is_over_when_every_rank_has_its_result() -> None:
    ranks = [rank(0, state("case", 0), result(0)), rank(1, state("case", 0))]
    assert find_stop(ranks, stages(ranks, 1.0), LIMITS, 0, 12.0) == Stop(kind="deadline", case=0, seconds=11.0)
    ranks = [rank(0, state("case", 0), result(0)), rank(1, state("case", 0), result(0))]
    assert find_stop(ranks, stages(ranks, 1.0), LIMITS, 0, 12.0) is None


def test_the_next_case_has_to_begin() -> None:
    ranks = [rank(0, result(0)), rank(1, result(0))]
    assert find_stop(ranks, stages(ranks, 1.0), LIMITS, 0, 62.0) == Stop(kind="between-cases", case=1, seconds=61.0)


def test_leaving_has_its_own_deadline() -> None:
    ranks = [rank(0, result(0), result(1)), rank(1, result(0), result(1))]
    seen = stages(ranks, 1.0)
    assert find_stop(ranks, seen, LIMITS, 0, 6.0) is None
    assert find_stop(ranks, seen, LIMITS, 0, 6.5) == Stop(kind="teardown", seconds=5.5)


def test_after_an_error_the_others_get_a_moment() -> None:
    error = {"event": "error", "case": 0, "failure": "exception", "message": "no", "traceback": None}
    ranks = [rank(0, state("case", 0), error), rank(1, state("case", 0))]
    seen = stages(ranks, 1.0)
    assert find_stop(ranks, seen, LIMITS, 0, 1.0 + ERROR_GRACE_SECONDS) is None
    stop = find_stop(ranks, seen, LIMITS, 0, 1.5 + ERROR_GRACE_SECONDS)
    assert stop is not None
    assert stop.kind == "error"


def test_a_relaunch_counts_its_own_cases_only() -> None:
    ranks = [rank(0, state("joined")), rank(1, state("joined"))]
    seen = Stages(launched=100.0)
    seen.note(ranks, 1, 2, 101.0)
    assert find_stop(ranks, seen, LIMITS, 1, 150.0) is None
    assert LIMITS.total(1) < LIMITS.total(0)
    assert LIMITS.total(1) >= 60.0 + 20.0 + 5.0
