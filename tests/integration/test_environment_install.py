"""Environments built from real packages over http on loopback and file://, with every fault on the way."""

from __future__ import annotations

import hashlib
import io
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import filelock
import pytest

from bench_runner.environment.cache import PackageCache
from bench_runner.environment.channels import Mirror
from bench_runner.environment.download import CHUNK_BYTES, Patience
from bench_runner.environment.install import create_environment, locked_environment_available
from bench_runner.environment.installed import read_installed
from bench_runner.environment.lockfile import Lock, read_lock
from bench_runner.environment.prefix import LOCK_NAME, MARK_NAME, is_complete, locked_prefix
from bench_runner.environment.progress import Silent
from bench_runner.environment.supply import BuildOptions
from bench_runner.errors import EnvironmentBuildError
from tests.conda_channel import (
    PLACEHOLDER,
    PLATFORM,
    SITE_PACKAGES,
    BuiltPackage,
    Channel,
    Executable,
    Link,
    WithPrefix,
    python_module,
    serve,
    shared_object,
)
from tests.faulty_channel import Fault, serve_faulty

QUICK = Patience(attempts=4, first_wait_seconds=0.01, longest_wait_seconds=0.02, connect_seconds=5, quiet_seconds=20)
BIG = random.Random(1).randbytes(400_000)


@pytest.fixture(scope="module")
def channel(tmp_path_factory: pytest.TempPathFactory) -> Channel:
    """Python, a noarch module, a library with softlinks, a file with the prefix in it, and one of 400 kB."""
    made = Channel(tmp_path_factory.mktemp("channel") / "conda-forge")
    made.add_interpreter()
    made.add(
        "tool",
        noarch="python",
        files=python_module("tool", "1.0", "def main(): print('tool')\n"),
        depends=["python"],
        entry_points=["tool = tool:main"],
    )
    made.add("libx", files={"lib/libx.so.1": shared_object(b"x"), "lib/libx.so": Link("libx.so.1")})
    made.add("script", files={"bin/where": WithPrefix(f"#!/bin/sh\necho {PLACEHOLDER}\n".encode(), executable=True)})
    made.add("big", files={"share/big.bin": BIG})
    return made


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loopback is asked directly, whatever proxy this machine has."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def lock_of(channel: Channel, folder: Path, url: str | None = None) -> Lock:
    return read_lock(channel.write_lock(folder / "conda-lock.yml", url=url))


def options(folder: Path, **changes: object) -> BuildOptions:
    return BuildOptions(**{"cache_dir": folder / "cache", "patience": QUICK, "mirrors": (), **changes})  # type: ignore[arg-type]


class _Notes(Silent):
    """Progress that keeps what it is told, and frees a lock when told of a wait for it."""

    def __init__(self, held: filelock.BaseFileLock | None = None) -> None:
        self.notes: list[str] = []
        self._held = held

    def note(self, text: str) -> None:
        self.notes.append(text)
        if self._held is not None:
            self._held.release()


def refused(lock: Lock, prefix: Path, chosen: BuildOptions, *words: str) -> str:
    """Build, expect one line that has all the words, and that no environment came of it."""
    with pytest.raises(EnvironmentBuildError) as caught:
        create_environment(lock, prefix, chosen)
    text = str(caught.value)
    assert "\n" not in text
    for word in words:
        assert word in text
    assert not is_complete(prefix, lock.sha256)
    return text


def tampered(lock: Lock, name: str, **changes: str) -> Lock:
    """The lock read again from a file where fields of one package are changed."""
    entry = next(p for p in lock.packages if p.name == name)
    text = lock.path.read_text()
    for field, value in changes.items():
        text = text.replace(getattr(entry, field), value)
    lock.path.write_text(text)
    return read_lock(lock.path)


