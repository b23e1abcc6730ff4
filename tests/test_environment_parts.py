"""The parts that build an environment, each by itself: mirrors, requirements, marks, links, progress, prune."""

from __future__ import annotations

import io
import json
from pathlib import Path

import filelock
import pytest
import requests
import urllib3
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.progress import Progress as RichProgress
from rich.progress import TextColumn

from bench_runner.cli.progress import Bars, Lines, amount
from bench_runner.environment import prefix as prefixes
from bench_runner.environment.cache import check_links, one_line
from bench_runner.environment.channels import Mirror, local_path, mirrored, parse_mirror
from bench_runner.environment.download import host_of, reason_of, shown
from bench_runner.environment.host import unmet_requirements
from bench_runner.environment.lockfile import LockedPackage
from bench_runner.environment.prune import list_environments, remove
from bench_runner.environment.supply import default_cache_dir, default_mirrors
from bench_runner.errors import EnvironmentBuildError, UsageError

URL = "https://conda.anaconda.org/conda-forge"


def package(name: str = "a", version: str = "1.0", channel: str = URL, depends: tuple[str, ...] = ()) -> LockedPackage:
    file_name = f"{name}-{version}-0.conda"
    return LockedPackage(
        name=name,
        version=version,
        build="0",
        channel=channel,
        subdir="linux-64",
        url=f"{channel}/linux-64/{file_name}",
        file_name=file_name,
        md5="a" * 32,
        sha256="b" * 64,
        depends=depends,
        platform="linux-64",
        manager="conda",
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://mirror.example/conda-forge/", Mirror(url="https://mirror.example/conda-forge")),
        ("http://127.0.0.1:8000", Mirror(url="http://127.0.0.1:8000")),
        ("file:///mnt/conda", Mirror(url="file:///mnt/conda")),
        ("conda-forge=https://m.example/cf", Mirror(url="https://m.example/cf", channel="conda-forge")),
        ("pkgs/main=https://m.example/main", Mirror(url="https://m.example/main", channel="pkgs/main")),
        ("/", Mirror(url="file://")),
    ],
)
def test_parse_mirror(text: str, expected: Mirror) -> None:
    assert parse_mirror(text) == expected


@pytest.mark.parametrize("text", ["", "conda-forge", "ftp://x/y", "https://", "http://[::1", "https://x/y?z=1", "a b"])
def test_what_is_no_mirror(text: str) -> None:
    with pytest.raises(UsageError, match="--channel-url"):
        parse_mirror(text)


@given(st.text(max_size=60))
def test_any_text_is_a_mirror_or_a_usage_error(text: str) -> None:
    try:
        mirror = parse_mirror(text)
    except UsageError as error:
        told = str(error)
    else:
        told = ""
        assert mirror.url.startswith(("http://", "https://", "file://"))
    assert len(told.splitlines()) <= 1


def test_mirrored_keeps_subdir_and_file_name_and_prefers_the_channels_own() -> None:
    general, own = Mirror(url="https://all.example"), Mirror(url="file:///cf", channel="conda-forge")
    assert mirrored(package(), ()) == f"{URL}/linux-64/a-1.0-0.conda"
    assert mirrored(package(), (general,)) == "https://all.example/linux-64/a-1.0-0.conda"
    assert mirrored(package(), (general, own)) == "file:///cf/linux-64/a-1.0-0.conda"
    assert mirrored(package(channel="https://x.example/bioconda"), (own,)).startswith("https://x.example/bioconda/")


def test_local_path_decodes() -> None:
    assert local_path("file:///mnt/a%20b/x.conda") == Path("/mnt/a b/x.conda")
    assert local_path("https://x/y") is None


