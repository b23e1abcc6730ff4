"""asv's view of the source tree: ``"dvcs": "snapshot"`` works in a git clone, a shallow clone and a tarball.

In a clone that git can read everything is asked of asv's own git class.  Elsewhere the tree is one commit named by its
content.  In both cases commits that only the stored results know (measured before a shallow clone's history begins, on
another machine, or in a tarball) keep their place by the date stored with them, so that ``asv publish`` shows them.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Final

from asv import util
from asv.config import Config
from asv.console import log
from asv.plugins.git import Git
from asv.repo import NoSuchNameError, Repo

from bench_runner.snapshot import TreeState, git_commit, source_files, stored_commits, tree_state

BRANCH: Final = "HEAD"
_CURRENT_NAMES: Final = frozenset({"HEAD", "snapshot", ""})
_HASH: Final = re.compile(r"[0-9a-f]{4,64}")
_FULL_HASH: Final = re.compile(r"\b[0-9a-f]{40,64}\b")


def _results_directory() -> Path:
    """asv hands a repository no configuration, but it has changed to the folder of the one it uses."""
    try:
        return Path(Config.load().results_dir)
    except util.UserError:  # another name was given by --config
        return Path(Config().results_dir)


class _HeadGit(Git):  # type: ignore[misc]
    """asv's git class, following ``HEAD`` where no branch is configured; not offered for ``"dvcs": "git"``."""

    dvcs = "snapshot-git"

    @classmethod
    def url_match(cls, url: str) -> bool:  # noqa: ARG003
        return False

    def get_branch_name(self, branch: str | None = None) -> str:
        return BRANCH if branch is None else branch

    def knows(self, commit: str) -> bool:
        """Whether the commit is in this clone."""
        try:
            self._run_git(["cat-file", "-e", f"{commit}^{{commit}}"], display_error=False, dots=False)
        except util.ProcessError:
            return False
        return True

    def get_revisions(self, commits: set[str]) -> dict[str, int]:
        """As asv's, which overlooks the commit of a detached HEAD."""
        order = self._run_git(["rev-list", "--all", "HEAD", "--date-order", "--reverse"], dots=False).split()
        return {commit: number for number, commit in enumerate(order) if commit in commits}


