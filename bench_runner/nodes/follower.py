"""A node other than node 0: takes part in each launch that node 0 orders, and leaves when node 0 is done or gone.

It stores nothing and runs no asv.  What its ranks say goes to node 0 line by line, into the record there.
"""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from bench_runner.errors import LaunchError, SpecError, UsageError
from bench_runner.launch import (
    POLL_SECONDS,
    WORKER_MODULE,
    LaunchPlan,
    command,
    environment,
    raising_on_termination,
    write_launch,
)
from bench_runner.launch_cause import parse_exits
from bench_runner.launch_process import Supervised, read_log_tails, read_tail
from bench_runner.nodes.addresses import interface_towards
from bench_runner.nodes.hub import PROTOCOL
from bench_runner.nodes.membership import Membership
from bench_runner.nodes.wire import Gone, Inbox, Message, Wire
from bench_runner.processes import rank_processes
from bench_runner.rank_files import RankFile, rank_path
from bench_runner.spec import RunSpec

RETRY_SECONDS: Final = 0.5
_ANSWER_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What this node brings: ``count`` devices of ``kind``; ``python`` finds what runs the workers, at each launch."""

    kind: str
    count: int
    python: Callable[[], str]
    module: str = WORKER_MODULE


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """A run that node 0 brought to its end: this node's number and in how many launches it took part."""

    node_rank: int
    launches: int


def follow(membership: Membership, offer: Offer, say: Callable[[str], None]) -> Followed:
    """Take part until node 0 says that the run is over.

    Raises LaunchError when node 0 is not there in time, breaks the run off, or is gone; UsageError when it refuses.
    """
    inbox: Inbox = queue.SimpleQueue()
    with raising_on_termination(), tempfile.TemporaryDirectory(prefix="bench-runner-node-") as folder:
        wire = _connect(membership, inbox)
        try:
            return Follower(membership, offer, wire, inbox, Path(folder), say).run()
        finally:
            wire.close()


def tell_unable(membership: Membership, why: str) -> None:
    """Tell node 0 that this node has no part in its run, so that it does not wait; silence if node 0 is not there."""
    inbox: Inbox = queue.SimpleQueue()
    try:
        wire = _connect(replace(membership, join_seconds=min(membership.join_seconds, _ANSWER_SECONDS)), inbox)
    except LaunchError:
        return  # it will say itself who did not come
    wire.send("unable", run_id=membership.run_id, host=socket.gethostname(), why=why)
    with contextlib.suppress(queue.Empty):
        inbox.get(timeout=_ANSWER_SECONDS)
    wire.close()


def _connect(membership: Membership, inbox: Inbox) -> Wire:
    ends = time.monotonic() + membership.join_seconds
    while True:
        try:
            connection = socket.create_connection((membership.host, membership.port), timeout=_ANSWER_SECONDS)
            return Wire(connection, inbox).start()
        except OSError as error:
            if time.monotonic() > ends:
                raise LaunchError(
                    f"node 0 was not there at {membership.endpoint} within {membership.join_seconds:.0f} s "
                    f"({error.strerror or error}): start the same command on the node that has this address"
                ) from error
        time.sleep(RETRY_SECONDS)


