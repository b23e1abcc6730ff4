"""The user's program, as far as a probe needs it: one attribute of one module or file."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench_runner.worker.factories import find_callable


def load_factory(name: str) -> Callable[..., Any]:
    """``module:factory`` or ``path/to/file.py:factory``, imported as the program's own directory would have it."""
    place, _, attribute = name.rpartition(":")
    if place.endswith(".py"):
        path = Path(place).resolve()
        sys.path.insert(0, str(path.parent))
        module_name = path.stem
    else:
        sys.path.insert(0, str(Path.cwd()))
        module_name = place
    return find_callable(name, module_name, attribute)


def call_factory(factory: Callable[..., Any], rank: int, world_size: int) -> Any:
    """Call it as it wants: with ``rank`` and ``world_size`` if it has parameters of these names, else without any."""
    names = inspect.signature(factory).parameters
    offered = {"rank": rank, "world_size": world_size}
    return factory(**{name: value for name, value in offered.items() if name in names})


def program_files(factory: Callable[..., Any]) -> list[Path]:
    """The Python files of the program that the factory belongs to: those imported from its directory or below."""
    own = Path(inspect.getfile(inspect.unwrap(factory))).resolve()
    files = {own}
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if file and Path(file).suffix == ".py" and own.parent in Path(file).resolve().parents:
            files.add(Path(file).resolve())
    outside = ("site-packages", "dist-packages")
    return sorted(file for file in files if not any(part in outside for part in file.parts))


def calls_method(files: list[Path], method: str) -> str | None:
    """Where the program calls ``.method(…)`` first, as ``file:line``; None if nowhere."""
    for file in files:
        try:
            tree = ast.parse(file.read_text(encoding="utf-8", errors="replace"))
        except SyntaxError:
            continue  # a file that was imported and changed since: it says nothing
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == method:
                return f"{file}:{node.lineno}"
    return None
