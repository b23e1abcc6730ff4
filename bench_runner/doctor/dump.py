"""Python stacks of running processes: by py-spy from outside, or by faulthandler where tracing is not allowed."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from bench_runner.doctor.stacks import Frame
from bench_runner.doctor.traces import PROGRAM, prepare_traces
from bench_runner.processes import read_process, send_signal

Method = Literal["py-spy", "faulthandler"]
STACKS_VARIABLE: Final = "BENCH_RUNNER_STACKS_DIR"
STACKS_SIGNAL: Final = signal.SIGRTMIN + 7
"""One that neither programs nor schedulers use; it is sent only to processes that have a handler for it."""

_PY_SPY_SECONDS: Final = 15.0
_FAULTHANDLER_SECONDS: Final = 2.0
_CAP_SYS_PTRACE: Final = 19
_FRAME: Final = re.compile(r'  File "(.{1,4096}?)", line (\d{1,9}) in (.+)')
_SITECUSTOMIZE: Final = '''\
"""Put on PYTHONPATH by ``bench-runner doctor watch``: lets it ask this process for its stacks and its collectives."""
import faulthandler, importlib.util, os, sys
_directory = os.environ.get("{variable}")
if _directory:
    _file = open(os.path.join(_directory, "stacks-%d.txt" % os.getpid()), "a", buffering=1)
    faulthandler.register({number}, file=_file, all_threads=True)
{traces}
_here = os.path.dirname(os.path.abspath(__file__))
for _place in sys.path:
    _path = os.path.join(_place, "sitecustomize.py")
    if os.path.abspath(_place) != _here and os.path.isfile(_path):
        _spec = importlib.util.spec_from_file_location("sitecustomize", _path)
        _module = importlib.util.module_from_spec(_spec)
        _spec.loader.exec_module(_module)
        break
'''


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """The main thread's frames of one process, innermost first; ``problem`` says why there are none."""

    pid: int
    frames: tuple[Frame, ...]
    problem: str | None = None


def may_trace(status: str, ptrace_scope: str) -> bool:
    """Whether this process may read another's memory, from ``/proc/self/status`` and Yama's setting."""
    found = re.search(r"^CapEff:\s*([0-9a-f]+)$", status, re.MULTILINE)
    capable = found is not None and bool(int(found[1], 16) >> _CAP_SYS_PTRACE & 1)
    return capable or ptrace_scope.strip() in ("", "0")


def best_method() -> Method:
    """py-spy if it is there and allowed to trace, else faulthandler."""
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    allowed = may_trace(
        Path("/proc/self/status").read_text(encoding="ascii"), scope.read_text() if scope.exists() else ""
    )
    return "py-spy" if allowed and _py_spy() is not None else "faulthandler"


def prepare_questions(directory: Path, environ: Mapping[str, str], method: Method) -> dict[str, str]:
    """What to add to a command's environment so that its Python processes can be asked: for torch's flight recorder,
    and for their stacks when the method is faulthandler."""
    program = _SITECUSTOMIZE.format(variable=STACKS_VARIABLE, number=int(STACKS_SIGNAL), traces=PROGRAM)
    (directory / "sitecustomize.py").write_text(program, encoding="utf-8")
    paths = [str(directory), *filter(None, environ.get("PYTHONPATH", "").split(os.pathsep))]
    stacks = {STACKS_VARIABLE: str(directory)} if method == "faulthandler" else {}
    return {**stacks, **prepare_traces(directory, environ), "PYTHONPATH": os.pathsep.join(paths)}


def dump(pids: Sequence[int], method: Method, directory: Path | None = None) -> dict[int, Stack]:
    """The stack of each process.  ``directory`` is the one given to ``prepare_questions``."""
    if method == "py-spy":
        return {pid: _by_py_spy(pid) for pid in pids}
    return {pid: _by_faulthandler(pid, directory) for pid in pids}


def _py_spy() -> str | None:
    beside = Path(sys.executable).parent / "py-spy"
    return str(beside) if beside.exists() else shutil.which("py-spy")


def _by_py_spy(pid: int) -> Stack:
    command = [_py_spy() or "py-spy", "dump", "--json", "--nonblocking", "--pid", str(pid)]
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=_PY_SPY_SECONDS, check=False, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return Stack(pid=pid, frames=(), problem=f"py-spy did not end in {_PY_SPY_SECONDS:.0f} s")
    except FileNotFoundError:
        return Stack(pid=pid, frames=(), problem="py-spy is not installed")
    if done.returncode != 0:
        words = done.stderr.decode("utf-8", "replace").strip().splitlines()
        return Stack(pid=pid, frames=(), problem=f"py-spy: {words[0] if words else done.returncode}"[:300])
    frames = parse_py_spy(done.stdout, pid)
    return Stack(pid=pid, frames=frames, problem=None if frames else "no Python frames")


def parse_py_spy(document: bytes, pid: int) -> tuple[Frame, ...]:
    """The main thread's frames in ``py-spy dump --json``."""
    try:
        read: Any = json.loads(document)
    except (ValueError, RecursionError):
        return ()
    threads = [thread for thread in read if isinstance(thread, dict)] if isinstance(read, list) else []
    main = [t for t in threads if t.get("os_thread_id") == pid] or [
        t for t in threads if t.get("thread_name") == "MainThread"
    ]
    frames = main[0].get("frames", []) if main else []
    return tuple(Frame(function=f["name"], file=f["filename"], line=f["line"]) for f in frames)


def _by_faulthandler(pid: int, directory: Path | None) -> Stack:
    process = read_process(pid)
    if process is None or process.gone:
        return Stack(pid=pid, frames=(), problem="gone")
    path = _stacks_file(pid, directory)
    if path is None or not _catches(pid):
        return Stack(
            pid=pid, frames=(), problem="tracing is not allowed here, and the process has no handler for stacks"
        )
    before = path.stat().st_size
    send_signal(process, STACKS_SIGNAL)
    ends = time.monotonic() + _FAULTHANDLER_SECONDS
    text = ""
    while time.monotonic() < ends:
        time.sleep(0.1)
        now = path.read_bytes()[before:].decode("utf-8", "replace")
        if now and now == text:
            break
        text = now
    return Stack(pid=pid, frames=parse_faulthandler(text), problem=None if text else "no answer: it is in a long call")


def _stacks_file(pid: int, directory: Path | None) -> Path | None:
    """The file of the process itself, or of the one it was forked from."""
    while directory is not None and pid > 1:
        path = directory / f"stacks-{pid}.txt"
        if path.exists():
            return path
        process = read_process(pid)
        pid = process.parent if process else 0
    return None


def _catches(pid: int) -> bool:
    """Whether the process has a handler for the signal; without one it would die of it."""
    path = Path(f"/proc/{pid}/status")
    try:
        found = re.search(r"^SigCgt:\s*([0-9a-f]+)$", path.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
    except (FileNotFoundError, ProcessLookupError):
        return False
    return found is not None and bool(int(found[1], 16) >> (int(STACKS_SIGNAL) - 1) & 1)


def parse_faulthandler(text: str) -> tuple[Frame, ...]:
    """The frames of the main thread, which faulthandler writes last."""
    block = text.strip().rpartition("(most recent call first):")[2]
    return tuple(
        Frame(file=m[1], line=int(m[2]), function=m[3].strip()) for m in map(_FRAME.match, block.splitlines()) if m
    )
