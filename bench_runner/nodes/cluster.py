"""What the launching processes of node 0 are told about the run's nodes, as one variable of their environment."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Final

CLUSTER_VARIABLE: Final = "BENCH_RUNNER_CLUSTER"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """``host`` is node 0's as the others know it; the hub is reached at ``hub_host``:``hub_port`` with ``token``.

    ``interface`` carries the traffic between the nodes (None: not known).  ``counts`` are the placements that are
    measured over several nodes, written 2x4 for two nodes with four devices each.
    """

    nodes: int
    host: str
    hub_host: str
    hub_port: int
    token: str
    interface: str | None = None
    counts: tuple[str, ...] = ()

    def to_text(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_environment(environment: Mapping[str, str]) -> Cluster | None:
        """The cluster of the run that this process belongs to; None for a run on one node."""
        text = environment.get(CLUSTER_VARIABLE)
        if not text:
            return None
        document = json.loads(text)
        return Cluster(**{**document, "counts": tuple(document["counts"])})
