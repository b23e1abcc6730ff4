"""The lock file's reader: right on real locks, one line for anything else, and never without end."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench_runner.environment.lockfile import (
    Lock,
    channel_name,
    parse_package_url,
    read_lock,
    split_file_name,
)
from bench_runner.environment.reading import load_json, load_plain_yaml, read_bounded
from bench_runner.errors import UnreadableError

ROOT = Path(__file__).resolve().parents[1]
LOCKS = (ROOT / "conda-lock.yml", ROOT / "conda-lock-cpu.yml")
SMALL = b"""version: 1
metadata:
  content_hash:
    linux-64: 143e715b8816cebd51b03f293c181f56d53181c208617220ae315b68fc6d5c56
  channels:
  - url: conda-forge
    used_env_vars: []
  platforms:
  - linux-64
  sources:
  - environment.yml
package:
- name: tool
  version: '1.10'
  manager: conda
  platform: linux-64
  dependencies:
    python: '>=3.10'
    libtool: ''
  url: https://conda.anaconda.org/conda-forge/noarch/tool-1.10-py_0.conda
  hash:
    md5: d68ec17cb915cab4642357417ec0a104
    sha256: a0a320c709fded9b5178108dedebf81a1f5a5d9c7720e3af50c1ab058dadd296
  category: main
  optional: false
