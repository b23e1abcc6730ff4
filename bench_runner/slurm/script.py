"""The batch script of a job, as data: one task on each node, of which every user's value is checked or quoted."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from bench_runner.errors import UsageError, shortened
from bench_runner.nodes.membership import MOST_NODES

Kind = Literal["run", "verify", "gate"]
_VALUE: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,:@/+=&|*()\[\]-]{0,999}")
_TIME: Final = re.compile(r"(\d+-)?\d{1,4}(:\d{1,2}){0,2}|UNLIMITED|infinite")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """What is asked of Slurm.  ``folder`` takes the job's files and is shared by all nodes, as ``root`` is, the source
    tree; ``arguments`` go to the command.  ``each``: every node measures for itself, not all of them together.
    ``as_json``: the run's report is wanted as a document."""

    kind: Kind
    nodes: int
    root: Path
    folder: Path
    python: str
    arguments: tuple[str, ...] = ()
    each: bool = False
    as_json: bool = False
    partition: str | None = None
    gpus_per_node: str | None = None
    time: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    nodelist: str | None = None
    reservation: str | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.nodes <= MOST_NODES:
            raise UsageError(f"--nodes {self.nodes}: must be from 1 to {MOST_NODES}")
        for name in ("partition", "gpus_per_node", "account", "qos", "constraint", "nodelist", "reservation"):
            value = getattr(self, name)
            if value is not None and _VALUE.fullmatch(value) is None:
                option = name.replace("_", "-")
                raise UsageError(f"--{option} {shortened(value)}: not a value that Slurm takes here")
        if self.time is not None and _TIME.fullmatch(self.time) is None:
            raise UsageError(f"--time {shortened(self.time)}: must be minutes, HH:MM:SS or DAYS-HH:MM:SS")
        # sbatch reads its options by rules of its own, and takes % in the names of files for its own marks.
        if not str(self.folder).isprintable() or any(character in str(self.folder) for character in "\"'\\%"):
            raise UsageError(
                f"{shortened(str(self.folder))}: the job's folder must have no quotes, \\ or % in its name"
            )

    @property
    def own_trees(self) -> bool:
        """Whether each node measures in a copy of the tree: two runs in one would disturb each other."""
        return self.kind == "gate" or (self.kind == "run" and self.each)


def batch_script(request: JobRequest) -> str:
    """The whole script; ``sbatch FILE`` needs nothing else."""
    options = {
        "job-name": f"bench-runner-{request.kind}",
        "nodes": str(request.nodes),
        "ntasks": str(request.nodes),
        "ntasks-per-node": "1",
        "partition": request.partition,
        "account": request.account,
        "qos": request.qos,
        "time": request.time,
        "gpus-per-node": request.gpus_per_node,
        "constraint": request.constraint,
        "nodelist": request.nodelist,
        "reservation": request.reservation,
        "output": f'"{request.folder}/job.log"',
        "open-mode": "append",
    }
    lines = [f"#SBATCH --{name}={value}" for name, value in options.items() if value is not None]
    return "\n".join(
        [
            "#!/bin/bash",
            *lines,
            "#SBATCH --exclusive",
            "#SBATCH --requeue",
            "set -euo pipefail",
            f"cd {shlex.quote(str(request.root))}",
            "# After a requeue the same job begins again: what an earlier try left must not be taken for this one's.",
            f"rm -f {shlex.quote(str(request.folder))}/task-*",
            shlex.join(["exec", *step(request)]),
            "",
        ]
    )


def step(request: JobRequest) -> list[str]:
    """The argument vector of the job's one step: a task on each node, none of which ends the others."""
    nodes = str(request.nodes)
    command = [request.python, "-m", "bench_runner.slurm.task", "--folder", str(request.folder)]
    if request.own_trees:
        command.append("--own-tree")
    return [
        "srun",
        f"--nodes={nodes}",
        f"--ntasks={nodes}",
        "--ntasks-per-node=1",
        "--cpu-bind=none",
        "--kill-on-bad-exit=0",
        *command,
        "--",
        *command_line(request),
    ]


def command_line(request: JobRequest) -> list[str]:
    """What each task runs, behind ``bench-runner``."""
    together = ["--nodes", str(request.nodes)] if request.kind == "run" and not request.each else []
    # A verdict is read from each node's document; of one run over all of them the report is shown as it is.
    as_json = ["--json"] if request.as_json or request.each or request.kind != "run" else []
    given = [argument for argument in request.arguments if argument not in as_json]
    return [request.kind, *together, *as_json, *given]
