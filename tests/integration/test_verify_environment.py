"""``bench-runner verify`` over prefixes whose Python really runs, broken in the ways that users reported.

The prefix's Python is a package made of the running interpreter's executable (tests/conda_channel.py); ``torch`` and
``numpy`` in it are small stand-ins that fail as the real ones do, so that each report is reproduced without a GPU.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jsonschema
import psutil
import pytest

from bench_runner.cli import main
from bench_runner.cli import verify as verify_command
from bench_runner.environment.host import host_platform
from bench_runner.environment.lockfile import Lock, read_lock
from bench_runner.environment.verify import verify_environment
from bench_runner.finding import Finding
from tests.conda_channel import SITE_PACKAGES, Channel, install_prefix, python_module

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(host_platform() != "linux-64", reason="the channel of these tests is for linux-64")

NUMPY = """
class _Array(list):
    def reshape(self, *shape): return self
    def __matmul__(self, other): return self
    def sum(self): return 3920.0
    def tolist(self): return list(self)
float64 = float32 = float
def arange(n, dtype=None): return _Array([float(i) for i in range(n)])
"""


@pytest.fixture(scope="module")
def channel(tmp_path_factory: pytest.TempPathFactory) -> Channel:
    channel = Channel(tmp_path_factory.mktemp("trial") / "conda-forge")
    channel.add_interpreter()
    channel.add("numpy", "2.5.2", "py312_0", files=python_module("numpy", "2.5.2", NUMPY, noarch=False))
    torch = python_module("torch", "2.10.0", noarch=False)
    channel.add("pytorch", "2.10.0", "cuda129_0", depends=["__cuda"], files=torch)
    channel.add("mkl", "2024.1.0", "h0_0", files={"lib/libmkl_core.so.2": b"\x7fELF"})
    return channel


@pytest.fixture(scope="module")
def original(channel: Channel) -> Path:
    return install_prefix(channel, channel.path.parent / "prefix", cache=channel.path.parent / "cache")


@pytest.fixture
def prefix(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "prefix", symlinks=True))


@pytest.fixture
def lock(channel: Channel, tmp_path: Path) -> Lock:
    return read_lock(channel.write_lock(tmp_path / "conda-lock.yml", url="https://conda.anaconda.org/conda-forge"))


def _set_torch(prefix: Path, source: str) -> None:
    (prefix / SITE_PACKAGES / "torch" / "__init__.py").write_text(source)


def _judge(prefix: Path, lock: Lock, deadline: float = 60.0, **variables: str) -> dict[str, Finding]:
    environ = {"PATH": os.environ["PATH"], **variables}
    verification = verify_environment(prefix, lock, "quick", environ=environ, deadline_seconds=deadline)
    return {finding.check.removeprefix("environment."): finding for finding in verification.findings}


def test_an_undefined_symbol_has_its_known_cause(prefix: Path, lock: Lock) -> None:
    _set_torch(prefix, "raise ImportError('libtorch_cpu.so: undefined symbol: iJIT_NotifyEvent')")
    findings = _judge(prefix, lock)
    assert findings["loaded.python"].status == "pass"
    assert findings["loaded.numpy"].status == "pass"
    finding = findings["loaded.torch"]
    assert finding.status == "fail"
    assert "MKL 2024.1" in finding.message
    assert "mkl: installed 2024.1.0=h0_0, locked 2024.1.0=h0_0" in finding.evidence


def test_a_crash_at_import_is_a_finding(prefix: Path, lock: Lock) -> None:
    _set_torch(prefix, "import ctypes; ctypes.string_at(0)")
    findings = _judge(prefix, lock)
    assert (findings["loaded.torch"].status, findings["loaded.torch"].actual) == (
        "fail",
        "the process was killed by SIGSEGV",
    )
    assert findings["loaded.kernel"].status == "skip"
    assert findings["loaded.libraries"].status == "skip"


def test_an_endless_import_ends_at_the_deadline(prefix: Path, lock: Lock) -> None:
    _set_torch(prefix, "import subprocess, time; subprocess.Popen(['sleep', '300.125']); time.sleep(300)")
    started = time.monotonic()
    finding = _judge(prefix, lock, deadline=8.0)["loaded.torch"]
    assert finding.actual == "the process did not end within 8 s"
    assert time.monotonic() - started < 100
    assert not [process for process in psutil.process_iter(["cmdline"]) if "300.125" in (process.info["cmdline"] or [])]


@pytest.mark.parametrize(
    ("source", "check", "says"),
    [
        (
            "import warnings; warnings.warn('Failed to initialize NumPy: _ARRAY_API not found')\n"
            "__version__ = '2.10.0'\nclass version: cuda = None",
            "loaded.torch",
            "another major version of numpy",
        ),
        (
            "__version__ = '2.10.0'\nclass version: cuda = None\n"
            "def from_numpy(a): raise RuntimeError('Numpy is not available')",
            "loaded.bridge",
            "another major version of numpy",
        ),
        (
            "import sys; sys.stderr.write('terminate called'); import os; os._exit(7)",
            "loaded.torch",
            "ended with exit code 7",
        ),
        ("raise ImportError('x.so: undefined symbol: ncclCommRegister')", "loaded.torch", "another NCCL"),
        ('raise ImportError("libstdc++.so.6: version `GLIBCXX_3.4.32\' not found")', "loaded.torch", "older libstdc++"),
        ("raise OSError('libcudnn.so.9: cannot open shared object file')", "loaded.torch", "not in the environment"),
        ("import torch._C", "loaded.torch", "failed: ModuleNotFoundError"),
        ("1/", "loaded.torch", "failed: SyntaxError"),
    ],
)
def test_what_users_ran_into(prefix: Path, lock: Lock, source: str, check: str, says: str) -> None:
    _set_torch(prefix, source)
    finding = _judge(prefix, lock)[check]
    assert finding.status == "fail"
    assert says in finding.message
    assert finding.evidence
    assert finding.remedy


def _library(folder: Path, name: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "source.c"
    source.write_text("int answer(void) { return 42; }\n")
    command = ["gcc", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", str(folder / name), str(source)]
    subprocess.run(command, check=True)
    return folder / name


@pytest.mark.skipif(shutil.which("gcc") is None, reason="builds a library with gcc")
def test_a_shadowed_library_is_named_with_its_variable(prefix: Path, lock: Lock, tmp_path: Path) -> None:
    _set_torch(prefix, "import ctypes; ctypes.CDLL('libnccl.so.2'); __version__ = '2'\nclass version: cuda = None")
    shadow = _library(tmp_path / "elsewhere", "libnccl.so.2")
    findings = _judge(prefix, lock, LD_LIBRARY_PATH=f"{shadow.parent}:/nowhere")
    loaded = findings["loaded.libraries"]
    assert (loaded.status, loaded.actual, loaded.remedy) == ("fail", str(shadow), "unset LD_LIBRARY_PATH")
    named = findings["surroundings.ld-library-path"]
    assert (named.status, named.evidence) == ("warn", (str(shadow),))


@pytest.mark.skipif(shutil.which("gcc") is None, reason="builds a library with gcc")
def test_two_openmp_runtimes_and_a_library_of_no_package(prefix: Path, lock: Lock) -> None:
    libraries = [_library(prefix / "lib" / name, f"{name}.so.1") for name in ("libgomp", "libomp")]
    loads = "; ".join(f"ctypes.CDLL({str(path)!r})" for path in libraries)
    _set_torch(prefix, f"import ctypes; {loads}; __version__ = '2'\nclass version: cuda = None")
    findings = _judge(prefix, lock)
    assert findings["loaded.openmp"].status == "warn"
    assert set(findings["loaded.openmp"].evidence) == {str(path) for path in libraries}
    assert findings["loaded.libraries"].status == "warn"
    assert f"{libraries[0]}: of no locked package" in findings["loaded.libraries"].evidence


def test_variables_that_shadow(prefix: Path, lock: Lock, tmp_path: Path) -> None:
    (tmp_path / "path" / "torch").mkdir(parents=True)
    (tmp_path / "path" / "torch" / "__init__.py").write_text("raise RuntimeError('the wrong torch')")
    (tmp_path / "cuda-12.4").mkdir()
    findings = _judge(
        prefix,
        lock,
        PYTHONPATH=str(tmp_path / "path"),
        CUDA_HOME=str(tmp_path / "cuda-12.4"),
        CONDA_PREFIX="/opt/other",
        LD_PRELOAD=str(tmp_path / "libtcmalloc.so"),
    )
    assert findings["surroundings.pythonpath"].evidence == (f"{tmp_path}/path/torch",)
    assert findings["surroundings.cuda-home"].actual == "CUDA 12.4"
    assert findings["surroundings.active"].actual == "/opt/other"
    assert findings["surroundings.ld-preload"].status == "warn"
    assert "the wrong torch" in str(findings["loaded.torch"].actual)


def test_the_python_of_another_environment(prefix: Path, lock: Lock) -> None:
    verification = verify_environment(prefix, lock, "quick", python=Path(sys.executable), environ={})
    finding = next(f for f in verification.findings if f.check == "environment.loaded.python")
    assert (finding.status, finding.actual) == ("fail", sys.prefix)


def test_a_prefix_whose_python_is_gone(prefix: Path, lock: Lock) -> None:
    (prefix / "bin" / "python").unlink()
    findings = _judge(prefix, lock)
    assert findings["files.missing"].status == "fail"
    assert findings["loaded.python"].status == "fail"
    assert "could not be started" in str(findings["loaded.python"].actual)


def _run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main(["verify", "--only", "environment", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def _json(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, dict[str, Any]]:
    code, out, _ = _run(capsys, "--json", *arguments)
    document = json.loads(out)
    jsonschema.validate(document, json.loads((ROOT / "docs/schemas/verify-1.json").read_text()))
    return code, document


def test_exit_codes_and_documents(
    prefix: Path, lock: Lock, channel: Channel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _set_torch(prefix, "raise ImportError('broken')")
    code, document = _json(capsys, "--prefix", prefix, "--lock", lock.path)
    assert (code, document["verdict"], document["subject"]["mode"]) == (1, "fail", "full")
    failed = {f["check"] for f in document["findings"] if f["status"] == "fail"}
    assert failed >= {"environment.files.altered", "environment.loaded.torch"}
    assert {"lock", "records", "packages", "files", "trial run"} <= document["seconds"].keys()

    (tmp_path / "environment.yml").write_text(
        "channels: [conda-forge]\nplatforms: [linux-64]\ndependencies: [pytorch 3.*]\n"
    )
    code, document = _json(capsys, "--prefix", prefix, "--lock", lock.path, "--quick")
    assert code == 2  # the lock does not belong to environment.yml: not the environment's fault
    assert {f["check"] for f in document["findings"] if f["status"] == "fail"} >= {
        "environment.lock.content-hash",
        "environment.lock.specs",
    }

    code, out, err = _run(capsys, "--prefix", tmp_path / "absent", "--lock", lock.path)
    assert (code, out) == (2, "")
    assert "no such folder" in err
    lock.path.write_text("x")
    code, out, err = _run(capsys, "--prefix", prefix, "--lock", lock.path)
    assert (code, out, err.count("\n")) == (2, "", 1)


def test_what_env_create_builds_passes_and_the_remedy_repairs_it(
    channel: Channel, lock: Lock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Created, verified, damaged in place (and so, by the hard link, in the package cache), repaired by the remedy."""
    monkeypatch.setenv("BENCH_RUNNER_CHANNEL_URL", channel.path.as_uri())
    monkeypatch.setenv("CONDA_OVERRIDE_CUDA", "12.9")
    monkeypatch.setenv("BENCH_RUNNER_CACHE_DIR", str(tmp_path / "packages"))
    prefix = tmp_path / "built"
    assert main(["env", "create", str(prefix), "--lock", str(lock.path)]) == 0
    capsys.readouterr()

    def wrong(place: Path) -> set[str]:
        _, document = _json(capsys, "--prefix", place, "--lock", lock.path)
        bad = [f for f in document["findings"] if f["status"] in ("warn", "fail")]
        return {f["check"] for f in bad if not f["check"].startswith("environment.loaded.")}

    assert wrong(prefix) == set()
    damaged = prefix / SITE_PACKAGES / "numpy" / "__init__.py"
    assert damaged.stat().st_nlink > 1
    with damaged.open("r+b") as file:
        file.write(b"#")
    _, document = _json(capsys, "--prefix", prefix, "--lock", lock.path)
    (altered,) = [
        f for f in document["findings"] if f["check"] == "environment.files.altered" and f["status"] == "fail"
    ]
    program, *arguments = shlex.split(altered["remedy"])
    assert program == "bench-runner"
    assert main(arguments) == 0
    capsys.readouterr()
    assert wrong(prefix.with_name("built-new")) == set()
    assert wrong(prefix) == {"environment.files.altered"}


