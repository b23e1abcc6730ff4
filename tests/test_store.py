import os
import subprocess
import sys
import textwrap
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import orjson
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from bench_runner import store
from bench_runner.errors import StoreError
from tests import builders

DATA = Path(__file__).parent / "data"


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def kinds(problems: list[store.Problem]) -> list[str]:
    return [problem.kind for problem in problems]


def test_records_come_back_equal(tmp_path: Path) -> None:
    records = [
        builders.training_record(
            rank_changes={"memory": (builders.device_memory(),), "phase_seconds": {"data": (0.1,)}}
        ),
        builders.collective_record(devices=4, machine=builders.machine()),
        builders.failed_record(outcome="timeout", failure="deadline", failed_rank=1, traceback="Traceback\n  x"),
    ]
    path = store.write(records, tmp_path, label="quick ddp/2")
    assert store.read_file(path) == (records, [])
    assert store.read_tree(tmp_path) == (records, [])


def test_file_name_tells_machine_utc_time_and_label(tmp_path: Path) -> None:
    moment = datetime(2026, 11, 30, 21, 15, 0, tzinfo=timezone(timedelta(hours=1)))
    path = store.write([builders.training_record()], tmp_path, label="ddp/2 ../x", moment=moment)
    assert path.parent == tmp_path / "box" / "runs"
    stem, _, identity = path.stem.rpartition("-")
    assert stem == "20261130T201500Z-ddp-2-x"
    assert len(identity) == 8
    assert names_in(path.parent) == [path.name]


def test_every_line_is_complete_json_with_its_schema_first(tmp_path: Path) -> None:
    path = store.write([builders.training_record(), builders.failed_record()], tmp_path, label="x")
    lines = path.read_bytes().splitlines()
    assert len(lines) == 2
    assert all(line.startswith(b'{"schema":"bench-runner/record/1"') for line in lines)
    assert orjson.loads(lines[0])["machine"]["name"] == "box"


def test_existing_file_is_never_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moment = datetime(2026, 11, 30, tzinfo=UTC)
    identities = iter(["a" * 32, "b" * 32, "c" * 32, "b" * 32, "d" * 32])
    monkeypatch.setattr(store.uuid, "uuid4", lambda: type("Id", (), {"hex": next(identities)}))
    first = store.write([builders.training_record()], tmp_path, label="x", moment=moment)
    before = first.read_bytes()
    second = store.write([builders.failed_record()], tmp_path, label="x", moment=moment)
    assert first != second
    assert first.read_bytes() == before
    assert len(names_in(first.parent)) == 2


def test_file_system_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    path = store.write([builders.training_record()], tmp_path, label="x")
    assert store.read_file(path)[0] == [builders.training_record()]
    assert names_in(path.parent) == [path.name]


def test_full_disk_leaves_no_half_file_and_one_line(tmp_path: Path) -> None:
    program = textwrap.dedent(
        f"""
        import resource
        from pathlib import Path
        from bench_runner import store
        from bench_runner.errors import StoreError
        from tests import builders
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
        try:
            store.write([builders.training_record()], Path({str(tmp_path)!r}), label="x")
        except StoreError as error:
            print(error)
        """
    )
    root = Path(__file__).parent.parent
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=root, timeout=60)
    assert "results cannot be written: File too large" in done.stdout, done.stderr
    assert done.stdout.count("\n") == 1
    assert names_in(tmp_path / "box" / "runs") == []


def test_folder_that_cannot_be_written(tmp_path: Path) -> None:
    blocked = tmp_path / "results"
    blocked.write_text("a file")
    with pytest.raises(StoreError, match=r"results cannot be written: (Not a directory|File exists)"):
        store.write([builders.training_record()], blocked, label="x")
    assert blocked.read_text() == "a file"


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="needs POSIX users")
def test_read_only_folder(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)  # permission bits do not bind root
    try:
        with pytest.raises(StoreError, match="results cannot be written: Permission denied"):
            store.write([builders.training_record()], tmp_path, label="x")
    finally:
        if root:
            os.seteuid(0)
        tmp_path.chmod(0o700)
    assert names_in(tmp_path) == []


def test_record_that_could_not_be_read_again_is_refused_and_the_others_kept(tmp_path: Path) -> None:
    good = builders.training_record()
    endless = builders.training_record(step_seconds=[[0.1, float("nan")], [0.1, 0.1]])
    with pytest.raises(StoreError, match=rf"record {endless.record_id} cannot be stored: ranks.0.step_seconds.1"):
        store.write([endless, good], tmp_path, label="x")
    assert store.read_tree(tmp_path) == ([good], [])


