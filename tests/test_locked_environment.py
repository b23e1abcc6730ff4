"""The project's own locks, offline: conda-lock accepts them, everything fits, and no tampering goes unseen.

``tests/data/conda-records.json`` holds what conda-forge's index says of each locked file (hashes, dependencies with
the build part that a lock drops), gathered from public lock files when the locks were made.  A new lock needs new
records: the entries of ``repodata.json`` for its files.
"""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench_runner.environment.lockcheck import lock_findings
from bench_runner.environment.lockfile import Lock, LockedPackage, read_lock
from bench_runner.environment.lockspec import read_source
from bench_runner.environment.satisfy import is_met, records_of, spec_name
from bench_runner.errors import UnreadableError

ROOT = Path(__file__).resolve().parents[1]
RECORDS: dict[str, dict[str, Any]] = json.loads((ROOT / "tests/data/conda-records.json").read_text())
FILES = {
    "gpu": ("conda-lock.yml", "environment.yml", "virtual-packages.yaml"),
    "cpu": ("conda-lock-cpu.yml", "environment-cpu.yml", "virtual-packages-cpu.yaml"),
}
VARIANTS = pytest.mark.parametrize("variant", FILES)
pytestmark = pytest.mark.filterwarnings("ignore::PendingDeprecationWarning", "ignore::DeprecationWarning")  # conda-lock


def differences_from_records(lock: Lock) -> list[str]:
    """Where a lock does not say what the channel's index says."""
    found: list[str] = []
    for package in lock.packages:
        record = RECORDS.get(f"{package.subdir}/{package.file_name}")
        if record is None:
            found.append(f"{package.file_name}: not in the channel's index")
        elif (record["sha256"], record["md5"]) != (package.sha256, package.md5):
            found.append(f"{package.file_name}: another hash than in the channel's index")
        if package.url != f"https://conda.anaconda.org/conda-forge/{package.subdir}/{package.file_name}":
            found.append(f"{package.file_name}: from {package.url}")
    return found


def faults(lock_path: Path) -> list[str]:
    """Every check that a lock can be put to without a network."""
    try:
        lock = read_lock(lock_path)
        findings = lock_findings(lock, read_source(lock), "linux-64")
    except UnreadableError as error:
        return [str(error)]
    failed = [
        f"{f.check}: {line}" for f in findings if f.status in ("warn", "fail") for line in f.evidence or (f.message,)
    ]
    return failed + differences_from_records(lock)


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    for files in FILES.values():
        for name in files:
            shutil.copy(ROOT / name, tmp_path)
    return tmp_path


@VARIANTS
def test_nothing_is_wrong_with_the_lock(variant: str) -> None:
    assert faults(ROOT / FILES[variant][0]) == []


