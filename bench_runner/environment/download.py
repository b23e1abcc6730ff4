"""Fetch one file over http(s): resumed after a broken connection, begun anew where the server cannot resume.

Whether the content is right is for the caller to check by its hash.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from bench_runner.errors import EnvironmentBuildError

if TYPE_CHECKING:
    import requests

TRANSIENT_STATUS: Final = frozenset({408, 429, 500, 502, 503, 504})
CHUNK_BYTES: Final = 1 << 16
REMEDY: Final = "--channel-url (BENCH_RUNNER_CHANNEL_URL) takes a mirror or file:// folder, --offline a filled cache"


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a download is tried.  Waits double from ``first_wait_seconds``; ``quiet_seconds`` is the silence that
    counts as a broken connection."""

    attempts: int = 6
    first_wait_seconds: float = 0.5
    longest_wait_seconds: float = 20.0
    connect_seconds: float = 10.0
    quiet_seconds: float = 60.0


class _TransientError(Exception):
    """Worth another attempt."""


def host_of(url: str) -> str:
    """``host`` or ``host:port`` as a message names it, without a user or password."""
    return urlsplit(url).netloc.rpartition("@")[2] or url


def shown(url: str) -> str:
    """A URL without a user or password, for messages."""
    parts = urlsplit(url)
    return parts._replace(netloc=host_of(url)).geturl() if parts.netloc else url


def new_session() -> requests.Session:
    """A session that takes proxies and credentials from the environment, as conda and pip do."""
    import requests

    session = requests.Session()
    session.headers.update({"Accept-Encoding": "identity", "User-Agent": "bench-runner"})
    return session


def content_length(session: requests.Session, url: str, patience: Patience) -> int:
    """Size in bytes as the server gives it, 0 where it does not; raises EnvironmentBuildError if it cannot be reached
    or has no such file.  Asked again only where a connection broke: a host that is not there is known at once."""
    import requests
    import tenacity

    def ask() -> int:
        timeout = (patience.connect_seconds, patience.quiet_seconds)
        with session.head(url, timeout=timeout, allow_redirects=True) as answer:
            if answer.status_code in (404, 410):
                raise _missing(url, answer.status_code)
            length = answer.headers.get("Content-Length", "")
            return int(length) if answer.ok and length.isdigit() else 0

    retrying = tenacity.Retrying(
        stop=tenacity.stop_after_attempt(min(patience.attempts, 3)),
        wait=tenacity.wait_fixed(patience.first_wait_seconds),
        retry=tenacity.retry_if_exception(_is_broken_connection),
        reraise=True,
    )
    try:
        return retrying(ask)
    except requests.RequestException as error:
        raise unreachable(url, error) from error


def _is_broken_connection(error: BaseException) -> bool:
    import requests
    import urllib3

    if not isinstance(error, requests.ConnectionError) or isinstance(error, requests.ConnectTimeout):
        return False
    refused = any(isinstance(arg, urllib3.exceptions.MaxRetryError) for arg in error.args)
    return not refused


def fetch(
    session: requests.Session,
    url: str,
    part: Path,
    patience: Patience,
    advance: Callable[[int], None],
    note: Callable[[str], None],
) -> bool:
    """Download ``url`` into ``part``, going on where an earlier attempt, even an earlier process, left off.

    Returns whether the file was put together from pieces.  ``advance`` is told of bytes as they come, those already
    there included, ``note`` of every new attempt.  Raises EnvironmentBuildError when patience is at its end.
    """
    import tenacity

    pieces = 0

    def attempt() -> None:
        nonlocal pieces
        pieces += int(_attempt(session, url, part, patience, advance))

    advance(_size(part))
    retrying = tenacity.Retrying(
        stop=tenacity.stop_after_attempt(patience.attempts),
        wait=tenacity.wait_exponential(multiplier=patience.first_wait_seconds, max=patience.longest_wait_seconds)
        + tenacity.wait_random(0, patience.first_wait_seconds),
        retry=tenacity.retry_if_exception_type(_TransientError),
        reraise=True,
        before_sleep=lambda state: note(_again(url, state)),
    )
    try:
        retrying(attempt)
    except _TransientError as error:
        raise unreachable(url, error.__cause__ or error) from error
    return pieces > 0


def _again(url: str, state: Any) -> str:
    error = state.outcome.exception()
    return f"{shown(url)}: {reason_of(error.__cause__ or error)}; trying again ({state.attempt_number})"


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _attempt(
    session: requests.Session, url: str, part: Path, patience: Patience, advance: Callable[[int], None]
) -> bool:
    """One request; True if it continued a file that had begun."""
    import requests

    have = _size(part)
    headers = {"Range": f"bytes={have}-"} if have else {}
    try:
        timeout = (patience.connect_seconds, patience.quiet_seconds)
        with session.get(url, headers=headers, stream=True, timeout=timeout) as answer:
            resumed = _begin(answer, url, part, have, advance)
            _store(answer, part, advance)
            return resumed
    except requests.RequestException as error:
        raise _TransientError(str(error)) from error


def _begin(answer: Any, url: str, part: Path, have: int, advance: Callable[[int], None]) -> bool:
    """Judge the status; True if ``part`` is to be continued, else it is empty afterwards."""
    status = answer.status_code
    if status in (404, 410):
        raise _missing(url, status)
    if status == 416:
        # The part is as long as the file, or longer: of another file, then.  Begin anew.
        part.unlink(missing_ok=True)
        advance(-have)
        raise _TransientError(f"the server refused to go on from byte {have}")
    if status in TRANSIENT_STATUS:
        raise _TransientError(f"status {status}")
    if not answer.ok:
        raise EnvironmentBuildError(f"{shown(url)}: the server answers with status {status}; {REMEDY}")
    if have and status == 206 and answer.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
        return True
    if have:
        part.unlink(missing_ok=True)
        advance(-have)
    if status == 206:
        raise _TransientError("the server sent another part than the one asked for")
    return False


def _store(answer: Any, part: Path, advance: Callable[[int], None]) -> None:
    expected = answer.headers.get("Content-Length", "")
    received = 0
    with part.open("ab") as stream:
        for chunk in answer.iter_content(CHUNK_BYTES):
            stream.write(chunk)
            received += len(chunk)
            advance(len(chunk))
        stream.flush()
        os.fsync(stream.fileno())
    if expected.isdigit() and received != int(expected):
        raise _TransientError(f"the connection ended after {received} of {expected} bytes")


def _missing(url: str, status: int) -> EnvironmentBuildError:
    return EnvironmentBuildError(f"{shown(url)}: the channel does not have this file (status {status}); {REMEDY}")


def unreachable(url: str, cause: BaseException) -> EnvironmentBuildError:
    """The one line for a channel that cannot be reached: the host, why, and what to do."""
    return EnvironmentBuildError(f"{host_of(url)} cannot be reached ({reason_of(cause)}): {REMEDY}")


def reason_of(cause: BaseException) -> str:
    """The innermost cause in a few words: libraries wrap a refused connection in three sentences."""
    innermost: BaseException = cause
    seen: set[int] = set()
    while id(innermost) not in seen:
        seen.add(id(innermost))
        nested = [arg for arg in innermost.args if isinstance(arg, BaseException)]
        reason = getattr(innermost, "reason", None)
        following = reason if isinstance(reason, BaseException) else innermost.__cause__ or innermost.__context__
        if nested:
            innermost = nested[-1]
        elif following is not None:
            innermost = following
    text = " ".join((getattr(innermost, "strerror", None) or str(innermost) or type(innermost).__name__).split())
    return text[:160]
