"""Forks the ranks of a probe: ``python -m bench_runner.worker.doctor_ranks DIRECTORY``.

Torch is imported once, before the forks; a probe's module and the user's program are imported in each rank, which has
RANK and the rest in its environment by then, as under torchrun.  No process has touched a device before it forks.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import torch.distributed
import torch.utils.data

from bench_runner.errors import EXIT_USAGE, UsageError

Say = Callable[..., None]
AFTER_FAILURE_SECONDS: Final = 3.0
"""When one rank has failed the others get this long to fail or finish by themselves: what they say is evidence."""


def main(directory: Path) -> int:
    """Run the ranks and write exits.json; 0 if all went well."""
    world = json.loads((directory / "world.json").read_text(encoding="utf-8"))
    children: dict[int, int] = {}
    for rank in range(world["world_size"]):
        pid = os.fork()
        if pid == 0:
            os._exit(_rank(directory, rank, world))
        children[pid] = rank
    exits = _collect(children)
    temporary = directory / "exits.json.tmp"
    temporary.write_text(json.dumps(exits), encoding="utf-8")
    temporary.replace(directory / "exits.json")
    return 0 if all(code == 0 for code in exits.values()) else 1


def _collect(children: dict[int, int]) -> dict[str, int]:
    """Exit codes by rank (negative: a signal), of those that ended by themselves."""
    exits: dict[str, int] = {}
    give_up = float("inf")
    while children and time.monotonic() < give_up:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            time.sleep(0.02)
        elif pid in children:
            code = os.waitstatus_to_exitcode(status)
            exits[str(children.pop(pid))] = code
            if code != 0 and give_up == float("inf"):
                give_up = time.monotonic() + AFTER_FAILURE_SECONDS
    return exits


def start_group(rank: int, world: dict[str, Any], directory: Path, backend: str = "gloo") -> None:
    """The default process group of the ranks; they meet through a file, so that no port can be in the way."""
    torch.distributed.init_process_group(
        backend,
        init_method=f"file://{directory / 'store'}",
        rank=rank,
        world_size=world["world_size"],
        timeout=timedelta(seconds=world["timeout_seconds"]),
    )


def _rank(directory: Path, rank: int, world: dict[str, Any]) -> int:
    """All of one rank's life; its exit code."""
    log = os.open(directory / f"rank-{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    size = str(world["world_size"])
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=size, LOCAL_WORLD_SIZE=size)
    with (directory / f"rank-{rank}.jsonl").open("a", encoding="utf-8") as events:

        def say(kind: str, **values: Any) -> None:
            events.write(json.dumps({"kind": kind, **values}) + "\n")
            events.flush()

        try:
            say("started", pid=os.getpid())
            module = importlib.import_module(world["module"])
            module.run(rank, world, directory, say)
            code = 0
        except UsageError as error:  # about a name or a value that the user gave: no fault that was looked for
            say("usage", error=str(error)[:2000])
            code = EXIT_USAGE
        except BaseException as error:  # noqa: BLE001 - whatever ended the rank is what the probe is to tell
            say("error", error=f"{type(error).__name__}: {error}"[:2000], traceback=traceback.format_exc()[-20000:])
            code = 1
        sys.stdout.flush()
        sys.stderr.flush()
    return code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
