"""The environment's description in a record, over real prefixes that py-rattler laid out."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from bench_runner.environment.host import host_platform
from bench_runner.environment.info import LoadedLibrary
from bench_runner.environment.lockfile import read_lock
from bench_runner.environment.summary import (
    cuda_of,
    describe,
    prefix_kind,
    relevant_variables,
    with_runtime,
)
from bench_runner.errors import UnreadableError
from tests.conda_channel import SITE_PACKAGES, Channel, install_prefix, python_module, shared_object

pytestmark = pytest.mark.skipif(host_platform() != "linux-64", reason="the channel of these tests is for linux-64")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Channel, Path]:
    root = tmp_path_factory.mktemp("summary")
    channel = Channel(root / "conda-forge")
    channel.add_interpreter()
    channel.add("pytorch", "2.10.0", "cuda129_mkl_py312_h0_300", files=python_module("torch", "2.10.0", noarch=False))
    channel.add("nccl", "2.30.7.1", "h1_1", files={"lib/libnccl.so.2": shared_object(b"nccl")})
    channel.add("tool", "1.0", "py_0", noarch="python", depends=["python"], files=python_module("tool", "1.0"))
    return channel, install_prefix(channel, root / "prefix", cache=root / "cache")


@pytest.fixture
def prefix(built: tuple[Channel, Path], tmp_path: Path) -> Path:
    """A copy to damage: the original's files are hard links into its package cache."""
    return Path(shutil.copytree(built[1], tmp_path / "prefix", symlinks=True))


@pytest.fixture
def lock(built: tuple[Channel, Path], tmp_path: Path) -> Path:
    return built[0].write_lock(tmp_path / "conda-lock.yml")


def test_a_locked_prefix_matches(prefix: Path, lock: Path) -> None:
    info = describe(prefix, lock)
    assert (info.kind, info.lock_state, info.prefix) == ("conda", "match", str(prefix))
    assert info.lock_sha256 == read_lock(lock).sha256
    assert info.python == sys.version.split()[0].split("+")[0]
    assert (info.torch, info.cuda, info.nccl, info.cudnn) == ("2.10.0", "12.9", "2.30.7.1", None)
    assert info.packages["pytorch"] == "2.10.0=cuda129_mkl_py312_h0_300"
    assert "tool" not in info.packages
    assert describe(prefix, read_lock(lock)) == info


def test_the_fingerprint_is_of_what_is_installed_not_where(built: tuple[Channel, Path], prefix: Path) -> None:
    before = describe(built[1], None)
    assert describe(prefix, None).fingerprint == before.fingerprint
    (prefix / "conda-meta" / "tool-1.0-py_0.json").unlink()
    shutil.rmtree(prefix / SITE_PACKAGES / "tool-1.0.dist-info")
    assert describe(prefix, None).fingerprint != before.fingerprint


def _record(prefix: Path, name: str) -> Path:
    (path,) = (prefix / "conda-meta").glob(f"{name}-*.json")
    return path


def _edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_every_kind_of_drift_is_told(prefix: Path, lock: Path) -> None:
    record = _record(prefix, "nccl")
    original = record.read_text()
    for changes in ({"version": "2.29"}, {"build": "h2_0"}, {"sha256": "0" * 64}):
        _edit(record, **changes)
        assert describe(prefix, lock).lock_state == "drift"
        record.write_text(original)
    assert describe(prefix, lock).lock_state == "match"
    record.rename(prefix / "nccl.json")
    assert describe(prefix, lock).lock_state == "drift"
    (prefix / "nccl.json").rename(record)
    shutil.copy(record, record.with_name("nccl-2.29-0.json"))
    assert describe(prefix, lock).lock_state == "drift"


def test_a_distribution_from_pip_is_drift_but_this_suite_is_none(prefix: Path, lock: Path) -> None:
    site_packages = prefix / SITE_PACKAGES
    (site_packages / "bench_runner-0.1.0.dist-info").mkdir()
    assert describe(prefix, lock).lock_state == "match"
    (site_packages / "Extra_Thing-2.0.dist-info").mkdir()
    assert describe(prefix, lock).lock_state == "drift"


def test_an_unreadable_record_leaves_the_state_unknown(prefix: Path, lock: Path) -> None:
    _record(prefix, "nccl").write_text("{")
    assert describe(prefix, lock).lock_state == "unknown"