class SnapshotRepo(Repo):  # type: ignore[misc]
    """The tree at ``url`` as asv's repository."""

    dvcs = "snapshot"
    _default_branch = BRANCH

    def __init__(self, url: str, mirror_path: str) -> None:
        self._path = os.path.abspath(url)  # noqa: PTH100
        self._root = Path(self._path)
        if not self._root.is_dir():
            raise util.UserError(f"repo = {url!r}: no such folder; dvcs snapshot needs the path of the source tree")
        self._git: _HeadGit | None = None
        if git_commit(self._root) is not None:
            self._git = _HeadGit(url, mirror_path)
        elif (self._root / ".git").exists():
            log.warning("git cannot name a commit here: results are stored under a hash of the tree's content instead")

    @classmethod
    def url_match(cls, url: str) -> bool:  # noqa: ARG003
        """Never chosen by guessing: only ``"dvcs": "snapshot"`` asks for it."""
        return False

    @cached_property
    def _tree(self) -> TreeState:
        return tree_state(self._root)

    @cached_property
    def _stored(self) -> dict[str, int]:
        return stored_commits(_results_directory())

    @cached_property
    def _git_dates(self) -> dict[str, int]:
        """Every commit that git knows, with the author's date in milliseconds, which is what asv stores."""
        if self._git is None:
            return {}
        lines = self._git._run_git(["log", "--all", "HEAD", "--format=%H %at"], dots=False).splitlines()
        return {commit: int(seconds) * 1000 for commit, seconds in (line.split() for line in lines)}

    @cached_property
    def _dates(self) -> dict[str, int]:
        """Commits that git does not know, by date: those of the results and, without git, the tree itself."""
        if self._git is None:
            return {**self._stored, self._tree.commit: self._tree.date_ms}
        return {commit: date for commit, date in self._stored.items() if commit not in self._git_dates}

    def _by_date(self) -> list[str]:
        """Commits that git does not know, oldest first; the tree itself is the newest whatever its files' dates say."""
        current = None if self._git is not None else self._tree.commit
        return sorted(self._dates, key=lambda commit: (commit == current, self._dates[commit], commit))

    def _merged(self, own: Iterable[str]) -> list[str]:
        """``own`` (commits of git, oldest first) and those that git does not know in one line by date.

        A shallow clone's history begins where the others end, so they mostly come first.
        """
        ordered = list(own)
        dates = {**self._git_dates, **self._dates} if self._dates else {}
        for stranger in self._by_date():
            date = self._dates[stranger]
            place = next((i for i, c in enumerate(ordered) if dates[c] > date), len(ordered))
            ordered.insert(place, stranger)
        return ordered

    def _timeline(self, branch: str | None = None) -> list[str]:
        """All commits of a branch, oldest first."""
        return self._merged([] if self._git is None else reversed(self._git.get_branch_commits(branch)))

    def _find(self, name: str) -> str:
        if self._git is None and name in _CURRENT_NAMES:
            return self._tree.commit
        matches = [commit for commit in self._dates if _HASH.fullmatch(name) and commit.startswith(name)]
        if len(matches) != 1:
            raise NoSuchNameError(name)
        return matches[0]

    def get_hash_from_name(self, name: str | None) -> str:
        """Raises asv's NoSuchNameError for a name that nobody knows."""
        if self._git is None:
            return self._find(name or BRANCH)
        try:
            return str(self._git.get_hash_from_name(name or BRANCH))
        except (NoSuchNameError, util.ProcessError):
            return self._find(name or BRANCH)

    def get_hash_from_parent(self, name: str) -> str:
        if self._git is not None:
            return str(self._git.get_hash_from_parent(name))
        order = self._by_date()
        place = order.index(self._find(name))
        if place == 0:
            raise NoSuchNameError(f"{name}^")
        return order[place - 1]

    def get_name_from_hash(self, commit: str) -> str | None:
        if self._git is None:
            return "snapshot" if commit == self._tree.commit else None
        name = self._git.get_name_from_hash(commit)
        return None if name is None else str(name)

    def get_date(self, hash: str) -> int:
        if self._git is not None and self._git.knows(hash):
            return int(self._git.get_date(hash))
        if hash in self._dates:
            return self._dates[hash]
        raise util.UserError(f"commit {hash}: neither in this tree's history nor one that has results")

    def get_date_from_name(self, name: str) -> int:
        return self.get_date(self.get_hash_from_name(name))

    def get_range_spec(self, commit_a: str, commit_b: str) -> str:
        return f"{commit_a}..{commit_b}"

    def get_new_range_spec(self, latest_result: str, branch: str | None = None) -> str:
        return f"{latest_result}..{self.get_branch_name(branch)}"

    def get_hashes_from_range(self, range: str) -> list[str]:
        """Newest first.  Of what git does not know: a name, ``name^!``, ``a..b`` or ``--all``."""
        if self._git is not None and all(self._git.knows(commit) for commit in _FULL_HASH.findall(range)):
            return list(self._git.get_hashes_from_range(range))
        order = self._timeline()
        if range == "--all":
            return order[::-1]
        first, dots, last = range.removesuffix("^!").partition("..")
        try:
            if range.endswith("^!"):
                return [self.get_hash_from_name(first)]
            low = order.index(self.get_hash_from_name(first)) + 1 if dots and first else 0
            high = order.index(self.get_hash_from_name(last if dots else first))
        except (NoSuchNameError, ValueError) as error:
            hint = "without git a range names HEAD or commits that have results" if self._git is None else "not on HEAD"
            raise util.UserError(f"range {range!r}: unknown commit {error}; {hint}") from error
        return order[low : high + 1][::-1]

    def get_tags(self) -> dict[str, str]:
        return {} if self._git is None else dict(self._git.get_tags())

    def get_branch_commits(self, branch: str | None) -> list[str]:
        """Newest first."""
        return self._timeline(branch)[::-1]

    def get_revisions(self, commits: Iterable[str]) -> dict[str, int]:
        """asv's axis of commits: a rising number each."""
        wanted = set(commits)
        own = {} if self._git is None else self._git.get_revisions(wanted)
        ordered = self._merged(sorted(own, key=own.__getitem__))
        return {commit: number for number, commit in enumerate(ordered) if commit in wanted}

    def pull(self) -> None:
        """Nothing to fetch: the tree is what is measured."""

    def checkout(self, path: str, commit_hash: str) -> None:
        """Put the tree's sources into ``path``, for environment types that build the project themselves."""
        if self._git is not None:
            self._git.checkout(path, commit_hash)
            return
        if commit_hash != self._tree.commit:
            raise util.UserError(f"commit {commit_hash}: only the tree as it is can be built where there is no git")
        target = Path(path)
        if target.exists():
            util.long_path_rmtree(path)
        for source in list(source_files(self._root)):
            copy = target / source.relative_to(self._root)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, copy)
        target.mkdir(parents=True, exist_ok=True)