@VARIANTS
def test_conda_lock_parses_and_renders_it(variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from conda_lock.conda_lock import do_render
    from conda_lock.lockfile import parse_conda_lock_file

    path = ROOT / FILES[variant][0]
    content = parse_conda_lock_file(path)
    monkeypatch.chdir(tmp_path)
    do_render(content, kinds=["explicit"], override_platform=["linux-64"])
    (rendered,) = tmp_path.glob("*.lock")
    lines = [line for line in rendered.read_text().splitlines() if line.startswith("https://")]
    assert {line.partition("#")[0] for line in lines} == {package.url for package in read_lock(path).packages}


@VARIANTS
def test_every_dependency_and_constraint_of_the_full_records_holds(variant: str) -> None:
    """With build parts and constrains, which the lock itself has lost."""
    lock_name, _, virtual_name = FILES[variant]
    packages = read_lock(ROOT / lock_name).packages
    present = records_of(packages)
    virtual = set(re.findall(r"__\w+", (ROOT / virtual_name).read_text()))
    unmet = []
    for package in packages:
        record = RECORDS[f"{package.subdir}/{package.file_name}"]
        unmet += [
            f"{package.name} needs {spec}"
            for spec in record["depends"]
            if not (spec_name(spec) in virtual or is_met(spec, present))
        ]
        unmet += [
            f"{package.name} constrains {spec}"
            for spec in record["constrains"]
            if spec_name(spec) in present and not is_met(spec, present)
        ]
    assert unmet == []


def test_the_gpu_lock_is_for_cuda() -> None:
    packages = {package.name: package for package in read_lock(ROOT / "conda-lock.yml").packages}
    assert packages["python"].version.startswith("3.12.")
    for name in ("pytorch", "libtorch", "torchvision"):
        assert packages[name].build.startswith("cuda129_")
    assert packages["cuda-version"].version == "12.9"
    assert packages["nccl"].version >= "2.20"
    assert "__cuda" in packages["pytorch"].depends
    assert all(package.manager == "conda" for package in packages.values())


def test_the_cpu_lock_has_no_cuda() -> None:
    packages = read_lock(ROOT / "conda-lock-cpu.yml").packages
    assert [p.label for p in packages if re.match(r"cuda|nccl|cudnn|libcu(blas|dnn|fft|sparse)", p.name)] == []
    assert all(p.build.startswith("cpu_") for p in packages if p.name in ("pytorch", "libtorch"))


@VARIANTS
def test_everything_that_the_suite_declares_is_asked_for(variant: str) -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = {re.split(r"[\[<>=!~ ;]", entry, maxsplit=1)[0].lower() for entry in project["dependencies"]}
    asked = {spec_name(line.strip().removeprefix("- ")) for line in (ROOT / FILES[variant][1]).read_text().splitlines()}
    assert declared - asked == set()


def _edit(path: Path, edit: Callable[[str], str]) -> None:
    before = path.read_text()
    after = edit(before)
    assert after != before
    path.write_text(after)


def _drop(name: str) -> Callable[[str], str]:
    return lambda text: re.sub(rf"- name: {re.escape(name)}\n(  .*\n)+", "", text)


def _of_numpy() -> LockedPackage:
    return next(p for p in read_lock(ROOT / "conda-lock.yml").packages if p.name == "numpy")


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda t: t.replace(str(_of_numpy().sha256), "0" * 64), "numpy-2.*: another hash"),
        (lambda t: t.replace(str(_of_numpy().md5), "0" * 32), "numpy-2.*: another hash"),
        (lambda t: t.replace(_of_numpy().url, _of_numpy().url.replace("conda.anaconda.org", "host.example")), "hosts"),
        (
            lambda t: t.replace(_of_numpy().url, _of_numpy().url.replace("conda-forge", "other")),
            "not among conda-forge",
        ),
        (lambda t: t.replace("_h9ac99b3_303.conda", "_h9ac99b3_304.conda"), "not in the channel's index"),
        (lambda t: re.sub(r"pytorch-2\.10\.0-cuda129_\w+", "pytorch-2.10.0-cpu_mkl_h0_0", t), "CPU build|torch-build"),
        (_drop("nccl"), r"environment\.lock\.depends: .*needs nccl"),
        (_drop("asv"), r"environment\.lock\.specs: environment\.yml asks asv"),
        (lambda t: t + t[t.index("- name: numpy\n") : t.index("- name: nvidia-ml-py\n")], "duplicates: numpy"),
        (lambda t: re.sub("linux-64: [0-9a-f]{64}", "linux-64: " + "0" * 64, t), r"lock\.content-hash"),
        (lambda t: t.replace("    __cuda: ''\n", ""), "requires __cuda"),
        (lambda t: t.replace("numpy-2", "numpy-3"), "the file is numpy 3"),
        (lambda t: t.replace("platform: linux-64", "platform: linux-65"), "platform"),
    ],
)
def test_a_changed_lock_is_found_out(copied: Path, edit: Callable[[str], str], says: str) -> None:
    _edit(copied / "conda-lock.yml", edit)
    assert re.search(says, "\n".join(faults(copied / "conda-lock.yml"))), faults(copied / "conda-lock.yml")