def test_the_lock_by_default_is_the_one_that_built_the_prefix(
    channel: Channel, lock: Lock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert verify_command.lock_for(tmp_path, None) == read_lock(Path("conda-lock.yml"))
    monkeypatch.setenv("BENCH_RUNNER_CHANNEL_URL", channel.path.as_uri())
    monkeypatch.setenv("BENCH_RUNNER_CACHE_DIR", str(tmp_path / "packages"))
    monkeypatch.setenv("CONDA_OVERRIDE_CUDA", "12.9")
    Path("conda-lock-other.yml").write_text(lock.path.read_text() + "# another file\n")
    assert main(["env", "create", "built", "--lock", "conda-lock-other.yml"]) == 0
    chosen = verify_command.lock_for(tmp_path / "built", None)
    assert chosen is not None
    assert chosen.path == Path("conda-lock-other.yml")
    Path("conda-lock-other.yml").unlink()
    assert verify_command.lock_for(tmp_path / "built", None) == read_lock(Path("conda-lock.yml"))
    Path("conda-lock.yml").unlink()
    assert verify_command.lock_for(tmp_path / "built", None) is None


def test_without_a_lock_there_is_nothing_to_compare_with(
    prefix: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    _, document = _json(capsys, "--prefix", prefix, "--quick")
    findings = {f["check"]: f for f in document["findings"]}
    assert findings["environment.lock"]["status"] == "skip"
    assert not any(check.startswith("environment.packages.") for check in findings)


def test_the_machine_beside_the_environment(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").symlink_to("/bin/false")
    main(["verify", "--only", "machine", "--json", "--prefix", str(tmp_path)])
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, json.loads((ROOT / "docs/schemas/verify-1.json").read_text()))
    assert list(document["groups"]) == ["machine"]
    assert document["seconds"].keys() == {"machine"}


def test_text_says_the_worst_first_and_what_was_skipped(
    prefix: Path, lock: Lock, capsys: pytest.CaptureFixture[str]
) -> None:
    (prefix / "lib" / "libmkl_core.so.2").unlink()
    _, out, _ = _run(capsys, "--prefix", prefix, "--lock", lock.path, "--quick")
    assert out.index("FAILED") < out.index("SKIPPED") < out.index("PASSED") < out.index("verdict: fail")
    assert "lib/libmkl_core.so.2 (mkl): a file, found nothing there" in out
    assert f"remedy    bench-runner env create {prefix}-new --lock {lock.path} --validate-cache" in out


def test_the_running_environment_with_its_real_torch(capsys: pytest.CaptureFixture[str]) -> None:
    """No stand-in: imports torch, computes, and reads the process's memory map."""
    code, document = _json(capsys, "--quick", "--lock", ROOT / "conda-lock.yml")
    findings = {f["check"].removeprefix("environment."): f for f in document["findings"]}
    for check in ("loaded.python", "loaded.numpy", "loaded.torch", "loaded.kernel", "loaded.bridge"):
        assert findings[check]["status"] == "pass", findings[check]
    assert findings["loaded.libraries"]["status"] in ("pass", "warn"), findings["loaded.libraries"]
    if not (Path(sys.prefix) / "conda-meta").is_dir():
        assert findings["prefix"]["status"] == "warn"
        assert findings["files"]["status"] == "skip"
        assert (code, document["verdict"]) == (0, "warn"), [f for f in document["findings"] if f["status"] == "fail"]


def test_a_folder_that_is_no_environment_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--only", "environment", "--prefix", str(tmp_path)]) == 2
    assert "no environment (no bin/python, conda-meta or pyvenv.cfg there)" in capsys.readouterr().err


def test_the_lock_by_default_suits_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("conda-lock.yml", "conda-lock-cpu.yml"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    monkeypatch.chdir(tmp_path)
    for cuda, name in (("12.9", "conda-lock.yml"), ("", "conda-lock-cpu.yml")):
        monkeypatch.setenv("CONDA_OVERRIDE_CUDA", cuda)
        chosen = verify_command.lock_for(tmp_path, None)
        assert chosen is not None
        assert chosen.path == Path(name)
