"""What asv loads in its own process through ``"plugins": [".bench_runner.asv_plugin"]`` in asv.conf.json.

Importing this module registers the repository ``"dvcs": "snapshot"`` and the environment type ``conda-lock``, and tells
the benchmark processes under which machine name asv stores its results, so that the records stand beside them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from bench_runner.asv_environment import CondaLockEnvironment
from bench_runner.asv_repo import SnapshotRepo
from bench_runner.suite import MACHINE_VARIABLE

__all__ = ["CondaLockEnvironment", "SnapshotRepo", "machine_of"]


def machine_of(arguments: Sequence[str]) -> str | None:
    """The machine that asv was told on its command line, by ``--machine NAME``, ``--machine=NAME`` or ``-m NAME``."""
    for position, argument in enumerate(arguments):
        if argument in ("--machine", "-m") and position + 1 < len(arguments):
            return arguments[position + 1]
        if argument.startswith("--machine="):
            return argument.partition("=")[2]
    return None


_named = machine_of(sys.argv[1:])
if _named is not None:
    os.environ.setdefault(MACHINE_VARIABLE, _named)
