"""What a long piece of work tells whoever waits: the work knows nothing of terminals."""

from __future__ import annotations

from typing import Literal, Protocol

Unit = Literal["bytes", "packages"]


class Progress(Protocol):
    """Receives stages one after the other; methods are called from one thread at a time."""

    def stage(self, name: str, total: int, unit: Unit) -> None:
        """A stage begins: ``total`` bytes or packages, 0 where that is not known."""

    def advance(self, amount: int) -> None:
        """So much more of the stage is done; negative when a download begins anew."""

    def note(self, text: str) -> None:
        """Something worth a line: a retry, a wait."""


class Silent:
    """Says nothing."""

    def stage(self, name: str, total: int, unit: Unit) -> None:
        """Nothing."""

    def advance(self, amount: int) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """Nothing."""
