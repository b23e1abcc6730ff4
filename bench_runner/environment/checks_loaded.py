"""Judge what an environment did when it ran: steps of the probe, and the libraries it mapped.  Pure: values in."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench_runner.environment.causes import known_cause
from bench_runner.environment.checks_packages import shown
from bench_runner.environment.loaded import LoadedEnvironment, Step
from bench_runner.environment.shadows import TELLING_LIBRARY
from bench_runner.finding import Finding

SYSTEM_LIBRARY: Final = re.compile(
    r"(ld-linux\S*|ld|libc|libm|libdl|librt|libpthread|libutil|libresolv|libanl|libnsl|libnss_\w+|libcrypt|libmvec"
    r"|libcuda|libcudadebugger|libnvidia-\S+|libdrm|libnvcuvid|libamdhip64|libhsa-runtime64)([-.]\S*)?"
)
"""The C library and the driver's own: always the machine's, never the environment's."""

_FAMILY: Final = re.compile(
    r"nccl|cudnn|cublas|cusparse|cusolver|nvjitlink|nvrtc|cudart|mkl|stdc\+\+|gomp|torchvision", re.IGNORECASE
)
OPENMP_LIBRARY: Final = re.compile(r"lib(gomp|omp|iomp5)([-.]\S*)?\.so\S*")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedCase:
    """The probe's outcome with what it is held against.

    ``versions`` are installed packages and distributions, ``locked`` the lock's, name to version; ``owned`` are the
    real paths of the libraries that locked packages brought, ``None`` where no records say; ``variables`` are the
    probe's own.
    """

    prefix: Path
    loaded: LoadedEnvironment
    versions: Mapping[str, str]
    locked: Mapping[str, str]
    owned: frozenset[str] | None
    variables: Mapping[str, str]
    remedy: str


def started(case: LoadedCase) -> Finding:
    """Whether the environment's Python runs at all, as the one that was meant, and came to the probe's end."""
    check = "environment.loaded.python"
    step = case.loaded.step("interpreter")
    if step.state != "passed":
        evidence = (str(case.loaded.python), case.loaded.ended, *case.loaded.output.splitlines()[-10:])
        return _fault(
            case, check, f"{case.loaded.python} does not run", "a Python that starts", case.loaded.ended, evidence
        )
    ran_in = str(step.values.get("prefix"))
    if os.path.realpath(ran_in) != os.path.realpath(case.prefix):
        evidence = (f"{case.loaded.python} has the prefix {ran_in}",)
        return _fault(case, check, "Python belongs to another environment", str(case.prefix), ran_in, evidence)
    return Finding(check=check, status="pass", message=f"Python {step.values.get('version')} runs")


def numpy_works(case: LoadedCase) -> Finding:
    return _step(case, "numpy", "numpy imports and computes")


def torch_imports(case: LoadedCase) -> Finding:
    return _step(case, "torch", "torch imports")


def kernel_runs(case: LoadedCase) -> Finding:
    return _step(case, "kernel", "torch computes the right values on the CPU")


def bridge_works(case: LoadedCase) -> Finding:
    """torch.from_numpy and back: dead, with no more than a warning at import, if built against another numpy."""
    return _step(case, "bridge", "values pass between numpy and torch")


def torchvision_works(case: LoadedCase) -> Finding:
    return _step(case, "torchvision", "torchvision's operators work")


def cuda_kernel_runs(case: LoadedCase) -> Finding:
    """A kernel on the first device.  Without one this is skipped, never passed."""
    step = case.loaded.step("cuda")
    if step.state == "passed" and not step.values.get("available"):
        message = "GPU checks skipped: torch has no CUDA device here"
        return Finding(check="environment.loaded.cuda", status="skip", message=message)
    return _step(case, "cuda", "torch computes the right values on the first CUDA device")


