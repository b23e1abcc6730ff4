"""The CUDA driver library asked directly, in a child process with a deadline: its version, and whether it starts."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

# Runs in a child: a driver in trouble can hang or crash the process that initialises it.
_CHILD: Final = """
import ctypes, json, sys
answer = {"library": False, "version": None, "init_code": None, "devices": None, "error": None}
try:
    cuda = ctypes.CDLL("libcuda.so.1")
    answer["library"] = True
    number = ctypes.c_int()
    if cuda.cuDriverGetVersion(ctypes.byref(number)) == 0:
        answer["version"] = number.value
    print(json.dumps(answer), flush=True)
    answer["init_code"] = cuda.cuInit(0)
    if answer["init_code"] == 0 and cuda.cuDeviceGetCount(ctypes.byref(number)) == 0:
        answer["devices"] = number.value
except (OSError, AttributeError) as error:
    answer["error"] = str(error)
print(json.dumps(answer), flush=True)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaDriver:
    """``version`` as CUDA writes it (12090 is 12.9); ``init_code`` is cuInit's answer, None when it gave none.

    ``failure``: the library could not be loaded, crashed, or did not answer in time.
    """

    library: bool
    version: int | None = None
    init_code: int | None = None
    devices: int | None = None
    failure: str | None = None


def read_cuda_driver(environ: Mapping[str, str] | None = None, deadline_seconds: float = 20.0) -> CudaDriver:
    """Ask libcuda.so.1 in a child process.  Never raises for what the driver does."""
    command = [sys.executable, "-I", "-c", _CHILD]
    failure: str | None = None
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            timeout=deadline_seconds,
            check=False,
            stdin=subprocess.DEVNULL,
            env=None if environ is None else dict(environ),
        )
        output = done.stdout
        if done.returncode:
            failure = f"the process that called cuInit ended with code {done.returncode}"
    except subprocess.TimeoutExpired as error:
        output = error.stdout or b""
        failure = f"cuInit gave no answer within {deadline_seconds:g} s"
    except OSError as error:
        return CudaDriver(library=False, failure=f"{sys.executable}: {error}")
    lines = output.decode("utf-8", "replace").splitlines()
    answer = json.loads(lines[-1]) if lines else {}
    return CudaDriver(
        library=bool(answer.get("library")),
        version=answer.get("version"),
        init_code=answer.get("init_code"),
        devices=answer.get("devices"),
        failure=failure or answer.get("error"),
    )
