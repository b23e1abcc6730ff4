"""The frame of a probe that is launched like the worker: same channel, same clean-up, another body."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench_runner.processes import die_with_parent
from bench_runner.worker.channel import Channel
from bench_runner.worker.failures import classify

Body = Callable[[dict[str, Any], Channel], dict[str, Any]]


def identity() -> dict[str, Any]:
    """Who this rank is."""
    return {"rank": int(os.environ.get("RANK", "0")), "host": socket.gethostname(), "pid": os.getpid()}


def run(arguments: list[str], body: Body) -> int:
    """Call ``body`` with the launch's document and send what it returns as the one case's result; 1 on any error."""
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    die_with_parent()
    path = Path(arguments[0])
    launch: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    channel = Channel(path.parent, int(os.environ.get("RANK", "0")))
    channel.state("started")
    try:
        channel.result(0, {**identity(), **body(launch, channel)}, [])
        channel.state("leaving")
    except BaseException as error:
        failure, message = classify(error)
        channel.error(0, failure, message, "".join(traceback.format_exception(error)))
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        return 1
    return 0


def leave(code: int) -> None:
    """End without torch's own tear-down, which costs half a second and tells nothing."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
