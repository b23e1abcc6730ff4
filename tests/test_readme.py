"""The README holds: its commands exist, its links lead somewhere, its Python runs on the results in the tree."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench_runner.store import read_tree

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMANDS = sorted(set(re.findall(r"bench-runner ([a-z][a-z-]*)", README)))


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=240, check=False
    )


def test_it_begins_with_the_two_commands():
    assert README.index("make bench") < README.index("make test") < README.index("## ")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^    make (\S+)", README + (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE):
        assert re.search(rf"^{re.escape(target)}:", makefile, re.MULTILINE), target


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_it_names_exists_and_has_an_example(command):
    done = python("-m", "bench_runner", command, "--help")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Usage: bench-runner")


def test_every_option_it_names_exists():
    for command, options in re.findall(r"`bench-runner ([a-z][a-z-]*)([^`]*)`", README):
        text = python("-m", "bench_runner", command, "--help").stdout
        for option in re.findall(r"--[a-z][a-z-]+", options):
            assert option in text, f"{command} {option}"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#\s]+)\)", page.read_text(encoding="utf-8")):
        if not target.startswith(("http://", "https://")):
            assert (page.parent / target).exists(), target


def test_its_python_runs_on_the_results_in_the_tree():
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    done = python("-W", "error", "-c", code + "\nassert len(frame) > 100")
    assert done.returncode == 0, done.stderr


def test_the_report_it_shows_is_that_of_the_results_in_the_tree():
    (shown,) = re.findall(r"```text\n(.*?)```", README, re.DOTALL)
    (commit,) = re.findall(r"commit ([0-9a-f]{12})", shown)
    records, _ = read_tree(ROOT / "results")
    # Whoever measures in this tree adds sessions of his own; that of the README stays.
    (session,) = {record.session_id for record in records if (record.commit or "").startswith(commit)}
    done = python("-m", "bench_runner", "report", "--session", session)
    assert done.returncode == 0, done.stderr
    assert shown.strip() == done.stdout.strip()