"""


def _read(tmp_path: Path, content: bytes) -> Lock:
    path = tmp_path / "conda-lock.yml"
    path.write_bytes(content)
    return read_lock(path)


def _refused(tmp_path: Path, content: bytes) -> str:
    with pytest.raises(UnreadableError) as caught:
        _read(tmp_path, content)
    message = str(caught.value)
    assert "\n" not in message
    assert str(tmp_path / "conda-lock.yml") in message
    return message


def _is_one_line(error: UnreadableError) -> None:
    assert len(str(error).splitlines()) == 1


def test_a_small_lock_word_for_word(tmp_path: Path) -> None:
    lock = _read(tmp_path, SMALL)
    assert lock.sha256 == hashlib.sha256(SMALL).hexdigest()
    assert lock.platforms == ("linux-64",)
    assert lock.channels == ("conda-forge",)
    assert lock.sources == ("environment.yml",)
    (package,) = lock.conda_packages("linux-64")
    assert (package.name, package.version, package.build) == ("tool", "1.10", "py_0")
    assert (package.channel, package.subdir) == ("https://conda.anaconda.org/conda-forge", "noarch")
    assert package.file_name == "tool-1.10-py_0.conda"
    assert package.depends == ("python >=3.10", "libtool")
    assert lock.conda_packages("osx-64") == ()
    assert lock.pip_packages("linux-64") == ()


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning", "ignore::DeprecationWarning")  # of conda-lock's import
@pytest.mark.parametrize("path", LOCKS, ids=lambda p: p.name)
def test_reads_what_conda_lock_and_rattler_read(path: Path) -> None:
    from conda_lock.lockfile import parse_conda_lock_file
    from rattler import LockFile

    ours = {p.name: p for p in read_lock(path).packages}
    theirs = parse_conda_lock_file(path).package
    assert len(ours) == len(theirs) > 250
    for package in theirs:
        mine = ours[package.name]
        assert (mine.version, mine.url, mine.platform) == (package.version, package.url, package.platform)
        assert (mine.md5, mine.sha256) == (package.hash.md5, package.hash.sha256)
        assert mine.depends == tuple(f"{name} {spec}".strip() for name, spec in package.dependencies.items())
    environment = LockFile.from_path(path).default_environment()
    records = [record for of_platform in environment.conda_repodata_records().values() for record in of_platform]
    assert {(r.name.normalized, str(r.version), str(r.build), r.subdir, r.file_name) for r in records} == {
        (p.name, p.version, p.build, p.subdir, p.file_name) for p in ours.values()
    }


def test_a_version_2_lock_as_conda_lock_writes_it(tmp_path: Path) -> None:
    assert len(_read(tmp_path, SMALL.replace(b"version: 1\n", b"version: 2\n", 1)).packages) == 1


def test_a_pip_entry_is_kept_apart(tmp_path: Path) -> None:
    entry = (
        b"- name: wheel-only\n  version: 1.0\n  manager: pip\n  platform: linux-64\n  dependencies: {}\n"
        b"  url: https://files.example/wheel_only-1.0-py3-none-any.whl\n"
        b"  hash:\n    sha256: a0a320c709fded9b5178108dedebf81a1f5a5d9c7720e3af50c1ab058dadd296\n"
    )
    lock = _read(tmp_path, SMALL + entry)
    assert [p.name for p in lock.pip_packages("linux-64")] == ["wheel-only"]
    assert [p.name for p in lock.conda_packages("linux-64")] == ["tool"]
    assert lock.pip_packages("linux-64")[0].build == ""


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (b"version: 1\n", b"version: 3\n", "version = '3'"),
        (b"version: 1\n", b"", "version = 'None'"),
        (b"tool-1.10-py_0", b"tool-1.9-py_0", "the file is tool 1.9, the entry is tool 1.10"),
        (b"/noarch/", b"/osx-64/", "subdir osx-64"),
        (b"https://conda", b"ftp://conda", "not the URL of a conda package"),
        (b"py_0.conda", b"py_0.zip", "not the URL of a conda package"),
        (b"tool-1.10-py_0", b"..%2Ftool-1.10-py_0", "a file name with a path in it"),
        (b"md5: d68e", b"md5: D68E", "hash.md5"),
        (b"sha256: a0a3", b"sha256: a0a", "hash.sha256"),
        (b"manager: conda", b"manager: apt", "manager = 'apt'"),
        (b"platform: linux-64\n", b"platform: win-64\n", "platform = 'win-64'"),
        (b"name: tool", b"name: ../tool", "not the name of a package"),
        (b"name: tool", b'name: "to\\u001bol"', "control characters"),
        (b"package:\n", b"packages:\n", "package: must be a list"),
        (b"python: '>=3.10'", b"python: [1]", "must be text"),
        (b"category: main", b"category: main\n  name: twice", "stands twice"),
        (b"category: main", b"category: &a main", "anchors and aliases are not read"),
        (b"category: main", b"category: !!python/name:os.system main", "tag"),
        (b"optional: false", b"<<: x", "merge keys"),
        (b"optional: false", b"optional: [", "not valid YAML"),
        (b"version: 1\n", b"version: 1\nx: \xff\n", "not UTF-8"),
    ],
)
def test_a_damaged_lock_is_refused_in_one_line(tmp_path: Path, old: bytes, new: bytes, says: str) -> None:
    assert old in SMALL
    assert says in _refused(tmp_path, SMALL.replace(old, new, 1))


@pytest.mark.parametrize("content", [b"", b"# nothing\n", b"text", b"- 1\n", b"{}", b"--- {}\n--- {}\n", b"\0", b"?"])
def test_another_document_is_refused(tmp_path: Path, content: bytes) -> None:
    _refused(tmp_path, content)


def test_a_bomb_ends_at_once(tmp_path: Path) -> None:
    layers = b"".join(b"a%d: &a%d [%s]\n" % (i + 1, i + 1, b",".join([b"*a%d" % i] * 9)) for i in range(30))
    started = time.monotonic()
    assert "anchors" in _refused(tmp_path, b"a0: &a0 [lol]\n" + layers)
    assert "nest" in _refused(tmp_path, b"a: " + b"[" * 500_000)
    assert "nested deeper" in _refused(tmp_path, b"a: " + b"[" * 100 + b"]" * 100)
    assert "nested deeper" in _refused(tmp_path, b"\n".join(b" " * i + b"a:" for i in range(2_000)))
    assert "larger than" in _refused(tmp_path, b"#" * (17 << 20))
    assert time.monotonic() - started < 60


def test_what_is_no_file_is_not_read(tmp_path: Path) -> None:
    for path in (Path("/dev/zero"), tmp_path):
        with pytest.raises(UnreadableError, match="not a regular file"):
            read_lock(path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UnreadableError, match="not a regular file"):
        read_lock(tmp_path / "pipe")
    with pytest.raises(UnreadableError, match="No such file"):
        read_lock(tmp_path / "absent.yml")
    with pytest.raises(UnreadableError, match="null"):
        read_lock(tmp_path / "with\0zero")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_damage_gives_a_lock_or_one_line(tmp_path: Path, data: st.DataObject) -> None:
    content = bytearray(SMALL)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content)))
        removed = data.draw(st.integers(0, 40))
        content[at : at + removed] = data.draw(st.binary(max_size=20))
    try:
        lock = _read(tmp_path, bytes(content))
    except UnreadableError as error:
        _is_one_line(error)
    else:
        assert all(p.name and p.url and (p.md5 or p.sha256) for p in lock.packages)


_TEXT = st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "S", "Zs")), max_size=12)
_TREES = st.recursive(
    _TEXT, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXT, inner, max_size=4), max_leaves=25
)


@settings(deadline=None)
@given(tree=_TREES)
def test_plain_yaml_reads_back_what_pyyaml_writes(tree: object) -> None:
    text = yaml.dump(tree, allow_unicode=True, Dumper=_NoAliases)
    assert load_plain_yaml(text, Path("x"), "test") == tree


class _NoAliases(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:
        return True


@settings(deadline=None)
@given(content=st.binary(max_size=200) | st.text(max_size=50).map(str.encode))
def test_json_is_a_value_or_one_line(content: bytes) -> None:
    try:
        load_json(content, Path("x.json"), "test")
    except UnreadableError as error:
        _is_one_line(error)


@pytest.mark.parametrize("content", [b"[" * 200_000, b"9" * 5_000, b"NaN", b'{"a": Infinity}'])
def test_json_that_python_would_take_too_far_is_refused(content: bytes) -> None:
    with pytest.raises(UnreadableError, match="not valid JSON"):
        load_json(content, Path("x.json"), "test")


def test_reading_stops_at_the_limit(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    assert read_bounded(tmp_path / "file", 5, "test") == b"12345"
    with pytest.raises(UnreadableError, match="larger than 4"):
        read_bounded(tmp_path / "file", 4, "test")


@pytest.mark.parametrize(
    ("channel", "name"),
    [
        ("https://conda.anaconda.org/conda-forge", "conda-forge"),
        ("https://mirror.example/some/where/conda-forge/", "conda-forge"),
        ("https://repo.anaconda.com/pkgs/main", "pkgs/main"),
        ("conda-forge", "conda-forge"),
        ("file:///tmp/channel", "channel"),
        ("", ""),
    ],
)
def test_channel_names(channel: str, name: str) -> None:
    assert channel_name(channel) == name


def test_urls_and_file_names() -> None:
    url = "https://host/a/b/linux-64/x-y-1!2.0-h1_0.tar.bz2"
    assert parse_package_url(url) == ("https://host/a/b", "linux-64", "x-y-1!2.0-h1_0.tar.bz2")
    assert split_file_name("x-y-1!2.0-h1_0.tar.bz2") == ("x-y", "1!2.0", "h1_0")
    for bad in ("x-1.conda", "-1-0.conda", "x-1-0.zip", ""):
        with pytest.raises(ValueError, match="not NAME"):
            split_file_name(bad)
