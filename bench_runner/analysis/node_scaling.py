"""Scaling over nodes: what a run on several nodes gave beside the same on one node, and beside as many devices of one.

    over nodes     R(K × D) / (K · R(1 × D))   K nodes against one, D devices on each: weak scaling over nodes
    across         R(K × D) / R(1 × K·D)       the same number of devices across nodes against within one

R is samples per second under DDP; the per-device batch is the same under weak scaling.  Under strong scaling the first
is T(1 × D) / (K · T(K × D)), which is the same quotient, since the global batch is the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bench_runner.analysis.summary import NAN, Group


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeScaling:
    """One placement: ``throughput`` in samples per second; quotients are NaN where their denominator is missing."""

    nodes: int
    per_node: int
    throughput: float
    over_nodes: float
    across: float


def node_scaling(groups: Sequence[Group]) -> list[NodeScaling]:
    """The placements over several nodes among the settings of one case, by nodes and then devices."""
    known = {group.setting: group.median("throughput") for group in groups}
    found = []
    for setting, rate in known.items():
        if setting.nodes == 1:
            continue
        per_node = setting.devices // setting.nodes
        one = known.get(replace(setting, nodes=1, devices=per_node), NAN)
        within = known.get(replace(setting, nodes=1), NAN)
        found.append(
            NodeScaling(
                nodes=setting.nodes,
                per_node=per_node,
                throughput=rate,
                over_nodes=rate / (setting.nodes * one),
                across=rate / within,
            )
        )
    return sorted(found, key=lambda placement: (placement.nodes, placement.per_node))
