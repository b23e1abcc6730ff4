"""The reader held against files that the installed asv writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench_runner.analysis.asv_results import from_asv, read_tree, result_files

BENCHMARKS = """
from asv_runner.benchmarks.mark import SkipNotImplemented


class Suite:
    params = ([1, 2, 4], ["a", "b"])
    param_names = ["n", "kind"]

    def track_rate(self, n, kind):
        if n == 2:
            raise SkipNotImplemented("no two of these")
        if n == 4:
            raise RuntimeError("broken")
        return {"samples": [10.0, 11.0, 12.0], "number": 1} if kind == "a" else 5.0

    track_rate.unit = "samples/s"
    track_rate.version = "1"


def time_sum():
    sum(range(100))


def track_broken():
    raise RuntimeError("broken")
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A project with asv's configuration, in which ``asv run`` has run once with the interpreter of the tests."""
    project = tmp_path / "project"
    (project / "benchmarks").mkdir(parents=True)
    (project / "benchmarks" / "__init__.py").write_text("")
    (project / "benchmarks" / "suite.py").write_text(BENCHMARKS)
    config = {
        "version": 1,
        "project": "p",
        "repo": ".",
        "branches": ["main"],
        "results_dir": "results",
        "environment_type": "existing",
    }
    (project / "asv.conf.json").write_text(json.dumps(config))
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    for command in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *command], cwd=project, check=True, capture_output=True)
    asv = [sys.executable, "-m", "asv"]
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=project, check=True, capture_output=True, text=True).stdout
    subprocess.run(
        [*asv, "machine", "--yes", "--machine", "lab"], cwd=project, check=True, env=_home(tmp_path), timeout=120
    )
    run = [*asv, "run", "--quick", "--record-samples", "--machine", "lab", "--set-commit-hash", head.strip()]
    subprocess.run([*run, "-E", "existing"], cwd=project, check=False, env=_home(tmp_path), timeout=200)
    return project / "results"


def _home(folder: Path) -> dict[str, str]:
    return {**os.environ, "HOME": str(folder)}


@pytest.mark.slow
def test_what_asv_writes_is_read(tree: Path) -> None:
    files = result_files(tree)
    assert len(files) == 1
    found, problems = read_tree(files)
    assert problems == []
    cases = from_asv(found)
    told = {
        key.label: [
            launch.outcome for launch in (*case.broken, *(one for some in case.measured.values() for one in some))
        ]
        for key, case in cases.items()
    }
    assert told == {
        "suite.Suite.track_rate/(n=1, kind='a')": ["ok"],
        "suite.Suite.track_rate/(n=1, kind='b')": ["ok"],
        "suite.Suite.track_rate/(n=2, kind='a')": ["skipped"],
        "suite.Suite.track_rate/(n=2, kind='b')": ["skipped"],
        "suite.Suite.track_rate/(n=4, kind='a')": ["failed"],
        "suite.Suite.track_rate/(n=4, kind='b')": ["failed"],
        "suite.time_sum": ["ok"],
        "suite.track_broken": ["failed"],
    }
    rate = next(case for key, case in cases.items() if key.label.endswith("(n=1, kind='a')"))
    metric, value = next(iter(next(iter(rate.measured.values()))[0].values.items()))
    assert (value, metric.unit, metric.direction) == (11.0, "samples/s", "higher")
    assert found.results[0].machine == "lab"
