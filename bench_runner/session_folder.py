"""The folder of a session, in which one that was broken off goes on when the same run is asked for again."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

_STATE: Final = "state.txt"
_FINISHED: Final = "finished"


def open_session(folder: Path, identity: str, *, fresh: bool, say: Callable[[str], None]) -> tuple[Path, str]:
    """The folder and the session's id: those of a broken-off session of the same ``identity``, else new ones.

    What the folder held otherwise is kept beside it as ``previous``.  ``fresh``: never go on.
    """
    state = folder / _STATE
    if not fresh and state.is_file() and not (folder / _FINISHED).exists():
        known = _read(state)
        if known.get("identity") == identity:
            say(f"going on with the session {known['session_id'][:8]} that was broken off")
            return folder, str(known["session_id"])
    if folder.exists():
        previous = folder.with_name("previous")
        shutil.rmtree(previous, ignore_errors=True)
        folder.rename(previous)
    folder.mkdir(parents=True)
    session_id = uuid.uuid4().hex
    (folder / "session-id").write_text(session_id, encoding="ascii")
    state.write_text(json.dumps({"identity": identity, "session_id": session_id}), encoding="utf-8")
    return folder, session_id


def finish_session(folder: Path) -> None:
    """The session came to its end: the next run begins another."""
    (folder / _FINISHED).touch()


def _read(path: Path) -> dict[str, Any]:
    """What the session's own file says; nothing if it is damaged, and the session then begins anew."""
    try:
        known = json.loads(path.read_bytes())
    except ValueError:
        return {}
    return known if isinstance(known, dict) and isinstance(known.get("session_id"), str) else {}
