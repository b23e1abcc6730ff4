"""One node of a two-node measurement of links: NODE_RANK RENDEZVOUS LARGEST_BYTES DIRECTORY; answers in JSON."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

from bench_runner.machine.links import measure_links

if __name__ == "__main__":
    rank, rendezvous, largest, directory = sys.argv[1:]
    # Far from the 16 kB that the link lets through at once, so that the rate decides; 1 KiB for the latency.
    sizes = [1 << 10, *(1 << power for power in range(17, int(largest).bit_length()))]
    measured = measure_links(
        sys.executable, "cpu", 2, Path(directory), sizes=sizes, nodes=2, node_rank=int(rank), rendezvous=rendezvous
    )
    series = [
        {
            "name": found.name,
            "bandwidth": found.bandwidth_bytes_per_second,
            "beta": found.curve.beta_seconds_per_byte if found.curve else None,
            "wrong": found.wrong,
            "regimes": [dataclasses.asdict(regime) for regime in found.curve.regimes] if found.curve else [],
        }
        for found in measured.series
    ]
    print(json.dumps({"series": series, "failures": dict(measured.failures or {})}))
