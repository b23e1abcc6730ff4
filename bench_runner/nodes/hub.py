"""Node 0's side of a run over several nodes: the others come here, are told each launch, and report their ranks.

The hub lives in the process of ``bench-runner run``.  Launches are made by other processes of the same node (asv's),
which come to the same port with a token that only they have been told.  It relays: launches and their end to the
nodes, what the ranks say into the launch's directory, the nodes' ends to the launching process.
"""

from __future__ import annotations

import ipaddress
import queue
import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final

from bench_runner.errors import LaunchError, UsageError
from bench_runner.nodes.addresses import interface_towards, is_own, resolve
from bench_runner.nodes.cluster import Cluster
from bench_runner.nodes.membership import Membership
from bench_runner.nodes.wire import Gone, Inbox, Message, Wire, start_thread
from bench_runner.rank_files import rank_path

PROTOCOL: Final = "bench-runner/nodes/1"
TICK_SECONDS: Final = 0.5


@dataclass(slots=True, kw_only=True)
class Node:
    """Another node: what it said of itself, and what it is at."""

    rank: int
    host: str
    kind: str
    count: int
    wire: Wire
    gone: str | None = None
    busy: bool = False

    @property
    def name(self) -> str:
        return f"node {self.rank} ({self.host})"


@dataclass(slots=True, kw_only=True)
class Job:
    """The launch that goes on: who ordered it, and where its ranks' files are written."""

    leader: Wire
    directory: Path
    ranks_per_node: int
    nodes: tuple[int, ...]
    answered: set[int] = field(default_factory=set)


