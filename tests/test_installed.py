"""Package records as each installer writes them, and damaged: a right answer or one line, never an end."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench_runner.environment.distributions import read_distributions, recorded_files, site_packages_folders
from bench_runner.environment.installed import InstalledPackage, read_installed, read_record
from bench_runner.errors import UnreadableError

SHA, MD5, SHA_IN_PREFIX = "ab" * 32, "cd" * 16, "ef" * 32
URL = "https://conda.anaconda.org/conda-forge/linux-64/tool-1.10-py_0.conda"

# As conda 25 writes it: channel with the subdir behind it, sizes of the archive's files, the prefix written into one.
CONDA: dict[str, Any] = {
    "arch": None,
    "build": "py_0",
    "build_number": 0,
    "channel": "https://conda.anaconda.org/conda-forge/linux-64",
    "constrains": [],
    "depends": ["python"],
    "extracted_package_dir": "/opt/pkgs/tool-1.10-py_0",
    "features": "",
    "files": ["bin/tool", "lib/libtool.so", "lib/python3.12/site-packages/tool/__pycache__/x.pyc"],
    "fn": "tool-1.10-py_0.conda",
    "link": {"source": "/opt/pkgs/tool-1.10-py_0", "type": 1},
    "md5": MD5,
    "name": "tool",
    "paths_data": {
        "paths": [
            {
                "_path": "bin/tool",
                "file_mode": "text",
                "path_type": "hardlink",
                "prefix_placeholder": "/home/build/placeholder",
                "sha256": SHA,
                "sha256_in_prefix": SHA_IN_PREFIX,
                "size_in_bytes": 300,
            },
            {"_path": "lib/libtool.so", "path_type": "softlink", "sha256": SHA, "size_in_bytes": 10},
            {"_path": "lib/tool", "path_type": "directory"},
            {"_path": "lib/python3.12/site-packages/tool/__pycache__/x.pyc", "path_type": "pyc_file"},
        ],
        "paths_version": 1,
    },
    "requested_spec": "tool",
    "sha256": SHA,
    "size": 1000,
    "subdir": "linux-64",
    "timestamp": 1700000000000,
    "url": URL,
    "version": "1.10",
}
# As micromamba 2.1 to 2.3 leaves it after an explicit install: url, file name and md5, the rest empty.
MICROMAMBA = {
    **CONDA,
    "build": "",
    "build_string": "",
    "channel": "",
    "depends": [],
    "name": "",
    "sha256": "",
    "subdir": "",
    "version": "",
}
# As rattler 0.28 writes it after an install from a lock file: no channel, sizes and hashes as in the prefix.
RATTLER = {key: value for key, value in CONDA.items() if key not in ("channel", "constrains", "features", "size")}


def _read(tmp_path: Path, document: object, name: str = "tool-1.10-py_0.json") -> InstalledPackage:
    (tmp_path / "conda-meta").mkdir(exist_ok=True)
    path = tmp_path / "conda-meta" / name
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return read_record(path)


@pytest.mark.parametrize("document", [CONDA, MICROMAMBA, RATTLER], ids=["conda", "micromamba", "rattler"])
def test_a_record_as_each_installer_writes_it(tmp_path: Path, document: dict[str, Any]) -> None:
    package = _read(tmp_path, document)
    assert (package.name, package.version, package.build) == ("tool", "1.10", "py_0")
    assert (package.channel, package.subdir) == ("https://conda.anaconda.org/conda-forge", "linux-64")
    assert (package.file_name, package.md5) == ("tool-1.10-py_0.conda", MD5)
    assert package.sha256 == (document["sha256"] or None)
    script, link = package.files
    assert (script.path, script.is_link, script.sha256, script.size_bytes) == ("bin/tool", False, SHA_IN_PREFIX, None)
    assert (link.path, link.is_link, link.sha256) == ("lib/libtool.so", True, SHA)
    assert package.cache_dir == Path("/opt/pkgs/tool-1.10-py_0")


def test_without_url_and_names_the_file_name_tells(tmp_path: Path) -> None:
    package = _read(tmp_path, {"files": ["a"]})
    assert (package.name, package.version, package.build, package.url) == ("tool", "1.10", "py_0", "")
    assert [(file.path, file.sha256) for file in package.files] == [("a", None)]


def test_a_text_file_with_the_prefix_in_it_and_no_hash_of_it_is_unchecked(tmp_path: Path) -> None:
    document = json.loads(json.dumps(CONDA))
    del document["paths_data"]["paths"][0]["sha256_in_prefix"]
    assert _read(tmp_path, document).files[0].sha256 is None


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", "", 5, None, "a\0b"])
def test_a_file_outside_the_prefix_is_refused(tmp_path: Path, path: object) -> None:
    with pytest.raises(UnreadableError, match="not a file inside the prefix"):
        _read(tmp_path, {**CONDA, "paths_data": {"paths": [{"_path": path}]}})


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "\xff", "[" * 100_000, '{"a": NaN}', "{}"])
def test_damage_is_one_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(UnreadableError) as caught:
        _read(tmp_path, text, "x.json")
    assert len(str(caught.value).splitlines()) == 1


def test_one_damaged_record_leaves_the_others(tmp_path: Path) -> None:
    _read(tmp_path, CONDA)
    (tmp_path / "conda-meta" / "bad.json").write_text("{")
    os.mkfifo(tmp_path / "conda-meta" / "pipe.json")
    (tmp_path / "conda-meta" / "history").write_text("")
    installed = read_installed(tmp_path)
    assert [package.name for package in installed.packages] == ["tool"]
    assert [record.path.name for record in installed.unreadable] == ["bad.json", "pipe.json"]
    assert "not a regular file" in installed.unreadable[1].reason


def test_no_conda_meta_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match="conda-meta"):
        read_installed(tmp_path)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.dictionaries(st.sampled_from([*CONDA, "build_string"]), _JSON, max_size=6), entry=_JSON)
def test_any_record_is_a_package_or_one_line(tmp_path: Path, changes: dict[str, Any], entry: Any) -> None:
    document = {**CONDA, "paths_data": {"paths": [entry, *CONDA["paths_data"]["paths"]]}, **changes}
    try:
        package = _read(tmp_path, document)
    except UnreadableError as error:
        assert_one_line(error)
    else:
        assert package.name
        assert package.version
        assert not any(file.path.startswith("/") or ".." in file.path.split("/") for file in package.files)


def assert_one_line(error: UnreadableError) -> None:
    assert len(str(error).splitlines()) == 1


def _distribution(folder: Path, name: str, metadata: str | None, installer: str | None = "pip\n") -> Path:
    info = folder / name
    info.mkdir(parents=True)
    if metadata is not None:
        (info / "METADATA").write_text(metadata)
    if installer is not None:
        (info / "INSTALLER").write_text(installer)
    return info


def test_distributions_and_who_installed_them(tmp_path: Path) -> None:
    site_packages = tmp_path / "lib" / "python3.12" / "site-packages"
    _distribution(site_packages, "Foo_Bar.baz-1.0.dist-info", "Name: Foo_Bar.baz\nVersion: 1.0\n\nName: not-this\n")
    _distribution(site_packages, "conda_one-2.dist-info", "Name: conda-one\nVersion: 2\n", "conda\n")
    _distribution(site_packages, "silent-3.dist-info", None, None)
    (site_packages / "old-4.0-py3.12.egg-info").write_text("Name: old\n")
    (site_packages / "~umpy-2.4.dist-info").mkdir()
    (tmp_path / "lib64").symlink_to("lib")
    found = read_distributions(tmp_path)
    assert [(d.name, d.version, d.installer) for d in found] == [
        ("conda-one", "2", "conda"),
        ("foo-bar-baz", "1.0", "pip"),
        ("old", "4.0", ""),
        ("silent", "3", ""),
    ]
    assert found[3].reason is not None
    assert site_packages_folders(tmp_path) == [site_packages]


def test_what_pip_recorded(tmp_path: Path) -> None:
    info = _distribution(tmp_path / "lib" / "python3.12" / "site-packages", "x-1.dist-info", "Name: x\n")
    (info / "RECORD").write_text('x/__init__.py,sha256=a,1\n"x/with,comma.py",,\n../../../bin/x,,\n\n')
    (distribution,) = read_distributions(tmp_path)
    root = info.parent
    assert recorded_files(distribution) == (root / "x/__init__.py", root / "x/with,comma.py", tmp_path / "bin/x")
    (info / "RECORD").unlink()
    with pytest.raises(UnreadableError, match="RECORD"):
        recorded_files(distribution)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(record=st.binary(max_size=120), metadata=st.binary(max_size=120))
def test_any_distribution_is_read_or_one_line(tmp_path: Path, record: bytes, metadata: bytes) -> None:
    info = tmp_path / "lib" / "python3.12" / "site-packages" / "x-1.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "RECORD").write_bytes(record)
    (info / "METADATA").write_bytes(metadata)
    (distribution,) = read_distributions(tmp_path)
    assert distribution.version
    try:
        recorded_files(distribution)
    except UnreadableError as error:
        assert_one_line(error)
