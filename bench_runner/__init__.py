"""Reproducible benchmarks and environment verification for PyTorch on several GPUs.

``load_frame("results")`` gives every stored result as one tidy pandas frame; the columns are in docs/metrics.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["__version__", "load_frame"]

if TYPE_CHECKING:
    from bench_runner.analysis.frame import load_frame


def __getattr__(name: str) -> Any:
    # pandas costs half a second to import and the workers and asv's processes need none of it.
    if name == "load_frame":
        from bench_runner.analysis.frame import load_frame

        return load_frame
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
