"""The name of a tree without git: from its content alone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from bench_runner.snapshot import current_commit, git_commit, source_files, stored_commits, tree_state


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    for name, content in {
        "benchmarks/a.py": "a = 1\n",
        "pyproject.toml": "[project]\n",
        "asv.conf.json": "{}\n",
        "README.md": "text\n",
        "results/box/x.py": "no\n",
        ".venv/lib/x.py": "no\n",
        "env/conda-meta/history": "",
        "env/lib/x.py": "no\n",
        "other/pyvenv.cfg": "",
        "other/x.py": "no\n",
        "a.egg-info/x.py": "no\n",
        "benchmarks/__pycache__/a.py": "no\n",
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def test_what_counts_as_source(tree: Path) -> None:
    found = [path.relative_to(tree).as_posix() for path in source_files(tree)]
    assert found == ["asv.conf.json", "pyproject.toml", "benchmarks/a.py"]


def test_the_same_content_elsewhere_is_the_same_commit(tree: Path, tmp_path: Path) -> None:
    first = tree_state(tree)
    assert len(first.commit) == 40
    shutil.copytree(tree, tmp_path / "copy")
    (tmp_path / "copy" / "results" / "more.json").write_text("{}")
    (tmp_path / "copy" / "report.html").write_text("<p>")
    assert tree_state(tmp_path / "copy") == first


@pytest.mark.parametrize("change", ["content", "name", "new", "gone"])
def test_any_change_of_a_source_is_another_commit(tree: Path, change: str) -> None:
    first = tree_state(tree).commit
    path = tree / "benchmarks" / "a.py"
    if change == "content":
        path.write_text("a = 2\n")
    elif change == "name":
        path.rename(path.with_name("b.py"))
    elif change == "new":
        path.with_name("b.py").write_text("")
    else:
        path.unlink()
    assert tree_state(tree).commit != first


def test_the_date_is_the_newest_sources(tree: Path) -> None:
    for path in source_files(tree):
        os.utime(path, (1000, 1000))
    os.utime(tree / "pyproject.toml", (2000, 2000))
    assert tree_state(tree).date_ms == 2_000_000


def test_without_git_the_content_names_the_commit(tree: Path) -> None:
    assert git_commit(tree) is None
    assert current_commit(tree) == tree_state(tree).commit
    (tree / ".git").mkdir()
    assert current_commit(tree) == tree_state(tree).commit, "what git cannot read is no repository"


def test_stored_commits_leave_out_what_is_not_asvs(tmp_path: Path) -> None:
    box = tmp_path / "box"
    box.mkdir()
    (box / "machine.json").write_text("{}")
    for name, content in {
        "a.json": json.dumps({"commit_hash": "a" * 40, "date": 5}),
        "b.json": '{"commit_hash": "b", "date": NaN}',
        "c.json": "[1]",
        "d.json": "{",
        "e.json": json.dumps({"commit_hash": 1, "date": 5}),
        "f.json": "[" * 100_000,
    }.items():
        (box / name).write_text(content)
    assert stored_commits(tmp_path) == {"a" * 40: 5}
    assert stored_commits(tmp_path / "nowhere") == {}


def _git(tree: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "-C", str(tree), *identity, *arguments], check=True, capture_output=True)


@pytest.fixture
def clone(tree: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of one commit, whatever git's settings on this machine."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    _git(tree, "init", "-q")
    assert git_commit(tree) is None, "no commit yet"
    _git(tree, "add", "-A")
    _git(tree, "commit", "-q", "-m", "one")
    return tree


def test_in_a_clone_git_names_the_commit(clone: Path) -> None:
    head = (clone / ".git" / "HEAD").read_text().removeprefix("ref: ").strip()
    assert current_commit(clone) == (clone / ".git" / head).read_text().strip()


def test_a_tree_inside_somebody_elses_clone_is_none(clone: Path) -> None:
    (clone / "unpacked").mkdir()
    assert git_commit(clone / "unpacked") is None


@pytest.mark.skipif(os.geteuid() != 0, reason="needs the right to give a folder away")
def test_a_clone_that_git_refuses_to_read_counts_as_a_tarball(clone: Path) -> None:
    """As in a container whose user is not the tree's owner."""
    os.chown(clone, 12345, 12345)
    assert git_commit(clone) is None
    assert current_commit(clone) == tree_state(clone).commit
