"""A small torchrun: no rendezvous, no restarts."""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CLOSE_SECONDS = 30.0


def parse():
    parser = argparse.ArgumentParser()
    for name in ("nnodes", "nproc-per-node", "max-restarts"):
        parser.add_argument(f"--{name}", type=int, required=True)
    for name in ("rdzv-backend", "rdzv-endpoint", "rdzv-id", "log-dir", "redirects"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--local-addr")
    parser.add_argument("--node-rank", type=int, default=0)
    parser.add_argument("--monitor-interval", type=float, required=True)
    parser.add_argument("--module", action="store_true")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    return parser.parse_args()


def start(options, local_rank, logs):
    directory = logs / "attempt_0" / str(local_rank)
    directory.mkdir(parents=True)
    address, port = options.rdzv_endpoint.split(":")
    variables = {
        "RANK": str(options.node_rank * options.nproc_per_node + local_rank),
        "LOCAL_RANK": str(local_rank),
        "GROUP_RANK": str(options.node_rank),
        "WORLD_SIZE": str(options.nnodes * options.nproc_per_node),
        "LOCAL_WORLD_SIZE": str(options.nproc_per_node),
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
        "TORCHELASTIC_RUN_ID": options.rdzv_id,
    }
    with (directory / "stdout.log").open("wb") as out, (directory / "stderr.log").open("wb") as err:
        return subprocess.Popen(
            [sys.executable, "-u", "-m", options.script, *options.arguments],
            env={**os.environ, **variables},
            stdout=out,
            stderr=err,
            start_new_session=True,
        )


def close(workers):
    for worker in workers:
        if worker.poll() is None:
            os.killpg(worker.pid, signal.SIGTERM)
    ends = time.monotonic() + CLOSE_SECONDS
    while any(worker.poll() is None for worker in workers) and time.monotonic() < ends:
        time.sleep(0.01)
    for worker in workers:
        if worker.poll() is None:
            worker.kill()
            worker.wait()


def describe(index, local_rank, worker, options):
    rank = options.node_rank * options.nproc_per_node + local_rank
    name = f" (pid: {worker.pid}) " + (signal.Signals(-worker.returncode).name if worker.returncode < 0 else "")
    return (
        f"[{index}]:\n  time      : now\n  host      : here\n  rank      : {rank} (local_rank: {local_rank})\n"
        f"  exitcode  : {worker.returncode}{name}\n  error_file: <N/A>\n  traceback : none"
    )


def main():
    sys.exit(carry_out())


def carry_out():
    options = parse()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(143))
    logs = Path(tempfile.mkdtemp(prefix=f"{options.rdzv_id}_", dir=make(Path(options.log_dir))))
    workers = []
    try:
        workers.extend(start(options, local_rank, logs) for local_rank in range(options.nproc_per_node))
        while True:
            time.sleep(options.monitor_interval)
            codes = [worker.poll() for worker in workers]
            failed = [rank for rank, code in enumerate(codes) if code]
            if failed:
                close(workers)
                others = [rank for rank, worker in enumerate(workers) if worker.returncode and rank != failed[0]]
                print("Failures:", file=sys.stderr)
                for index, rank in enumerate(others, 1):
                    print(describe(index, rank, workers[rank], options), file=sys.stderr)
                print("Root Cause (first observed failure):", file=sys.stderr)
                print(describe(0, failed[0], workers[failed[0]], options), "\n======", file=sys.stderr)
                return 1
            if all(code == 0 for code in codes):
                return 0
    finally:
        close(workers)


def make(directory):
    directory.mkdir(parents=True, exist_ok=True)
    return directory


if __name__ == "__main__":
    main()
