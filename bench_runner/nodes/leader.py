"""A launch over several nodes as the process on node 0 sees it that makes it."""

from __future__ import annotations

import queue
import socket
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from bench_runner.errors import LaunchError
from bench_runner.launch_cause import Exit, last_line
from bench_runner.nodes.cluster import Cluster
from bench_runner.nodes.wire import Gone, Inbox, Message, Wire

if TYPE_CHECKING:
    from bench_runner.launch import LaunchPlan

EARLY_SECONDS: Final = 5.0
"""A node whose part has ended before the others': so long its ranks' own errors have to arrive."""
LEAVE_SECONDS: Final = 5.0
"""What the other nodes have to end their part by themselves once this one's has ended."""
END_SECONDS: Final = 40.0
"""What they have when they have been told to: their supervisors give up after twenty."""
_ANSWER_SECONDS: Final = 30.0
_RETRY_SECONDS: Final = 0.2


@dataclass(slots=True, kw_only=True)
class Remote:
    """How the other nodes' parts of a launch ended; ``lost`` is a sentence, empty if nothing was lost."""

    exits: list[Exit] = field(default_factory=list)
    rank_logs: dict[int, str] = field(default_factory=dict)
    lost: str = ""


class Leader:
    """The other nodes' parts of one launch, as a context: when it is left, they are told to end theirs."""

    def __init__(self, cluster: Cluster, plan: LaunchPlan, first_case: int, directory: Path) -> None:
        self.remote = Remote()
        self._inbox: Inbox = queue.SimpleQueue()
        self._early: float | None = None
        self._early_reason = ""
        self._waiting = set(range(1, plan.nodes))
        rendezvous = f"{cluster.host}:{_free_port()}"
        self.plan = replace(plan, rendezvous=rendezvous, interface=cluster.interface)
        try:
            connection = socket.create_connection((cluster.hub_host, cluster.hub_port), timeout=_ANSWER_SECONDS)
        except OSError as error:
            raise LaunchError(f"the run that these nodes belong to is over: {error.strerror or error}") from error
        self._wire = Wire(connection, self._inbox).start()
        launch = {
            "specs": [spec.to_json() for spec in plan.specs],
            "options": dict(plan.options),
            "first_case": first_case,
            "rendezvous": rendezvous,
            "startup_deadline_seconds": plan.startup_deadline_seconds,
        }
        self._start(
            token=cluster.token,
            nodes=plan.nodes,
            ranks_per_node=plan.local_world_size,
            directory=str(directory),
            launch=launch,
        )

    def __enter__(self) -> Leader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._wire.close()  # which ends what still goes on

    def _start(self, **order: Any) -> None:
        """Order the launch; a node that still ends its part of the one before gets the time for it."""
        ends = time.monotonic() + END_SECONDS
        while True:
            self._wire.send("launch", **order)
            try:
                _, message = self._inbox.get(timeout=_ANSWER_SECONDS)
            except queue.Empty as error:
                self._wire.close()
                raise LaunchError("node 0's own run does not answer; stop it and start anew") from error
            if isinstance(message, Gone):
                raise LaunchError(f"the run on node 0 has gone: {message.reason}")
            if message["kind"] == "started":
                return
            if message["kind"] != "busy" or time.monotonic() > ends:
                self._wire.close()
                raise LaunchError(str(message.get("why")))
            time.sleep(_RETRY_SECONDS)

    @property
    def ended(self) -> bool:
        """Whether every other node has said how its part ended."""
        return not self._waiting

    def trouble(self) -> bool:
        """Whether another node makes it pointless to go on."""
        self._take(0.0)
        if self.remote.lost:
            return True
        return self._early is not None and time.monotonic() - self._early > EARLY_SECONDS

    def stop(self, *, stacks: bool) -> None:
        """Tell the other nodes to end their part now; with ``stacks`` after their ranks have written theirs."""
        self._wire.send("end", stacks=stacks)

    def end(self) -> Remote:
        """This node's part has ended: wait until every other has said how its own did."""
        self._collect(LEAVE_SECONDS)
        if self._waiting:
            self.stop(stacks=False)
            self._collect(END_SECONDS)
        if self._waiting and not self.remote.lost:
            nodes = ", ".join(str(node) for node in sorted(self._waiting))
            seconds = LEAVE_SECONDS + END_SECONDS
            self.remote.lost = f"node {nodes} had not ended its part of the launch after {seconds:.0f} s"
        if self._early is not None and not self.remote.exits and not self.remote.lost:
            self.remote.lost = self._early_reason
        return self.remote

    def _collect(self, seconds: float) -> None:
        ends = time.monotonic() + seconds
        while self._waiting and time.monotonic() < ends:
            self._take(0.1)

    def _take(self, seconds: float) -> None:
        while True:
            try:
                _, message = self._inbox.get(timeout=seconds) if seconds else self._inbox.get_nowait()
            except queue.Empty:
                return
            if isinstance(message, Gone):
                self._waiting.clear()
                self.remote.lost = self.remote.lost or f"the run on node 0 has gone: {message.reason}"
                return
            self._account(message)
            if not self._waiting:
                return

    def _account(self, message: Message) -> None:
        self._waiting.discard(message.get("node", 0))
        if message["kind"] == "lost":
            self.remote.lost = self.remote.lost or str(message.get("why"))
        elif message["kind"] == "ended":
            self.remote.exits += exits_of(message.get("exits"))
            self.remote.rank_logs.update(logs_of(message.get("rank_logs")))
            if message.get("why") is not None:
                self._early = self._early or time.monotonic()
                said = last_line(str(message.get("agent_log") or ""))
                self._early_reason = f"{message.get('name')}: {message['why']}" + (f": {said}" if said else "")


def exits_of(found: object) -> list[Exit]:
    """The exits on another node, as far as they are any.  Their pids are of no process here and must not be taken for
    one: 0."""
    entries = [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []
    pairs = [(entry.get("rank"), entry.get("code")) for entry in entries]
    return [
        Exit(rank=rank, code=code, pid=0) for rank, code in pairs if isinstance(rank, int) and isinstance(code, int)
    ]


def logs_of(found: object) -> dict[int, str]:
    """Rank → the end of its log, on another node."""
    if not isinstance(found, dict):
        return {}
    return {int(rank): log for rank, log in found.items() if str(rank).isdecimal() and isinstance(log, str)}


def _free_port() -> int:
    """A port that no one has now; torchrun's rendezvous takes it a moment later."""
    with socket.create_server(("", 0)) as probe:
        return int(probe.getsockname()[1])
