"""A node other than node 0 with the stand-ins: ENDPOINT NODES [NODE_RANK]."""

from __future__ import annotations

import sys

from bench_runner.errors import BenchRunnerError
from bench_runner.nodes.follower import Offer, follow
from bench_runner.nodes.membership import find_membership


def main(endpoint: str, nodes: str, *rank: str) -> int:
    member = find_membership(nodes, endpoint, int(rank[0]) if rank else None, {}, join_seconds=60.0)
    assert member is not None
    offer = Offer(kind="cpu", count=2, python=lambda: sys.executable, module="standin_worker")
    try:
        followed = follow(member, offer, say)
    except BenchRunnerError as error:
        say(str(error))
        return error.exit_code
    say(f"done after {followed.launches}")
    return 0


def say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
