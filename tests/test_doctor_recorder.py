"""torch's flight recorder: a real dump of torch 2.13 over gloo (cut to what is read), made-up ones, any bytes."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from bench_runner.doctor.faults import FAULTS
from bench_runner.doctor.recorder import compare_traces, parse_trace


def entry(number: int, name: str = "gloo:all_reduce", group: str = "0", **more: Any) -> dict[str, Any]:
    return {
        "collective_seq_id": number,
        "input_sizes": [[4]],
        "is_p2p": False,
        "pg_id": 0,
        "process_group": [group, "default_pg"],
        "profiling_name": name,
        "state": "scheduled",
        **more,
    }


def dump(*entries: dict[str, Any]) -> bytes:
    status = {"0": {"last_completed_collective": "3", "last_enqueued_collective": "4"}}
    return json.dumps({"version": "2.10", "pg_status": status, "entries": list(entries)}).encode()


def compared(*dumps: bytes) -> Any:
    return compare_traces({rank: parse_trace(document) for rank, document in enumerate(dumps)})


def test_rank_that_never_issued_a_collective_is_named_with_it() -> None:
    three = [entry(number) for number in (1, 2, 3)]
    found = compared(dump(*three, entry(4, "gloo:barrier", input_sizes=[])), dump(*three))
    assert found.fault == "uneven-batches"
    assert found.message == (
        "rank 1 is behind in group 0 default_pg: never issued collective 4, gloo:barrier, which rank 0 did"
    )
    assert found.evidence[0] == "flight recorder: rank 0 issued collective 4 last, gloo:barrier"


def test_different_operations_under_one_number_are_a_mismatch() -> None:
    found = compared(dump(entry(1), entry(2)), dump(entry(1), entry(2, "gloo:broadcast")), dump(entry(1), entry(2)))
    assert (found.fault, "collective 2" in found.message) == ("collective-mismatch", True)
    assert len(found.evidence) == 3


def test_ranks_at_the_same_collective_have_not_parted() -> None:
    found = compared(dump(entry(7), entry(8)), dump(entry(8), entry(7)))
    assert found.fault == "device-or-link"
    assert "up to 8" in found.message


def test_messages_between_two_ranks_do_not_count() -> None:
    found = compared(dump(entry(7)), dump(entry(7), entry(9, "gloo:send", is_p2p=True)))
    assert found.fault == "device-or-link"


def test_ring_that_has_forgotten_still_tells_who_is_behind() -> None:
    found = compared(dump(entry(2005), entry(2006)), dump(entry(3)))
    assert "one that is no longer recorded" in found.message


def test_nothing_is_said_of_nothing_or_of_one_rank() -> None:
    assert compared(b"", b"\x80\x02pickle", dump()) is None
    assert compared(dump(entry(1))) is None
    assert compared(dump(entry(1, group="0")), dump(entry(1, group="1"))) is None


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
_FIELDS = st.fixed_dictionaries({}, optional=dict.fromkeys(entry(1), _JSON))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(_FIELDS | st.builds(entry, st.integers(0, 9)), max_size=4), min_size=2, max_size=4))
def test_any_dumps_are_compared_or_left(ranks: list[list[dict[str, Any]]]) -> None:
    found = compared(*(dump(*entries) for entries in ranks))
    assert found is None or (found.fault in FAULTS and found.evidence)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200) | _JSON.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_a_dump_or_none(document: bytes) -> None:
    assert parse_trace(document) == {}
