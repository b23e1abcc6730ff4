"""What differs between two environments, grouped by what matters for speed and correctness.  Pure.

A value that one side does not know (a pip package has no build, a run record no hashes) is no difference.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

from bench_runner.environment.distributions import normalize
from bench_runner.environment.export import ExportedPackage
from bench_runner.environment.lockfile import channel_name
from bench_runner.environment.summary import PACKAGES_THAT_MATTER

DIFF_SCHEMA: Final = "bench-runner/env-diff/1"

SideKind = Literal["prefix", "lock", "export", "record"]
Group = Literal["torch", "CUDA", "NCCL", "cuDNN", "BLAS", "OpenMP", "Python", "variables", "rest"]
GROUPS: Final[tuple[Group, ...]] = ("torch", "CUDA", "NCCL", "cuDNN", "BLAS", "OpenMP", "Python", "variables", "rest")
Field = Literal["presence", "version", "build", "channel", "hash", "value"]
What = Literal["package", "library", "variable", "fact"]

_PATTERNS: Final[tuple[tuple[Group, re.Pattern[str]], ...]] = (
    ("NCCL", re.compile(r".*nccl.*|rccl")),
    ("cuDNN", re.compile(r".*cudnn.*")),
    ("torch", re.compile(r"(lib)?torch.*|pytorch.*|triton|.*torch")),
    ("OpenMP", re.compile(r"_openmp_mutex|.*openmp.*|libgomp|libomp|libiomp\d?|iomp\d?")),
    ("BLAS", re.compile(r"(lib)?(c|lap)?(ack|blas)e?|.*openblas.*|mkl.*|libmkl.*|blas.*|libblis|blis|onemkl.*|tbb")),
    (
        "CUDA",
        re.compile(
            r"cuda.*|(lib)?cu(blas|dart|dss|fft|file|pti|rand|solver|sparse|tensor|dla|obj).*|nvidia-.*|libnv.*|libnpp.*"
            r"|nvtx.*|(lib)?magma.*|.*-cu1[0-9]"
        ),
    ),
    ("Python", re.compile(r"python|python[-_]abi|cpython|python-gil|numpy|cython")),
)
_ALIASES: Final = (
    (re.compile(r"pytorch"), "torch"),
    (re.compile(r"nvidia-nccl-cu\d+"), "nccl"),
    (re.compile(r"nvidia-cudnn-cu\d+"), "cudnn"),
    (re.compile(r"nvidia-cuda-runtime(-cu\d+)?"), "cuda-cudart"),
    (re.compile(r"nvidia-cuda-nvrtc(-cu\d+)?"), "cuda-nvrtc"),
    (re.compile(r"nvidia-(cublas|cufft|cusparse|cusolver|curand)(-cu\d+)?"), r"lib\1"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two things compared.

    ``facts`` are versions that a side states itself (python, and what torch was built for); ``libraries`` those that
    were loaded, where that is known; ``whole`` is false where only the packages that matter are known.
    """

    label: str
    kind: SideKind
    packages: tuple[ExportedPackage, ...]
    facts: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] | None = None
    libraries: Mapping[str, str] = field(default_factory=dict)
    whole: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """``left`` and ``right`` are what the sides have, None where they have nothing; ``fields`` what differs."""

    group: Group
    what: What
    name: str
    left: str | None
    right: str | None
    fields: tuple[Field, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentDiff:
    left: Side
    right: Side
    differences: tuple[Difference, ...]
    not_compared: tuple[str, ...] = ()

    @property
    def same(self) -> bool:
        return not self.differences


def compare_sides(left: Side, right: Side) -> EnvironmentDiff:
    """Everything that differs, in the order of the groups and then by name."""
    found: list[Difference] = []
    notes: list[str] = []
    both = {p.name for p in left.packages} & {p.name for p in right.packages}
    found += (difference for difference in _facts(left.facts, right.facts) if difference.name not in both)
    found += (
        difference
        for difference in _packages(left, right, notes)
        # Python itself is no package of a venv, but both sides say its version.
        if difference.name != "python" or difference.fields != ("presence",) or not _both_say_python(left, right)
    )
    found += _libraries(left, right)
    if left.variables is not None and right.variables is not None:
        found += _variables(left.variables, right.variables)
    elif left.variables or right.variables:
        side = right if left.variables else left
        notes.append(f"environment variables: {side.label} knows none")
    found.sort(key=lambda d: (GROUPS.index(d.group), d.what, d.name))
    return EnvironmentDiff(left=left, right=right, differences=tuple(found), not_compared=tuple(notes))


def _both_say_python(left: Side, right: Side) -> bool:
    return "python" in left.facts and "python" in right.facts


def group_of(name: str) -> Group:
    """The group of a package or library by its name."""
    plain = name.lower()
    return next((group for group, pattern in _PATTERNS if pattern.fullmatch(plain)), "rest")


def _facts(left: Mapping[str, str], right: Mapping[str, str]) -> Iterable[Difference]:
    groups: dict[str, Group] = {"python": "Python", "torch is built for": "CUDA"}
    for name in sorted(set(left) & set(right)):
        if left[name] != right[name]:
            group = groups.get(name, group_of(name))
            yield Difference(
                group=group, what="fact", name=name, left=left[name], right=right[name], fields=("version",)
            )


def _variables(left: Mapping[str, str], right: Mapping[str, str]) -> Iterable[Difference]:
    for name in sorted(set(left) | set(right)):
        if left.get(name) != right.get(name):
            yield Difference(
                group="variables",
                what="variable",
                name=name,
                left=left.get(name),
                right=right.get(name),
                fields=("value",) if name in left and name in right else ("presence",),
            )


def _libraries(left: Side, right: Side) -> Iterable[Difference]:
    if not left.libraries or not right.libraries:
        return
    for name in sorted(set(left.libraries) | set(right.libraries)):
        ours, theirs = left.libraries.get(name), right.libraries.get(name)
        if ours != theirs:
            fields: tuple[Field, ...] = ("version",) if ours is not None and theirs is not None else ("presence",)
            group = group_of(name.partition(".so")[0])
            yield Difference(group=group, what="library", name=name, left=ours, right=theirs, fields=fields)


def _packages(left: Side, right: Side, notes: list[str]) -> Iterable[Difference]:
    ours, theirs = _by_name(left.packages), _by_name(right.packages)
    names = set(ours) | set(theirs)
    if not (left.whole and right.whole):
        known = {name for name in names if PACKAGES_THAT_MATTER.fullmatch(name) or name in ("torch", "cudnn")}
        if names - known:
            notes.append(f"{len(names - known)} packages: a run record holds those alone that matter")
        names = known
    for name in sorted(names):
        yield from _one(name, ours.get(name, ()), theirs.get(name, ()))


def _by_name(packages: Sequence[ExportedPackage]) -> dict[str, tuple[ExportedPackage, ...]]:
    """Packages under one name for conda and pip; a name twice is two entries, as when pip installed over conda."""
    found: dict[str, tuple[ExportedPackage, ...]] = {}
    for package in packages:
        name = normalize(package.name) if not package.name.startswith("_") else package.name
        for pattern, alias in _ALIASES:
            match = pattern.fullmatch(name)
            if match:
                name = match.expand(alias)
                break
        found[name] = (*found.get(name, ()), package)
    return found


def _one(name: str, ours: tuple[ExportedPackage, ...], theirs: tuple[ExportedPackage, ...]) -> Iterable[Difference]:
    fields: tuple[Field, ...]
    if len(ours) == 1 and len(theirs) == 1:
        fields = _fields(ours[0], theirs[0])
    elif _multiset(ours) == _multiset(theirs):
        fields = ()
    else:
        fields = ("presence",) if not ours or not theirs else ("presence", "version")
    if fields:
        shows = ours[0] if ours else theirs[0]
        yield Difference(
            group=group_of(name) if group_of(name) != "rest" else group_of(shows.name),
            what="package",
            name=name,
            left=_shown(ours, fields),
            right=_shown(theirs, fields),
            fields=fields,
        )


def _multiset(packages: tuple[ExportedPackage, ...]) -> list[tuple[str, str, str]]:
    return sorted((p.manager, p.version, p.build or "") for p in packages)


def _fields(ours: ExportedPackage, theirs: ExportedPackage) -> tuple[Field, ...]:
    """What differs between two packages of one name; conda and pip are compared by their public version alone."""
    if ours.manager != theirs.manager:
        return ("version",) if ours.version.partition("+")[0] != theirs.version.partition("+")[0] else ()
    found: list[Field] = []
    if ours.version != theirs.version:
        found.append("version")
    if None not in (ours.build, theirs.build) and ours.build != theirs.build:
        found.append("build")
    if ours.channel and theirs.channel and channel_name(ours.channel) != channel_name(theirs.channel):
        found.append("channel")
    hashes = ((ours.sha256, theirs.sha256), (ours.md5, theirs.md5))
    if not found and any(a is not None and b is not None and a != b for a, b in hashes):
        found.append("hash")
    return tuple(found)


def _shown(packages: tuple[ExportedPackage, ...], fields: tuple[Field, ...]) -> str | None:
    if not packages:
        return None
    return ", ".join(_shown_one(package, fields) for package in packages)


def _shown_one(package: ExportedPackage, fields: tuple[Field, ...]) -> str:
    parts = [package.version]
    if package.build:
        parts.append(package.build)
    if package.manager == "pip":
        parts.append(f"({package.installer or 'pip'})")
    if "channel" in fields and package.channel:
        parts.append(f"from {channel_name(package.channel)}")
    if "hash" in fields:
        parts.append(f"sha256 {package.sha256[:12]}" if package.sha256 else f"md5 {(package.md5 or '')[:12]}")
    return " ".join(parts)


def to_document(diff: EnvironmentDiff) -> dict[str, Any]:
    """The document of ``env diff --json``."""
    return {
        "schema": DIFF_SCHEMA,
        "verdict": "same" if diff.same else "different",
        "left": _side(diff.left),
        "right": _side(diff.right),
        "differences": [{**asdict(d), "fields": list(d.fields)} for d in diff.differences],
        "not_compared": list(diff.not_compared),
    }


def _side(side: Side) -> dict[str, Any]:
    return {"label": side.label, "kind": side.kind, "packages": len(side.packages), "facts": dict(side.facts)}