class Follower:
    """One node's part in a run."""

    def __init__(
        self,
        membership: Membership,
        offer: Offer,
        wire: Wire,
        inbox: Inbox,
        folder: Path,
        say: Callable[[str], None],
    ) -> None:
        self._membership = membership
        self._offer = offer
        self._wire = wire
        self._inbox = inbox
        self._folder = folder
        self._say = say
        self._rank = -1
        self._launches = 0

    def run(self) -> Followed:
        """See ``follow``."""
        member = self._membership
        self._wire.send(
            "join",
            protocol=PROTOCOL,
            run_id=member.run_id,
            nodes=member.nodes,
            node_rank=member.node_rank,
            host=socket.gethostname(),
            device_kind=self._offer.kind,
            count=self._offer.count,
        )
        while True:
            _, message = self._inbox.get()
            if isinstance(message, Gone):
                raise LaunchError(f"node 0 ({member.endpoint}) has gone: {message.reason}")
            if message["kind"] == "refused":
                raise UsageError(f"node 0 ({member.endpoint}) refuses this node: {message.get('why')}")
            if message["kind"] == "welcome":
                self._rank = int(message["node_rank"])
                self._say(
                    f"node {self._rank} (of 0 to {member.nodes - 1}): taking part in the run of {member.endpoint}"
                )
            elif message["kind"] == "launch":
                self._launch(message.get("launch"))
            elif message["kind"] == "bye":
                if message.get("why") is not None:
                    raise LaunchError(f"node 0 ({member.endpoint}) broke the run off: {message['why']}")
                return Followed(node_rank=self._rank, launches=self._launches)

    def _launch(self, ordered: object) -> None:
        """Carry out one launch's part; how it ended is said to node 0, whatever happened."""
        self._launches += 1
        directory = self._folder / f"launch-{self._launches}"
        try:
            plan, first_case = self._plan(ordered, directory)
            write_launch(plan, first_case, directory)
        except (LaunchError, UsageError, TypeError, KeyError, ValueError) as error:
            self._wire.send("ended", why=str(error), exits=[], rank_logs={}, agent_log="")
            return
        ended = self._carry_out(plan, first_case, directory)
        self._wire.send("ended", **ended)

    def _plan(self, ordered: object, directory: Path) -> tuple[LaunchPlan, int]:
        if not isinstance(ordered, dict):
            raise SpecError("launch", ordered, "must be an object")
        specs = tuple(RunSpec.from_json(document) for document in ordered["specs"])
        plan = LaunchPlan(
            specs=specs,
            python=self._offer.python(),
            module=self._offer.module,
            directory=directory,
            options=dict(ordered["options"]),
            startup_deadline_seconds=float(ordered["startup_deadline_seconds"]),
            node_rank=self._rank,
            rendezvous=str(ordered["rendezvous"]),
            interface=interface_towards(self._wire.peer),
        )
        return plan, int(ordered["first_case"])

    def _carry_out(self, plan: LaunchPlan, first_case: int, directory: Path) -> dict[str, Any]:
        def hand_on(rank: int, line: bytes) -> None:
            self._wire.send("rank", rank=rank, line=line.decode("utf-8", "replace"))

        files = [RankFile(rank_path(directory, rank), rank, hand_on) for rank in plan.ranks]
        arguments = command(plan, directory)
        variables = environment(os.environ, plan, len(os.sched_getaffinity(0)))
        # Node 0 keeps the deadlines; the supervisor's own is for a node 0 that lives and does not.
        limit = plan.limits.total(first_case)
        told = False
        with Supervised(arguments, variables, directory, limit, plan.launch_id) as supervised:
            while not supervised.wait(POLL_SECONDS):
                for file in files:
                    file.update()
                order = self._order()
                if order is not None:
                    told = True
                    if order.get("stacks") is True:
                        supervised.dump_stacks(has_agent=plan.has_agent)
                    break
                if all(file.progress.leaving for file in files) and not rank_processes(plan.launch_id):
                    break
            supervised.end(done=all(file.progress.leaving for file in files))
        for file in files:
            file.finish()
        expected = told or all(f.progress.leaving for f in files) or any(f.progress.error for f in files)
        return self._ended(plan, directory, supervised, expected=expected, told=told)

    def _order(self) -> Message | None:
        """What node 0 wants of the launch that goes on; LaunchError when it has gone, which ends the launch too."""
        try:
            _, message = self._inbox.get_nowait()
        except queue.Empty:
            return None
        if isinstance(message, Gone):
            raise LaunchError(f"node 0 ({self._membership.endpoint}) has gone: {message.reason}")
        if message["kind"] == "bye":
            raise LaunchError(f"node 0 ({self._membership.endpoint}) broke the run off: {message.get('why')}")
        return message if message["kind"] == "end" else None

    def _ended(
        self, plan: LaunchPlan, directory: Path, supervised: Supervised, *, expected: bool, told: bool
    ) -> dict[str, Any]:
        """What node 0 is told: ``why`` only of an end that nobody wanted and no rank has explained, and exits of ranks
        only where they ended by themselves."""
        agent_log, rank_logs = read_log_tails(directory, plan.ranks)
        result = supervised.result or {}
        killed = {entry["pid"] for entry in result.get("killed", ())}
        found_exits = () if told else parse_exits(agent_log)
        exits = [found for found in found_exits if found.pid not in killed and found.code != 0]
        why = None
        if not expected:
            code = result.get("exit_code", result.get("signal", "its supervisor killed"))
            why = f"its part of the launch ended early, with {code}"
            if not supervised.result:
                agent_log = agent_log or read_tail(supervised.log_path)
        return {
            "why": why,
            "exits": [asdict(found) for found in exits],
            "rank_logs": rank_logs,
            "agent_log": agent_log,
        }
