"""Speed of the environment's verification, as Markdown: ``python -m tests.evaluate.hash_speed``.

Makes two prefixes of 2 GB in the temporary folder and compares with ``xargs -P$(nproc) sha256sum`` over the same files
in the same run, each several times in turn.  One is composed as the locked environment is (most bytes in a few large
libraries; some 180 kB a file over all, estimated from the lock), the other of very many small files, where no quick
mode can be quicker than one ``lstat`` a file.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench_runner.environment.checks_packages import package_findings
from bench_runner.environment.files import check_files
from bench_runner.environment.hashing import usable_cores
from bench_runner.environment.installed import InstalledPackage, InstalledPrefix, read_installed
from bench_runner.environment.lockfile import read_lock
from bench_runner.environment.summary import describe

ROOT = Path(__file__).resolve().parents[2]
COMPOSITIONS = {"as the locked environment": (11_500, 19), "many small files": (40_000, 15)}
"""Small and large files of a prefix."""
SMALL_BYTES, LARGE_BYTES = 12_000, 110_000_000
FILES_PER_PACKAGE = 400
XARGS, FULL, QUICK = "`xargs -P sha256sum`", "full: every file by hash", "quick: sizes and dates"


def make_prefix(prefix: Path, small_files: int, large_files: int) -> None:
    """Files of random bytes and the packages' records, with the hashes that they should have."""
    random.seed(0)
    block = random.randbytes(LARGE_BYTES)
    (prefix / "conda-meta").mkdir(parents=True)
    entries: list[dict[str, object]] = []
    packages = 0
    for number in range(small_files + large_files):
        small = number < small_files
        path = f"lib/python3.12/site-packages/p{packages}/m{number}.py" if small else f"lib/liblarge{number}.so"
        start = random.randrange(LARGE_BYTES - SMALL_BYTES) if small else 0
        content = block[start : start + random.randrange(200, 2 * SMALL_BYTES)] if small else block[number:]
        (prefix / path).parent.mkdir(parents=True, exist_ok=True)
        (prefix / path).write_bytes(content)
        os.utime(prefix / path, (1_700_000_000, 1_700_000_000))  # installers keep the archive's dates
        entries.append(
            {
                "_path": path,
                "path_type": "hardlink",
                "sha256": hashlib.sha256(content).hexdigest(),
                "size_in_bytes": len(content),
            }
        )
        if len(entries) == FILES_PER_PACKAGE or number == small_files + large_files - 1:
            record = {
                "name": f"p{packages}",
                "version": "1",
                "build": "0",
                "url": f"https://conda.anaconda.org/conda-forge/linux-64/p{packages}-1-0.conda",
                "paths_data": {"paths": entries, "paths_version": 1},
            }
            (prefix / "conda-meta" / f"p{packages}-1-0.json").write_text(json.dumps(record))
            entries, packages = [], packages + 1


def seconds(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def xargs_sha256sum(prefix: Path) -> None:
    """All files under lib, hashed by as many sha256sum as there are cores."""
    listed = subprocess.run(["find", "lib", "-type", "f", "-print0"], cwd=prefix, check=True, capture_output=True)
    command = ["xargs", "-0", "-n", "500", f"-P{usable_cores()}", "sha256sum"]
    subprocess.run(command, cwd=prefix, check=True, input=listed.stdout, stdout=subprocess.DEVNULL)


def judge_lock() -> None:
    """Read the lock and judge a prefix that holds all of its packages."""
    lock = read_lock(ROOT / "conda-lock.yml")
    packages = tuple(
        InstalledPackage(
            name=package.name,
            version=package.version,
            build=package.build,
            channel=package.channel,
            subdir=package.subdir,
            url=package.url,
            file_name=package.file_name,
            md5=package.md5,
            sha256=package.sha256,
            depends=package.depends,
            files=(),
            distributions=(),
            record=Path(package.file_name),
        )
        for package in lock.packages
    )
    findings = package_findings(InstalledPrefix(prefix=Path("/x"), packages=packages, unreadable=()), lock, "linux-64")
    assert {finding.status for finding in findings} == {"pass"}


def measure(prefix: Path, composition: str, rounds: int) -> None:
    """All figures of one prefix, in a process that has done nothing else, so that its peak memory is theirs."""
    packages = read_installed(prefix).packages
    actions: dict[str, Callable[[], object]] = {
        XARGS: lambda: xargs_sha256sum(prefix),
        FULL: lambda: check_files(prefix, packages, "full"),
        QUICK: lambda: check_files(prefix, packages, "quick"),
        "records read (conda-meta)": lambda: read_installed(prefix),
        "lock read, packages judged": judge_lock,
        "description for a run's record": lambda: describe(prefix, ROOT / "conda-lock.yml"),
    }
    times: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name, action in actions.items():
            times.setdefault(name, []).append(seconds(action))
    report = check_files(prefix, packages, "full")
    assert not report.faults, report.faults[:3]
    print(f"\n{composition}: {report.checked:,} files, {report.bytes_read / 1e9:.2f} GB, {usable_cores()} cores\n")
    print_table(times, report.bytes_read)


def print_table(times: dict[str, list[float]], size: int) -> None:
    median = {name: statistics.median(values) for name, values in times.items()}
    full = median[FULL]
    against = {
        FULL: f"{median[XARGS] / full:.1f} × as fast as xargs ({size / full / 1e9:.2f} GB/s)",
        QUICK: f"{full / median[QUICK]:.1f} × as fast as full",
    }
    print("| what | median s | all s | against |\n|---|---:|---|---|")
    for name, value in median.items():
        shown = ", ".join(f"{x:.3f}" for x in times[name])
        print(f"| {name} | {value:.3f} | {shown} | {against.get(name, '')} |")
    status = Path("/proc/self/status").read_text()  # getrusage would count the process that started this one
    own = int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) >> 10  # type: ignore[index]
    worker = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10
    print(f"\nPeak memory: {own} MB in the process itself, at most {worker} MB in any one child.")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--measure", type=Path, help="a prefix made before; the program calls itself with it")
    parser.add_argument("--composition", choices=COMPOSITIONS, action="append")
    arguments = parser.parse_args()
    compositions: list[str] = arguments.composition or list(COMPOSITIONS)
    if arguments.measure:
        measure(arguments.measure, compositions[0], arguments.rounds)
        return 0
    for composition in compositions:
        with tempfile.TemporaryDirectory(prefix="hash-speed-") as folder:
            prefix = Path(folder) / "prefix"
            make_prefix(prefix, *COMPOSITIONS[composition])
            os.sync()
            command = [sys.executable, "-m", "tests.evaluate.hash_speed", "--composition", composition]
            subprocess.run([*command, "--measure", prefix, "--rounds", str(arguments.rounds)], check=True, cwd=ROOT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
