"""Profiles: what a run measures, as data.

A profile is a TOML file with ``[[training]]``, ``[[collective]]`` and ``[[checkpoint]]`` tables; docs/profiles.md lists
the fields.  Light enough for asv's benchmark processes: the standard library alone.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final, cast, get_args

from bench_runner.errors import SpecError, StoreError, UnreadableError, UsageError
from bench_runner.spec import STRATEGIES, Checkpoint, Collective, DeviceKind, Strategy, Training

BUILT_IN: Final = ("quick", "standard", "full")
FOLDER: Final = Path(__file__).parent / "profiles"
LARGEST_BYTES: Final = 1 << 20
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
MESSAGE_BYTES: Final = tuple(KIB << shift for shift in range(0, 21, 2))
"""1 KiB, 4 KiB, … 1 GiB: the sizes that asv knows."""
LARGEST_CPU_MESSAGE: Final = 64 * MIB
DEVICE_COUNTS: Final[tuple[int | str, ...]] = (1, 2, 4, 8, 16, "all")
"""The device counts that asv knows on every machine; a machine skips what it lacks."""
_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9_][\w .+-]{0,99}")
_SIZE: Final = re.compile(r"(\d+)\s*(KiB|MiB|GiB)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingCase:
    """A training to measure, on these kinds of device only (empty: on all)."""

    training: Training
    device_kinds: tuple[DeviceKind, ...] = ()
    deadline_seconds: float = 120.0

    @property
    def label(self) -> str:
        return self.training.label


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveCase:
    """A collective to measure; ``message_bytes`` holds the sizes for an accelerator and those for a CPU."""

    collective: Collective
    cpu_message_bytes: tuple[int, ...]
    device_kinds: tuple[DeviceKind, ...] = ()
    deadline_seconds: float = 120.0

    @property
    def label(self) -> str:
        return self.collective.label


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointCase:
    """A checkpoint to measure."""

    checkpoint: Checkpoint
    device_kinds: tuple[DeviceKind, ...] = ()
    deadline_seconds: float = 120.0

    @property
    def label(self) -> str:
        return self.checkpoint.label


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A named set of cases from the file ``source``.  ``devices``: counts asked for, ``None`` for the usual ones.

    ``own_text`` is the file's content unless it is one of the built-in profiles.
    """

    name: str
    source: Path
    description: str = ""
    strategies: tuple[Strategy, ...] = STRATEGIES
    devices: tuple[int | str, ...] | None = None
    seed: int = 0
    training: tuple[TrainingCase, ...] = ()
    collectives: tuple[CollectiveCase, ...] = ()
    checkpoints: tuple[CheckpointCase, ...] = ()
    own_text: str | None = None

    @property
    def cases(self) -> tuple[TrainingCase | CollectiveCase | CheckpointCase, ...]:
        return (*self.training, *self.collectives, *self.checkpoints)


def load(name_or_path: str) -> Profile:
    """A built-in profile by its name, or a user's TOML file.  Raises UsageError, UnreadableError or SpecError."""
    if name_or_path in BUILT_IN:
        return parse(FOLDER.joinpath(f"{name_or_path}.toml"), name_or_path)
    path = Path(name_or_path)
    if path.suffix != ".toml":
        raise UsageError(f"profile {name_or_path}: there is {', '.join(BUILT_IN)}, or name a .toml file")
    return parse(path, path.stem)


