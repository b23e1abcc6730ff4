"""Who takes part in a run over several nodes: from options, MASTER_ADDR and Slurm's variables.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from bench_runner.errors import UsageError, shortened
from bench_runner.nodes.slurm import SlurmTask, slurm_task

ALL: Final = "all"
MOST_NODES: Final = 65536
JOIN_SECONDS: Final = 300.0
LOOPBACKS: Final = ("localhost", "::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """This node in a run over ``nodes`` nodes that meet at ``host``:``port``, which is node 0's.

    ``node_rank`` None: 0 for the node that has the address, else node 0 hands a number out.  ``run_id`` tells one
    job's nodes from another's that come to the same port.
    """

    nodes: int
    host: str
    port: int
    node_rank: int | None = None
    run_id: str = "bench-runner"
    join_seconds: float = JOIN_SECONDS

    @property
    def endpoint(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def on_loopback(self) -> bool:
        """Whether all nodes are this machine, as in a trial."""
        return self.host in LOOPBACKS or self.host.startswith("127.")


def find_membership(
    nodes: str | None,
    endpoint: str | None,
    node_rank: int | None,
    environment: Mapping[str, str],
    *,
    join_seconds: float = JOIN_SECONDS,
) -> Membership | None:
    """This node's part, or None for a run on this node alone.

    What is given as an option counts before MASTER_ADDR and MASTER_PORT, and those before Slurm's variables.
    ``nodes`` is a number or ``all``, those of the Slurm step.  Raises UsageError with what is missing or contradicts.
    """
    if nodes is None:
        for option, given in (("--rdzv-endpoint", endpoint), ("--node-rank", node_rank)):
            if given is not None:
                raise UsageError(f"{option} {given}: is for several nodes; say how many with --nodes")
        return None
    count = None if nodes == ALL else _count(nodes)
    if count == 1 and endpoint is None:
        return None
    if not 0 < join_seconds <= 86_400:
        raise UsageError(f"--join-timeout {join_seconds:g}: must be a number of seconds up to a day")
    task = slurm_task(environment)
    if count is None and task is None:
        raise UsageError("--nodes all: takes the nodes of a Slurm step; outside of Slurm give their number")
    if task is not None and endpoint is None:
        _check_step(task, count)
    count = count or (task.nodes if task is not None else 1)
    if count == 1:
        return None
    rank = node_rank
    if rank is None and task is not None and task.in_step:
        rank = task.node_rank
    if rank is not None and not 0 <= rank < count:
        raise UsageError(f"--node-rank {rank}: must be from 0 to {count - 1}, one less than --nodes")
    host, port = _meeting_place(endpoint, environment, task)
    try:
        host.encode("idna")
    except UnicodeError as error:
        raise UsageError(f"{shortened(host)}: no name of a host; name node 0 by its address") from error
    run_id = f"slurm-{task.job_id}" if task is not None else "bench-runner"
    return Membership(nodes=count, host=host, port=port, node_rank=rank, run_id=run_id, join_seconds=join_seconds)


def _count(nodes: str) -> int:
    if not nodes.isascii() or not nodes.isdecimal() or not 1 <= int(nodes[:9]) <= MOST_NODES or len(nodes) > 9:
        raise UsageError(f"--nodes {shortened(nodes)}: must be a number from 1 to {MOST_NODES}, or all")
    return int(nodes)


def _check_step(task: SlurmTask, count: int | None) -> None:
    """Slurm must have started one task on each of the nodes that are asked for."""
    wanted = count or task.nodes
    if wanted == 1:
        return
    start = f"srun --nodes={wanted} --ntasks={wanted} --ntasks-per-node=1 bench-runner run --nodes {wanted}"
    if not task.in_step:
        raise UsageError(
            f"--nodes {wanted}: this is one process of the Slurm job {task.job_id}; start it with `{start}`"
        )
    if task.nodes != wanted:
        raise UsageError(f"--nodes {wanted}: this Slurm step has {task.nodes}; start it with `{start}`")
    if task.tasks != wanted:
        raise UsageError(f"--nodes {wanted}: this Slurm step has {task.tasks} tasks, not one a node; use `{start}`")


def _meeting_place(endpoint: str | None, environment: Mapping[str, str], task: SlurmTask | None) -> tuple[str, int]:
    if endpoint is not None:
        return _host_and_port(endpoint)
    host = environment.get("MASTER_ADDR") or (task.hosts[0] if task is not None else None)
    if host is None:
        raise UsageError("--nodes: name node 0's address, --rdzv-endpoint HOST:PORT (or MASTER_ADDR and MASTER_PORT)")
    text = environment.get("MASTER_PORT")
    if text:
        return host, _port(text, "MASTER_PORT =")
    if task is None:
        raise UsageError("MASTER_PORT: not set; set it on all nodes, or give --rdzv-endpoint HOST:PORT")
    return host, task.port


def _host_and_port(endpoint: str) -> tuple[str, int]:
    host, colon, port = endpoint.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    bare = host[1:-1] if bracketed else host
    bad = not colon or not bare or any(c.isspace() or not c.isprintable() or c in "/[]" for c in bare)
    if bad or (":" in bare and not bracketed):
        raise UsageError(f"--rdzv-endpoint {shortened(endpoint)}: must be HOST:PORT, the address of node 0")
    return bare, _port(port, "--rdzv-endpoint: port")


def _port(text: str, what: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 5 or not 1 <= int(text) <= 65535:
        raise UsageError(f"{what} {shortened(text)}: must be a number from 1 to 65535")
    return int(text)
