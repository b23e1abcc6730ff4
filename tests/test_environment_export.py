"""What an export holds, of conda, pip and uv environments, and that a damaged one is refused."""

from __future__ import annotations

import json
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_runner.environment.distributions import normalize
from bench_runner.environment.export import export_prefix, parse_export, read_export, to_document
from bench_runner.errors import UnreadableError

SCHEMA = json.loads((Path(__file__).parents[1] / "docs" / "schemas" / "environment-1.json").read_text())


def distribution(
    prefix: Path, name: str, version: str, installer: str | None = "pip", direct_url: object = None
) -> Path:
    info = prefix / "lib" / "python3.12" / "site-packages" / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    if installer:
        (info / "INSTALLER").write_text(installer + "\n")
    if direct_url is not None:
        (info / "direct_url.json").write_text(json.dumps(direct_url))
    return info


def conda_record(prefix: Path, name: str, version: str, build: str, *paths: str) -> None:
    (prefix / "conda-meta").mkdir(parents=True, exist_ok=True)
    record = {
        "name": name,
        "version": version,
        "build": build,
        "url": f"https://user:secret@conda.anaconda.org/conda-forge/linux-64/{name}-{version}-{build}.conda",
        "sha256": "c" * 64,
        "md5": "d" * 32,
        "paths_data": {"paths_version": 1, "paths": [{"_path": path, "path_type": "hardlink"} for path in paths]},
    }
    (prefix / "conda-meta" / f"{name}-{version}-{build}.json").write_text(json.dumps(record))


def checked(prefix: Path) -> dict[str, Any]:
    """The document of a prefix, valid by the schema and the same after reading it back."""
    export = export_prefix(prefix, {"NCCL_DEBUG": "INFO", "HOME": "/root", "WANDB_API_KEY": "x"})
    document = json.loads(json.dumps(to_document(export)))
    jsonschema.validate(document, SCHEMA)
    assert parse_export(document, Path("x")) == export
    return document


def test_a_conda_prefix_with_pip_beside_it(tmp_path: Path) -> None:
    conda_record(tmp_path, "python", "3.12.8", "h_0")
    conda_record(tmp_path, "numpy", "2.3.0", "py312_0", "lib/python3.12/site-packages/numpy-2.3.0.dist-info/METADATA")
    distribution(tmp_path, "numpy", "2.3.0", "conda")
    distribution(tmp_path, "Foo_Bar", "1.0")
    document = checked(tmp_path)
    assert (document["kind"], document["python"]) == ("conda", "3.12.8")
    found = [(p["name"], p["version"], p["build"], p["manager"], p["installer"]) for p in document["packages"]]
    assert found == [
        ("foo-bar", "1.0", None, "pip", "pip"),
        ("numpy", "2.3.0", "py312_0", "conda", None),
        ("python", "3.12.8", "h_0", "conda", None),
    ]
    numpy = document["packages"][1]
    assert numpy["url"] == "https://conda.anaconda.org/conda-forge/linux-64/numpy-2.3.0-py312_0.conda"
    assert (numpy["sha256"], numpy["md5"]) == ("c" * 64, "d" * 32)
    assert document["variables"] == {"NCCL_DEBUG": "INFO"}


def test_a_uv_environment_and_packages_from_urls(tmp_path: Path) -> None:
    (tmp_path / "pyvenv.cfg").write_text("home = /usr/bin\nuv = 0.9.0\nversion_info = 3.12.4\n")
    distribution(tmp_path, "torch", "2.10.0+cu128", "uv")
    archive = {"url": "https://me:token@host.example/a.whl", "archive_info": {"hashes": {"sha256": "e" * 64}}}
    distribution(tmp_path, "wheel_from_url", "1.0", "uv", archive)
    distribution(tmp_path, "damaged_url", "1.0", None, [1])
    document = checked(tmp_path)
    assert (document["kind"], document["python"]) == ("venv", "3.12.4")
    by_name = {p["name"]: p for p in document["packages"]}
    assert (by_name["torch"]["version"], by_name["torch"]["installer"]) == ("2.10.0+cu128", "uv")
    assert by_name["wheel-from-url"]["url"] == "https://host.example/a.whl"
    assert by_name["wheel-from-url"]["sha256"] == "e" * 64
    assert (by_name["damaged-url"]["url"], by_name["damaged-url"]["installer"]) == (None, None)


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    conda_record(tmp_path, "python", "3.12.8", "h_0")
    (tmp_path / "conda-meta" / "broken-1-0.json").write_text("{")
    (distribution(tmp_path, "odd", "1.0") / "METADATA").unlink()
    reasons = checked(tmp_path)["not_read"]
    assert len(reasons) == 2
    assert any("broken-1-0.json" in reason for reason in reasons)


def test_the_environment_that_runs_this(tmp_path: Path) -> None:
    """Held to importlib.metadata on the real thing."""
    document = checked(Path(sys.prefix))
    listed = {(p["name"], p["version"]) for p in document["packages"]}
    site = {str(Path(p).resolve()) for p in sys.path if p.startswith(sys.prefix)}
    for found in metadata.distributions(path=sorted(site)):
        assert (normalize(found.name), found.version) in listed


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": "bench-runner/environment/2"}, "must be 'bench-runner/environment/1'"),
        ({"kind": "docker"}, "must be one of conda, venv, system"),
        ({"packages": {}}, "must be a list"),
        ({"packages": [1]}, "package 0: not a mapping"),
        ({"packages": [{"name": "a"}]}, "missing or not known"),
        ({"variables": [1]}, "must be a mapping"),
        ({"variables": {"A": 1}}, "variable 'A': must be text"),
        ({"python": None}, "python: must be text"),
        ({"prefix": "x" * 9000}, "prefix: must be text of at most"),
        ({"more": 1}, "'more' missing or not known"),
    ],
)
def test_a_document_that_is_none_is_refused(tmp_path: Path, change: dict[str, object], message: str) -> None:
    (tmp_path / "pyvenv.cfg").write_text("version = 3.12.4\n")
    document = {**to_document(export_prefix(tmp_path, {})), **change}
    with pytest.raises(UnreadableError, match=message) as caught:
        parse_export(json.loads(json.dumps(document)), Path("x"))
    assert "\n" not in str(caught.value)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)


@given(st.sampled_from(["packages", "variables", "not_read", "kind", "python", "lock_sha256"]), json_values)
def test_any_value_in_a_field_gives_an_export_or_a_clear_refusal(field: str, value: Any) -> None:
    base = {
        "schema": "bench-runner/environment/1",
        "kind": "venv",
        "prefix": "/x",
        "python": "3.12",
        "platform": "linux-64",
        "created_at": "2026-01-01T00:00:00+00:00",
        "packages": [],
        "lock_sha256": None,
        "variables": {},
        "not_read": [],
    }
    document = {**base, field: value}
    try:
        read = parse_export(document, Path("x"))
    except UnreadableError as error:
        told = str(error)
    else:
        told = ""
        assert json.loads(json.dumps(to_document(read))) == json.loads(json.dumps(document))
    assert len(told.splitlines()) <= 1


@given(st.binary(max_size=300))
def test_any_bytes_are_refused_not_raised(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "export.json"
    path.write_bytes(content)
    with pytest.raises(UnreadableError):
        read_export(path)