@pytest.mark.parametrize(
    ("name", "edit", "says"),
    [
        ("environment.yml", lambda t: t.replace("numpy >=2", "numpy >=3"), r"specs: environment\.yml asks numpy >=3"),
        ("environment.yml", lambda t: t.replace("numpy >=2", "numpy >=1"), r"content-hash"),
        ("environment.yml", lambda t: t.replace("  - conda-forge", "  - other"), r"content-hash"),
        ("environment.yml", lambda t: t + "  - pip\n  - pip:\n    - wheel-only\n", r"lock\.pip: wheel-only"),
        ("environment.yml", lambda t: re.sub(r" cuda129\*|.*cuda-version.*\n", "", t), "does not pin a CUDA build"),
        ("environment.yml", lambda t: t.replace("  - linux-64", "  - osx-arm64"), "content-hash"),
        ("environment.yml", lambda t: "dependencies: {\n", "not valid YAML"),
        ("environment.yml", lambda t: t.replace("dependencies:", "dependences:"), "cannot read it"),
        ("virtual-packages.yaml", lambda t: t.replace('      __cuda: "12.9"\n', ""), "does not declare __cuda"),
        ("virtual-packages.yaml", lambda t: t.replace("2.28", "2.12"), "needs __glibc"),
        ("virtual-packages.yaml", lambda t: "subdirs:\n  linux-64: []\n", "must be a mapping"),
    ],
)
def test_a_changed_environment_is_found_out(copied: Path, name: str, edit: Callable[[str], str], says: str) -> None:
    _edit(copied / name, edit)
    assert re.search(says, "\n".join(faults(copied / "conda-lock.yml"))), faults(copied / "conda-lock.yml")


def test_a_cpu_lock_with_cuda_is_found_out(copied: Path) -> None:
    cuda = read_lock(ROOT / "conda-lock.yml").path.read_text()
    entry = cuda[cuda.index("- name: nccl\n") : cuda.index("- name: ncurses\n")]
    _edit(copied / "conda-lock-cpu.yml", lambda text: text + entry)
    assert any("torch-build: nccl" in fault for fault in faults(copied / "conda-lock-cpu.yml"))


def test_a_lock_without_its_environment_file_is_checked_by_itself(copied: Path) -> None:
    for name in ("environment.yml", "virtual-packages.yaml"):
        (copied / name).unlink()
    lock = read_lock(copied / "conda-lock.yml")
    assert read_source(lock) is None
    findings = {finding.check: finding for finding in lock_findings(lock, None, "linux-64")}
    assert findings["environment.lock.content-hash"].status == "skip"
    assert findings["environment.lock.specs"].status == "skip"
    assert {finding.status for finding in findings.values()} == {"skip", "pass"}


def test_without_virtual_packages_conda_lock_assumes_its_own(copied: Path) -> None:
    (copied / "virtual-packages.yaml").unlink()
    found = faults(copied / "conda-lock.yml")
    assert any("content-hash" in fault for fault in found)
    assert any("does not declare __cuda" in fault for fault in found)


def test_a_lock_for_another_platform(copied: Path) -> None:
    lock = read_lock(copied / "conda-lock.yml")
    (finding,) = lock_findings(lock, read_source(lock), "linux-aarch64")
    assert (finding.check, finding.status) == ("environment.lock.platform", "fail")


SMALL_ENVIRONMENT = b"""name: small
channels:
  - conda-forge
platforms:
  - linux-64
dependencies:
  - python 3.12.*
  - pytorch >=2.10,<2.11 cuda129*
  - conda-forge::numpy >=2
"""
PIECES = [
    b"\n",
    b"- ",
    b": ",
    b"[",
    b"{",
    b">=",
    b"::",
    b"*",
    b"=",
    b"&a ",
    b"*a",
    b"\t",
    b'"',
    b"\xff",
    b"- pip:\n",
    b"  # [osx]",
]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    edits=st.lists(
        st.tuples(st.integers(0, len(SMALL_ENVIRONMENT)), st.integers(0, 9), st.sampled_from(PIECES)), max_size=4
    )
)
def test_any_environment_file_is_read_or_one_line(tmp_path: Path, edits: list[tuple[int, int, bytes]]) -> None:
    content = bytearray(SMALL_ENVIRONMENT)
    for start, removed, piece in edits:
        content[start : start + removed] = piece
    (tmp_path / "environment.yml").write_bytes(content)
    lock = dataclasses.replace(SMALL_LOCK, path=tmp_path / "conda-lock.yml")
    try:
        findings = lock_findings(lock, read_source(lock), "linux-64")
    except UnreadableError as error:
        is_one_line(error)
    else:
        assert all(finding.remedy for finding in findings if finding.status in ("warn", "fail"))


def is_one_line(error: UnreadableError) -> None:
    assert len(str(error).splitlines()) == 1


SMALL_LOCK = dataclasses.replace(
    read_lock(ROOT / "conda-lock.yml"),
    packages=tuple(p for p in read_lock(ROOT / "conda-lock.yml").packages if p.name in ("python", "pytorch", "numpy")),
)
