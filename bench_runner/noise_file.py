"""The noise profile of a machine as a file: ``results/<machine>/noise.profile``.

JSON inside, and another name outside: asv takes every ``*.json`` below its results for one of its own.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from bench_runner import store
from bench_runner.analysis.cases import COMPARED, CaseKey, Launch, Settings, from_records, noise_key
from bench_runner.analysis.noise import NoiseProfile, SessionSummary, estimate, from_json, summarise
from bench_runner.errors import StoreError, UnreadableError, UsageError
from bench_runner.record import RunRecord

NOISE_FILE: Final = "noise.profile"
LARGEST_FILE_BYTES: Final = 16 << 20


def noise_path(results: Path, machine: str) -> Path:
    return results / store.machine_folder(machine) / NOISE_FILE


def profile_of(records: Sequence[RunRecord]) -> NoiseProfile:
    """The noise in records of one machine.  UsageError if they are of several, or too few to show any.

    Launches of one session belong together only while nothing changed: each commit and environment counts as a
    session of its own.
    """
    machines = sorted({(record.machine.name, record.machine.fingerprint) for record in records})
    if len(machines) != 1:
        listed = ", ".join(name for name, _ in machines) or "none"
        raise UsageError(f"a noise profile is of one machine in one state; selected: {listed}; name one machine")
    name, fingerprint = machines[0]
    measured = [record for record in records if record.outcome == "ok"]
    metrics = {key: found for key, found in _summaries(measured).items() if estimate(found) is not None}
    if not metrics:
        raise UsageError(
            f"machine {name}: no metric was launched twice in one session, so its noise is not known; "
            "measure with bench-runner run --launches 5"
        )
    return NoiseProfile(
        machine=name,
        fingerprint=fingerprint,
        metrics=metrics,
        sessions=len({record.session_id for record in measured}),
        launches=len({record.launch_id for record in measured}),
    )


def _summaries(records: Iterable[RunRecord]) -> dict[str, tuple[SessionSummary, ...]]:
    """Each metric's sessions, one for each commit and environment within a session."""
    groups: dict[tuple[str, str | None, str], list[RunRecord]] = {}
    for record in records:
        groups.setdefault((record.session_id, record.commit, record.environment.fingerprint), []).append(record)
    summaries: dict[str, tuple[SessionSummary, ...]] = {}
    for (session, _, _), group in groups.items():
        values: dict[str, list[float]] = {}
        for key, chosen, launch in _launches(group):
            for metric, value in launch.values.items():
                values.setdefault(noise_key(key, chosen, metric), []).append(value)
        for name, series in values.items():
            summary = summarise(session, series)
            if summary is not None:
                summaries[name] = (*summaries.get(name, ()), summary)
    return summaries


def _launches(records: Sequence[RunRecord]) -> Iterable[tuple[CaseKey, Settings, Launch]]:
    for key, case in from_records(records, COMPARED).items():
        for chosen, launches in case.measured.items():
            for launch in launches:
                yield key, chosen, launch


def write_profile(results: Path, profile: NoiseProfile) -> Path:
    """Store the profile with its machine, in place of an older one."""
    path = noise_path(results, profile.machine)
    temporary = path.with_name(f".{NOISE_FILE}-{uuid.uuid4().hex}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(profile.to_json(), indent=1, allow_nan=False) + "\n", encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise StoreError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)
    return path


def read_profile(path: Path) -> NoiseProfile:
    """The profile in a file; UnreadableError (one line) for anything else."""
    try:
        if path.stat().st_size > LARGEST_FILE_BYTES:
            raise UnreadableError(
                f"{path}: larger than {LARGEST_FILE_BYTES >> 20} MiB; run bench-runner profile-noise again"
            )
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise UnreadableError(f"{path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise UnreadableError(f"{path}: damaged, not JSON; run bench-runner profile-noise again") from error
    return from_json(document, str(path))


def profiles_for(
    results: Path, machines: Iterable[tuple[str, str]]
) -> tuple[dict[str, NoiseProfile], list[str], list[str]]:
    """Profiles by fingerprint for (name, fingerprint) pairs; then a line for each that does not fit, each damaged."""
    found: dict[str, NoiseProfile] = {}
    unfit, damaged = [], []
    for name, fingerprint in sorted(set(machines)):
        path = noise_path(results, name)
        if not path.is_file():
            continue
        try:
            profile = read_profile(path)
        except UnreadableError as error:
            damaged.append(str(error))
            continue
        if profile.fingerprint == fingerprint:
            found[fingerprint] = profile
        else:
            unfit.append(f"{path}: of other hardware or settings than these results; not used")
    return found, unfit, damaged