def test_over_http_everything_is_there_and_runs(channel: Channel, tmp_path: Path) -> None:
    with serve(channel.path.parent) as url:
        lock = lock_of(channel, tmp_path, f"{url}/conda-forge")
        prefix = tmp_path / "prefix"
        assert create_environment(lock, prefix, options(tmp_path))
        assert not create_environment(lock, prefix, options(tmp_path)), "a complete environment is not built again"
    installed = {p.name: p for p in read_installed(prefix).packages}
    assert set(installed) == {p.name for p in lock.packages}
    for package in lock.packages:
        found = installed[package.name]
        assert (found.url, found.sha256, found.md5) == (package.url, package.sha256, package.md5)
    assert (prefix / "lib" / "libx.so").readlink() == Path("libx.so.1")
    assert subprocess.check_output([prefix / "bin" / "where"], text=True).strip() == str(prefix)
    assert subprocess.check_output([prefix / "bin" / "tool"], text=True).strip() == "tool"
    assert list((prefix / SITE_PACKAGES / "tool" / "__pycache__").glob("*.pyc"))
    assert json.loads((prefix / MARK_NAME).read_text())["lock_sha256"] == lock.sha256


def test_mirror_and_file_channel_leave_the_locks_urls_in_the_prefix(channel: Channel, tmp_path: Path) -> None:
    lock = lock_of(channel, tmp_path, "https://conda.example.invalid/conda-forge")
    mirror = Mirror(url=channel.path.as_uri())
    create_environment(lock, tmp_path / "a", options(tmp_path, mirrors=(mirror,)))
    assert {p.url for p in read_installed(tmp_path / "a").packages} == {p.url for p in lock.packages}
    with serve(channel.path) as url:
        named = Mirror(url=url, channel="conda-forge")
        wrong = Mirror(url="http://127.0.0.1:9")
        create_environment(lock, tmp_path / "b", options(tmp_path, cache_dir=tmp_path / "c2", mirrors=(wrong, named)))


@pytest.mark.parametrize("kind", ["sha256", "md5"])
@pytest.mark.parametrize("way", ["file", "http"])
def test_a_file_that_is_not_the_locked_one_is_refused(channel: Channel, tmp_path: Path, kind: str, way: str) -> None:
    wrong = {"sha256": "a" * 64, "md5": "b" * 32}[kind]
    with serve(channel.path.parent) as url:
        address = f"{url}/conda-forge" if way == "http" else None
        lock = tampered(lock_of(channel, tmp_path, address), "libx", **{kind: wrong})
        refused(lock, tmp_path / "prefix", options(tmp_path), "libx-1.0-0.conda", f"{kind} is", wrong)
    assert not list((tmp_path / "cache").glob("**/libx-1.0-0*")), "nothing of the wrong file is kept"