def test_loss_that_is_not_finite_is_stored_as_unknown(tmp_path: Path) -> None:
    record = builders.training_record(rank_changes={"last_loss": float("nan")}, outcome="failed", reason="loss is nan")
    store.write([record], tmp_path, label="x")
    (stored,), _ = store.read_tree(tmp_path)
    assert [rank.last_loss for rank in stored.ranks] == [None, None]


def test_text_that_is_no_utf8_is_stored_readably(tmp_path: Path) -> None:
    record = builders.training_record(environment=builders.environment(prefix="/opt/\udce9nv"))
    store.write([record], tmp_path, label="x")
    (stored,), problems = store.read_tree(tmp_path)
    assert problems == []
    assert stored.environment.prefix == "/opt/\\udce9nv"
    assert stored.ranks == record.ranks


def test_records_of_two_machines_are_a_mistake(tmp_path: Path) -> None:
    records = [builders.training_record(machine=builders.machine(name)) for name in ("a", "b")]
    with pytest.raises(ValueError, match="several machines"):
        store.write(records, tmp_path, label="x")
    with pytest.raises(ValueError, match="no records"):
        store.write([], tmp_path, label="x")


@given(st.text(max_size=300))
def test_machine_folder_is_always_one_harmless_name(name: str) -> None:
    folder = store.machine_folder(name)
    assert "/" not in folder
    assert "\0" not in folder
    assert folder[0] not in "-."
    assert 0 < len(folder.encode()) <= 64


@given(
    st.sampled_from(["box", "Box", "bóx", "b/x", "../box", "-box", ".box", "", "box-x0123456789ab", "b" * 65]),
    st.text(),
)
def test_machine_folders_of_different_names_differ(one: str, other: str) -> None:
    names = {one, other, store.machine_folder(one), store.machine_folder(other)}
    assert len({store.machine_folder(name) for name in names}) == len(names)


def test_plain_machine_names_stay_as_they_are() -> None:
    assert [store.machine_folder(n) for n in ("a100-box", "node_7.cluster")] == ["a100-box", "node_7.cluster"]
    assert store.machine_folder("<script>alert(1)</script>").startswith("script-alert-1-script-x")


# --- reading what is not sound


def stored(tmp_path: Path, *changes: dict[str, object]) -> Path:
    """A file with one line for each change to a sound record's document."""
    document = orjson.loads(store.to_line(builders.training_record()))
    lines = []
    for change in changes:
        changed = {**document, **change}
        lines.append(orjson.dumps({key: value for key, value in changed.items() if value != "absent"}))
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


def test_truncated_file_gives_the_lines_before_the_cut(tmp_path: Path) -> None:
    records = [builders.training_record(), builders.failed_record(), builders.collective_record()]
    path = store.write(records, tmp_path, label="x")
    path.write_bytes(path.read_bytes()[:-300])
    found, problems = store.read_file(path)
    assert found == records[:2]
    assert [(p.kind, p.line) for p in problems] == [("damaged", 3)]
    assert str(problems[0]).startswith(f"{path}:3: damaged or cut off, not JSON")


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"schema": "bench-runner/record/2"}, "too-new", "schema version 2 is newer than this program's 1: upgrade"),
        ({"schema": "bench-runner/record/0"}, "too-old", "schema version 0 is too old: this program reads 1 to 1"),
        ({"schema": "absent"}, "no-version", "no schema version"),
        ({"schema": "other/thing/1"}, "foreign", "schema 'other/thing/1'"),
        ({"schema": 1}, "foreign", "schema '1'"),
        ({"schema": "absent", "record_id": "absent", "spec": "absent"}, "foreign", "not a bench-runner record"),
        ({"duration_seconds": "2"}, "invalid", "duration_seconds: Input should be a valid number"),
        ({"ranks": "absent"}, "invalid", "needs samples"),
        ({"outcome": "fine"}, "invalid", "outcome: Input should be"),
        ({"spec": 3}, "invalid", "spec: Input should be"),
        ({"machine": {}}, "invalid", "machine.name: Field required"),
    ],
)
def test_each_kind_of_bad_line_has_its_own_message(
    tmp_path: Path, change: dict[str, object], kind: str, message: str
) -> None:
    found, problems = store.read_file(stored(tmp_path, change, {}))
    assert len(found) == 1
    assert [(p.kind, p.line) for p in problems] == [(kind, 1)]
    assert message in str(problems[0])
    assert "\n" not in str(problems[0])