def libraries_owned(case: LoadedCase) -> Finding:
    """Every library that was mapped belongs to the prefix, and there to a locked package."""
    check = "environment.loaded.libraries"
    if not case.loaded.libraries:
        return Finding(check=check, status="skip", message="the memory map was not reached")
    outside, unowned = _strangers(case)
    if not outside and not unowned:
        return Finding(
            check=check,
            status="pass",
            message=f"all {len(case.loaded.libraries)} loaded libraries come from where they should",
        )
    shadowing = [path for path in outside if TELLING_LIBRARY.fullmatch(_name(path))]
    own = {_name(path) for path in case.owned or ()}
    lines = [f"{path}: outside {case.prefix}{_twin(path, own)}" for path in outside]
    lines += [f"{path}: of no locked package" for path in unowned]
    return Finding(
        check=check,
        status="fail" if shadowing and case.owned is not None else "warn",
        message=f"{len(lines)} loaded libraries do not belong to the environment's packages",
        expected=f"libraries of packages in {case.prefix}",
        actual=(shadowing or outside or unowned)[0],
        evidence=shown(lines),
        remedy=_unset(shadowing or outside, case.variables) or case.remedy,
    )


def one_openmp(case: LoadedCase) -> Finding:
    """More than one OpenMP runtime in one process: they fight for the cores, and CPU work can slow down by 3 to 4."""
    found = sorted({path for path in case.loaded.libraries if OPENMP_LIBRARY.fullmatch(_name(path))})
    check = "environment.loaded.openmp"
    if not case.loaded.libraries:
        return Finding(check=check, status="skip", message="the memory map was not reached")
    if len(found) < 2:
        return Finding(check=check, status="pass", message=f"one OpenMP runtime: {', '.join(found) or 'none loaded'}")
    return Finding(
        check=check,
        status="warn",
        message=f"{len(found)} OpenMP runtimes in one process",
        expected="one",
        actual=", ".join(_name(path) for path in found),
        evidence=tuple(found),
        remedy=case.remedy,
    )


def blas_as_locked(case: LoadedCase) -> Finding:
    """The BLAS that runs is the lock's."""
    check = "environment.loaded.blas"
    pools: list[dict[str, Any]] = [
        p for p in case.loaded.step("threadpools").values.get("pools", []) if isinstance(p, dict)
    ]
    running = sorted({str(pool.get("internal_api")) for pool in pools if pool.get("user_api") == "blas"})
    build = case.locked.get("libblas", "")
    wanted = next((name for name in ("mkl", "openblas", "blis") if build.endswith(name)), None)
    if not running or wanted is None:
        return Finding(check=check, status="skip", message="the running BLAS, or the locked one, is not known")
    if running == [wanted]:
        return Finding(check=check, status="pass", message=f"BLAS is {wanted}, as locked")
    evidence = tuple(f"{p.get('internal_api')} {p.get('version')}: {p.get('filepath')}" for p in pools)
    return _fault(case, check, "another BLAS runs than is locked", wanted, ", ".join(running), evidence, status="warn")


def loaded_findings(case: LoadedCase) -> list[Finding]:
    """Every check of what ran; when Python itself does not start, that alone."""
    first = started(case)
    if case.loaded.step("interpreter").state != "passed":
        return [first]
    return [first, *(check(case) for check in CHECKS)]


def _step(case: LoadedCase, name: str, good: str) -> Finding:
    check = f"environment.loaded.{name}"
    step = case.loaded.step(name)
    if step.state == "not-reached":
        return Finding(
            check=check, status="skip", message=f"not reached: the probe {case.loaded.ended or 'ended early'}"
        )
    warned = [line for line in step.warnings if known_cause(line)]
    if step.state == "passed" and not warned:
        version = step.values.get("version")
        return Finding(check=check, status="pass", message=f"{good}{f' ({name} {version})' if version else ''}")
    if step.missing_module in ("numpy", "torch") and name != step.missing_module:
        message = f"{name} needs {step.missing_module}, which is not installed"
        return Finding(check=check, status="skip", message=message)
    if step.missing_module == name == "torchvision" and name not in case.versions:
        return Finding(check=check, status="skip", message="torchvision is not installed")
    return _broken_step(case, check, step, warned)