def test_an_altered_archive_is_refused_from_file_channels_too(channel: Channel, tmp_path: Path) -> None:
    shutil.copytree(channel.path, tmp_path / "conda-forge")
    lock = read_lock(channel.write_lock(tmp_path / "conda-lock.yml", url=(tmp_path / "conda-forge").as_uri()))
    archive = tmp_path / "conda-forge" / PLATFORM / "libx-1.0-0.conda"
    content = bytearray(archive.read_bytes())
    content[len(content) // 2] ^= 1
    archive.write_bytes(content)
    refused(lock, tmp_path / "prefix", options(tmp_path), str(archive), "sha256")


def test_dropped_connection_is_resumed_where_it_broke(channel: Channel, tmp_path: Path) -> None:
    with serve_faulty(channel.path.parent, {"big": Fault(drop_after=100_000, times=1)}) as (url, log):
        lock = lock_of(channel, tmp_path, f"{url}/conda-forge")
        notes = _Notes()
        create_environment(lock, tmp_path / "prefix", options(tmp_path), notes)
    assert len(notes.notes) == 1
    assert re.search(r"big-1\.0-0\.conda: .*; trying again \(1\)", notes.notes[0])
    asked = [ranged for method, name, ranged in log if method == "GET" and name.startswith("big")]
    assert asked[0] == ""
    assert re.fullmatch(r"bytes=[1-9]\d*-", asked[1])
    assert (tmp_path / "prefix" / "share" / "big.bin").read_bytes() == BIG


@pytest.mark.parametrize("fault", [Fault(ranges=False), Fault(wrong_range=True, times=3), Fault(status=416, times=1)])
def test_servers_that_cannot_resume_are_asked_for_the_whole_file(
    channel: Channel, tmp_path: Path, fault: Fault
) -> None:
    lock = lock_of(channel, tmp_path, "http://127.0.0.1:9/conda-forge")
    cache = PackageCache(tmp_path / "cache")
    cache.prepare()
    cache.part(next(p for p in lock.packages if p.name == "big")).write_bytes(BIG[:1000])
    with serve_faulty(channel.path.parent, {"big": fault}) as (url, _):
        mirrors = (Mirror(url=f"{url}/conda-forge"),)
        create_environment(lock, tmp_path / "prefix", options(tmp_path, mirrors=mirrors))
    assert (tmp_path / "prefix" / "share" / "big.bin").read_bytes() == BIG


def test_a_wrong_beginning_from_an_earlier_attempt_is_fetched_anew(channel: Channel, tmp_path: Path) -> None:
    with serve_faulty(channel.path.parent, {}) as (url, log):
        lock = lock_of(channel, tmp_path, f"{url}/conda-forge")
        cache = PackageCache(tmp_path / "cache")
        cache.prepare()
        cache.part(next(p for p in lock.packages if p.name == "big")).write_bytes(b"not what it was")
        create_environment(lock, tmp_path / "prefix", options(tmp_path))
    assert [ranged for method, name, ranged in log if method == "GET" and name.startswith("big")] == ["bytes=15-", ""]


def test_a_download_that_is_always_cut_off_names_the_host(channel: Channel, tmp_path: Path) -> None:
    with serve_faulty(channel.path.parent, {"big": Fault(drop_after=0)}) as (url, log):
        lock = lock_of(channel, tmp_path, f"{url}/conda-forge")
        host = url.removeprefix("http://")
        refused(lock, tmp_path / "prefix", options(tmp_path), f"{host} cannot be reached", "--channel-url", "--offline")
    assert len([1 for method, name, _ in log if method == "GET" and name.startswith("big")]) == QUICK.attempts


def test_a_server_that_falls_silent_is_given_up(channel: Channel, tmp_path: Path) -> None:
    hasty = Patience(attempts=2, first_wait_seconds=0.01, longest_wait_seconds=0.02, quiet_seconds=0.3)
    with serve_faulty(channel.path.parent, {"libx": Fault(delay_seconds=3.0)}) as (url, _):
        lock = lock_of(channel, tmp_path, f"{url}/conda-forge")
        host = url.removeprefix("http://")
        refused(lock, tmp_path / "p", options(tmp_path, patience=hasty), f"{host} cannot be reached", "timed out")


def test_a_busy_server_is_asked_again(channel: Channel, tmp_path: Path) -> None:
    with serve_faulty(channel.path.parent, {"libx": Fault(status=503, times=2)}) as (url, _):
        lock = lock_of(channel, tmp_path, f"{url}/conda-forge")
        assert create_environment(lock, tmp_path / "prefix", options(tmp_path))


@pytest.mark.parametrize(("status", "word"), [(403, "status 403"), (404, "does not have this file")])
def test_a_refusal_is_told_at_once(channel: Channel, tmp_path: Path, status: int, word: str) -> None:
    with serve_faulty(channel.path.parent, {"libx": Fault(status=status)}) as (url, log):
        lock = lock_of(channel, tmp_path, f"{url}/conda-forge")
        refused(lock, tmp_path / "prefix", options(tmp_path), word, "libx-1.0-0.conda")
    assert len([1 for method, name, _ in log if method == "GET" and name.startswith("libx")]) == 1


def test_unreachable_channel_names_the_host_and_what_to_do(channel: Channel, tmp_path: Path) -> None:
    lock = lock_of(channel, tmp_path, "http://user:secret@127.0.0.1:9/conda-forge")
    text = refused(lock, tmp_path / "p", options(tmp_path), "127.0.0.1:9 cannot be reached (Connection refused)")
    assert "secret" not in text


def test_offline_builds_from_the_cache_alone(channel: Channel, tmp_path: Path) -> None:
    lock = lock_of(channel, tmp_path, "http://127.0.0.1:9/conda-forge")
    refused(lock, tmp_path / "p", options(tmp_path, offline=True), "not in the package cache", "--offline")
    create_environment(lock, tmp_path / "p", options(tmp_path, mirrors=(Mirror(url=channel.path.as_uri()),)))
    assert create_environment(lock, tmp_path / "q", options(tmp_path, offline=True))


def test_offline_takes_archives_that_lie_in_the_cache(channel: Channel, tmp_path: Path) -> None:
    """As in conda's own package folder, or put there by hand; checked all the same."""
    lock = lock_of(channel, tmp_path, "http://127.0.0.1:9/conda-forge")
    cache = tmp_path / "cache"
    cache.mkdir()
    for package in channel.packages.values():
        shutil.copy(package.path, cache)
    (cache / "libx-1.0-0.conda").write_bytes(b"something else")
    refused(lock, tmp_path / "p", options(tmp_path, offline=True), "libx-1.0-0.conda", "sha256 is")
    shutil.copy(channel.packages["libx"].path, cache)
    assert create_environment(lock, tmp_path / "p", options(tmp_path, offline=True))
    assert (cache / "libx-1.0-0.conda").exists(), "archives that were there stay"


def test_a_damaged_cache_is_found_when_asked_for(channel: Channel, tmp_path: Path) -> None:
    lock = lock_of(channel, tmp_path)
    create_environment(lock, tmp_path / "p", options(tmp_path))
    # Files are hard links: who edits one in place in a prefix damages the cache, and every later prefix.
    with (tmp_path / "p" / "share" / "big.bin").open("r+b") as stream:
        stream.write(b"damage")
    create_environment(lock, tmp_path / "q", options(tmp_path))
    assert (tmp_path / "q" / "share" / "big.bin").read_bytes() != BIG
    create_environment(lock, tmp_path / "r", options(tmp_path, validate_cache=True))
    assert (tmp_path / "r" / "share" / "big.bin").read_bytes() == BIG


def test_another_lock_does_not_overwrite_a_complete_environment(channel: Channel, tmp_path: Path) -> None:
    lock = lock_of(channel, tmp_path)
    create_environment(lock, tmp_path / "p", options(tmp_path))
    lock.path.write_text(lock.path.read_text() + "# another\n")
    other = read_lock(lock.path)
    refused(other, tmp_path / "p", options(tmp_path), "complete environment of another lock", "rm -r")
    assert is_complete(tmp_path / "p", lock.sha256)


def test_a_moved_environment_is_not_complete(channel: Channel, tmp_path: Path) -> None:
    """Packages carry the path they were installed at."""
    lock = lock_of(channel, tmp_path)
    create_environment(lock, tmp_path / "p", options(tmp_path))
    (tmp_path / "p").rename(tmp_path / "moved")
    assert not is_complete(tmp_path / "moved", lock.sha256)
    assert create_environment(lock, tmp_path / "moved", options(tmp_path))
    assert subprocess.check_output([tmp_path / "moved" / "bin" / "where"], text=True).strip() == str(tmp_path / "moved")


def test_a_folder_with_other_things_in_it_is_left_alone(channel: Channel, tmp_path: Path) -> None:
    lock = lock_of(channel, tmp_path)
    place = tmp_path / "p"
    place.mkdir()
    (place / "thesis.tex").write_text("years of work")
    refused(lock, place, options(tmp_path), "not empty and not made by bench-runner")
    assert (place / "thesis.tex").read_text() == "years of work"
    (tmp_path / "file").write_text("")
    refused(lock, tmp_path / "file", options(tmp_path), "there is a file of that name")
    refused(lock, tmp_path / ("long" * 60) / "deep" / "er", options(tmp_path), "longer than 255")


def _build(lock_path: str, prefix: str, cache: str) -> None:
    """In a child process."""
    chosen = BuildOptions(cache_dir=Path(cache), mirrors=(), patience=QUICK)
    create_environment(read_lock(lock_path), Path(prefix), chosen)


def _wait_until(condition: object, seconds: float = 200) -> None:
    end = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end, "not in time"
        time.sleep(0.02)


class _Killer:
    """Progress that kills its own process when a stage has advanced by an amount (any, if None)."""

    def __init__(self, stage: str, amount: int | None) -> None:
        self._awaited, self._amount, self._stage = stage, amount, ""

    def stage(self, name: str, total: int, unit: str) -> None:
        self._stage = name

    def advance(self, amount: int) -> None:
        if self._stage == self._awaited and amount == (self._amount or amount):
            os.kill(os.getpid(), signal.SIGKILL)

    def note(self, text: str) -> None:
        """Nothing."""


def _build_and_die(lock_path: str, prefix: str, cache: str, stage: str, amount: int | None) -> None:
    chosen = BuildOptions(cache_dir=Path(cache), mirrors=(), patience=QUICK)
    create_environment(read_lock(lock_path), Path(prefix), chosen, _Killer(stage, amount))


def _killed(lock: Lock, folder: Path, stage: str, amount: int | None = None) -> None:
    """Build in a child process that is killed in the middle of a stage."""
    arguments = (str(lock.path), str(folder / "p"), str(folder / "cache"), stage, amount)
    child = multiprocessing.get_context("spawn").Process(target=_build_and_die, args=arguments)
    child.start()
    child.join(200)
    assert child.exitcode == -signal.SIGKILL
    assert not is_complete(folder / "p", lock.sha256)


def test_killed_while_downloading_then_built_again(channel: Channel, tmp_path: Path) -> None:
    with serve_faulty(channel.path.parent, {}) as (url, log):
        lock = lock_of(channel, tmp_path, f"{url}/conda-forge")
        _killed(lock, tmp_path, "packages", CHUNK_BYTES)
        assert create_environment(lock, tmp_path / "p", options(tmp_path))
    asked = [ranged for method, name, ranged in log if method == "GET" and name.startswith("big")]
    assert len(asked) == 2
    assert re.fullmatch(r"bytes=[1-9]\d*-", asked[1]), "what had been downloaded is kept"
    assert (tmp_path / "p" / "share" / "big.bin").read_bytes() == BIG


def test_killed_while_linking_then_built_again(channel: Channel, tmp_path: Path) -> None:
    lock = lock_of(channel, tmp_path)
    _killed(lock, tmp_path, "link")
    assert list((tmp_path / "p" / "conda-meta").iterdir()), "something was linked already"
    assert create_environment(lock, tmp_path / "p", options(tmp_path, offline=True))
    assert {p.name for p in read_installed(tmp_path / "p").packages} == {p.name for p in lock.packages}


def test_interrupted_while_downloading_ends_at_once(channel: Channel, tmp_path: Path) -> None:
    with serve_faulty(channel.path.parent, {"big": Fault(delay_seconds=0.3)}) as (url, _):
        lock = lock_of(channel, tmp_path, f"{url}/conda-forge")
        command = [sys.executable, "-m", "bench_runner", "env", "create", str(tmp_path / "p"), "--lock", str(lock.path)]
        command += ["--cache-dir", str(tmp_path / "cache")]
        child = subprocess.Popen(command, cwd=Path(__file__).parents[2], stderr=subprocess.PIPE, text=True)
        _wait_until(lambda: any(p.stat().st_size > 0 for p in (tmp_path / "cache").glob("big*.part")))
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=120)
    assert child.returncode == 130
    assert "Traceback" not in said
    assert not is_complete(tmp_path / "p", lock.sha256)


