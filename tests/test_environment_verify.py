"""Verification over real prefixes: laid out by py-rattler from a channel of real packages, then damaged in every way.

No trial run here (tests/integration/test_verify_environment.py has it): the records, files, distributions, variables.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from bench_runner.environment import verify
from bench_runner.environment.host import host_platform
from bench_runner.environment.lockfile import Lock, read_lock
from bench_runner.finding import Finding
from tests.conda_channel import (
    PLACEHOLDER,
    SITE_PACKAGES,
    Channel,
    Link,
    WithPrefix,
    install_prefix,
    lock_text,
    python_module,
    shared_object,
)

pytestmark = pytest.mark.skipif(host_platform() != "linux-64", reason="the channel of these tests is for linux-64")
CUDA = "cuda129_mkl_py312_h0_300"


@pytest.fixture(scope="module")
def channel(tmp_path_factory: pytest.TempPathFactory) -> Channel:
    channel = Channel(tmp_path_factory.mktemp("verify") / "conda-forge")
    channel.add_interpreter()
    channel.add("pytorch", "2.10.0", CUDA, files=python_module("torch", "2.10.0", noarch=False))
    channel.add("torchvision", "0.25.0", CUDA, files=python_module("torchvision", "0.25.0", noarch=False))
    channel.add(
        "numpy",
        "2.5.2",
        "py312_0",
        files={**python_module("numpy", "2.5.2", noarch=False), f"{SITE_PACKAGES}/numpy/core.so": shared_object(b"n")},
    )
    channel.add(
        "nccl",
        "2.30.7.1",
        "h1_1",
        files={
            "lib/libnccl.so.2.30": shared_object(b"nccl"),
            "lib/libnccl.so": Link("libnccl.so.2.30"),
            "bin/nccl-config": WithPrefix(f"#!{PLACEHOLDER}/bin/python\n".encode(), executable=True),
            "lib/libnccl-net.so": WithPrefix(b"\x7fELF\0" + PLACEHOLDER.encode() + b"/lib\0end", mode="binary"),
        },
    )
    channel.add("tool", "1.0", "py_0", noarch="python", depends=["python"], files=python_module("tool", "1.0"))
    return channel


@pytest.fixture(scope="module")
def original(channel: Channel) -> Path:
    root = channel.path.parent
    return install_prefix(channel, root / "prefix", cache=root / "cache")


@pytest.fixture
def prefix(original: Path, tmp_path: Path) -> Path:
    """A copy to damage; dates are kept, as an installer keeps those of the archive."""
    copy = Path(shutil.copytree(original, tmp_path / "prefix", symlinks=True))
    script = copy / "bin" / "nccl-config"  # holds its prefix: its record too is of the original's
    assert str(original) in script.read_text()
    return copy


@pytest.fixture
def lock(channel: Channel, tmp_path: Path) -> Lock:
    return read_lock(channel.write_lock(tmp_path / "conda-lock.yml", url="https://conda.anaconda.org/conda-forge"))


def _judge(prefix: Path, lock: Lock | None, mode: str = "full") -> dict[str, Finding]:
    """Every finding but those of the trial run and of the lock, by check."""
    gathered = verify._gather(prefix, verify._Clock())
    findings = verify._packages(gathered, lock)
    if gathered.installed is not None:
        findings += verify._files(gathered, lock, "quick" if mode == "quick" else "full")
    found = {finding.check: finding for finding in findings}
    assert len(found) == len(findings)
    return found


def _wrong(findings: dict[str, Finding]) -> dict[str, str]:
    return {f.check.removeprefix("environment."): f.status for f in findings.values() if f.status in ("warn", "fail")}


def _record(prefix: Path, name: str) -> Path:
    (path,) = (prefix / "conda-meta").glob(f"{name}-[0-9]*.json")
    return path


def _edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize("mode", ["quick", "full"])
def test_the_locked_prefix_passes(prefix: Path, lock: Lock, mode: str) -> None:
    findings = _judge(prefix, lock, mode)
    # From file://, whose hashes an installer repeats from the lock without looking: said, but no other channel.
    assert _wrong(findings) == {}
    assert findings["environment.packages.missing"].message == "all 6 locked packages are there"
    assert findings["environment.torch.torchvision"].status == "pass"


def _drop_record(prefix: Path) -> None:
    _record(prefix, "nccl").unlink()


def _add_record(prefix: Path) -> None:
    shutil.copy(_record(prefix, "tool"), prefix / "conda-meta" / "other-1.0-0.json")
    _edit(prefix / "conda-meta" / "other-1.0-0.json", name="other")


def _double_record(prefix: Path) -> None:
    shutil.copy(_record(prefix, "tool"), prefix / "conda-meta" / "tool-0.9-py_0.json")


@pytest.mark.parametrize(
    ("damage", "wrong"),
    [
        (lambda p: _record(p, "tool").write_text("{"), {"packages.unreadable": "fail", "packages.missing": "fail"}),
        (_drop_record, {"packages.missing": "fail"}),
        (_add_record, {"packages.extra": "warn"}),
        (_double_record, {"packages.duplicate": "fail"}),
        (lambda p: _edit(_record(p, "nccl"), version="2.29"), {"packages.version": "fail"}),
        (lambda p: _edit(_record(p, "nccl"), build="h9_9"), {"packages.build": "fail"}),
        (lambda p: _edit(_record(p, "nccl"), sha256="0" * 64), {"packages.hash": "fail"}),
        (lambda p: _edit(_record(p, "nccl"), sha256=None, md5="0" * 32), {"packages.hash": "fail"}),
        (
            lambda p: _edit(_record(p, "nccl"), url="https://repo.example/other/linux-64/nccl-2.30.7.1-h1_1.conda"),
            {"packages.mixed-channels": "warn"},
        ),
        (
            lambda p: _edit(
                _record(p, "nccl"),
                url="https://repo.example/other/linux-64/nccl-2.30.7.1-h1_1.conda",
                sha256=None,
                md5=None,
            ),
            {"packages.channel": "fail", "packages.mixed-channels": "warn"},
        ),
        (
            lambda p: _edit(_record(p, "pytorch"), build="cpu_mkl_py312_h0_100"),
            {"packages.cpu-build": "fail", "packages.build": "fail", "torch.torchvision": "fail"},
        ),
    ],
)
def test_records_that_differ_from_the_lock(
    prefix: Path, lock: Lock, damage: Callable[[Path], None], wrong: dict[str, str]
) -> None:
    damage(prefix)
    findings = _judge(prefix, lock)
    packages = {check: status for check, status in _wrong(findings).items() if not check.startswith(("files", "pip"))}
    assert packages == wrong
    for finding in findings.values():
        if finding.status in ("warn", "fail"):
            assert finding.evidence
            assert finding.expected
            assert finding.actual
            assert finding.remedy


def test_a_cpu_build_comes_before_everything_else(prefix: Path, lock: Lock) -> None:
    _edit(_record(prefix, "pytorch"), build="cpu_mkl_py312_h0_100")
    first = next(f for f in _judge(prefix, lock).values() if f.status == "fail")
    assert first.check == "environment.packages.cpu-build"
    assert (first.expected, first.actual) == (f"pytorch 2.10.0 {CUDA}", "pytorch 2.10.0 cpu_mkl_py312_h0_100")
    assert first.remedy == f"bench-runner env create {prefix}-new --lock {lock.path} --validate-cache"


def _rewrite(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def _same_size(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def _replace_link(path: Path, target: str) -> None:
    path.unlink()
    path.symlink_to(target)


def _as_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _as_copy(path: Path) -> None:
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content)


TOOL = f"{SITE_PACKAGES}/tool/__init__.py"


@pytest.mark.parametrize("mode", ["quick", "full"])
@pytest.mark.parametrize(
    ("path", "damage", "kind"),
    [
        (TOOL, lambda p: _rewrite(p, p.read_bytes() + b"\n"), "altered"),
        (TOOL, _same_size, "altered"),
        (TOOL, Path.unlink, "missing"),
        (TOOL, _as_folder, "altered"),
        (TOOL, lambda p: _replace_link(p, "/etc/hostname"), "altered"),
        ("lib/libnccl.so.2.30", _same_size, "altered"),
        ("lib/libnccl-net.so", _same_size, "altered"),
        ("bin/nccl-config", _same_size, "altered"),
        ("lib/libnccl.so", lambda p: _replace_link(p, "libnccl-net.so"), "links"),
        ("lib/libnccl.so", Path.unlink, "missing"),
        ("lib/libnccl.so", _as_copy, "altered"),
        (f"{SITE_PACKAGES}/sitecustomize.py", lambda p: _rewrite(p, b"import os\n"), "unowned"),
    ],
)
def test_files_that_differ(
    prefix: Path, lock: Lock, path: str, damage: Callable[[Path], None], kind: str, mode: str
) -> None:
    later = _record(prefix, "tool").stat().st_mtime + 60
    damage(prefix / path)
    if (prefix / path).is_file() and not (prefix / path).is_symlink():
        os.utime(prefix / path, (later, later))
    findings = _judge(prefix, lock, mode)
    assert _wrong(findings) == {f"files.{kind}": "warn" if kind == "unowned" else "fail"}
    assert any(path in line for line in findings[f"environment.files.{kind}"].evidence)


def test_what_quick_cannot_see_full_does(prefix: Path, lock: Lock) -> None:
    before = (prefix / TOOL).stat()
    _same_size(prefix / TOOL)
    os.utime(prefix / TOOL, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert _wrong(_judge(prefix, lock, "quick")) == {}
    assert _wrong(_judge(prefix, lock, "full")) == {"files.altered": "fail"}


def test_bytecode_is_left_out(prefix: Path, lock: Lock) -> None:
    cache = prefix / SITE_PACKAGES / "tool" / "__pycache__"
    cache.mkdir()
    (cache / "__init__.cpython-312.pyc").write_bytes(b"x")
    record = json.loads(_record(prefix, "tool").read_text())
    record["paths_data"]["paths"].append({"_path": f"{SITE_PACKAGES}/tool/x.pyc", "path_type": "hardlink"})
    _record(prefix, "tool").write_text(json.dumps(record))
    assert _wrong(_judge(prefix, lock)) == {}


def _wheel(prefix: Path, name: str, version: str, files: tuple[str, ...] = (), installer: str = "pip") -> Path:
    info = prefix / SITE_PACKAGES / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "INSTALLER").write_text(f"{installer}\n")
    own = [f"{info.name}/{file}" for file in ("METADATA", "INSTALLER", "RECORD")]
    (info / "RECORD").write_text("".join(f"{file},,\n" for file in (*own, *files)))
    return info


def test_a_wheel_over_a_conda_package(prefix: Path, lock: Lock) -> None:
    shutil.rmtree(prefix / SITE_PACKAGES / "numpy-2.5.2.dist-info")
    _wheel(prefix, "numpy", "2.4.6", ("numpy/__init__.py",))
    (prefix / SITE_PACKAGES / "numpy" / "__init__.py").write_text("__version__ = '2.4.6'\n")
    findings = _judge(prefix, lock)
    assert _wrong(findings) == {"pip.over-conda": "fail", "files.altered": "fail", "files.missing": "fail"}
    assert findings["environment.pip.over-conda"].actual == "numpy: pip put 2.4.6 over conda's numpy 2.5.2 py312_0"


def test_the_same_version_from_pip_over_conda(prefix: Path, lock: Lock) -> None:
    _wheel(prefix, "numpy", "2.5.2", ("numpy/__init__.py",))
    assert _wrong(_judge(prefix, lock)).items() >= {"pip.over-conda": "fail", "files.altered": "fail"}.items()


def test_a_conda_package_whose_installer_file_says_pip(channel: Channel, tmp_path: Path) -> None:
    """Seen in older packages: the file is as the package brought it, so pip was never here."""
    files = python_module("older", "1.0", noarch=False)
    files[f"{SITE_PACKAGES}/older-1.0.dist-info/INSTALLER"] = b"pip\n"
    other = Channel(tmp_path / "conda-forge")
    other.add("older", "1.0", "py_0", files=files)
    prefix = install_prefix(other, tmp_path / "older", cache=tmp_path / "cache")
    lock = read_lock(other.write_lock(tmp_path / "lock.yml", url="https://conda.anaconda.org/conda-forge"))
    assert _wrong(_judge(prefix, lock)) == {}


def test_a_wheel_that_writes_over_another_packages_files(prefix: Path, lock: Lock) -> None:
    _wheel(prefix, "stray", "1.0", ("tool/__init__.py",))
    finding = _judge(prefix, lock)["environment.pip.over-conda"]
    assert (finding.status, finding.actual) == ("fail", "stray 1.0: its wheel wrote over files of tool")


def test_a_wheel_beside_conda_packages(prefix: Path, lock: Lock) -> None:
    _wheel(prefix, "extra-thing", "3.0", ("extra_thing.py",), installer="uv")
    (prefix / SITE_PACKAGES / "extra_thing.py").write_text("")
    findings = _judge(prefix, lock)
    assert _wrong(findings) == {"pip.beside-conda": "warn"}
    assert findings["environment.pip.beside-conda"].remedy == f"{prefix}/bin/python -m pip uninstall -y extra-thing"


def test_this_suite_may_lie_beside_them(prefix: Path, lock: Lock) -> None:
    _wheel(prefix, "bench-runner", "0.1.0", ("__editable__.bench_runner.pth",))
    (prefix / SITE_PACKAGES / "__editable__.bench_runner.pth").write_text("/src\n")
    assert _wrong(_judge(prefix, lock)) == {}


@pytest.mark.parametrize(
    ("wheels", "wrong"),
    [
        ({"nvidia-nccl-cu12": "2.27", "nvidia-nccl-cu13": "2.29"}, {"pip.nccl": "fail", "pip.cuda": "fail"}),
        ({"nvidia-cublas-cu12": "12.8", "nvidia-cudnn-cu12": "9.10"}, {}),
        ({"nvidia-cublas-cu11": "11.8", "nvidia-cudnn-cu12": "9.10"}, {"pip.cuda": "fail"}),
        ({"pynvml": "11.5", "nvidia-ml-py": "13.0"}, {"pip.pynvml": "warn"}),
        ({"pynvml": "11.5"}, {}),
        ({"torch": "2.10.0+cu128", "torchvision": "0.25.0+cu128"}, {}),
        ({"torch": "2.10.0+cu128", "torchvision": "0.24.1+cu128"}, {"torch.torchvision": "fail"}),
        ({"torch": "2.10.0+cu128", "torchvision": "0.25.0+cu126"}, {"torch.torchvision": "fail"}),
        ({"torch": "2.10.0+cu128", "torchvision": "0.25.0+cpu"}, {"torch.torchvision": "fail"}),
        ({"torch": "2.13.0", "torchvision": "0.28.0"}, {}),
    ],
)
def test_wheels_in_a_virtual_environment(tmp_path: Path, wheels: dict[str, str], wrong: dict[str, str]) -> None:
    (tmp_path / "pyvenv.cfg").write_text("version = 3.12.1\n")
    for name, version in wheels.items():
        _wheel(tmp_path, name, version)
    assert _wrong(_judge(tmp_path, None)) == {"prefix": "warn", **wrong}


def test_one_name_in_two_versions(tmp_path: Path) -> None:
    _wheel(tmp_path, "numpy", "2.4.6")
    _wheel(tmp_path, "numpy", "2.5.2")
    assert _wrong(_judge(tmp_path, None)).items() >= {"pip.repeated": "fail"}.items()


def test_a_virtual_environment_is_never_the_locked_one(tmp_path: Path, lock: Lock) -> None:
    (tmp_path / "pyvenv.cfg").write_text("version = 3.12.1\n")
    _wheel(tmp_path, "torch", "2.10.0+cpu")
    _wheel(tmp_path, "numpy", "2.5.2")
    findings = _judge(tmp_path, lock)
    assert _wrong(findings) == {"prefix": "warn", "packages.cpu-build": "warn"}
    assert "2 distributions have their locked version" in findings["environment.packages.versions"].message
    assert findings["environment.files"].status == "skip"
    _wheel(tmp_path, "tool", "0.9")
    assert _judge(tmp_path, lock)["environment.packages.versions"].evidence == ("tool: locked 1.0, installed 0.9",)


def test_a_mirror_with_the_same_archives_is_no_fault(channel: Channel, prefix: Path, tmp_path: Path) -> None:
    path = tmp_path / "other-lock.yml"
    path.write_text(lock_text(channel.packages.values(), "https://conda.anaconda.org/another"))
    finding = _judge(prefix, read_lock(path))["environment.packages.channel"]
    assert (finding.status, "local one" in finding.message) == ("warn", True)  # file://: hashes repeated, not proven
    for record in (prefix / "conda-meta").glob("*.json"):
        url = json.loads(record.read_text())["url"].replace(channel.path.as_uri(), "https://mirror.example/conda-forge")
        _edit(record, url=url)
    assert _judge(prefix, read_lock(path))["environment.packages.channel"].status == "pass"
