"""Python stacks read as what a rank is waiting for: pure, for stacks from py-spy, faulthandler and tracebacks alike."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

WaitKind = Literal[
    "collective",
    "barrier",
    "gradients",
    "model-construction",
    "process-group",
    "shutdown",
    "loader",
    "device",
    "elsewhere",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One line of a stack."""

    function: str
    file: str
    line: int

    @property
    def foreign(self) -> bool:
        """Whether it belongs to a library or to Python itself, not to the user's program."""
        return self.file.startswith("<") or any(
            part in self.file for part in ("/site-packages/", "/lib/python3", "/torch/")
        )

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """What a rank does: the kind, the operation's name, and the user's own frames, innermost first."""

    kind: WaitKind
    operation: str
    frames: tuple[Frame, ...]

    @property
    def place(self) -> Frame | None:
        """The user's innermost line, or None for a stack wholly within libraries."""
        return self.frames[0] if self.frames else None

    def __str__(self) -> str:
        return f"{self.operation} at {self.place}" if self.place else self.operation


_COLLECTIVES: Final = frozenset(
    [
        "all_reduce",
        "all_gather",
        "all_gather_object",
        "all_gather_into_tensor",
        "reduce_scatter",
        "reduce_scatter_tensor",
        "broadcast",
        "broadcast_object_list",
        "reduce",
        "gather",
        "gather_object",
        "scatter",
        "scatter_object_list",
        "all_to_all",
        "all_to_all_single",
        "send",
        "recv",
        "all_reduce_coalesced",
        "batch_isend_irecv",
        "_all_gather_base",
        "_reduce_scatter_base",
    ]
)
_BY_FUNCTION: Final[Mapping[str, tuple[WaitKind, str]]] = {
    "barrier": ("barrier", "barrier"),
    "monitored_barrier": ("barrier", "monitored_barrier"),
    "destroy_process_group": ("shutdown", "destroy_process_group"),
    "init_process_group": ("process-group", "init_process_group"),
    "new_group": ("process-group", "new_group"),
    "rendezvous": ("process-group", "rendezvous"),
    "_create_c10d_store": ("process-group", "init_process_group"),
    "_store_based_barrier": ("process-group", "init_process_group"),
    "_verify_param_shape_across_processes": ("model-construction", "DistributedDataParallel()"),
    "_sync_module_states": ("model-construction", "DistributedDataParallel()"),
    "_sync_buffers": ("gradients", "the forward pass of DistributedDataParallel (buffers)"),
    "_engine_run_backward": ("gradients", "backward (gradients of DistributedDataParallel)"),
    "synchronize": ("device", "torch.cuda.synchronize"),
}


def wait_of(frames: tuple[Frame, ...]) -> Wait:
    """Classify a stack, given innermost frame first.

    The outermost library call that is known decides: ``init_process_group`` ends in a barrier of its own, and that is
    still the process group's start.
    """
    kind: WaitKind = "elsewhere"
    operation = "elsewhere"
    for frame in frames:
        if not frame.foreign:
            break
        found = _known(frame)
        if found:
            kind, operation = found
    own = tuple(frame for frame in frames if not frame.foreign)
    if kind == "elsewhere" and own:
        operation = own[0].function
    return Wait(kind=kind, operation=operation, frames=own)


def _known(frame: Frame) -> tuple[WaitKind, str] | None:
    function = frame.function.rpartition(".")[2]  # py-spy gives Class.method, a traceback the bare name
    if function in _COLLECTIVES and "torch/distributed" in frame.file:
        return "collective", function
    if frame.file.endswith("torch/utils/data/dataloader.py") and function in (
        "_try_get_data",
        "_get_data",
        "_next_data",
    ):
        return "loader", "the data loader's next batch"
    if function in _BY_FUNCTION and "torch" in frame.file:
        return _BY_FUNCTION[function]
    return None


def rank_guard(source: str, line: int) -> str | None:
    """The condition on the rank under which ``line`` of ``source`` stands, such as ``rank == 0``; None if none does."""
    for node in _enclosing(source, line):
        if isinstance(node, ast.If) and _in_lines(node.body, line) and _speaks_of_rank(node.test):
            return ast.unparse(node.test)
    return None


def enclosing_loops(source: str, line: int) -> tuple[tuple[int, int], ...]:
    """First and last line of every loop around ``line``, innermost first."""
    loops = [n for n in _enclosing(source, line) if isinstance(n, ast.For | ast.While) and _in_lines(n.body, line)]
    return tuple((n.lineno, n.end_lineno or n.lineno) for n in loops)


def _enclosing(source: str, line: int) -> list[ast.stmt]:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []  # not Python after all, or another version's: then the source says nothing
    around = [
        node for node in ast.walk(tree) if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    return sorted(around, key=lambda node: (node.lineno, -(node.end_lineno or 0)), reverse=True)


def _in_lines(body: list[ast.stmt], line: int) -> bool:
    return bool(body) and body[0].lineno <= line <= (body[-1].end_lineno or 0)


def _speaks_of_rank(test: ast.expr) -> bool:
    names = [n.id for n in ast.walk(test) if isinstance(n, ast.Name)]
    names += [n.attr for n in ast.walk(test) if isinstance(n, ast.Attribute)]
    words = ("rank", "is_main", "is_master", "main_process", "is_primary", "is_chief", "master_process")
    return any(word in name.lower() for name in names for word in words)
