"""What this process really runs: versions, and the shared libraries mapped into it."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any, Final

import torch

TELLING_LIBRARIES: Final = re.compile(
    r"^lib(torch(_cpu|_cuda)?|nccl|rccl|cudart|cuda|cudnn|cublas|cublasLt|cusparse|mkl_\w+|openblas\w*|blas|gomp|omp|iomp5"
    r"|nvidia-ml|gloo|stdc\+\+)[-.\w]*\.so",
)
TELLING_VARIABLES: Final = (
    "NCCL_",
    "CUDA_",
    "OMP_",
    "MKL_",
    "KMP_",
    "TORCH_",
    "PYTORCH_",
    "GLOO_",
    "UCX_",
    "ROCR_",
    "HIP_",
)
TELLING_NAMES: Final = ("LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "GOMP_CPU_AFFINITY", "OPENBLAS_CORETYPE")
LARGEST_MAP_BYTES: Final = 64 << 20


def mapped_libraries(maps: str) -> list[dict[str, str | None]]:
    """The telling shared libraries of a ``/proc/<pid>/maps``: name, path, version as the file's name has it."""
    paths = {line[line.index("/") :] for line in maps.splitlines() if "/" in line and ".so" in line}
    libraries: list[dict[str, str | None]] = []
    for path in sorted(paths):
        name = Path(path).name
        if TELLING_LIBRARIES.match(name):
            version = re.search(r"\.so\.([\d.]+)$", str(Path(path).resolve()))
            libraries.append({"name": name, "path": path, "version": version.group(1) if version else None})
    return libraries


OWN_VARIABLES: Final = frozenset(
    {"OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCHELASTIC_USE_AGENT_STORE"}
)
"""Set by the launch itself, and differently for one process and several; the threads stand in the settings."""


def telling_variables(environment: dict[str, str]) -> dict[str, str]:
    """The environment variables that change speed or results and that somebody else than the launch has set."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if (name.startswith(TELLING_VARIABLES) or name in TELLING_NAMES) and name not in OWN_VARIABLES
    }


def nccl_version(kind: str) -> str | None:
    """NCCL's version as the loaded library gives it, on CUDA devices."""
    if kind != "cuda":
        return None
    return ".".join(str(part) for part in torch.cuda.nccl.version())


def describe(kind: str) -> dict[str, Any]:
    """Fields of ``EnvironmentInfo`` that only a process that runs torch can know."""
    with Path("/proc/self/maps").open(encoding="utf-8", errors="replace") as maps:
        libraries = mapped_libraries(maps.read(LARGEST_MAP_BYTES))
    cudnn = torch.backends.cudnn.version() if kind == "cuda" else None
    return {
        "python": sys.version.split()[0],
        "prefix": sys.prefix,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "nccl": nccl_version(kind),
        "cudnn": None if cudnn is None else str(cudnn),
        "libraries": libraries,
        "variables": telling_variables(dict(os.environ)),
    }
