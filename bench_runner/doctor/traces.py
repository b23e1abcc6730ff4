"""Ask a watched job's ranks for torch's flight recorder, as JSON; a pickle is never read.

A rank that hangs waits without Python's lock, so that another thread of it can still speak.  That thread comes with the
``sitecustomize`` of ``doctor.dump``, in processes that have RANK in their environment; it sleeps in a read of a pipe
until it is asked.  Ranks that do not answer (another torch, stuck with the lock held, not started by the watch) say
nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from bench_runner.doctor.job import RankProcess
from bench_runner.doctor.recorder import LARGEST_DUMP_BYTES, GroupTrace, parse_trace

TRACES_VARIABLE: Final = "BENCH_RUNNER_TRACES_DIR"
DUMPS: Final = ("_dump_nccl_trace_json", "_dump_fr_trace_json")
"""torch's functions, NCCL's own first: where it is used the general one has nothing."""

_WAIT_SECONDS: Final = 3.0
_POLL_SECONDS: Final = 0.05
PROGRAM: Final = f"""
_traces = os.environ.get("{TRACES_VARIABLE}")
if _traces and "RANK" in os.environ and os.path.isdir(_traces):
    import threading

    def _answer(stem=os.path.join(_traces, "trace-%d" % os.getpid())):
        os.mkfifo(stem + ".ask", 0o600)
        asked = os.open(stem + ".ask", os.O_RDWR)
        while os.read(asked, 1):
            core = sys.modules.get("torch._C._distributed_c10d")
            for name in {DUMPS!r}:
                dump = getattr(core, name, None)
                said = dump() if dump is not None else b""
                with open(stem + name + ".new", "wb") as file:
                    file.write(said if isinstance(said, bytes) else said.encode())
                os.rename(stem + name + ".new", stem + name)

    threading.Thread(target=_answer, name="bench-runner-traces", daemon=True).start()
"""


def prepare_traces(directory: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """What to add to a command's environment; torch records by default, unless the user has switched that off."""
    return {TRACES_VARIABLE: str(directory), "TORCH_FR_BUFFER_SIZE": environ.get("TORCH_FR_BUFFER_SIZE", "2000")}


def ask_for_traces(ranks: Iterable[RankProcess], directory: Path) -> dict[int, dict[str, GroupTrace]]:
    """By rank, the process groups of those that answered within a few seconds."""
    asked = [rank for rank in ranks if _ask(directory / f"trace-{rank.pid}.ask")]
    ends = time.monotonic() + _WAIT_SECONDS
    files = {rank.rank: [directory / f"trace-{rank.pid}{name}" for name in DUMPS] for rank in asked}
    while time.monotonic() < ends and not all(path.exists() for paths in files.values() for path in paths):
        time.sleep(_POLL_SECONDS)
    found: dict[int, dict[str, GroupTrace]] = {}
    for rank, paths in files.items():
        traces = next((t for path in paths if path.exists() and (t := parse_trace(_read(path)))), None)
        if traces:
            found[rank] = traces
    return found


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(LARGEST_DUMP_BYTES)


def _ask(path: Path) -> bool:
    """Whether somebody is there to be asked."""
    try:
        pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return False  # no such pipe, or nobody listens any more
    with os.fdopen(pipe, "wb", buffering=0) as file:
        file.write(b"?")
    return True
