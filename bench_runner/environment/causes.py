"""Known causes of an environment that does not load, recognised by what it says.  Data and one look-up."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """``pattern`` is searched in the error and its output; ``packages`` are those whose versions tell, by name."""

    pattern: str
    explanation: str
    packages: tuple[str, ...]


CAUSES: Final = (
    Cause(
        pattern=r"iJIT_\w+|undefined symbol: \w*ittnotify",
        explanation="MKL 2024.1 dropped a symbol that older builds of torch need: pin MKL as the lock does",
        packages=("mkl", "pytorch"),
    ),
    Cause(
        pattern=r"undefined symbol: p?nccl\w+",
        explanation="torch got another NCCL than it was built with: several nvidia-nccl wheels that share one folder, "
        "or a system NCCL found first",
        packages=("nccl", "nvidia-nccl-cu11", "nvidia-nccl-cu12", "nvidia-nccl-cu13"),
    ),
    Cause(
        pattern=r"undefined symbol: \w*(cudnn|cublas|cusparse|cusolver|nvJitLink|nvrtc|cuda)\w*|version `?libcu\w+",
        explanation="a CUDA library of another version was found first, most often through LD_LIBRARY_PATH",
        packages=("cudnn", "libcublas", "libcusparse", "libnvjitlink", "cuda-version"),
    ),
    Cause(
        pattern=r"(GLIBCXX|CXXABI)_[\d.]+' not found",
        explanation="an older libstdc++ was found first, through LD_LIBRARY_PATH or LD_PRELOAD",
        packages=("libstdcxx",),
    ),
    Cause(
        pattern=r"GLIBC_[\d.]+' not found",
        explanation="the system's C library is older than these packages need",
        packages=(),
    ),
    Cause(
        pattern=r"_ARRAY_API not found|compiled using NumPy 1\.x|numpy\.core\.multiarray failed|Numpy is not available"
        r"|numpy\.dtype size changed",
        explanation="an extension was built against another major version of numpy than is installed",
        packages=("numpy", "pytorch"),
    ),
    Cause(
        pattern=r"operator torchvision::\w+ does not exist|Couldn't load custom C\+\+ ops",
        explanation="torchvision was built for another torch, or for another CUDA",
        packages=("torchvision", "pytorch"),
    ),
    Cause(
        pattern=r"libcudart\.so[.\d]*: cannot open|libcu\w+\.so[.\d]*: cannot open|libnccl\.so[.\d]*: cannot open",
        explanation="a CUDA library that torch needs is not in the environment",
        packages=("cuda-cudart", "cudnn", "nccl", "libcublas"),
    ),
    Cause(
        pattern=r"lib\w+\.so[.\d]*: cannot open shared object",
        explanation="a shared library is missing",
        packages=(),
    ),
    Cause(
        pattern=r"no kernel image is available|sm_\d+ is not compatible",
        explanation="this build of torch has no code for this GPU",
        packages=("pytorch", "cuda-version"),
    ),
    Cause(
        pattern=r"libgomp\S*: cannot allocate memory in static TLS block",
        explanation="two OpenMP runtimes, one loaded too late",
        packages=("llvm-openmp", "libgomp"),
    ),
    Cause(
        pattern=r"partially initialized module|most likely due to a circular import",
        explanation="a file or folder of that name hides the package",
        packages=(),
    ),
)


def known_cause(text: str) -> Cause | None:
    """The first known cause that the text shows, most telling first."""
    return next((cause for cause in CAUSES if re.search(cause.pattern, text)), None)