def test_half_linked_prefix_and_cache_are_cleaned_and_built_again(channel: Channel, tmp_path: Path) -> None:
    """What a kill while linking and unpacking leaves behind."""
    lock = lock_of(channel, tmp_path)
    create_environment(lock, tmp_path / "p", options(tmp_path))
    (tmp_path / "p" / MARK_NAME).unlink()
    shutil.rmtree(tmp_path / "p" / "lib")
    (tmp_path / "p" / "bin" / "leftover").write_text("x")
    cache = PackageCache(tmp_path / "cache")
    (cache.extracted / ".unpacking-1-libx-1.0-0" / "lib").mkdir(parents=True)
    (cache.extracted / "libx-1.0-0.checked").unlink()
    shutil.rmtree(cache.extracted / "libx-1.0-0" / "lib")
    assert create_environment(lock, tmp_path / "p", options(tmp_path))
    assert (tmp_path / "p" / "lib" / "libx.so").exists()
    assert not (tmp_path / "p" / "bin" / "leftover").exists()
    assert not list(cache.extracted.glob(".unpacking*"))


@pytest.mark.parametrize("prefixes", [("p", "p"), ("p", "q")], ids=["one prefix", "one cache"])
def test_two_builds_at_once(channel: Channel, tmp_path: Path, prefixes: tuple[str, str]) -> None:
    with serve_faulty(channel.path.parent, {"big": Fault(delay_seconds=0.05, times=1)}) as (url, log):
        lock = lock_of(channel, tmp_path, f"{url}/conda-forge")
        context = multiprocessing.get_context("spawn")
        arguments = [(str(lock.path), str(tmp_path / name), str(tmp_path / "cache")) for name in prefixes]
        children = [context.Process(target=_build, args=values) for values in arguments]
        for child in children:
            child.start()
        for child in children:
            child.join(200)
        assert [child.exitcode for child in children] == [0, 0]
    assert len([1 for method, name, _ in log if method == "GET" and name.startswith("big")]) == 1
    assert all(is_complete(tmp_path / name, lock.sha256) for name in prefixes)


