"""The memory map's reader, the probe's lines, the variables around, and the judging of a trial run: pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_runner.environment.causes import known_cause
from bench_runner.environment.checks_loaded import LoadedCase, loaded_findings
from bench_runner.environment.checks_pip import matching_torchvision
from bench_runner.environment.checks_surroundings import surroundings_findings
from bench_runner.environment.loaded import LoadedEnvironment, Step, parse_steps, probe_loaded
from bench_runner.environment.maps import mapped_libraries
from bench_runner.environment.shadows import read_surroundings
from bench_runner.finding import Finding
from bench_runner.report.verification import verify_text

# Lines of a real /proc/self/maps, with the odd ones that proc(5) allows.
MAPS = """\
559d8a2c4000-559d8a2c5000 r--p 00000000 fe:00 26723                      /opt/env/bin/python3.12
7f1b2c000000-7f1b2c021000 rw-p 00000000 00:00 0
7f1b3a200000-7f1b3a228000 r--p 00000000 fe:00 1835                       /opt/env/lib/libtorch_cpu.so
7f1b3a228000-7f1b3a3bd000 r-xp 00028000 fe:00 1835                       /opt/env/lib/libtorch_cpu.so
7f1b3a400000-7f1b3a500000 r-xp 00000000 fe:00 99                         /opt/my env/libnccl.so.2.30.7
7f1b3a500000-7f1b3a600000 r-xp 00000000 fe:00 98                         /usr/lib/libcudnn.so.9 (deleted)
7f1b3a600000-7f1b3a700000 r-xp 00000000 fe:00 97                         /opt/a\\012b/libx.so
7ffd1a3c2000-7ffd1a3e3000 rw-p 00000000 00:00 0                          [stack]
7ffd1a3f0000-7ffd1a3f2000 r-xp 00000000 00:00 0                          [vdso]
7f1b3a800000-7f1b3a900000 rw-s 00000000 00:01 1                          /dev/shm/not.something
"""


def test_the_libraries_of_a_map() -> None:
    assert mapped_libraries(MAPS) == (
        "/opt/env/lib/libtorch_cpu.so",
        "/opt/my env/libnccl.so.2.30.7",
        "/usr/lib/libcudnn.so.9",
        "/opt/a\nb/libx.so",
    )


def test_the_map_of_this_process() -> None:
    found = mapped_libraries(Path("/proc/self/maps").read_text())
    assert any(Path(path).name.startswith("libc.so") for path in found)
    assert all(Path(path).is_file() for path in found)


@given(
    text=st.text(max_size=300) | st.lists(st.sampled_from([*MAPS.splitlines(), "", "\\012", "/x.so"])).map("\n".join)
)
def test_any_map_gives_absolute_paths(text: str) -> None:
    assert all(path.startswith("/") and ".so" in path for path in mapped_libraries(text))


def test_the_probes_lines() -> None:
    lines = [
        "something that a module printed",
        json.dumps({"step": "numpy", "state": "begun"}),
        json.dumps({"step": "numpy", "state": "passed", "values": {"version": "2"}, "warnings": ["w"]}),
        json.dumps({"step": "torch", "state": "begun"}),
        '{"step": "torch", "sta',
    ]
    steps = parse_steps("\n".join(lines))
    assert (steps["numpy"].state, steps["numpy"].values, steps["numpy"].warnings) == (
        "passed",
        {"version": "2"},
        ("w",),
    )
    assert steps["torch"].state == "broken-off"


_PLAIN = st.none() | st.integers() | st.text(max_size=5) | st.lists(st.text(max_size=3), max_size=2)


@given(
    lines=st.lists(
        st.text(max_size=30)
        | st.dictionaries(st.sampled_from(["step", "state", "values", "error", "warnings", "module"]), _PLAIN).map(
            json.dumps
        )
    )
)
def test_any_lines_are_steps(lines: list[str]) -> None:
    for name, step in parse_steps("\n".join(lines)).items():
        assert step.name == name
        assert step.state in ("passed", "failed", "broken-off")


def test_a_python_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "python").write_text("#!/bin/sh\nexit 3\n")
    assert "Permission denied" in probe_loaded(tmp_path / "python", {}).ended
    (tmp_path / "python").chmod(0o755)
    loaded = probe_loaded(tmp_path / "python", {})
    assert (loaded.ended, loaded.steps, loaded.step("torch").state) == ("ended with exit code 3", {}, "not-reached")


GOOD: dict[str, dict[str, Any]] = {
    "interpreter": {"version": "3.12.1", "prefix": "/opt/env", "base_prefix": "/opt/env"},
    "numpy": {"version": "2.5.2"},
    "torch": {"version": "2.10.0"},
    "kernel": {},
    "bridge": {},
    "torchvision": {"version": "0.25.0"},
    "threadpools": {"pools": [{"user_api": "blas", "internal_api": "mkl", "version": "2025", "filepath": "/x"}]},
    "cuda": {"available": True},
    "libraries": {},
}


def _findings(
    libraries: tuple[str, ...] = ("/opt/env/lib/libtorch_cpu.so",),
    owned: frozenset[str] | None = frozenset({"/opt/env/lib/libtorch_cpu.so"}),
    variables: Mapping[str, str] | None = None,
    locked: Mapping[str, str] | None = None,
    **steps: Step | None,
) -> dict[str, Finding]:
    every: dict[str, Step | None] = {n: Step(name=n, state="passed", values=v) for n, v in GOOD.items()}
    every |= steps
    known = {name: step for name, step in every.items() if step is not None}
    case = LoadedCase(
        prefix=Path("/opt/env"),
        loaded=LoadedEnvironment(
            python=Path("/opt/env/bin/python"), steps=known, ended="", output="", libraries=libraries
        ),
        versions={"pytorch": "2.10.0=cuda129_0"},
        locked=locked if locked is not None else {"libblas": "3.11.0=6_h5875eb1_mkl"},
        owned=owned,
        variables=variables or {},
        remedy="do this",
    )
    return {finding.check.removeprefix("environment.loaded."): finding for finding in loaded_findings(case)}


def test_all_is_well() -> None:
    assert {finding.status for finding in _findings().values()} == {"pass"}


def test_no_gpu_is_skipped_and_never_passed() -> None:
    finding = _findings(cuda=Step(name="cuda", state="passed", values={"available": False}))["cuda"]
    assert (finding.status, finding.message) == ("skip", "GPU checks skipped: torch has no CUDA device here")


def test_wrong_values_fail() -> None:
    step = Step(name="kernel", state="failed", error="ArithmeticError: wrong values: 1 instead of 2")
    assert _findings(kernel=step)["kernel"].status == "fail"


def test_an_undefined_symbol_comes_with_the_library_that_was_loaded() -> None:
    step = Step(name="torch", state="failed", error="ImportError: libtorch_cuda.so: undefined symbol: ncclCommShrink")
    finding = _findings(("/usr/lib/libnccl.so.2.18.5", "/opt/env/lib/libtorch_cpu.so"), torch=step)["torch"]
    assert "loaded: /usr/lib/libnccl.so.2.18.5" in finding.evidence


def test_without_torch_only_its_import_fails() -> None:
    missing = "ModuleNotFoundError: No module named 'torch'"
    findings = _findings(
        **{
            name: Step(name=name, state="failed", error=missing, missing_module="torch")
            for name in ("torch", "kernel", "bridge", "torchvision", "cuda")
        }
    )
    assert (findings["torch"].status, findings["torch"].message) == ("fail", "torch is not installed")
    assert {findings[name].status for name in ("kernel", "bridge", "torchvision", "cuda")} == {"skip"}


def test_another_blas_than_locked() -> None:
    assert _findings(locked={"libblas": "3.11.0=6_h4a7cf45_openblas"})["blas"].status == "warn"
    assert _findings(locked={})["blas"].status == "skip"


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/opt/env/lib/libtorch_cpu.so", "pass"),
        ("/lib/x86_64-linux-gnu/libc.so.6", "pass"),
        ("/usr/lib/x86_64-linux-gnu/libcuda.so.570.86.15", "pass"),
        ("/usr/lib/x86_64-linux-gnu/libnvidia-ptxjitcompiler.so.570.86.15", "pass"),
        ("/lib64/ld-linux-x86-64.so.2", "pass"),
        ("/usr/local/cuda/lib64/libcudnn.so.9", "fail"),
        ("/usr/lib/x86_64-linux-gnu/libstdc++.so.6.0.30", "fail"),
        ("/usr/lib/x86_64-linux-gnu/libjpeg.so.8", "warn"),
        ("/opt/env/lib/python3.12/site-packages/wheel/core.so", "warn"),
    ],
)
def test_whose_libraries_were_loaded(path: str, status: str) -> None:
    finding = _findings(libraries=("/opt/env/lib/libtorch_cpu.so", path))["libraries"]
    assert finding.status == status
    assert status == "pass" or any(path in line for line in finding.evidence)


def test_the_environments_own_twin_is_named() -> None:
    owned = frozenset({"/opt/env/lib/libcudnn.so.9.13.1"})
    libraries = ("/opt/made-up-cuda/lib/libcudnn.so.9",)
    finding = _findings(libraries, owned, {"LD_LIBRARY_PATH": "/x:/opt/made-up-cuda/lib"})["libraries"]
    assert finding.evidence == (f"{libraries[0]}: outside /opt/env, instead of the environment's libcudnn.so.9.13.1",)
    assert finding.remedy == "unset LD_LIBRARY_PATH"
    assert _findings(libraries, owned)["libraries"].remedy == "do this"


def test_a_virtual_environment_may_use_the_systems_libraries() -> None:
    allowed = ("/usr/lib/x86_64-linux-gnu/libstdc++.so.6.0.30", "/usr/lib/x86_64-linux-gnu/libssl.so.3")
    assert _findings(allowed, None)["libraries"].status == "pass"
    assert _findings(("/usr/local/cuda/lib64/libcudnn.so.9",), None)["libraries"].status == "warn"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("libtorch_cpu.so: undefined symbol: iJIT_NotifyEvent", "MKL 2024.1"),
        ("libtorch_cuda.so: undefined symbol: ncclCommRegister", "another NCCL"),
        ("libcusparse.so.12: undefined symbol: __nvJitLinkComplete_12_4, version libnvJitLink.so.12", "CUDA library"),
        ("/lib/libstdc++.so.6: version `GLIBCXX_3.4.32' not found", "libstdc"),
        ("A module that was compiled using NumPy 1.x cannot be run in NumPy 2.0", "numpy"),
        ("RuntimeError: operator torchvision::nms does not exist", "torchvision"),
        ("libcudart.so.12: cannot open shared object file: No such file or directory", "not in the environment"),
        ("CUDA error: no kernel image is available for execution on the device", "no code for this GPU"),
    ],
)
def test_known_causes(text: str, says: str) -> None:
    cause = known_cause(text)
    assert cause is not None
    assert says in cause.explanation
    assert known_cause("all is well") is None


def test_the_variables_around(tmp_path: Path) -> None:
    prefix = tmp_path / "env"
    (prefix / "lib" / "python3.12" / "site-packages" / "torch").mkdir(parents=True)
    (prefix / "lib" / "python3.12" / "site-packages" / "torch" / "__init__.py").touch()
    cuda = tmp_path / "cuda"
    cuda.mkdir()
    for name in ("libcudart.so.12", "libcudnn_ops.so.9", "libother.so", "libnccl.so.2.27.3"):
        (cuda / name).touch()
    (cuda / "version.json").write_text('{"cuda": {"name": "CUDA SDK", "version": "12.4.1"}}')
    (tmp_path / "modules" / "torch").mkdir(parents=True)
    (tmp_path / "modules" / "torch" / "__init__.py").touch()
    (tmp_path / "modules" / "mine.py").touch()
    environ = {
        "LD_LIBRARY_PATH": f"{cuda}:{prefix}/lib:{tmp_path}/absent:",
        "PYTHONPATH": f"{tmp_path}/modules:{tmp_path}/absent",
        "CUDA_HOME": str(cuda),
        "VIRTUAL_ENV": str(prefix),
    }
    seen = read_surroundings(prefix, environ)
    found = {f.check.removeprefix("environment.surroundings."): f for f in surroundings_findings(seen, "12.9")}
    assert found["ld-library-path"].evidence == (
        f"{cuda}/libcudart.so.12",
        f"{cuda}/libcudnn_ops.so.9",
        f"{cuda}/libnccl.so.2.27.3",
    )
    assert found["pythonpath"].evidence == (f"{tmp_path}/modules/torch",)
    assert (found["cuda-home"].expected, found["cuda-home"].actual) == ("CUDA 12.9", "CUDA 12.4")
    assert found["active"].status == found["ld-preload"].status == found["pythonhome"].status == "pass"
    (same,) = [f for f in surroundings_findings(seen, "12.4") if f.check.endswith("cuda-home")]
    assert same.status == "pass"
    (unknown,) = [f for f in surroundings_findings(seen, None) if f.check.endswith("cuda-home")]
    assert unknown.status == "skip"
    assert {f.status for f in surroundings_findings(read_surroundings(prefix, {}), "12.9")} == {"pass"}


@pytest.mark.parametrize(
    ("torch", "vision"), [("2.0.1", "0.15"), ("2.10.0", "0.25"), ("2.13.0+cpu", "0.28"), ("1.13", None), ("x", None)]
)
def test_release_pairs(torch: str, vision: str | None) -> None:
    assert matching_torchvision(torch) == vision


def test_what_programs_said_cannot_steer_the_terminal() -> None:
    finding = Finding(check="a.b", status="fail", message="m\x1b[2J", evidence=("e\x07\x9b",), remedy="do this")
    text = verify_text({"environment": [finding]}, {"prefix": "/x\x1b"})
    assert all(character.isprintable() or character == "\n" for character in text)
    assert "do this" in text


def test_many_skips_are_folded_behind_the_first_reason_of_each_part() -> None:
    skips = [Finding(check=f"machine.check-{i}", status="skip", message=f"no device {i}") for i in range(9)]
    text = verify_text({"machine": skips}, {})
    assert "machine.check-0: no device 0" in text
    assert "8 more (--passed says why): machine.check-1, machine.check-2" in text
    assert "no device 5" not in text
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "machine.check-5: no device 5" in verify_text({"machine": skips}, {}, passes=True)
