"""A function of the user's program, found by its name; what is wrong with the name is said in one line."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from bench_runner.errors import UsageError

_MOST_NAMED: Final = 8


def find_callable(name: str, module_name: str, attribute: str) -> Callable[..., Any]:
    """The callable ``attribute`` of the module, which is imported.  ``name`` is what the user wrote.

    UsageError when there is no such module or callable; whatever the module raises while it is imported is its own.
    """
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module is there, and one that it imports is not
        here = _closest(error.name, [path.stem for path in Path.cwd().glob("*.py")])
        raise UsageError(
            f"{name}: there is no module {error.name} on the Python path; the folder {Path.cwd()} has"
            f" {_listed(here, 'no Python file')}: start in the program's own folder, or put that on PYTHONPATH"
        ) from error
    found = getattr(module, attribute, None)
    if callable(found):
        return found
    wrong = f"no function {attribute}" if found is None else f"{attribute}, but that is no function"
    others = _closest(attribute, _own_callables(module))
    raise UsageError(
        f"{name}: module {module_name} ({module.__file__ or 'built in'}) has {wrong}; it defines"
        f" {_listed(others, 'none at all')}: name one of these after the colon"
    )


def _own_callables(module: ModuleType) -> list[str]:
    """Public functions and classes that were defined in this module, in its order."""
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and callable(value) and getattr(value, "__module__", None) == module.__name__
    ]


def _closest(name: str, names: list[str]) -> list[str]:
    """The names, those like ``name`` first."""
    like = difflib.get_close_matches(name, names, n=_MOST_NAMED)
    return [*like, *(other for other in names if other not in like)]


def _listed(names: list[str], nothing: str) -> str:
    shown = ", ".join(names[:_MOST_NAMED])
    return (shown + (", …" if len(names) > _MOST_NAMED else "")) or nothing