@pytest.mark.parametrize("what", ["prefix", "cache"])
def test_a_build_that_waits_says_so(channel: Channel, tmp_path: Path, what: str) -> None:
    lock = lock_of(channel, tmp_path)
    (tmp_path / "p").mkdir()
    cache = PackageCache(tmp_path / "cache")
    cache.prepare()
    held = filelock.FileLock(tmp_path / "p" / LOCK_NAME if what == "prefix" else cache.lock_path, is_singleton=False)
    held.acquire()
    notes = _Notes(held)
    assert create_environment(lock, tmp_path / "p", options(tmp_path), notes)
    place = tmp_path / "p" if what == "prefix" else f"the package cache {tmp_path / 'cache'}"
    assert notes.notes == [f"another build uses {place}: waiting for it"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_named(channel: Channel, tmp_path: Path) -> None:
    lock = lock_of(channel, tmp_path)
    (tmp_path / "closed").mkdir(mode=0o555)
    refused(lock, tmp_path / "closed" / "p", options(tmp_path), "closed", "Permission denied")
    refused(lock, tmp_path / "p", options(tmp_path, cache_dir=tmp_path / "closed" / "c"), "--cache-dir")


def _mounted(folder: Path, settings: str) -> bool:
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", settings, "tmpfs", str(folder)]
    return os.geteuid() == 0 and subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.fixture
def small_disk(tmp_path: Path) -> object:
    """A disk of one megabyte."""
    folder = tmp_path / "disk"
    if not _mounted(folder, "size=1m"):
        pytest.skip("needs the right to mount a tmpfs")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_too_little_space_is_told_before_fetching(channel: Channel, tmp_path: Path, small_disk: Path) -> None:
    with serve_faulty(channel.path.parent, {}) as (url, log):
        lock = lock_of(channel, tmp_path, f"{url}/conda-forge")
        refused(lock, small_disk / "p", options(small_disk), "GB needed", "GB free", "--cache-dir")
    assert {method for method, _, _ in log} == {"HEAD"}


def test_a_disk_that_fills_up_on_the_way_is_one_line(channel: Channel, tmp_path: Path, small_disk: Path) -> None:
    """The server gives no sizes beforehand, so it is found out late."""
    lock = lock_of(channel, tmp_path)
    cache = tmp_path / "cache"
    create_environment(lock, tmp_path / "first", options(tmp_path))
    (small_disk / "filler").write_bytes(b"x" * 700_000)
    refused(lock, small_disk / "p", options(tmp_path, cache_dir=cache), "p", "No space left")


@pytest.fixture
def read_only_disk(tmp_path: Path) -> object:
    folder = tmp_path / "disk"
    if not _mounted(folder, "size=1m,ro"):
        pytest.skip("needs the right to mount a tmpfs")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_read_only_target_is_one_line(channel: Channel, tmp_path: Path, read_only_disk: Path) -> None:
    lock = lock_of(channel, tmp_path)
    refused(lock, read_only_disk / "p", options(tmp_path), "Read-only file system")
    refused(lock, tmp_path / "p", options(tmp_path, cache_dir=read_only_disk / "c"), "Read-only", "--cache-dir")


EVIL = {
    "up": {"../outside": b"x"},
    "far up": {"lib/../../outside": b"x"},
    "absolute": {"/tmp/bench-runner-outside": b"x"},
    "conda-meta": {"conda-meta/python-1-0.json": b"{}"},
    "through an absolute link": {"lib/out": Link("/tmp"), "lib/out/bench-runner-outside": b"x"},
    "through a relative link": {"lib/out": Link("../.."), "lib/out/outside": b"x"},
}


@pytest.mark.parametrize("files", EVIL.values(), ids=EVIL.keys())
def test_a_package_that_would_write_outside_is_refused(tmp_path: Path, files: dict[str, object]) -> None:
    evil = Channel(tmp_path / "conda-forge")
    evil.add("evil", files=files)
    lock = lock_of(evil, tmp_path)
    refused(lock, tmp_path / "deep" / "p", options(tmp_path), "evil-1.0-0.conda")
    assert not (tmp_path / "deep" / "outside").exists()
    assert not (tmp_path / "cache" / "outside").exists()
    assert not Path("/tmp/bench-runner-outside").exists()


def test_a_package_that_would_write_through_anothers_link_is_refused(tmp_path: Path) -> None:
    evil = Channel(tmp_path / "conda-forge")
    evil.add("first", files={"lib/a": Link("b"), "lib/b": Link("../../..")})
    evil.add("second", files={"lib/a/outside": b"x"})
    refused(lock_of(evil, tmp_path), tmp_path / "p", options(tmp_path), "second-1.0-0.conda", "a link of first")


def test_a_link_that_leads_out_with_nothing_behind_it_is_only_a_link(tmp_path: Path) -> None:
    plain = Channel(tmp_path / "conda-forge")
    plain.add("zone", files={"share/zoneinfo": Link("/usr/share/zoneinfo"), "lib64": Link("lib"), "lib/x": b"x"})
    assert create_environment(lock_of(plain, tmp_path), tmp_path / "p", options(tmp_path))


@pytest.mark.parametrize("point", ["../../evil = a:b", "/tmp/evil = a:b", ".. = a:b"])
def test_entry_points_stay_in_bin(tmp_path: Path, point: str) -> None:
    evil = Channel(tmp_path / "conda-forge")
    evil.add("evil", noarch="python", files=python_module("evil", "1.0"), entry_points=[point])
    refused(lock_of(evil, tmp_path), tmp_path / "p", options(tmp_path), "refused", "entry point")


def test_old_archives_and_packages_without_files(tmp_path: Path) -> None:
    """``.tar.bz2`` without paths.json, as conda-forge's oldest packages are, and a package that only has depends."""
    made = Channel(tmp_path / "conda-forge")
    made.add("meta", files={}, noarch="generic")
    old = made.path / PLATFORM / "old-1.0-0.tar.bz2"
    index = {"name": "old", "version": "1.0", "build": "0", "build_number": 0, "depends": [], "subdir": PLATFORM}
    with tarfile.open(old, "w:bz2") as archive:
        members = {"info/index.json": json.dumps(index), "info/files": "share/old.txt\n", "share/old.txt": "old\n"}
        for name, text in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    content = old.read_bytes()
    made.packages["old"] = BuiltPackage(
        path=old, index=index, md5=hashlib.md5(content).hexdigest(), sha256=hashlib.sha256(content).hexdigest()
    )
    with serve(made.path.parent) as url:
        create_environment(lock_of(made, tmp_path, f"{url}/conda-forge"), tmp_path / "p", options(tmp_path))
    assert (tmp_path / "p" / "share" / "old.txt").read_text() == "old\n"
    assert {p.name for p in read_installed(tmp_path / "p").packages} == {"meta", "old"}


def test_link_scripts_are_not_run(tmp_path: Path) -> None:
    made = Channel(tmp_path / "conda-forge")
    made.add("hooked", files={"bin/.hooked-post-link.sh": Executable(b"#!/bin/sh\ntouch $PREFIX/hooked\n")})
    create_environment(lock_of(made, tmp_path), tmp_path / "p", options(tmp_path))
    assert not (tmp_path / "p" / "hooked").exists()


def test_a_package_under_anothers_name_is_refused(tmp_path: Path) -> None:
    made = Channel(tmp_path / "conda-forge")
    made.add("right", files={"x": b"x"}, extra_index={"name": "wrong"})
    lock = made.write_lock(tmp_path / "conda-lock.yml")
    lock.write_text(lock.read_text().replace("name: wrong", "name: right"))
    refused(read_lock(lock), tmp_path / "p", options(tmp_path), "holds wrong 1.0 0 instead")


def test_what_the_lock_asks_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Channel(tmp_path / "conda-forge")
    made.add("gpu", files={"x": b"x"}, depends=["__cuda >=12.4"], constrains=["__glibc >=2.17"])
    lock = lock_of(made, tmp_path)
    monkeypatch.setenv("CONDA_OVERRIDE_CUDA", "")
    refused(lock, tmp_path / "p", options(tmp_path), "gpu 1.0 0 needs __cuda >=12.4", "has no __cuda", "CONDA_OVERRIDE")
    monkeypatch.setenv("CONDA_OVERRIDE_CUDA", "11.8")
    refused(lock, tmp_path / "p", options(tmp_path), "needs __cuda >=12.4", "has __cuda 11.8")
    monkeypatch.setenv("CONDA_OVERRIDE_GLIBC", "2.12")
    monkeypatch.setenv("CONDA_OVERRIDE_CUDA", "12.9")
    refused(lock, tmp_path / "p", options(tmp_path), "needs __glibc >=2.17", "has __glibc 2.12")
    monkeypatch.setenv("CONDA_OVERRIDE_GLIBC", "2.28")
    assert create_environment(lock, tmp_path / "p", options(tmp_path))


def test_locks_that_cannot_be_built_here(channel: Channel, tmp_path: Path) -> None:
    lock = lock_of(channel, tmp_path)
    text = lock.path.read_text()
    lock.path.write_text(text.replace(PLATFORM, "osx-arm64"))
    refused(read_lock(lock.path), tmp_path / "p", options(tmp_path), "no packages for linux-64, only for osx-arm64")
    entry = text[text.index("- name: libx") :].partition("- name: ")[2].partition("- name:")[0]
    lock.path.write_text(text + "- name: " + entry)
    refused(read_lock(lock.path), tmp_path / "p", options(tmp_path), "libx stands there twice")
    lock.path.write_text(text + "- name: " + entry.replace("manager: conda", "manager: pip"))
    refused(read_lock(lock.path), tmp_path / "p", options(tmp_path), "libx is for pip")


def test_whether_the_locked_environment_can_be_had(
    channel: Channel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BENCH_RUNNER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("BENCH_RUNNER_CHANNEL_URL", raising=False)
    place, reason = locked_environment_available(tmp_path)
    assert (place, "No such file" in reason) == (None, True)

    lock = lock_of(channel, tmp_path, "http://127.0.0.1:9/conda-forge")
    expected = locked_prefix(tmp_path, lock.sha256)
    place, reason = locked_environment_available(tmp_path)
    assert (place, "127.0.0.1:9 cannot be reached" in reason) == (None, True)

    with serve(channel.path) as url:
        monkeypatch.setenv("BENCH_RUNNER_CHANNEL_URL", url)
        assert locked_environment_available(tmp_path) == (
            expected,
            f"can be built: {url.removeprefix('http://')} answers",
        )
    monkeypatch.setenv("BENCH_RUNNER_CHANNEL_URL", str(channel.path))
    assert locked_environment_available(tmp_path) == (expected, f"can be built from {channel.path}")
    create_environment(lock, tmp_path / "elsewhere", BuildOptions())
    monkeypatch.delenv("BENCH_RUNNER_CHANNEL_URL")
    assert locked_environment_available(tmp_path) == (expected, "can be built from the package cache")
    create_environment(lock, expected, BuildOptions())
    assert locked_environment_available(tmp_path) == (expected, "is built")


def test_no_process_and_no_lock_is_left(channel: Channel, tmp_path: Path) -> None:
    """A second build in another process goes ahead at once after the first one ended, however it ended."""
    lock = lock_of(channel, tmp_path)
    create_environment(lock, tmp_path / "p", options(tmp_path))
    code = "import filelock, sys; filelock.FileLock(sys.argv[1]).acquire(timeout=0.1)"
    for path in (tmp_path / "p" / LOCK_NAME, PackageCache(tmp_path / "cache").lock_path):
        subprocess.run([sys.executable, "-c", code, str(path)], check=True, timeout=60)
