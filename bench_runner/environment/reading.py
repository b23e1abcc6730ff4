"""Read files that others wrote: bounded, never a pipe or device, every fault an ``UnreadableError`` of one line."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any, Final

from bench_runner.errors import UnreadableError

LARGEST_YAML_EVENTS: Final = 4_000_000
DEEPEST_YAML: Final = 16

YamlValue = str | dict[str, "YamlValue"] | list["YamlValue"]
"""What ``load_plain_yaml`` gives: mappings with text keys, lists and text.  Numbers and booleans stay as written."""


def read_bounded(path: Path, largest_bytes: int, what: str) -> bytes:
    """The content of a regular file of at most ``largest_bytes``; ``what`` names its kind in the message.

    Opened without waiting, so that a named pipe put in the file's place cannot hold the program.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UnreadableError(f"{what} {path}: {reason}") from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise UnreadableError(f"{what} {path}: not a regular file")
        with os.fdopen(os.dup(descriptor), "rb") as file:
            content = file.read(largest_bytes + 1)
    except OSError as error:
        raise UnreadableError(f"{what} {path}: {error.strerror}") from error
    finally:
        os.close(descriptor)
    if len(content) > largest_bytes:
        raise UnreadableError(f"{what} {path}: larger than {largest_bytes:,} bytes, which no such file is")
    return content


def decode_text(content: bytes, path: Path, what: str) -> str:
    """UTF-8 text, without a byte order mark."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnreadableError(f"{what} {path}: not UTF-8 text (byte {error.start})") from error


def load_json(content: bytes, path: Path, what: str) -> Any:
    """Strict JSON as Python values: no NaN, bounded depth and numbers (orjson's rules)."""
    import orjson

    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise UnreadableError(f"{what} {path}: not valid JSON: {' '.join(str(error).split())}") from error


def load_plain_yaml(text: str, path: Path, what: str) -> YamlValue:
    """YAML as mappings, lists and text, in time and memory proportional to the text.

    Built from the parser's events with an own stack: no recursion, and nothing that can grow out of proportion or run
    code.  Anchors, aliases, tags, merge keys, several documents, repeated keys and deep nesting are refused: no lock
    file has any of them.  Scalars stay as written, so that version 1.10 does not turn into 1.1.
    """
    import yaml

    builder = _YamlBuilder()
    try:
        for event in yaml.parse(text, Loader=yaml.CSafeLoader):
            builder.add(event)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UnreadableError(f"{what} {path}: not valid YAML: {' '.join(str(error).split())}") from error
    if not builder.documents:
        raise UnreadableError(f"{what} {path}: empty")
    return builder.documents[0]


class _YamlBuilder:
    """Collects parser events into values; raises ValueError for what ``load_plain_yaml`` refuses."""

    def __init__(self) -> None:
        self.documents: list[YamlValue] = []
        self._stack: list[tuple[YamlValue, int]] = []
        self._pending_keys: list[str | None] = []
        self._events = 0

    def add(self, event: Any) -> None:
        import yaml

        self._events += 1
        line = event.start_mark.line + 1
        if self._events > LARGEST_YAML_EVENTS:
            raise ValueError(f"more than {LARGEST_YAML_EVENTS:,} values")
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise ValueError(f"line {line}: anchors and aliases are not read")
        if getattr(event, "tag", None) is not None:
            raise ValueError(f"line {line}: the tag {event.tag!r} is not read")
        if isinstance(event, yaml.ScalarEvent):
            self._place(event.value, line)
        elif isinstance(event, yaml.MappingStartEvent):
            self._open({}, line)
        elif isinstance(event, yaml.SequenceStartEvent):
            self._open([], line)
        elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            self._stack.pop()
            self._pending_keys.pop()

    def _open(self, container: YamlValue, line: int) -> None:
        if len(self._stack) >= DEEPEST_YAML:
            raise ValueError(f"line {line}: nested deeper than {DEEPEST_YAML} levels")
        self._place(container, line)
        self._stack.append((container, line))
        self._pending_keys.append(None)

    def _place(self, value: YamlValue, line: int) -> None:
        if not self._stack:
            if self.documents:
                raise ValueError(f"line {line}: a second document")
            self.documents.append(value)
            return
        container = self._stack[-1][0]
        if isinstance(container, list):
            container.append(value)
            return
        assert isinstance(container, dict)
        key = self._pending_keys[-1]
        if key is None:
            self._take_key(container, value, line)
        else:
            container[key] = value
            self._pending_keys[-1] = None

    def _take_key(self, container: dict[str, YamlValue], key: YamlValue, line: int) -> None:
        if not isinstance(key, str):
            raise ValueError(f"line {line}: a key that is not text")
        if key == "<<":
            raise ValueError(f"line {line}: merge keys are not read")
        if key in container:
            raise ValueError(f"line {line}: the key {key!r} stands twice")
        self._pending_keys[-1] = key
