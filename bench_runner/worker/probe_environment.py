"""Try what an environment is for, step by step, and report each step: run by the environment's own Python.

    python probe_environment.py RESULT

Started by this file's path, since the environment need not hold this package; standard library alone until a step
imports what it tries.  A line of JSON for each step is written before and after it, so that a crash, an endless wait
and an undefined symbol leave behind where they happened.
"""

from __future__ import annotations

import os
import sys

if sys.path and sys.path[0] == os.path.dirname(os.path.abspath(__file__)):  # noqa: PTH100, PTH120
    sys.path.pop(0)  # this file's folder, whose modules would hide others

import json
import platform
import traceback
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

LARGEST_MAPS_BYTES = 64 << 20


def step_interpreter() -> dict[str, Any]:
    """Where this Python lives and looks."""
    return {
        "version": platform.python_version(),
        "executable": sys.executable,
        "prefix": sys.prefix,
        "base_prefix": sys.base_prefix,
        "path": [entry for entry in sys.path if entry],
    }


def step_numpy() -> dict[str, Any]:
    import numpy

    square = numpy.arange(16, dtype=numpy.float64).reshape(4, 4)
    _expect(float((square @ square).sum()), 3920.0)
    return {"version": numpy.__version__, "file": numpy.__file__}


def step_torch() -> dict[str, Any]:
    import torch

    return {
        "version": torch.__version__,
        "file": torch.__file__,
        "cuda": torch.version.cuda,
        "architectures": torch.cuda.get_arch_list() if torch.version.cuda and torch.cuda.is_available() else [],
    }


def step_kernel() -> dict[str, Any]:
    """A matrix product, a convolution and a backward pass on the CPU, with values known beforehand."""
    import torch

    square = torch.arange(16, dtype=torch.float32).reshape(4, 4)
    _expect((square @ square).sum().item(), 3920.0)
    weight = torch.ones(1, 1, 3, 3, requires_grad=True)
    out = torch.nn.functional.conv2d(torch.ones(1, 1, 5, 5), weight)
    out.sum().backward()
    _expect(out.sum().item(), 81.0)
    _expect(weight.grad.sum().item(), 81.0)
    return {"threads": torch.get_num_threads()}


def step_bridge() -> dict[str, Any]:
    """Values there and back between numpy and torch: dead when one was built against another numpy."""
    import numpy
    import torch

    array = numpy.arange(5, dtype=numpy.float32)
    tensor = torch.from_numpy(array)
    tensor *= 2
    _expect(array.tolist(), [0.0, 2.0, 4.0, 6.0, 8.0])
    _expect((tensor + 1).numpy().tolist(), [1.0, 3.0, 5.0, 7.0, 9.0])
    return {}


def step_torchvision() -> dict[str, Any]:
    """Its compiled operators, which are missing when it does not fit torch."""
    import torch
    import torchvision

    boxes = torch.tensor([[0.0, 0.0, 2.0, 2.0], [0.0, 0.0, 2.0, 2.0], [5.0, 5.0, 6.0, 6.0]])
    kept = torchvision.ops.nms(boxes, torch.tensor([0.5, 0.9, 0.7]), 0.5)
    _expect(kept.tolist(), [1, 2])
    return {"version": torchvision.__version__}


def step_cuda() -> dict[str, Any]:
    """A product on the first CUDA device; ``available`` False is no fault here: the machine's checks say why."""
    import torch

    if torch.version.cuda is None or not torch.cuda.is_available():
        return {"available": False}
    square = torch.arange(16, dtype=torch.float32, device="cuda").reshape(4, 4)
    _expect((square @ square).sum().item(), 3920.0)
    return {
        "available": True,
        "capability": list(torch.cuda.get_device_capability(0)),
        "cudnn": torch.backends.cudnn.version(),
        "nccl": ".".join(str(part) for part in torch.cuda.nccl.version()),
    }


def step_threadpools() -> dict[str, Any]:
    """The OpenMP and BLAS runtimes in this process, by now with numpy's and torch's."""
    threadpoolctl = import_module("threadpoolctl")

    keys = ("user_api", "internal_api", "filepath", "version", "num_threads", "threading_layer")
    return {"pools": [{key: pool.get(key) for key in keys} for pool in threadpoolctl.threadpool_info()]}


def step_libraries() -> dict[str, Any]:
    """Files mapped into this process as code."""
    with Path("/proc/self/maps").open(encoding="utf-8", errors="surrogateescape") as maps:
        text = maps.read(LARGEST_MAPS_BYTES)
    return {"maps": text.encode("utf-8", "replace").decode()}


def _expect(actual: object, expected: object) -> None:
    if actual != expected:
        raise ArithmeticError(f"wrong values: {actual!r} instead of {expected!r}")


STEPS: dict[str, Callable[[], dict[str, Any]]] = {
    "interpreter": step_interpreter,
    "numpy": step_numpy,
    "torch": step_torch,
    "kernel": step_kernel,
    "bridge": step_bridge,
    "torchvision": step_torchvision,
    "threadpools": step_threadpools,
    "cuda": step_cuda,
    "libraries": step_libraries,
}


def run(name: str, report: Callable[[dict[str, Any]], None]) -> None:
    """Carry out one step and report how it went; warnings are part of that."""
    report({"step": name, "state": "begun"})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            outcome: dict[str, Any] = {"state": "passed", "values": STEPS[name]()}
        except BaseException as error:  # noqa: BLE001 - whatever a broken environment raises is what is asked for
            lines = traceback.format_exception(type(error), error, error.__traceback__)
            outcome = {
                "state": "failed",
                "error": f"{type(error).__name__}: {error}"[:2000],
                "module": getattr(error, "name", None) if isinstance(error, ModuleNotFoundError) else None,
                "traceback": "".join(lines)[-4000:],
            }
    report({"step": name, "warnings": [str(w.message)[:500] for w in caught][:20], **outcome})


def main(arguments: list[str]) -> int:
    with Path(arguments[0]).open("w", encoding="utf-8") as file:

        def report(line: dict[str, Any]) -> None:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())

        for name in arguments[1:] or STEPS:
            run(name, report)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
