"""What is asked for: one ``RunSpec`` is one measurement; a launch carries out one or several of them.

Plain values only, no torch: the same file is read on both sides of the wall.  Validation happens when a spec is
built, and the message names the field.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, get_args

from bench_runner.errors import SpecError

Strategy = Literal["single", "data_parallel", "ddp"]
DeviceKind = Literal["cpu", "cuda", "xpu", "mps", "npu", "hpu"]
Precision = Literal["fp32", "bf16", "fp16"]
Scaling = Literal["weak", "strong"]
DataSource = Literal["device", "loader"]
Operation = Literal["all_reduce", "all_gather", "reduce_scatter", "broadcast"]

STRATEGIES: Final[tuple[Strategy, ...]] = get_args(Strategy)
OPERATIONS: Final[tuple[Operation, ...]] = get_args(Operation)
TRANSFORMER_PRESETS: Final = ("tiny", "small", "124m")
BUILT_IN_WORKLOADS: Final = ("mlp", *(f"transformer-{preset}" for preset in TRANSFORMER_PRESETS), "resnet50")
FACTORY_PATTERN: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
LARGEST_SPEC_BYTES: Final = 1 << 20
CHECKPOINT_FOLDER: Final = "checkpoint"
"""Within a launch's directory, while a checkpoint is being measured."""


def _require(condition: bool, field: str, value: object, requirement: str) -> None:
    if not condition:
        raise SpecError(field, value, requirement)


def _require_choice(field: str, value: object, choices: tuple[str, ...]) -> None:
    _require(value in choices, field, value, f"must be one of {', '.join(choices)}")


