"""A worker that measures nothing and misbehaves as told.

``options["faults"]`` is a list of [rank, moment, fault]: the moment is a state ("started", "joining", "joined",
"case-0", "case-1", "leaving", "left"), the fault one of the functions below.
"""

import ctypes
import faulthandler
import json
import os
import signal
import sys
import time
from pathlib import Path

from bench_runner.processes import die_with_parent

RANK = int(os.environ.get("RANK", "0"))
DIRECTORY = Path(sys.argv[1]).parent


def send(event, **fields):
    with (DIRECTORY / f"rank-{RANK}.jsonl").open("a") as file:
        file.write(json.dumps({"event": event, "at": time.time(), **fields}) + "\n")


def error(message, failure="exception", case=0):
    send("error", case=case, failure=failure, message=message, traceback=f"Traceback of rank {RANK}: {message}")
    os._exit(1)


def sigkill():
    os.kill(os.getpid(), signal.SIGKILL)


def segfault():
    ctypes.string_at(0)


def quit_with_3():
    os._exit(3)


def quit_with_0():
    os._exit(0)


def raise_error():
    error("ValueError: no such batch")


def out_of_memory():
    error("out of memory: tried to allocate 2 GiB", "out-of-memory")


def echo():
    """What a peer's death looks like from here."""
    time.sleep(0.05)
    error("RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:4711")


def hang():
    while True:
        time.sleep(60)


def wait_for_go():
    """Until the test says so."""
    while not (DIRECTORY / "go").exists():
        time.sleep(0.02)


def deaf():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    hang()


def runaway():
    """A grandchild in a session of its own, forked twice, deaf; and then the worker dies."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            deaf()
        os._exit(0)
    time.sleep(0.2)
    sigkill()


def runaway_and_hang():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            deaf()
        os._exit(0)
    hang()


def uncaught():
    raise ValueError("not caught by the worker")


def flood():
    for _ in range(40):
        os.write(1, b"out of rank\n" * 100_000)
        os.write(2, b"err of rank\n" * 100_000)


def cut_line():
    with (DIRECTORY / f"rank-{RANK}.jsonl").open("a") as file:
        file.write('{"event": "result", "at": 1.0, "case": 0, "samples": {"rank"')
    sigkill()


def garbage():
    with (DIRECTORY / f"rank-{RANK}.jsonl").open("ab") as file:
        file.write(b'\xff\xfe not json\n[1, 2]\n{"event": "result"}\n"event"\n')


def moment(name, launch):
    for rank, when, fault in launch["options"].get("faults", ()):
        if when == name and rank in (RANK, "all"):
            globals()[fault]()


def state(name, launch, case=None):
    send("state", state=name, case=case)
    moment(name if case is None else f"case-{case}", launch)


def meet(name, seconds):
    """As in a process group: nobody gets past until all have come; those of several nodes meet at MASTER_PORT.

    Longer than ``seconds`` nobody waits here: one that has died or hangs is the control side's business.
    """
    place = DIRECTORY
    if os.environ.get("STANDIN_MEETING"):
        place = Path(os.environ["STANDIN_MEETING"]) / os.environ["MASTER_PORT"]
        place.mkdir(exist_ok=True)
    (place / f"{name}-{RANK}").touch()
    ranks = range(int(os.environ.get("WORLD_SIZE", "1")))
    ends = time.monotonic() + seconds
    while not all((place / f"{name}-{rank}").exists() for rank in ranks) and time.monotonic() < ends:
        time.sleep(0.005)


def main():
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    die_with_parent()
    launch = json.loads(Path(sys.argv[1]).read_text())
    for name in ("started", "device", "joining"):
        state(name, launch)
    meet("here", seconds=3600)
    state("joined", launch)
    for case in range(launch["first_case"], len(launch["specs"])):
        meet(f"before-{case}", seconds=1)  # no rank begins a case while another is in the one before
        state("case", launch, case)
        samples = {"rank": RANK, "pid": os.getpid(), "threads": os.environ["OMP_NUM_THREADS"]}
        time.sleep(launch["options"].get("case_seconds", 0.0))
        send("result", case=case, samples=samples, warnings=["warm"] if case == 0 else [])
        moment(f"after-{case}", launch)
    send("runtime", runtime={"rank": RANK})
    state("leaving", launch)
    os._exit(0)


if __name__ == "__main__":
    main()