def test_defaults_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BENCH_RUNNER_CHANNEL_URL", f"https://a.example  conda-forge={tmp_path}")
    assert [m.channel for m in default_mirrors()] == [None, "conda-forge"]
    monkeypatch.setenv("BENCH_RUNNER_CACHE_DIR", "/x")
    assert default_cache_dir() == Path("/x")
    monkeypatch.delenv("BENCH_RUNNER_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "/y")
    assert default_cache_dir() == Path("/y/bench-runner/packages")


@pytest.mark.parametrize(
    ("depends", "offered", "words"),
    [
        ("__cuda", {}, "has no __cuda; CONDA_OVERRIDE_CUDA"),
        ("__cuda >=12.4", {"__cuda": "11.8"}, "has __cuda 11.8"),
        ("__cuda >=12.4,<13", {"__cuda": "12.9"}, None),
        ("__glibc >=2.28,<3.0.a0", {"__glibc": "2.17"}, "has __glibc 2.17; CONDA_OVERRIDE_GLIBC"),
        ("__glibc >=2.28,<3.0.a0", {"__glibc": "2.36"}, None),
        ("__unix", {"__unix": "0"}, None),
        ("__osx >=11", {"__unix": "0"}, "has no __osx"),
        ("__cuda >>12", {"__cuda": "12"}, "cannot be read"),
        ("python >=3.12", {}, None),
    ],
)
def test_unmet_requirements(depends: str, offered: dict[str, str], words: str | None) -> None:
    found = unmet_requirements([package(depends=(depends,))], offered)
    assert len(found) == (words is not None)
    assert words is None or words in found[0]


def test_messages_hold_no_credentials() -> None:
    assert shown("https://user:secret@host.example:8443/x/y") == "https://host.example:8443/x/y"
    assert host_of("https://user:secret@host.example:8443/x") == "host.example:8443"
    assert shown("file:///a/b") == "file:///a/b"


def test_the_innermost_cause_is_told() -> None:
    inner = OSError(111, "Connection refused")
    error = requests.ConnectionError(urllib3.exceptions.MaxRetryError(None, "u", inner))  # type: ignore[arg-type]
    assert reason_of(error) == "Connection refused"
    assert reason_of(ValueError()) == "ValueError"
    looping = ValueError("x")
    looping.__cause__ = looping
    assert reason_of(looping) == "x"
    assert one_line(ValueError("failed\nCaused by: b\nCaused by: no space")) == "failed; no space"


def test_marks_name_lock_and_place(tmp_path: Path) -> None:
    assert not prefixes.is_complete(tmp_path, "a" * 64)
    (tmp_path / "conda-meta").mkdir()
    (tmp_path / "conda-meta" / "a-1-0.json").write_text("{}")
    prefixes.write_mark(tmp_path, lock_sha256="a" * 64, platform="linux-64", packages=1)
    assert prefixes.is_complete(tmp_path, "a" * 64)
    assert not prefixes.is_complete(tmp_path, "b" * 64)
    assert prefixes.is_ours(tmp_path)
    (tmp_path / "conda-meta" / "a-1-0.json").unlink()
    assert not prefixes.is_complete(tmp_path, "a" * 64)


@given(
    st.one_of(
        st.binary(max_size=80), st.builds(lambda v: json.dumps(v).encode(), st.dictionaries(st.text(), st.text()))
    )
)
def test_a_damaged_mark_is_no_mark(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    folder = tmp_path_factory.mktemp("mark")
    (folder / prefixes.MARK_NAME).write_bytes(content)
    assert prefixes.read_mark(folder) is None


def test_names_of_locked_environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BENCH_RUNNER_LOCK", raising=False)
    assert prefixes.lock_path(tmp_path) == tmp_path / "conda-lock.yml"
    monkeypatch.setenv("BENCH_RUNNER_LOCK", "conda-lock-cpu.yml")
    assert prefixes.lock_path(tmp_path) == tmp_path / "conda-lock-cpu.yml"
    assert prefixes.locked_prefix(tmp_path, "c" * 64) == tmp_path / ".asv" / "env" / f"conda-lock-{'c' * 16}"


@pytest.mark.parametrize(
    ("links", "file", "refused"),
    [
        ({"lib64": "lib"}, "lib64/x", False),
        ({"lib/out": "../.."}, "lib/out/x", True),
        ({"lib/out": "/etc"}, "lib/out/x", True),
        ({"lib/out": "/etc"}, "lib/outside/x", False),
        ({"a": "b", "b": "../c"}, "a/x", True),
        ({"a": "b/d", "b": ".."}, "a/x", True),
        ({"site-packages/x": "../../../share"}, "site-packages/x/y", False),
        ({"site-packages/x": "../../../../share"}, "site-packages/x/y", True),
        ({"lib/python3.12/site-packages/x": "/etc"}, "site-packages/x/y", True),
        ({"bin/d": "/etc"}, "python-scripts/d/y", True),
    ],
)
def test_links_that_lead_out(tmp_path: Path, links: dict[str, str], file: str, refused: bool) -> None:
    folders = []
    for name, paths in (("linker", list(links)), ("writer", [file])):
        folder = tmp_path / name
        (folder / "info").mkdir(parents=True)
        (folder / "info" / "files").write_text("\n".join(paths))
        folders.append((package(name), folder))
    for path, target in links.items():
        (tmp_path / "linker" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "linker" / path).symlink_to(target)
    if refused:
        with pytest.raises(EnvironmentBuildError, match=r"writer-1\.0-0\.conda: refused"):
            check_links(folders)
    else:
        check_links(folders)


def test_amounts() -> None:
    assert amount(12, 300, "packages") == "12 of 300 packages"
    assert amount(12, 0, "packages") == ""
    assert amount(400_000_000, 3_700_000_000, "bytes") == "0.4 of 3.7 GB"
    assert amount(400_000, 0, "bytes") == "0.4 MB"


def test_lines_now_and_then(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    lines = Lines()
    lines.stage("packages", 2_000_000, "bytes")
    lines.advance(500_000)
    now[0] = 11.0
    lines.advance(500_000)
    lines.advance(1)
    lines.note("a retry")
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == ["fetch and unpack packages: 2.0 MB", "  1.0 of 2.0 MB", "a retry"]


def test_bars_on_a_terminal() -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100)
    with RichProgress(TextColumn("{task.description} {task.fields[done]}"), console=console) as bars:
        shown = Bars(bars)
        shown.advance(1)
        shown.stage("packages", 2_000_000, "bytes")
        shown.advance(1_500_000)
        bars.refresh()
        shown.note("another build uses [it]")
        shown.stage("link", 30, "packages")
        shown.advance(30)
    text = screen.getvalue()
    assert "1.5 of 2.0 MB" in text
    assert "another build uses [it]" in text
    assert "link packages 30 of 30 packages" in text


def test_prune_tells_old_unfinished_current_and_busy_apart(tmp_path: Path) -> None:
    for digit in "abcd":
        folder = tmp_path / prefixes.locked_directory(digit * 64)
        folder.mkdir()
        (folder / prefixes.LOCK_NAME).touch()
        (folder / "file").write_bytes(b"x" * 5000)
    for digit in "ab":
        folder = tmp_path / prefixes.locked_directory(digit * 64)
        prefixes.write_mark(folder, lock_sha256=digit * 64, platform="linux-64", packages=1)
    (tmp_path / "conda-lock-of-somebody-else").mkdir()
    (tmp_path / "0123456789abcdef").mkdir()
    busy = tmp_path / prefixes.locked_directory("d" * 64)
    with filelock.FileLock(busy / prefixes.LOCK_NAME):
        found = list_environments(tmp_path, frozenset({"a" * 64}))
        assert [e.state for e in found] == ["current", "old", "unfinished", "busy"]
        assert all(e.size_bytes >= 5000 for e in found)
        assert not remove(found[3])
    assert busy.exists()
    assert remove(found[1])
    assert not found[1].path.exists()
    assert len(list(tmp_path.iterdir())) == 5
