"""Where packages come from: the lock's channels, or mirrors of them that keep subdir and file name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from bench_runner.environment.lockfile import LockedPackage, channel_name
from bench_runner.errors import UsageError

_NAMED: Final = re.compile(r"(?P<name>[\w.\-]+(?:/[\w.\-]+)?)=(?P<url>.+)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mirror:
    """``url`` (without a slash at its end) replaces the channel called ``channel``; None: every channel."""

    url: str
    channel: str | None = None


def parse_mirror(text: str) -> Mirror:
    """``URL``, ``/folder`` or ``NAME=URL`` as given on the command line; raises UsageError."""
    named = _NAMED.fullmatch(text)
    channel, url = (named["name"], named["url"]) if named else (None, text)
    if url and "://" not in url and Path(url).is_dir():
        url = Path(url).absolute().as_uri()
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    usable = bool(parts.hostname) if parts.scheme in ("http", "https") else parts.scheme == "file" and bool(parts.path)
    if not usable or not url.isprintable() or " " in url or parts.query or parts.fragment:
        raise UsageError(
            f"--channel-url {text!r}: must be https://HOST/CHANNEL, file:///FOLDER, an existing folder, or NAME=URL"
        )
    return Mirror(url="file://" if parts.path == "/" and parts.scheme == "file" else url.rstrip("/"), channel=channel)


def mirrored(package: LockedPackage, mirrors: Sequence[Mirror]) -> str:
    """The URL to fetch a package from: a mirror of its own channel before one for all, else the lock's."""
    own = [m for m in mirrors if m.channel is not None and m.channel == channel_name(package.channel)]
    general = [m for m in mirrors if m.channel is None]
    for mirror in (*own, *general):
        subdir, file_name = package.url.split("/")[-2:]
        return f"{mirror.url}/{subdir}/{file_name}"
    return package.url


def local_path(url: str) -> Path | None:
    """The file that a file:// URL names; None for other URLs."""
    parts = urlsplit(url)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None
