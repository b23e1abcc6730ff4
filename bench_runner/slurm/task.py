"""One node's task of a job: ``python -m bench_runner.slurm.task --folder FOLDER [--own-tree] -- COMMAND...``

Runs ``bench-runner COMMAND`` with its output in the job's folder, task-N.out and task-N.err, and leaves in task-N.json
on which node it ran and how it ended.  With an own tree it works in a copy of the source tree, on the node's own disk,
and the results of that machine are brought back.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from bench_runner.store import machine_folder

SCHEMA: Final = "bench-runner/slurm-task/1"
LEFT_OUT: Final = (".*", "results", "__pycache__", "build", "*.egg-info", "tests", "docs")
"""Not needed to measure.  Hidden folders hold environments and the state of other runs."""


def main(arguments: list[str]) -> int:
    """Run the command; its exit code."""
    end = arguments.index("--")
    folder, own_tree = Path(arguments[1]), "--own-tree" in arguments[:end]
    rank = os.environ.get("SLURM_PROCID", "0")
    node = os.environ.get("SLURMD_NODENAME") or platform.node()
    command = arguments[end + 1 :]
    if own_tree:
        with tempfile.TemporaryDirectory(prefix="bench-runner-tree-") as place:
            root, tree = Path.cwd(), Path(place) / "tree"
            copy_tree(root, tree, machine_folder(node))
            command = named(command, machine_folder(node))
            try:
                code = run(command, tree, folder, rank)
            finally:
                bring_back(tree / "results", root / "results")
    else:
        code = run(command, Path.cwd(), folder, rank)
    document = {"schema": SCHEMA, "node": node, "exit_code": code}
    temporary = folder / f"task-{rank}.new"
    temporary.write_text(json.dumps(document), encoding="utf-8")
    temporary.rename(folder / f"task-{rank}.json")
    return code if code >= 0 else 128 - code


def run(command: list[str], tree: Path, folder: Path, rank: str) -> int:
    """``bench-runner COMMAND`` in ``tree``; its exit code, negative for a signal."""
    path = [str(tree), *(part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part)]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    out, err = folder / f"task-{rank}.out", folder / f"task-{rank}.err"
    with out.open("wb") as output, err.open("wb") as errors:
        child = subprocess.Popen(
            [sys.executable, "-m", "bench_runner", *command],
            cwd=tree,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
        )
        # Slurm signals every process of the step: the command ends by itself, and what became of it is still written.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return child.wait()


def copy_tree(root: Path, tree: Path, machine: str) -> None:
    """The sources, the baselines and what is known of this machine."""
    shutil.copytree(root, tree, ignore=shutil.ignore_patterns(*LEFT_OUT))
    results = tree / "results"
    results.mkdir()
    for name in (machine, "baselines"):
        if (root / "results" / name).is_dir():
            shutil.copytree(root / "results" / name, results / name)


def bring_back(results: Path, destination: Path) -> None:
    """Copy what each machine's folder holds now, file by file; another machine's files are never touched."""
    for folder in sorted(path.parent for path in results.glob("*/machine.json")):
        shutil.copytree(folder, destination / folder.name, dirs_exist_ok=True)


def named(command: list[str], machine: str) -> list[str]:
    """With the node's name for its results, unless the user has given one."""
    given = any(word == "--machine" or word.startswith("--machine=") for word in command)
    return command if given else [command[0], "--machine", machine, *command[1:]]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
