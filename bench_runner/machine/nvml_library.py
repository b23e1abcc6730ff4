"""NVIDIA's management library by way of nvidia-ml-py: a session with it, and calls that do not raise."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

LIBRARY: Final = "libnvidia-ml.so.1"
CODE_NAMES: Final = {
    1: "uninitialized",
    2: "invalid argument",
    3: "not supported",
    4: "no permission",
    6: "not found",
    9: "driver not loaded",
    10: "time-out",
    12: "library not found",
    13: "function not found",
    15: "GPU is lost",
    16: "reset required",
    17: "operating system error",
    18: "library and kernel module differ in version",
    999: "unknown error",
}


class NvmlUnavailable(Exception):
    """NVML cannot be used; ``code`` is NVML's (12: no library, 9: no driver, …), or None without nvidia-ml-py."""

    def __init__(self, code: int | None, text: str) -> None:
        self.code = code
        super().__init__(text)


def code_text(code: int) -> str:
    """``no permission (NVML code 4)``."""
    return f"{CODE_NAMES.get(code, 'error')} (NVML code {code})"


@contextmanager
def session() -> Iterator[Any]:
    """The module ``pynvml`` with the library initialised; shut down afterwards, and only when init succeeded.

    The library is looked for first, so that a host without it does not pay for the import.
    """
    try:
        ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise NvmlUnavailable(12, f"{code_text(12)}: {error}") from error
    try:
        import pynvml
    except ImportError as error:
        raise NvmlUnavailable(None, f"nvidia-ml-py cannot be imported: {error}") from error
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise NvmlUnavailable(error.value, code_text(error.value)) from error
    try:
        yield pynvml
    finally:
        # A device that fell off the bus can make the shutdown fail as well; there is nothing left to release then.
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


class Reader:
    """Calls NVML functions by name; a failure becomes ``None`` and a line, the same line only once."""

    def __init__(self, nvml: Any) -> None:
        self.nvml = nvml
        self._failures: dict[str, list[str]] = {}

    def call(self, where: str, function: str, *arguments: Any) -> Any:
        """The function's value, or None.  ``where`` names the device in the line about a failure."""
        try:
            return getattr(self.nvml, function)(*arguments)
        except self.nvml.NVMLError as error:
            self.note(function, code_text(error.value), where)
        except AttributeError:
            self.note(function, "not in the installed module pynvml", where)
        except UnicodeDecodeError:
            self.note(function, "answered with text that is not UTF-8", where)
        return None

    def note(self, function: str, why: str, where: str) -> None:
        """Remember that ``function`` failed for the device ``where``."""
        self._failures.setdefault(f"{function.removeprefix('nvml')}: {why}", []).append(where)

    @property
    def not_read(self) -> tuple[str, ...]:
        """One line a function and reason, with the devices concerned."""
        return tuple(f"NVML {line} ({', '.join(dict.fromkeys(where))})" for line, where in self._failures.items())
