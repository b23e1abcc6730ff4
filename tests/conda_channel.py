"""A local conda channel of small real ``.conda`` packages, its lock, and prefixes laid out from it by py-rattler.

    channel = Channel(tmp_path / "conda-forge")
    channel.add_interpreter()
    channel.add("tool", noarch="python", files=python_module("tool", "1.0"))
    channel.add("libtool", files={"lib/libx.so.1": shared_object(b"x"), "lib/libx.so": Link("libx.so.1")})
    lock = channel.write_lock(tmp_path / "conda-lock.yml")
    install_prefix(channel, tmp_path / "prefix", cache=tmp_path / "cache")
    with serve(channel.path) as url: ...

Everything is built in the test's own folder; the server binds to loopback and ends with its ``with`` block.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import http.server
import io
import json
import sys
import tarfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

PLATFORM: Final = "linux-64"
PLACEHOLDER: Final = "/opt/placeholder_" + "pl" * 110
"""A build prefix as conda-build writes it: longer than any prefix of a test, so that binary replacement fits."""
PYTHON_VERSION: Final = f"{sys.version_info.major}.{sys.version_info.minor}"
SITE_PACKAGES: Final = f"lib/python{PYTHON_VERSION}/site-packages"


@dataclass(frozen=True, slots=True)
class Link:
    """A softlink in a package, to ``target`` as written."""

    target: str


@dataclass(frozen=True, slots=True)
class WithPrefix:
    """A file that holds PLACEHOLDER, which the installer replaces by the prefix; ``mode`` is text or binary."""

    content: bytes
    mode: str = "text"
    executable: bool = False


@dataclass(frozen=True, slots=True)
class Executable:
    content: bytes


FileContent = bytes | Link | WithPrefix | Executable


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltPackage:
    """An archive in the channel and what repodata says of it."""

    path: Path
    index: Mapping[str, Any]
    md5: str
    sha256: str

    @property
    def name(self) -> str:
        return str(self.index["name"])

    @property
    def repodata(self) -> dict[str, Any]:
        return {**self.index, "md5": self.md5, "sha256": self.sha256, "size": self.path.stat().st_size}


def build_package(
    channel: Path,
    name: str,
    version: str = "1.0",
    build: str = "0",
    *,
    files: Mapping[str, FileContent],
    depends: Sequence[str] = (),
    constrains: Sequence[str] = (),
    noarch: str | None = None,
    build_number: int = 0,
    entry_points: Sequence[str] = (),
    extra_index: Mapping[str, Any] | None = None,
) -> BuiltPackage:
    """Write ``channel/SUBDIR/name-version-build.conda``.  ``noarch`` is None (linux-64), ``generic`` or ``python``."""
    from conda_package_streaming.create import conda_builder

    subdir = "noarch" if noarch else PLATFORM
    index: dict[str, Any] = {
        "name": name,
        "version": version,
        "build": build,
        "build_number": build_number,
        "depends": list(depends),
        "constrains": list(constrains),
        "subdir": subdir,
        "timestamp": 1_700_000_000_000,
        **({"noarch": noarch} if noarch else {}),
        **(extra_index or {}),
    }
    info: dict[str, bytes] = {
        "info/index.json": json.dumps(index).encode(),
        "info/paths.json": json.dumps({"paths": _paths(files), "paths_version": 1}).encode(),
        "info/files": "".join(f"{path}\n" for path in files).encode(),
        "info/about.json": b"{}",
    }
    if noarch == "python":
        link = {"noarch": {"type": "python", "entry_points": list(entry_points)}, "package_metadata_version": 1}
        info["info/link.json"] = json.dumps(link).encode()
    folder = channel / subdir
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{name}-{version}-{build}"
    with conda_builder(stem, folder, compression_level=1) as archive:
        for path, content in (*info.items(), *files.items()):
            _add_member(archive, path, content)
    archive_path = folder / f"{stem}.conda"
    content_bytes = archive_path.read_bytes()
    return BuiltPackage(
        path=archive_path,
        index=index,
        md5=hashlib.md5(content_bytes).hexdigest(),
        sha256=hashlib.sha256(content_bytes).hexdigest(),
    )


def _raw(content: FileContent) -> bytes:
    assert not isinstance(content, Link)
    return content if isinstance(content, bytes) else content.content


def _paths(files: Mapping[str, FileContent]) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = []
    for path, content in files.items():
        if isinstance(content, Link):
            entries.append({"_path": path, "path_type": "softlink"})
            continue
        raw = _raw(content)
        entry = {
            "_path": path,
            "path_type": "hardlink",
            "sha256": hashlib.sha256(raw).hexdigest(),
            "size_in_bytes": len(raw),
        }
        if isinstance(content, WithPrefix):
            entry |= {"prefix_placeholder": PLACEHOLDER, "file_mode": content.mode}
        entries.append(entry)
    return entries


def _add_member(archive: tarfile.TarFile, path: str, content: FileContent) -> None:
    member = tarfile.TarInfo(path)
    member.mtime = 1_700_000_000
    if isinstance(content, Link):
        member.type, member.linkname = tarfile.SYMTYPE, content.target
        archive.addfile(member)
        return
    raw = _raw(content)
    executable = isinstance(content, Executable) or (isinstance(content, WithPrefix) and content.executable)
    member.size, member.mode = len(raw), 0o755 if executable else 0o644
    archive.addfile(member, io.BytesIO(raw))


def python_module(name: str, version: str, source: str = "", *, noarch: bool = True) -> dict[str, FileContent]:
    """A distribution as conda packages carry it: module and dist-info with INSTALLER conda.

    ``noarch=False`` gives the paths of a package built for one platform, under ``lib/pythonX.Y/site-packages``.
    """
    root = "site-packages" if noarch else SITE_PACKAGES
    info = f"{root}/{name.replace('-', '_')}-{version}.dist-info"
    module = f"{root}/{name.replace('-', '_')}"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    return {
        f"{module}/__init__.py": f'__version__ = "{version}"\n{source}'.encode(),
        f"{info}/METADATA": metadata.encode(),
        f"{info}/INSTALLER": b"conda\n",
        f"{info}/RECORD": f"{name.replace('-', '_')}/__init__.py,,\n".encode(),
    }


def shared_object(content: bytes, size_bytes: int = 4096) -> bytes:
    """Bytes that begin like an ELF file; not loadable."""
    return (b"\x7fELF\x02\x01\x01" + content).ljust(size_bytes, b"\0")


@dataclass(slots=True)
class Channel:
    """A channel under construction.  ``path``'s last part is the channel's name: ``tmp_path / "conda-forge"``."""

    path: Path
    packages: dict[str, BuiltPackage] = field(default_factory=dict)

    def add(self, name: str, version: str = "1.0", build: str = "0", **options: Any) -> BuiltPackage:
        """Build a package (see ``build_package``) and write repodata anew; a later one of the same name replaces it."""
        package = build_package(self.path, name, version, build, **options)
        self.packages[name] = package
        self.write_repodata()
        return package

    def add_interpreter(self) -> BuiltPackage:
        """A package ``python``: the running interpreter's executable and a ``pyvenv.cfg`` that names its home.

        Not a whole Python: the standard library is the running interpreter's, while ``sys.prefix`` and site-packages
        are the new prefix's own, which is what these tests are about.
        """
        executable = Path(sys.executable).resolve()
        version = sys.version.split()[0].split("+")[0]
        return self.add(
            "python",
            version,
            "h0_0_cpython",
            files={
                f"bin/python{PYTHON_VERSION}": Executable(executable.read_bytes()),
                "bin/python": Link(f"python{PYTHON_VERSION}"),
                "lib/python3.1": Link(f"python{PYTHON_VERSION}"),  # as conda-forge's Python has it
                "pyvenv.cfg": f"home = {executable.parent}\ninclude-system-site-packages = false\n".encode(),
            },
        )

    def write_repodata(self) -> None:
        """``repodata.json`` of both subdirs, from the packages added so far."""
        for subdir in (PLATFORM, "noarch"):
            entries = {p.path.name: p.repodata for p in self.packages.values() if p.index["subdir"] == subdir}
            document = {"info": {"subdir": subdir}, "packages": {}, "packages.conda": entries, "repodata_version": 1}
            (self.path / subdir).mkdir(parents=True, exist_ok=True)
            (self.path / subdir / "repodata.json").write_text(json.dumps(document))

    def write_lock(
        self, path: Path, *, url: str | None = None, content_hash: str = "0" * 64, source: str = "environment.yml"
    ) -> Path:
        """A conda-lock file of all packages; ``url`` is the channel's (default: this folder as file://)."""
        path.write_text(lock_text(self.packages.values(), url or self.path.as_uri(), content_hash, source))
        return path


