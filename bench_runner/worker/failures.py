"""Put a name to what went wrong.  Imports no torch: torch that does not import is one of the things to name."""

from __future__ import annotations

from bench_runner.errors import BenchRunnerError, DeviceError
from bench_runner.record import Failure


class LossNotFinite(Exception):
    """The loss became NaN or infinite: the work that was timed was not training."""


class DiskFull(Exception):
    """There is no room for a file that had to be written."""


class WrongValues(Exception):
    """What came back is not what was put in."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether torch (device or CPU allocator) or Python ran out of memory."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and ("can't allocate memory" in text or "out of memory" in text)


def classify(error: BaseException) -> tuple[Failure, str]:
    """The kind of failure and one line about it."""
    first_line = str(error).strip().splitlines()[0] if str(error).strip() else ""
    if is_out_of_memory(error):
        return "out-of-memory", f"out of memory: {first_line}"
    if isinstance(error, LossNotFinite):
        return "loss-not-finite", first_line
    if isinstance(error, DiskFull):
        return "disk-full", f"no space left: {first_line}"
    if isinstance(error, WrongValues):
        return "wrong-values", first_line
    if isinstance(error, DeviceError):
        return "not-started", first_line
    if isinstance(error, SystemExit):
        return "exit", f"a worker called sys.exit({error.code})"
    if isinstance(error, BenchRunnerError):
        return "exception", first_line
    return "exception", f"{type(error).__name__}: {first_line}" if first_line else type(error).__name__
