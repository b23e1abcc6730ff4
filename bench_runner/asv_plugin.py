"""What asv loads in its own process through ``"plugins": [".bench_runner.asv_plugin"]`` in asv.conf.json.

Importing this module registers the repository ``"dvcs": "snapshot"``.
"""

from __future__ import annotations

from bench_runner.asv_repo import SnapshotRepo

__all__ = ["SnapshotRepo"]