def _broken_step(case: LoadedCase, check: str, step: Step, warned: list[str]) -> Finding:
    broken_off = step.state == "broken-off"
    said = case.loaded.output if broken_off else "\n".join([step.error, step.traceback, *warned, case.loaded.output])
    cause = known_cause(said)
    actual = f"the process {case.loaded.ended}" if broken_off else step.error or warned[0]
    lines = [*step.error.splitlines(), *warned, *case.loaded.output.splitlines()[-8:]]
    if broken_off:
        lines.insert(0, f"{case.loaded.python}: while trying {step.name}, the process {case.loaded.ended}")
    if cause is not None:
        lines += [
            f"{name}: installed {case.versions.get(name, 'not')}, locked {case.locked.get(name, 'not')}"
            for name in cause.packages
            if name in case.versions or name in case.locked
        ]
        lines += _named_libraries(said, case.loaded.libraries)
    if step.missing_module == step.name:
        return _fault(case, check, f"{step.name} is not installed", f"{step.name} of the lock", actual, tuple(lines))
    message = f"{step.name}: " + (cause.explanation if cause else f"failed: {actual.splitlines()[0][:200]}")
    return _fault(case, check, message, "a step that passes", actual[:500], tuple(dict.fromkeys(lines)))


def _named_libraries(said: str, libraries: tuple[str, ...]) -> list[str]:
    """Which of the libraries that an error is about were loaded, by path."""
    families = {word.lower() for word in _FAMILY.findall(said)}
    return [f"loaded: {path}" for path in libraries if any(family in _name(path).lower() for family in families)]


def _strangers(case: LoadedCase) -> tuple[list[str], list[str]]:
    """Libraries outside the prefix, and libraries inside of no locked package."""
    prefix = os.path.realpath(case.prefix)
    base = os.path.realpath(str(case.loaded.step("interpreter").values.get("base_prefix") or prefix))
    has_records = case.owned is not None
    outside: list[str] = []
    unowned: list[str] = []
    for path in case.loaded.libraries:
        name = _name(path)
        if SYSTEM_LIBRARY.fullmatch(name.partition(".so")[0]):
            continue
        if not Path(path).is_relative_to(prefix):
            # A venv's Python is another's; its own libraries are the system's unless they are torch's business.
            of_base = Path(path).is_relative_to(base)
            if not of_base and (has_records or (TELLING_LIBRARY.fullmatch(name) and not _of_system(path))):
                outside.append(path)
        elif case.owned is not None and path not in case.owned:
            unowned.append(path)
    return outside, unowned


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _of_system(path: str) -> bool:
    """libstdc++ and libgcc of the system, which wheels are meant to use."""
    return path.startswith(("/usr/lib", "/lib")) and bool(re.search(r"/lib(stdc\+\+|gcc_s|python)", path))


def _twin(path: str, own: set[str]) -> str:
    stem = _name(path).partition(".so")[0]
    twin = next((name for name in sorted(own) if name.partition(".so")[0] == stem), None)
    return f", instead of the environment's {twin}" if twin else ""


def _unset(paths: list[str], variables: Mapping[str, str]) -> str | None:
    """Unset the variable that led to a library outside, if one did."""
    folders = {os.path.dirname(path) for path in paths}  # noqa: PTH120
    for variable in ("LD_LIBRARY_PATH", "LD_PRELOAD"):
        named = re.split("[: ]", variables.get(variable, ""))
        if any(folder in map(os.path.realpath, named) for folder in folders):
            return f"unset {variable}"
    return None


def _fault(
    case: LoadedCase,
    check: str,
    message: str,
    expected: str,
    actual: str,
    evidence: tuple[str, ...],
    status: str = "fail",
) -> Finding:
    return Finding(
        check=check,
        status="warn" if status == "warn" else "fail",
        message=message,
        expected=expected,
        actual=actual,
        evidence=shown(line for line in evidence if line),
        remedy=case.remedy,
    )


CHECKS: Final[tuple[Callable[[LoadedCase], Finding], ...]] = (
    numpy_works,
    torch_imports,
    kernel_runs,
    bridge_works,
    torchvision_works,
    cuda_kernel_runs,
    libraries_owned,
    one_openmp,
    blas_as_locked,
)
