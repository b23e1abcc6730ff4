"""Hashing on all cores, and softlinks as conda and rattler record them."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench_runner.environment import hash_worker, hashing
from bench_runner.environment.files import check_files
from bench_runner.environment.hashing import HashTask, balanced_chunks, cost, hash_files
from bench_runner.environment.installed import InstalledFile, InstalledPackage
from bench_runner.errors import EnvironmentBuildError


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _tasks(prefix: Path, count: int) -> list[HashTask]:
    tasks = []
    for number in range(count):
        content = b"%d" % number * (number + 1)
        (prefix / f"f{number}").write_bytes(content)
        tasks.append(HashTask("p", f"f{number}", _sha256(content), len(content)))
    return tasks


@pytest.mark.parametrize("workers", [1, 3])
def test_one_process_and_several_find_the_same(tmp_path: Path, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashing, "SMALLEST_PARALLEL_BYTES", 0)
    tasks = _tasks(tmp_path, 200)
    (tmp_path / "f7").write_bytes(b"changed")
    (tmp_path / "f8").unlink()
    (tmp_path / "f9").unlink()
    (tmp_path / "f9").symlink_to("f10")
    read, differences = hash_files(tmp_path, tasks, workers)
    assert sorted((task.path, kind, actual) for task, kind, actual in differences) == [
        ("f7", "content", _sha256(b"changed")),
        ("f8", "unreadable", "No such file or directory"),
        ("f9", "unreadable", "Too many levels of symbolic links"),
    ]
    assert read == sum(task.size_bytes for task in tasks if task.path not in ("f7", "f8", "f9")) + len(b"changed")


def test_a_killed_worker_is_an_error_and_not_a_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashing, "SMALLEST_PARALLEL_BYTES", 0)
    monkeypatch.setattr(hashing, "WORKER", (sys.executable, "-c", "import sys; sys.stdin.readline(); sys.exit(1)"))
    with pytest.raises(EnvironmentBuildError, match="ended early"):
        hash_files(tmp_path, _tasks(tmp_path, 20), 2)


def test_a_worker_ends_with_its_input() -> None:
    child = subprocess.Popen(hashing.WORKER, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.communicate(b'["/", []]\n', timeout=60)[0] == b"[0, []]\n"
    assert child.returncode == 0


def test_an_interrupted_worker_says_nothing() -> None:
    child = subprocess.Popen(hashing.WORKER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(b'["/", []]\n')
    child.stdin.flush()
    child.stdout.readline()  # now it is in its loop
    child.send_signal(signal.SIGINT)
    _, errors = child.communicate(timeout=60)
    assert (child.returncode, errors) == (130, b"")


def test_a_pipe_in_place_of_a_file_does_not_hold(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    done: list[object] = []

    def read() -> None:
        done.append(hash_worker.hash_chunk(str(tmp_path), [("pipe", "x")]))

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    thread.join(30)
    assert done == [(0, [(0, "content", _sha256(b""))])]


@settings(deadline=None)
@given(sizes=st.lists(st.integers(0, 10**9), max_size=80), count=st.integers(1, 20))
def test_chunks_hold_every_file_once_and_are_balanced(sizes: list[int], count: int) -> None:
    tasks = [HashTask("p", str(index), "", size) for index, size in enumerate(sizes)]
    chunks = balanced_chunks(tasks, count)
    assert sorted(task.path for chunk in chunks for task in chunk) == sorted(task.path for task in tasks)
    assert len(chunks) <= count + 1
    share = -(-sum(map(cost, tasks)) // count)
    for chunk in chunks:
        assert sum(map(cost, chunk)) < share + max(map(cost, chunk))


def _package(prefix: Path, file: InstalledFile, *others: InstalledFile, cache: Path | None = None) -> InstalledPackage:
    return InstalledPackage(
        name="p",
        version="1",
        build="0",
        channel="",
        subdir="",
        url="",
        file_name="",
        md5=None,
        sha256=None,
        depends=(),
        files=(file, *others),
        distributions=(),
        record=prefix / "p.json",
        cache_dir=cache,
    )


def _link(sha256: str | None, package_sha256: str | None = None) -> InstalledFile:
    return InstalledFile(path="lib/l", is_link=True, sha256=sha256, package_sha256=package_sha256, size_bytes=None)


def _link_is_right(prefix: Path, file: InstalledFile, *others: InstalledFile, cache: Path | None = None) -> bool:
    report = check_files(prefix, [_package(prefix, file, *others, cache=cache)])
    assert {fault.fault for fault in report.faults} <= {"link"}
    return not report.faults


def test_softlinks_by_whatever_their_record_has(tmp_path: Path) -> None:
    lib = tmp_path / "lib"
    lib.mkdir()
    (lib / "target").write_bytes(b"content")
    (lib / "l").symlink_to("target")
    assert _link_is_right(tmp_path, _link(None))  # no hash: presence and kind
    assert _link_is_right(tmp_path, _link(_sha256(b"target")))  # rattler: of the text
    assert _link_is_right(tmp_path, _link(_sha256(b"content")))  # conda: of what it leads to
    assert not _link_is_right(tmp_path, _link(_sha256(b"other")))
    # conda, where the prefix was written into the target since it was packed
    packed = _sha256(b"as packed")
    target = InstalledFile(
        path="lib/target", is_link=False, sha256=_sha256(b"content"), package_sha256=packed, size_bytes=None
    )
    assert _link_is_right(tmp_path, _link(None, packed), target)
    (lib / "l").unlink()
    (lib / "l").symlink_to("nowhere")
    assert not _link_is_right(tmp_path, _link(_sha256(b"content")))
    assert _link_is_right(tmp_path, _link(_sha256(b"")))  # conda-build: of a link to nowhere or to a folder
    assert not _link_is_right(tmp_path, _link(None, packed), target)


def test_the_unpacked_package_decides_about_a_link(tmp_path: Path) -> None:
    for place in ("prefix", "cache"):
        (tmp_path / place / "lib").mkdir(parents=True)
    (tmp_path / "cache" / "lib" / "l").symlink_to("right")
    (tmp_path / "prefix" / "lib" / "l").symlink_to("wrong")
    file = _link(_sha256(b"wrong"))
    assert not _link_is_right(tmp_path / "prefix", file, cache=tmp_path / "cache")
    assert _link_is_right(tmp_path / "prefix", file)
    (tmp_path / "prefix" / "lib" / "l").unlink()
    (tmp_path / "prefix" / "lib" / "l").symlink_to("right")
    assert _link_is_right(tmp_path / "prefix", file, cache=tmp_path / "cache")


def test_files_without_a_hash_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    file = InstalledFile(path="a", is_link=False, sha256=None, package_sha256=None, size_bytes=None)
    for mode in ("quick", "full"):
        report = check_files(tmp_path, [_package(tmp_path, file)], mode)
        assert (report.checked, report.unchecked, report.faults) == (0, 1, ())
