"""Every error a user can meet, in one tree.

The command line turns any of these into one line on standard error and the class's exit code; nothing else
decides an exit code for a failure.  The message names the thing, its value and what would help.
"""

from __future__ import annotations

from typing import Final

EXIT_OK: Final = 0
EXIT_FINDINGS: Final = 1
EXIT_USAGE: Final = 2
EXIT_NOT_CARRIED_OUT: Final = 3
EXIT_INCONCLUSIVE: Final = 4


def shortened(value: str, longest: int = 120) -> str:
    """A value as it stands in a message: not longer than a line."""
    return value if len(value) <= longest else f"{value[:longest]}…"


class BenchRunnerError(Exception):
    """Base of all errors meant for the user."""

    exit_code: int = EXIT_NOT_CARRIED_OUT


class UsageError(BenchRunnerError):
    """The command or its arguments cannot mean anything."""

    exit_code = EXIT_USAGE


class SpecError(UsageError, ValueError):
    """A value in a spec or profile is impossible.  ``field`` names it the way the user wrote it."""

    def __init__(self, field: str, value: object, requirement: str) -> None:
        self.field = field
        self.value = value
        self.requirement = requirement
        super().__init__(f"{field} = {value!r}: {requirement}")


class UnreadableError(UsageError):
    """A file given as input is damaged, foreign, or of a version this program cannot read."""


class DeviceError(BenchRunnerError):
    """The machine lacks what was asked for."""


class LaunchError(BenchRunnerError):
    """Worker processes could not be started or did not deliver."""


class MeasuringError(BenchRunnerError):
    """A benchmark process could not go on, with the exit code that it gave."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class EnvironmentBuildError(BenchRunnerError):
    """An environment could not be created, downloaded or read."""


class NothingToJudgeError(BenchRunnerError):
    """What was given can be read, and holds nothing that a verdict could rest on."""


class StoreError(BenchRunnerError):
    """Results could not be written."""