def test_impossible_spec_is_named_by_its_field(tmp_path: Path) -> None:
    spec = builders.training_spec().to_json()
    lines = [
        {"spec": {**spec, "task": {**spec["task"], "batch": 0}}},
        {"spec": {**spec, "task": {**spec["task"], "kind": "collective"}}},
        {"spec": {**spec, "device_count": -1}},
        {"spec": {**spec, "strategy": "horovod"}},
    ]
    _, problems = store.read_file(stored(tmp_path, *lines))
    assert [p.message.split(":")[0] for p in problems] == [
        "spec.task",
        "spec.task.kind is 'collective', but its fields are those of a training",
        "spec",
        "spec.strategy",
    ]
    assert "batch = 0: must be a whole number" in problems[0].message


@given(st.binary(max_size=200))
def test_any_bytes_give_problems_and_never_an_error(content: bytes) -> None:
    for line in content.splitlines():
        with pytest.raises(store.LineProblem):
            store.parse_line(line)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=8,
    ),
    st.sampled_from(
        ["spec", "machine", "environment", "ranks", "warnings", "outcome", "schema", "record_id", "commit"]
    ),
)
def test_any_value_in_a_field_is_read_or_named(value: object, field: str) -> None:
    document = orjson.loads(store.to_line(builders.training_record()))
    document[field] = value
    try:
        line = orjson.dumps(document)
    except TypeError:  # integers beyond 64 bits cannot be written
        return
    try:
        record = store.parse_line(line)
    except store.LineProblem as problem:
        event(problem.kind)
    else:
        assert orjson.loads(store.to_line(record))[field] == orjson.loads(line)[field]


def test_bounds_on_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MOST_LINES", 2)
    found, problems = store.read_file(stored(tmp_path, {}, {}, {}))
    assert len(found) == 2
    assert kinds(problems) == ["too-large"]
    monkeypatch.setattr(store, "LARGEST_LINE_BYTES", 100)
    found, problems = store.read_file(stored(tmp_path, {}))
    assert found == []
    assert kinds(problems) == ["too-large"]


def test_empty_file_and_blank_lines_are_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"\n  \n")
    assert store.read_file(path) == ([], [])


def test_missing_path_and_pipe_are_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    _, problems = store.read_tree([tmp_path, tmp_path / "absent"])
    assert kinds(problems) == ["unreadable", "unreadable"]
    assert "not a regular file" in str(problems[0])
    assert "No such file" in str(problems[1])
    assert kinds(store.read_file(tmp_path / "pipe.jsonl")[1]) == ["unreadable"]


def test_links_are_followed_once(tmp_path: Path) -> None:
    record = builders.training_record()
    store.write([record], tmp_path / "elsewhere", label="x")
    root = tmp_path / "results"
    root.mkdir()
    (root / "linked").symlink_to(tmp_path / "elsewhere")
    (root / "again").symlink_to(tmp_path / "elsewhere")
    (root / "loop").symlink_to(root)
    (root / "dangling").symlink_to(root / "nothing")
    (root / "lost.jsonl").symlink_to(root / "nothing")
    found, problems = store.read_tree(root)
    assert found == [record]
    assert [(p.kind, Path(p.path).name) for p in problems] == [("unreadable", "lost.jsonl")]


def test_copied_record_counts_once_and_a_changed_one_is_a_problem(tmp_path: Path) -> None:
    record = builders.training_record()
    store.write([record], tmp_path, label="a")
    store.write([record], tmp_path, label="b")
    store.write([replace(record, commit=None)], tmp_path, label="c")
    found, problems = store.read_tree(tmp_path)
    assert found == [record]
    assert kinds(problems) == ["duplicate"]


def test_asv_files_and_hidden_files_are_left_alone(tmp_path: Path) -> None:
    path = store.write([builders.training_record()], tmp_path, label="a")
    (path.parent / ".half.jsonl").write_bytes(b"{")
    (tmp_path / "box" / "machine.json").write_text("{}")
    found, problems = store.read_tree(tmp_path)
    assert len(found) == 1
    assert problems == []


@pytest.mark.parametrize("version", range(store.OLDEST_VERSION, store.CURRENT_VERSION + 1))
def test_a_stored_file_of_every_version_is_read_for_ever(version: int) -> None:
    records, problems = store.read_file(DATA / f"record-v{version}.jsonl")
    assert problems == []
    assert [record.outcome for record in records] == ["ok", "ok", "skipped", "failed"]
    assert records[0].ranks[1].memory[1].peak_allocated_bytes == 120
    assert records[1].ranks[0].collective_seconds == {1024: (0.0002, 0.0004), 1048576: (0.002, 0.003)}


def test_there_is_a_migration_for_every_older_version() -> None:
    assert sorted(store.MIGRATIONS) == list(range(store.OLDEST_VERSION, store.CURRENT_VERSION))


def test_checkpoint_comes_back_as_it_was_stored(tmp_path: Path) -> None:
    record = builders.checkpoint_record()
    assert store.read_file(store.write([record], tmp_path, label="a")) == ([record], [])
