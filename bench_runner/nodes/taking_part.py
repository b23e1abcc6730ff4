"""What a node other than node 0 does for ``bench-runner run``: finds its devices and its Python, then follows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bench_runner.capacity import find_capacity
from bench_runner.errors import BenchRunnerError, LaunchError
from bench_runner.machine.gather import describe
from bench_runner.nodes.addresses import is_own, resolve
from bench_runner.nodes.follower import Followed, Offer, follow, tell_unable
from bench_runner.nodes.membership import Membership
from bench_runner.session import RunRequest, Say, locked_prefix, worker_python


def settled(membership: Membership) -> Membership:
    """With this node's number where it is known: the node that has the endpoint's address is node 0."""
    if membership.node_rank is None and is_own(resolve(membership.host)):
        return replace(membership, node_rank=0)
    return membership


def take_part(request: RunRequest, membership: Membership, say: Say) -> Followed:
    """Follow node 0 to the end of its run.  Raises what ``follow`` does, and DeviceError for a node without devices."""
    try:
        prefix, _ = locked_prefix(request)
        capacity = find_capacity(describe(request.machine), worker_python(request, prefix), kind=request.device)
    except BenchRunnerError as error:
        tell_unable(membership, str(error))
        raise
    say(f"devices: {capacity.count} × {capacity.kind} ({capacity.reason})")
    # Asked again at each launch: node 0's asv may have built the locked environment meanwhile, in a tree they share.
    offer = Offer(kind=capacity.kind, count=capacity.count, python=lambda: _python(request, prefix))
    return follow(membership, offer, say)


def _python(request: RunRequest, prefix: Path | None) -> str:
    """What runs the workers here.  Raises LaunchError rather than measure in another environment than node 0's."""
    if prefix is not None and not (prefix / "bin" / "python").exists():
        raise LaunchError(
            f"the locked environment is not built here; `bench-runner env create {prefix}` builds it, or give all "
            "nodes --env existing"
        )
    return worker_python(request, prefix)
