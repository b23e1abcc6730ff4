"""What asv loads in its own process through ``"plugins": [".bench_runner.asv_plugin"]`` in asv.conf.json.

Importing this module registers the repository ``"dvcs": "snapshot"`` and the environment type ``conda-lock``.
"""

from __future__ import annotations

from bench_runner.asv_environment import CondaLockEnvironment
from bench_runner.asv_repo import SnapshotRepo

__all__ = ["CondaLockEnvironment", "SnapshotRepo"]