def _require_count(field: str, value: object, least: int) -> None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    _require(whole and value >= least, field, value, f"must be a whole number of at least {least}")  # type: ignore[operator]


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """Train a workload for a number of steps.

    Under weak scaling ``per_device_batch`` is fixed and the global batch grows with the devices; under strong scaling
    ``batch`` is the global batch and is divided among them.  ``batch`` is the one of the two that is held fixed.
    With ``find_batch`` nothing is timed: the largest batch that fits is looked for, beginning with this one.
    """

    workload: str
    batch: int
    precision: Precision = "fp32"
    scaling: Scaling = "weak"
    steps: int = 30
    warmup_steps: int = 5
    phase_steps: int = 10
    data: DataSource = "device"
    loader_workers: int = 0
    find_batch: bool = False

    def __post_init__(self) -> None:
        known = self.workload in BUILT_IN_WORKLOADS or FACTORY_PATTERN.fullmatch(str(self.workload)) is not None
        _require(known, "workload", self.workload, f"must be one of {', '.join(BUILT_IN_WORKLOADS)}, or module:factory")
        _require_choice("precision", self.precision, get_args(Precision))
        _require_choice("scaling", self.scaling, get_args(Scaling))
        _require_choice("data", self.data, get_args(DataSource))
        _require_count("batch", self.batch, 1)
        _require_count("steps", self.steps, 1)
        _require_count("warmup_steps", self.warmup_steps, 0)
        _require_count("phase_steps", self.phase_steps, 0)
        _require_count("loader_workers", self.loader_workers, 0)

    def per_device_batch(self, devices: int) -> int:
        """Samples per device and step."""
        if self.scaling == "weak":
            return self.batch
        _require(
            self.batch % devices == 0,
            "batch",
            self.batch,
            f"a global batch (strong scaling) must be divisible by the {devices} devices",
        )
        return self.batch // devices

    def global_batch(self, devices: int) -> int:
        """Samples per step over all devices."""
        return self.batch * devices if self.scaling == "weak" else self.batch

    @property
    def label(self) -> str:
        """The settings as one word, the name of this case in asv and in reports: a changed setting is another case."""
        parts = [self.workload, self.precision, f"b{self.batch}" if self.scaling == "weak" else f"g{self.batch}"]
        if self.data == "loader":
            parts.append(f"loader{self.loader_workers}")
        if self.find_batch:
            parts.append("find")
        return "/".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """Time one collective over message sizes: bytes of the larger of a rank's two buffers, as nccl-tests counts."""

    operation: Operation
    message_bytes: tuple[int, ...]
    calls: int = 50
    warmup_calls: int = 5

    def __post_init__(self) -> None:
        _require_choice("operation", self.operation, OPERATIONS)
        _require(
            isinstance(self.message_bytes, tuple) and bool(self.message_bytes),
            "message_bytes",
            self.message_bytes,
            "must name at least one size",
        )
        for size in self.message_bytes:
            _require_count("message_bytes", size, 4)
            _require(size % 4 == 0, "message_bytes", size, "must be a multiple of 4, the size of a float32")
        _require_count("calls", self.calls, 1)
        _require_count("warmup_calls", self.warmup_calls, 0)

    @property
    def label(self) -> str:
        return self.operation


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Save and load a training's state: rank 0 saves, every rank loads to its own device, ``repeats`` times.

    ``batch`` samples a device go through the two steps before, which give the optimizer its state.
    """

    workload: str
    repeats: int = 5
    batch: int = 2

    def __post_init__(self) -> None:
        Training(workload=self.workload, batch=self.batch)
        _require_count("repeats", self.repeats, 1)

    @property
    def label(self) -> str:
        return f"checkpoint/{self.workload}"


Task = Training | Collective | Checkpoint
TASKS: Final[dict[str, type[Task]]] = {"training": Training, "collective": Collective, "checkpoint": Checkpoint}


def task_kind(task: Task) -> str:
    """The kind by which a stored task is told."""
    return next(kind for kind, known in TASKS.items() if isinstance(task, known))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """One measurement.  ``device_count`` counts over all ``nodes``; ``deadline_seconds`` is for this one alone."""

    strategy: Strategy
    device_kind: DeviceKind
    device_count: int
    task: Training | Collective | Checkpoint
    nodes: int = 1
    seed: int = 0
    deadline_seconds: float = 120.0

    def __post_init__(self) -> None:
        _require_choice("strategy", self.strategy, STRATEGIES)
        _require_choice("device_kind", self.device_kind, get_args(DeviceKind))
        _require_count("device_count", self.device_count, 1)
        _require_count("nodes", self.nodes, 1)
        _require_count("seed", self.seed, 0)
        _require(
            isinstance(self.deadline_seconds, int | float) and 0 < self.deadline_seconds < 1e7,
            "deadline_seconds",
            self.deadline_seconds,
            "must be a positive number of seconds",
        )
        _require(
            self.device_count % self.nodes == 0,
            "device_count",
            self.device_count,
            f"must be divisible by the {self.nodes} nodes",
        )
        if self.strategy == "single":
            _require(self.device_count == 1, "device_count", self.device_count, "must be 1 for the strategy single")
        if self.strategy != "ddp":
            _require(self.nodes == 1, "nodes", self.nodes, f"must be 1 for the strategy {self.strategy}")
        if isinstance(self.task, Training):
            self.task.per_device_batch(self.device_count)
        elif isinstance(self.task, Collective):
            _require(self.strategy == "ddp", "strategy", self.strategy, "a collective is measured under ddp")
        else:
            both = self.strategy in ("single", "ddp")
            _require(both, "strategy", self.strategy, "a checkpoint is measured under single or ddp")
            _require(self.nodes == 1, "nodes", self.nodes, "a checkpoint is measured on one node")

    @property
    def world_size(self) -> int:
        """Number of worker processes: DataParallel drives all its devices from one."""
        return self.device_count if self.strategy == "ddp" else 1

    @property
    def label(self) -> str:
        place = self.device_count if self.nodes == 1 else f"{self.nodes}x{self.device_count // self.nodes}"
        return f"{self.strategy}/{place}/{self.task.label}"

    def to_json(self) -> dict[str, Any]:
        """Plain values, with ``task.kind`` telling a training from a collective or a checkpoint."""
        document = asdict(self)
        document["task"] = {"kind": task_kind(self.task), **document["task"]}
        return document

    @staticmethod
    def from_json(document: dict[str, Any]) -> RunSpec:
        """The inverse of ``to_json``; raises SpecError with the field's name for anything else."""
        fields = dict(document)
        task = fields.pop("task", None)
        if not isinstance(task, dict):
            raise SpecError("task", task, "must be an object with a kind")
        task = dict(task)
        kind = task.pop("kind", None)
        if not isinstance(kind, str) or kind not in TASKS:
            raise SpecError("task.kind", kind, f"must be one of {', '.join(TASKS)}")
        try:
            if kind == "collective":
                sizes = task.get("message_bytes", ())
                task["message_bytes"] = tuple(sizes) if isinstance(sizes, list | tuple) else sizes
            return RunSpec(task=TASKS[kind](**task), **fields)
        except TypeError as error:
            raise SpecError("spec", sorted(document), str(error).removeprefix("RunSpec.__init__() ")) from error