class Hub:
    """As a context: listens while it is open; when it is left the other nodes are told whether all was done."""

    def __init__(self, membership: Membership) -> None:
        self.token = secrets.token_hex(16)
        self._membership = membership
        self._inbox: Inbox = queue.SimpleQueue()
        self._nodes: dict[int, Node] = {}
        self._wires: list[Wire] = []
        self._unable: list[str] = []
        self._job: Job | None = None
        self._complete = threading.Event()
        self._closing = threading.Event()
        self._listener = _listen(membership)
        self._threads = [start_thread(self._accept, "hub: accept"), start_thread(self._serve, "hub")]

    @property
    def address(self) -> tuple[str, int]:
        """Where the processes of this node find the hub."""
        host, port = self._listener.getsockname()[:2]
        everywhere = ipaddress.ip_address(host).is_unspecified
        return "127.0.0.1" if everywhere else str(host), int(port)

    def cluster(self, counts: tuple[str, ...]) -> Cluster:
        """What this node's launching processes have to know."""
        host, port = self.address
        return Cluster(
            nodes=self._membership.nodes,
            host=self._membership.host,
            hub_host=host,
            hub_port=port,
            token=self.token,
            interface=self._interface(),
            counts=counts,
        )

    def _interface(self) -> str | None:
        """The interface that leads to the other nodes; the loopback only where they are on this machine."""
        found = (interface_towards(node.wire.peer) for node in self._nodes.values())
        return next((name for name in found if name is not None), None)

    def __enter__(self) -> Hub:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        self._listener.close()
        for thread in self._threads:
            thread.join()
        why = None if error is None else str(error) or type(error).__name__
        for node in self._nodes.values():
            if node.gone is None:
                node.wire.send("bye", why=why)
        for wire in self._wires:
            wire.close()

    def wait_for_nodes(self, kind: str, count: int, say: Callable[[str], None]) -> int:
        """Wait until every node is here; the fewest devices of a node, where this one has ``count`` of ``kind``.

        Raises LaunchError when the time is over and some are missing, and UsageError when they have other devices.
        """
        ends = time.monotonic() + self._membership.join_seconds
        wanted = set(range(1, self._membership.nodes))
        say(f"nodes: waiting for {len(wanted)} other(s) at {self._membership.endpoint}")
        while not self._complete.wait(TICK_SECONDS):
            lost = [f"{node.name} has gone: {node.gone}" for node in self._nodes.values() if node.gone is not None]
            lost += self._unable
            if lost:
                raise LaunchError(lost[0])
            if time.monotonic() > ends:
                missing = ", ".join(str(rank) for rank in sorted(wanted - set(self._nodes)))
                raise LaunchError(
                    f"node {missing} of {self._membership.nodes} did not come to {self._membership.endpoint} within "
                    f"{self._membership.join_seconds:.0f} s; start the same command there, with --node-rank, and look "
                    "for a firewall in between"
                )
        nodes = [self._nodes[rank] for rank in sorted(self._nodes)]
        for node in nodes:
            if node.kind != kind:
                raise UsageError(f"{node.name} has {node.kind} devices and node 0 {kind}; choose with --device")
        say("nodes: " + ", ".join(f"{node.name}: {node.count} × {node.kind}" for node in nodes))
        return min(count, *(node.count for node in nodes))

    # --- threads ------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:
                return  # closed: the run is over
            wire = Wire(connection, self._inbox)
            self._wires.append(wire)
            wire.start()

    def _serve(self) -> None:
        try:
            self._relay()
        finally:
            if not self._closing.is_set():  # a defect: nobody may wait for a hub that is dead
                for wire in list(self._wires):
                    wire.close()

    def _relay(self) -> None:
        while not self._closing.is_set():
            try:
                wire, message = self._inbox.get(timeout=TICK_SECONDS)
            except queue.Empty:
                continue
            node = next((node for node in self._nodes.values() if node.wire is wire), None)
            if isinstance(message, Gone):
                self._lost(wire, node, message.reason)
            elif node is not None:
                self._from_node(node, message)
            elif self._job is not None and wire is self._job.leader:
                if message["kind"] == "end":
                    self._end(stacks=message.get("stacks") is True)
            else:
                self._from_stranger(wire, message)

    def _from_stranger(self, wire: Wire, message: Message) -> None:
        if message["kind"] == "join":
            refusal = self._join(wire, message)
            if refusal is not None:
                wire.send("refused", why=refusal)
        elif message["kind"] == "unable" and message.get("run_id") == self._membership.run_id:
            self._unable.append(f"{str(message.get('host'))[:255]} cannot take part: {str(message.get('why'))[:500]}")
            wire.send("bye", why="it cannot take part")
        elif message["kind"] == "launch" and secrets.compare_digest(str(message.get("token")), self.token):
            self._launch(wire, message)
        else:
            wire.close()

    def _join(self, wire: Wire, message: Message) -> str | None:
        """Take a node in, or say why not."""
        told, nodes = message.get("node_rank"), self._membership.nodes
        if message.get("protocol") != PROTOCOL:
            return f"node 0 speaks {PROTOCOL}; use the same version of bench-runner on all nodes"
        if message.get("run_id") != self._membership.run_id:
            return f"another run has this port (its name is {self._membership.run_id}); choose another port"
        if message.get("nodes") != nodes:
            return f"node 0 was started with --nodes {nodes}; start all with the same"
        free = [rank for rank in range(1, nodes) if rank not in self._nodes]
        rank = told if told is not None else next(iter(free), None)
        if not isinstance(rank, int) or rank not in free:
            return f"node rank {rank} is taken already; give each node another --node-rank from 0 to {nodes - 1}"
        count = message.get("count")
        if not isinstance(count, int) or count < 1:
            return "it has no device"
        self._nodes[rank] = Node(
            rank=rank,
            host=str(message.get("host"))[:255],
            kind=str(message.get("device_kind"))[:20],
            count=count,
            wire=wire,
        )
        wire.send("welcome", node_rank=rank)
        if len(self._nodes) == nodes - 1:
            self._complete.set()
        return None

    def _launch(self, leader: Wire, message: Message) -> None:
        """Hand a launch on to the nodes that take part; the launching process is told who cannot."""
        wanted = tuple(range(1, int(message["nodes"])))
        for rank in wanted:
            node = self._nodes.get(rank)
            why = "was never here" if node is None else node.gone
            if node is None or why is not None:
                name = f"node {rank}" if node is None else node.name
                leader.send("lost", node=rank, why=f"{name} has gone: {why}")
                return
        busy = [self._nodes[rank].name for rank in wanted if self._nodes[rank].busy]
        if busy:  # it still ends its part of a launch that was broken off
            leader.send("busy", why=f"{busy[0]} has not ended its part of the launch before")
            return
        self._job = Job(
            leader=leader,
            directory=Path(message["directory"]),
            ranks_per_node=int(message["ranks_per_node"]),
            nodes=wanted,
        )
        for rank in wanted:
            self._nodes[rank].busy = True
            self._nodes[rank].wire.send("launch", launch=message["launch"])
        leader.send("started")

    def _from_node(self, node: Node, message: Message) -> None:
        job = self._job
        if message["kind"] == "ended":
            node.busy = False
        if job is None or node.rank not in job.nodes or node.rank in job.answered:
            return
        if message["kind"] == "ended":
            job.answered.add(node.rank)
            job.leader.send("ended", node=node.rank, name=node.name, **_known(message))
        elif message["kind"] == "rank":
            rank, line = message.get("rank"), message.get("line")
            first = node.rank * job.ranks_per_node
            # A node speaks for its own ranks alone, and of the launch that goes on.
            if isinstance(rank, int) and first <= rank < first + job.ranks_per_node and isinstance(line, str):
                with rank_path(job.directory, rank).open("a", encoding="utf-8") as file:
                    file.write(line.replace("\n", " ") + "\n")

    def _lost(self, wire: Wire, node: Node | None, reason: str) -> None:
        self._wires.remove(wire)
        job = self._job
        if node is not None:
            node.gone = node.gone or reason
            if job is not None and node.rank in job.nodes and node.rank not in job.answered:
                job.answered.add(node.rank)
                job.leader.send("lost", node=node.rank, why=f"{node.name} has gone: {reason}")
        elif job is not None and wire is job.leader:
            self._end(stacks=False)
            self._job = None

    def _end(self, *, stacks: bool) -> None:
        job = self._job
        for rank in () if job is None else job.nodes:
            if self._nodes[rank].busy:
                self._nodes[rank].wire.send("end", stacks=stacks)


def _known(message: Message) -> Message:
    return {name: message.get(name) for name in ("why", "exits", "rank_logs", "agent_log")}


def _listen(membership: Membership) -> socket.socket:
    """Listen at the endpoint's own address; on all where the name stands for the loopback here and not elsewhere."""
    address = resolve(membership.host)
    if not is_own(address):
        raise UsageError(
            f"--rdzv-endpoint {membership.endpoint}: {address} is no address of this node, which has node rank 0; "
            "name this one's, or give this node another --node-rank"
        )
    # Debian's /etc/hosts has the host's own name at 127.0.1.1, where no other node could come.
    everywhere = address.startswith("127.") and not membership.on_loopback
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        listener = socket.create_server(("" if everywhere else address, membership.port), family=family, backlog=512)
    except OSError as error:
        raise LaunchError(
            f"--rdzv-endpoint {membership.endpoint}: {error.strerror}; choose another port, the same on all nodes"
        ) from error
    listener.settimeout(TICK_SECONDS)
    return listener
