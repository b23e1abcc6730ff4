"""What Slurm tells a task through its environment: pure functions over variables."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from bench_runner.errors import UsageError, shortened

MOST_HOSTS: Final = 65536
LOWEST_PORT: Final = 15_000
PORTS: Final = 10_000
"""A job's port is made of its number, below the ports that kernels hand out by themselves (from 32768 on)."""

_RANGE: Final = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
_PART: Final = re.compile(r"\[([^\[\]]*)\]|([^\[\],\s]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmTask:
    """This process within a Slurm job.  ``in_step``: srun started it, so the other nodes have a task as well."""

    job_id: str
    nodes: int
    node_rank: int
    hosts: tuple[str, ...]
    tasks: int
    in_step: bool

    @property
    def port(self) -> int:
        """A port that the job's tasks agree on without talking; other jobs on the same node mostly have others."""
        digits = int(re.sub(r"\D", "", self.job_id)[-9:] or 0)
        return LOWEST_PORT + digits % PORTS


def parse_hosts(text: str, variable: str = "SLURM_JOB_NODELIST") -> tuple[str, ...]:
    """The names in Slurm's short form: ``node[01-03,7],login`` → node01, node02, node03, node7, login.

    Raises UsageError, naming the variable, for what is no such list or names more than 65,536 hosts.
    """
    hosts: list[str] = []
    for word in _words(text, variable):
        found = [""]
        position = 0
        for part in _PART.finditer(word):
            if part.start() != position:
                raise _broken(text, variable)
            position = part.end()
            choices = [part.group(2)] if part.group(1) is None else _numbers(part.group(1), text, variable)
            if len(found) * len(choices) + len(hosts) > MOST_HOSTS:
                raise UsageError(f"{variable} = {shortened(text)}: names more than {MOST_HOSTS} hosts")
            found = [left + right for left in found for right in choices]
        if position != len(word) or not word:
            raise _broken(text, variable)
        hosts += found
    return tuple(hosts)


def _words(text: str, variable: str) -> list[str]:
    """The list cut at its commas outside of brackets."""
    words, depth, word = [], 0, ""
    for character in text.strip():
        depth += {"[": 1, "]": -1}.get(character, 0)
        if depth not in (0, 1):
            raise _broken(text, variable)
        if character == "," and depth == 0:
            words.append(word)
            word = ""
        else:
            word += character
    if depth:
        raise _broken(text, variable)
    return [*words, word]


def _numbers(text: str, whole: str, variable: str) -> list[str]:
    """``01-03,7`` → 01, 02, 03, 7: as wide as the first of a range is written."""
    numbers: list[str] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise _broken(whole, variable)
        first, last = match.group(1), match.group(2) or match.group(1)
        if not int(first) <= int(last) < int(first) + MOST_HOSTS:
            raise _broken(whole, variable)
        numbers += [f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]
        if len(numbers) > MOST_HOSTS:
            raise UsageError(f"{variable} = {shortened(whole)}: names more than {MOST_HOSTS} hosts")
    return numbers


def _broken(text: str, variable: str) -> UsageError:
    return UsageError(f"{variable} = {shortened(text)}: not a list of hosts as Slurm writes it, such as node[01-03,7]")


def slurm_task(environment: Mapping[str, str]) -> SlurmTask | None:
    """This process' place in its Slurm job, or None outside of one.  Raises UsageError for damaged variables."""
    job_id = environment.get("SLURM_JOB_ID")
    if not job_id:
        return None
    # In a batch script and under salloc no step's variables are set (or those of the script's own, which has one node).
    in_step = environment.get("SLURM_STEP_ID", "").isdecimal() and "SLURM_STEP_NODELIST" in environment
    listed = "SLURM_STEP_NODELIST" if in_step else "SLURM_JOB_NODELIST"
    counted = ("SLURM_STEP_NUM_NODES",) if in_step else ("SLURM_JOB_NUM_NODES", "SLURM_NNODES")
    hosts = parse_hosts(environment.get(listed, ""), listed)
    nodes = _whole(environment, counted, len(hosts), least=1)
    if nodes != len(hosts):
        raise UsageError(f"{listed} = {shortened(environment[listed])}: names {len(hosts)} hosts, not {nodes}")
    rank = _whole(environment, ("SLURM_NODEID",), 0, least=0)
    if rank >= nodes:
        raise UsageError(f"SLURM_NODEID = {rank}: the step has {nodes} nodes")
    tasks = _whole(environment, ("SLURM_STEP_NUM_TASKS",), nodes, least=1) if in_step else 1
    return SlurmTask(job_id=job_id, nodes=nodes, node_rank=rank, hosts=hosts, tasks=tasks, in_step=in_step)


def _whole(environment: Mapping[str, str], names: tuple[str, ...], default: int, *, least: int) -> int:
    for name in names:
        text = environment.get(name)
        if text:
            if not text.isascii() or not text.isdecimal() or len(text) > 9 or int(text) < least:
                raise UsageError(f"{name} = {shortened(text)}: must be a whole number of at least {least}")
            return int(text)
    return default
