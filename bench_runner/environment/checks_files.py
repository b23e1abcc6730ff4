"""Judge the files of a prefix.  Pure: the report of ``files.check_files`` in, findings out."""

from __future__ import annotations

from collections import Counter
from typing import Final

from bench_runner.environment.checks_packages import shown
from bench_runner.environment.files import Fault, FileFault, FileReport
from bench_runner.finding import Finding

_KINDS: Final[tuple[tuple[str, tuple[Fault, ...], str, str], ...]] = (
    ("altered", ("content", "size", "kind"), "were changed since they were installed", "no file was changed"),
    ("missing", ("missing",), "are missing", "no file is missing"),
    ("links", ("link",), "lead elsewhere than their packages' links", "every softlink leads where it should"),
    ("unreadable", ("unreadable",), "cannot be read", "every file can be read"),
)


def file_findings(report: FileReport, unowned: tuple[str, ...], rebuild: str) -> list[Finding]:
    """One finding for each kind of fault; ``unowned`` are files in site-packages that no package brought."""
    how = "by hash" if report.mode == "full" else "by size and date; --full hashes"
    findings = []
    for name, kinds, message, good in _KINDS:
        faults = [fault for fault in report.faults if fault.fault in kinds]
        findings.append(_kind(name, faults, message, f"{good} ({report.checked:,} checked {how})", rebuild))
    return [*findings, _unchecked(report), _unowned(unowned)]


def _kind(name: str, faults: list[FileFault], message: str, good: str, rebuild: str) -> Finding:
    check = f"environment.files.{name}"
    if not faults:
        return Finding(check=check, status="pass", message=good)
    packages = Counter(fault.package for fault in faults)
    named = ", ".join(f"{package} ({count})" for package, count in packages.most_common(5))
    return Finding(
        check=check,
        status="fail",
        message=f"{len(faults)} files of {len(packages)} packages {message}: {named}",
        expected=f"{faults[0].path}: {faults[0].expected}",
        actual=f"{faults[0].path}: {faults[0].actual}",
        evidence=shown(f"{f.path} ({f.package}): {f.expected}, found {f.actual}" for f in faults),
        remedy=rebuild,
    )


def _unchecked(report: FileReport) -> Finding:
    check = "environment.files.unchecked"
    if not report.unchecked:
        return Finding(check=check, status="pass", message="every file has a hash in its package's record")
    message = f"{report.unchecked} files have no hash in their packages' records: presence alone was checked"
    return Finding(check=check, status="skip", message=message)


def _unowned(unowned: tuple[str, ...]) -> Finding:
    check = "environment.files.unowned"
    if not unowned:
        return Finding(check=check, status="pass", message="every file in site-packages belongs to a package")
    return Finding(
        check=check,
        status="warn",
        message=f"{len(unowned)} files in site-packages belong to no package",
        expected="files of packages",
        actual=unowned[0],
        evidence=shown(unowned),
        remedy="look at them; what you did not put there yourself can change what is imported: move it away",
    )
