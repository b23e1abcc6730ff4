"""Whether locked packages satisfy match specs, by py-rattler's own reading of versions and builds."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from bench_runner.environment.lockfile import LockedPackage


def spec_name(spec: str) -> str:
    """The name in a match spec: ``pytorch`` of ``conda-forge::pytorch >=2.10 cuda129*``."""
    return re.split(r"[\s=<>!~\[]", spec.strip(), maxsplit=1)[0].rpartition("::")[2].lower()


def records_of(packages: Iterable[LockedPackage]) -> dict[str, list[Any]]:
    """py-rattler's records of the conda packages by name; a version that it cannot read matches nothing."""
    from rattler import PackageRecord

    found: dict[str, list[Any]] = defaultdict(list)
    for package in packages:
        if package.manager == "conda":
            found[package.name].append(
                _record(PackageRecord, package.name, package.version, package.build, package.subdir)
            )
    return found


def _record(kind: Any, name: str, version: str, build: str, subdir: str) -> Any:
    """py-rattler 0.28 wants a BuildString where 0.25 takes text."""
    import rattler

    wrap = getattr(rattler, "BuildString", str)
    return kind(name=name, version=version, build=wrap(build or "0"), build_number=0, subdir=subdir)


def virtual_records(
    declared: Mapping[str, str] | None, packages: Iterable[LockedPackage], platform: str
) -> dict[str, list[Any]]:
    """The declared virtual packages; with none declared every one counts as there, since conda-lock assumes its own."""
    from rattler import PackageRecord

    if declared is not None:
        named = {name: version.partition(" ") for name, version in declared.items()}
        return {
            name: [_record(PackageRecord, name, version, build, platform)]
            for name, (version, _, build) in named.items()
        }
    wanted = {spec.split()[0] for package in packages for spec in package.depends if spec.startswith("__")}
    return {name: [] for name in wanted}


def is_met(spec: str, records: Mapping[str, list[Any]]) -> bool:
    """Whether a record matches; a virtual package of unknown version (an empty list) does."""
    from rattler import MatchSpec
    from rattler.exceptions import InvalidMatchSpecError

    name = spec_name(spec)
    if name not in records:
        return False
    try:
        match = MatchSpec(spec)
    except InvalidMatchSpecError:
        return False
    return not records[name] or any(match.matches(record) for record in records[name])


def what_is_there(spec: str, records: Mapping[str, list[Any]]) -> str:
    """For messages: which version the records have instead."""
    there = records.get(spec_name(spec))
    return f"the lock has {there[0].version} {there[0].build!s}" if there else "not in the lock"
