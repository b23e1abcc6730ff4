"""The real asv on a tiny suite: in a git clone, a shallow clone, a detached checkout and a tree without git."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SUITE = "def track_answer():\n    return 42.0\n\n\ntrack_answer.unit = 'things'\ntrack_answer.version = '1'\n"
UNWANTED = shutil.ignore_patterns("__pycache__", "worker")
MACHINE = ["--machine", "box"]


def run(cwd: Path, *command: str, code: int = 0) -> str:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("GIT_", "PYTHON"))}
    environment |= {"HOME": str(cwd.parent), "GIT_CONFIG_NOSYSTEM": "1", "PATH": os.environ["PATH"]}
    done = subprocess.run(list(command), cwd=cwd, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == code, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def asv(tree: Path, *arguments: str, code: int = 0) -> str:
    return run(tree, sys.executable, "-m", "asv", *arguments, code=code)


def git(tree: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "protocol.file.allow=always"]
    return run(tree, "git", *identity, *arguments).strip()


def measure(tree: Path) -> str:
    return asv(tree, "run", "-E", "existing", "--set-commit-hash", "HEAD", "--quick", *MACHINE)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A source tree with the project's plugin, asv's settings and one benchmark."""
    root = tmp_path / "tree"
    shutil.copytree(
        ROOT / "bench_runner", root / "bench_runner", ignore=shutil.ignore_patterns("__pycache__", "worker")
    )
    (root / "benchmarks").mkdir()
    (root / "benchmarks" / "__init__.py").write_text("")
    (root / "benchmarks" / "tiny.py").write_text(SUITE)
    shutil.copy(ROOT / "asv.conf.json", root)
    asv(root, "machine", "--yes", *MACHINE)
    return root


def results(tree: Path) -> list[dict[str, object]]:
    return [
        json.loads(p.read_text()) for p in sorted((tree / "results" / "box").glob("*.json")) if p.name != "machine.json"
    ]


def rows(table: str) -> set[tuple[str, ...]]:
    """The first four cells of each line of asv's comparison."""
    return {tuple(cell.strip() for cell in line.split("|")[1:5]) for line in table.splitlines()}


def published(tree: Path) -> dict[str, object]:
    asv(tree, "publish")
    return json.loads((tree / ".asv" / "html" / "index.json").read_text())


def test_tarball_without_git_runs_shows_publishes_and_compares(tree: Path) -> None:
    measure(tree)
    first = results(tree)[0]["commit_hash"]
    assert isinstance(first, str)
    assert len(first) == 40

    measure(tree)
    assert [r["commit_hash"] for r in results(tree)] == [first], "a run and its results must not change the tree's name"

    (tree / "benchmarks" / "tiny.py").write_text(SUITE.replace("42", "84"))
    measure(tree)
    commits = {r["commit_hash"] for r in results(tree)}
    assert len(commits) == 2
    second = (commits - {first}).pop()

    assert first[:8] in asv(tree, "show", first[:8], *MACHINE)
    assert "84.0" in asv(tree, "show", "HEAD", *MACHINE)
    compared = asv(tree, "compare", first[:12], "HEAD", *MACHINE)
    assert "track_answer" in compared
    assert ("+", "42", "84", "2") in rows(compared)
    index = published(tree)
    assert list(index["revision_to_hash"].values()) == [first, second]  # type: ignore[attr-defined]
    graph = next((tree / ".asv" / "html" / "graphs").rglob("tiny.track_answer.json"))
    assert [value for _, value in json.loads(graph.read_text())] == [42.0, 84.0]


def test_unknown_commit_in_a_tarball_is_one_clear_line(tree: Path) -> None:
    measure(tree)
    assert "without git a range names HEAD" in asv(tree, "publish", "abcd1234..HEAD", code=1)


@pytest.mark.slow
def test_clone_is_stored_under_the_git_commit(tree: Path) -> None:
    (tree / ".gitignore").write_text("/.asv/\n__pycache__/\n")
    git(tree, "init", "-q", "-b", "trunk")
    git(tree, "add", "-A")
    git(tree, "commit", "-q", "-m", "one")
    measure(tree)
    assert [r["commit_hash"] for r in results(tree)] == [git(tree, "rev-parse", "HEAD")]
    assert published(tree)["revision_to_hash"]


@pytest.mark.slow
def test_shallow_and_detached_clones_keep_older_results_in_publish(tree: Path, tmp_path: Path) -> None:
    (tree / ".gitignore").write_text("/.asv/\n__pycache__/\n")
    git(tree, "init", "-q", "-b", "trunk")
    git(tree, "add", "-A")
    git(tree, "commit", "-q", "-m", "one", "--date", "2026-01-01T00:00:00Z")
    measure(tree)
    first = git(tree, "rev-parse", "HEAD")
    (tree / "benchmarks" / "tiny.py").write_text(SUITE.replace("42", "84"))
    git(tree, "add", "-A")
    git(tree, "commit", "-q", "-m", "two", "--date", "2026-02-01T00:00:00Z")
    second = git(tree, "rev-parse", "HEAD")

    git(tmp_path, "clone", "-q", "--depth", "1", tree.as_uri(), "shallow")
    shallow = tmp_path / "shallow"
    git(shallow, "checkout", "-q", "--detach")
    git(shallow, "branch", "-q", "-D", "trunk")
    assert git(shallow, "rev-list", "HEAD") == second
    measure(shallow)
    assert {r["commit_hash"] for r in results(shallow)} == {first, second}
    assert list(published(shallow)["revision_to_hash"].values()) == [first, second]  # type: ignore[attr-defined]
    assert ("+", "42", "84", "2") in rows(asv(shallow, "compare", first[:10], "HEAD", *MACHINE))


def test_repository_without_a_commit_counts_as_a_tarball(tree: Path) -> None:
    git(tree, "init", "-q")
    output = measure(tree)
    assert "hash of the tree's content" in output
    assert len(str(results(tree)[0]["commit_hash"])) == 40