def lock_text(packages: Any, url: str, content_hash: str = "0" * 64, source: str = "environment.yml") -> str:
    """What conda-lock writes, version 1, for built packages."""
    lines = [
        "version: 1",
        "metadata:",
        f"  content_hash:\n    {PLATFORM}: {content_hash}",
        f"  channels:\n  - url: {url}\n    used_env_vars: []",
        f"  platforms:\n  - {PLATFORM}",
        f"  sources:\n  - {source}",
        "package:",
    ]
    for package in packages:
        index = package.index
        depends = "".join(f"\n    {d.partition(' ')[0]}: '{d.partition(' ')[2]}'" for d in index["depends"])
        lines.append(
            f"- name: {index['name']}\n  version: '{index['version']}'\n  manager: conda\n  platform: {PLATFORM}\n"
            f"  dependencies:{depends or ' {}'}\n  url: {url}/{index['subdir']}/{package.path.name}\n"
            f"  hash:\n    md5: {package.md5}\n    sha256: {package.sha256}\n  category: main\n  optional: false"
        )
    return "\n".join(lines) + "\n"


def install_prefix(channel: Channel, prefix: Path, *, cache: Path, url: str | None = None) -> Path:
    """Lay out all of the channel's packages with py-rattler's installer; ``url``: from there instead of file://."""
    from rattler import LockFile, install

    lock = channel.write_lock(channel.path.parent / f"{prefix.name}-conda-lock.yml", url=url)
    environment = LockFile.from_path(lock).default_environment()
    assert environment is not None
    records = [record for of_platform in environment.conda_repodata_records().values() for record in of_platform]
    asyncio.run(install(records, target_prefix=prefix, cache_dir=cache, show_progress=False))
    return prefix


class _QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: tests read the output."""


@contextmanager
def serve(folder: Path) -> Iterator[str]:
    """Serve a folder over http on loopback and a free port; yields the URL without a slash at its end."""
    handler = functools.partial(_QuietHandler, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