def keep_text(name: str, text: str, folder: Path) -> Path:
    """A profile's text as a file of its own, named so that ``load`` gives the profile its name again.

    Raises UsageError for a name that is no plain one (it may come from elsewhere), StoreError if it cannot be written.
    """
    if not _PLAIN_NAME.fullmatch(name):
        raise UsageError(f"profile name {name!r}: not a plain one; name the profile's file")
    path = folder / hashlib.sha256(text.encode()).hexdigest()[:12] / f"{name}.toml"
    temporary = path.with_name(f".{uuid.uuid4().hex}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, encoding="utf-8", newline="")
        temporary.replace(path)
    except OSError as error:
        raise StoreError(f"{path}: cannot be written: {error.strerror or error}") from error
    return path


def parse(path: Path, name: str) -> Profile:
    """Read and validate a profile; the message of a SpecError names table and field."""
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_BYTES + 1)
        if len(content) > LARGEST_BYTES:
            raise UnreadableError(f"profile {path}: larger than {LARGEST_BYTES} bytes")
        text = content.decode("utf-8")
        document = tomllib.loads(text)
    except OSError as error:
        raise UsageError(f"profile {path}: {error.strerror}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise UnreadableError(f"profile {path}: not TOML: {error}") from error
    try:
        profile = _profile(document, path, name)
        return profile if path.parent == FOLDER else replace(profile, own_text=text)
    except SpecError as error:
        raise SpecError(f"profile {path}: {error.field}", error.value, error.requirement) from error


def _profile(document: dict[str, Any], path: Path, name: str) -> Profile:
    known = {"description", "strategies", "devices", "seed", "training", "collective", "checkpoint"}
    _only_known(document, known, "")
    training = tuple(_training_case(table, i) for i, table in enumerate(_tables(document, "training")))
    collectives = tuple(_collective_case(table, i) for i, table in enumerate(_tables(document, "collective")))
    checkpoints = tuple(_checkpoint_case(table, i) for i, table in enumerate(_tables(document, "checkpoint")))
    if not training and not collectives and not checkpoints:
        raise SpecError("training", [], "the profile measures nothing: add a [[training]] or [[collective]] table")
    labels = [*(c.label for c in training), *(c.label for c in collectives), *(c.label for c in checkpoints)]
    for label in labels:
        if labels.count(label) > 1:
            raise SpecError("training", label, "stands twice: two cases with the same settings cannot be told apart")
    seed = document.get("seed", 0)
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise SpecError("seed", seed, "must be a whole number of at least 0")
    return Profile(
        name=name,
        source=path,
        description=str(document.get("description", "")),
        strategies=_choices(document.get("strategies", list(STRATEGIES)), STRATEGIES, "strategies"),
        devices=device_counts(document["devices"]) if "devices" in document else None,
        seed=seed,
        training=training,
        collectives=collectives,
        checkpoints=checkpoints,
    )


def device_counts(value: object) -> tuple[int | str, ...]:
    """A list of device counts, each a number of at least 1 or ``"all"``."""
    if not isinstance(value, list) or not value:
        raise SpecError("devices", value, 'must be a list of numbers of at least 1, or "all"')
    for count in value:
        whole = isinstance(count, int) and not isinstance(count, bool) and 1 <= count <= 65536
        if not whole and count != "all":
            raise SpecError("devices", count, 'must be a number from 1 to 65536, or "all"')
    return tuple(dict.fromkeys(value))


def _tables(document: dict[str, Any], key: str) -> list[dict[str, Any]]:
    tables = document.get(key, [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise SpecError(key, tables, f"must be written as [[{key}]] tables")
    return tables


def _only_known(table: Mapping[str, Any], known: set[str], place: str) -> None:
    for key in table:
        if key not in known:
            raise SpecError(f"{place}{key}", table[key], f"is not a setting; there are {', '.join(sorted(known))}")


def _choices(value: object, choices: tuple[Any, ...], field: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise SpecError(field, value, "must be a list")
    for item in value:
        if item not in choices:
            raise SpecError(field, item, f"must be one of {', '.join(choices)}")
    return tuple(dict.fromkeys(value))


_CASE_FIELDS: Final = {"device_kinds", "deadline_seconds"}


def _common(table: dict[str, Any], place: str) -> dict[str, Any]:
    deadline = table.pop("deadline_seconds", 120.0)
    if isinstance(deadline, bool) or not isinstance(deadline, int | float) or not 0 < deadline < 1e6:
        raise SpecError(f"{place}deadline_seconds", deadline, "must be a positive number of seconds")
    kinds = _choices(table.pop("device_kinds", []), get_args(DeviceKind), f"{place}device_kinds")
    return {"deadline_seconds": float(deadline), "device_kinds": cast("tuple[DeviceKind, ...]", kinds)}


def _training_case(table: dict[str, Any], index: int) -> TrainingCase:
    place = f"training[{index}]."
    known = {field.name for field in fields(Training)} - {"find_batch"}
    _only_known(table, known | _CASE_FIELDS, place)
    settings = dict(table)
    common = _common(settings, place)
    for required in ("workload", "batch"):
        if required not in settings:
            raise SpecError(f"{place}{required}", None, "is missing")
    try:
        return TrainingCase(training=Training(**settings), **common)
    except SpecError as error:
        raise SpecError(f"{place}{error.field}", error.value, error.requirement) from error


def _collective_case(table: dict[str, Any], index: int) -> CollectiveCase:
    place = f"collective[{index}]."
    _only_known(
        table, {"operation", "message_bytes", "cpu_message_bytes", "calls", "warmup_calls"} | _CASE_FIELDS, place
    )
    settings = dict(table)
    common = _common(settings, place)
    if "operation" not in settings:
        raise SpecError(f"{place}operation", None, "is missing")
    usual = list(MESSAGE_BYTES)
    sizes = _sizes(settings.pop("message_bytes", usual), f"{place}message_bytes")
    given = settings.pop("cpu_message_bytes", None)
    small = [size for size in sizes if size <= LARGEST_CPU_MESSAGE] or [min(sizes)]
    cpu_sizes = tuple(small) if given is None else _sizes(given, f"{place}cpu_message_bytes")
    try:
        collective = Collective(message_bytes=sizes, **settings)
        Collective(operation=collective.operation, message_bytes=cpu_sizes)
    except SpecError as error:
        raise SpecError(f"{place}{error.field}", error.value, error.requirement) from error
    return CollectiveCase(collective=collective, cpu_message_bytes=cpu_sizes, **common)


def _checkpoint_case(table: dict[str, Any], index: int) -> CheckpointCase:
    place = f"checkpoint[{index}]."
    _only_known(table, {field.name for field in fields(Checkpoint)} | _CASE_FIELDS, place)
    settings = dict(table)
    common = _common(settings, place)
    if "workload" not in settings:
        raise SpecError(f"{place}workload", None, "is missing")
    try:
        return CheckpointCase(checkpoint=Checkpoint(**settings), **common)
    except SpecError as error:
        raise SpecError(f"{place}{error.field}", error.value, error.requirement) from error


def _sizes(value: object, field: str) -> tuple[int, ...]:
    """Message sizes: numbers of bytes, or text such as "64 MiB"."""
    if not isinstance(value, list) or not value:
        raise SpecError(field, value, 'must be a list of sizes such as 1024 or "64 MiB"')
    units = {None: 1, "KiB": KIB, "MiB": MIB, "GiB": GIB}
    sizes = []
    for item in value:
        if isinstance(item, int) and not isinstance(item, bool):
            sizes.append(item)
            continue
        matched = _SIZE.fullmatch(item) if isinstance(item, str) else None
        if matched is None:
            raise SpecError(field, item, 'must be a size such as 1024 or "64 MiB"')
        sizes.append(int(matched.group(1)) * units[matched.group(2)])
    return tuple(sorted(set(sizes)))
