"""Hash files: in the calling process, or as a worker of its own that reads chunks of work from standard input.

Standard library alone and no import of the package: a worker is started by this file's path with ``python -I -S`` and
ready in 15 ms.  It ends at the end of its input, so none outlives the process that started it.

One line of JSON each way: ``[prefix, [[path, sha256], …]]`` in; ``[bytes read, [[index, kind, actual], …]]`` out, with
kind ``content`` or ``unreadable``, for the files that differ alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys

READ_BYTES = 256 << 10

Difference = tuple[int, str, str]


def file_sha256(path: str) -> tuple[str, int]:
    """The sha256 and the size in bytes of a file; raises OSError, also for a softlink.  Never waits for a pipe."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        digest = hashlib.sha256()
        size = 0
        while block := os.read(descriptor, READ_BYTES):
            digest.update(block)
            size += len(block)
        return digest.hexdigest(), size
    finally:
        os.close(descriptor)


def hash_chunk(prefix: str, files: list[tuple[str, str]]) -> tuple[int, list[Difference]]:
    """Hash files given as (path in the prefix, expected sha256): the bytes read, and which differ."""
    read = 0
    differences: list[Difference] = []
    for index, (path, expected) in enumerate(files):
        try:
            actual, size = file_sha256(f"{prefix}/{path}")
        except OSError as error:
            differences.append((index, "unreadable", error.strerror or str(error)))
            continue
        read += size
        if actual != expected:
            differences.append((index, "content", actual))
    return read, differences


def main() -> int:
    """Serve chunks until the input ends."""
    for line in sys.stdin.buffer:
        prefix, files = json.loads(line)
        sys.stdout.buffer.write(json.dumps(hash_chunk(prefix, files)).encode() + b"\n")
        sys.stdout.buffer.flush()
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:  # from the terminal, to all of its processes: the starting one says so
        sys.exit(130)