def test_without_a_lock(prefix: Path, lock: Path, tmp_path: Path) -> None:
    assert describe(prefix, None).lock_state == "no-lock"
    assert describe(prefix, tmp_path / "absent.yml").lock_state == "no-lock"
    lock.write_text(lock.read_text().replace("linux-64", "osx-arm64"))
    assert describe(prefix, lock).lock_state == "no-lock"
    lock.write_text("package: [")
    with pytest.raises(UnreadableError, match=r"conda-lock\.yml"):
        describe(prefix, lock)


def test_a_virtual_environment_is_not_locked(tmp_path: Path, lock: Path) -> None:
    site_packages = tmp_path / "venv" / "lib" / "python3.12" / "site-packages"
    for name in ("torch-2.10.0+cu128", "nvidia_nccl_cu12-2.27.3", "numpy-2.4.6", "nvidia_cudnn_cu12-9.10.2.21"):
        (site_packages / f"{name}.dist-info").mkdir(parents=True)
    (tmp_path / "venv" / "pyvenv.cfg").write_text("home = /usr/bin\nversion_info = 3.12.4\nuv = 0.9\n")
    info = describe(tmp_path / "venv", lock)
    assert (info.kind, info.lock_state, info.python) == ("venv", "not-locked", "3.12.4")
    assert (info.torch, info.cuda, info.nccl, info.cudnn) == ("2.10.0+cu128", "12.8", "2.27.3", "9.10.2.21")
    assert info.packages["numpy"] == "2.4.6"


def test_kinds(tmp_path: Path, prefix: Path) -> None:
    assert prefix_kind(prefix) == "conda"
    assert prefix_kind(tmp_path) == "system"
    empty = describe(tmp_path, None)
    assert (empty.kind, empty.python, empty.packages) == ("system", "", {})


def test_the_running_environment_is_described() -> None:
    info = describe(sys.prefix, None)
    assert info.python == sys.version.split()[0].split("+")[0]
    assert info.packages["asv"].startswith("0.6.6")


def test_what_ran_goes_before_what_is_installed(prefix: Path, lock: Path) -> None:
    info = describe(prefix, lock)
    runtime = {
        "torch": "2.9.0",
        "cuda": None,
        "nccl": "2.27.3",
        "prefix": str(prefix),
        "libraries": [{"name": "libnccl.so.2", "path": "/usr/lib/libnccl.so.2", "version": "2"}],
        "variables": {"NCCL_DEBUG": "INFO", "HOME": "/root", "NVIDIA_API_KEY": "secret"},
    }
    seen = with_runtime(info, runtime)
    assert (seen.torch, seen.cuda, seen.nccl, seen.lock_state) == ("2.9.0", "12.9", "2.27.3", "match")
    assert seen.libraries == (LoadedLibrary(name="libnccl.so.2", path="/usr/lib/libnccl.so.2", version="2"),)
    assert seen.variables == {"NCCL_DEBUG": "INFO"}
    assert seen.fingerprint == info.fingerprint
    assert with_runtime(info, {}) == info


def test_a_worker_of_another_prefix_has_no_verdict(prefix: Path, lock: Path, tmp_path: Path) -> None:
    seen = with_runtime(describe(prefix, lock), {"prefix": str(tmp_path)})
    assert (seen.prefix, seen.kind, seen.lock_state) == (str(tmp_path), "system", "unknown")


def test_variables_that_matter() -> None:
    environ = {
        "LD_LIBRARY_PATH": "/x",
        "OMP_NUM_THREADS": "2",
        "TORCHELASTIC_RUN_ID": "1",
        "CUDA_VISIBLE_DEVICES": "0",
        "TORCH_SECRET": "x",
        "PATH": "/bin",
        "NCCL_LONG": "y" * 5000,
    }
    assert set(relevant_variables(environ)) == {
        "LD_LIBRARY_PATH",
        "OMP_NUM_THREADS",
        "CUDA_VISIBLE_DEVICES",
        "NCCL_LONG",
    }
    assert len(relevant_variables(environ)["NCCL_LONG"]) == 2048
    assert relevant_variables(os.environ).items() <= os.environ.items() or len(max(os.environ.values(), key=len)) > 2048


@pytest.mark.parametrize(
    ("versions", "cuda"),
    [
        ({"torch": "2.10.0+cu130"}, "13.0"),
        ({"pytorch": "2.3=cuda120_py312_h1_0"}, "12.0"),
        ({"torch": "2.10.0+cpu"}, None),
        ({"torch": "2.1.2", "pytorch": "2.1.2=cuda118py311_0"}, "11.8"),
        ({}, None),
    ],
)
def test_the_cuda_of_a_build(versions: dict[str, str], cuda: str | None) -> None:
    assert cuda_of(versions) == cuda
