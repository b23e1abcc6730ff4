"""Measure the links: launch the probes, and turn what the ranks say into series with their fitted α and β."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

from bench_runner import launch
from bench_runner.analysis.model import Curve, fit_curve
from bench_runner.errors import BenchRunnerError
from bench_runner.launch_verdict import CaseResult
from bench_runner.spec import Collective, DeviceKind, RunSpec, Training

LINKS_MODULE: Final = "bench_runner.worker.links"
COPIES_MODULE: Final = "bench_runner.worker.copies"
SIZES: Final = tuple(1 << power for power in range(10, 25, 2))
"""1 KiB to 16 MiB in steps of four."""
CUDA_SIZES: Final = tuple(1 << power for power in range(10, 29, 2))
"""1 KiB to 256 MiB: a fast link needs larger messages to be filled."""
_DEADLINE_SECONDS: Final = 120.0
_PAIR_SECONDS: Final = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One operation over message sizes.  ``seconds`` is one message's mean time over the calls.

    Of each call the slowest rank on this host counts.  ``factor`` turns bytes / seconds into what passes through a
    link in one direction: busbw for an all-reduce, 1 for a message sent.
    """

    name: str
    ranks: tuple[int, ...]
    factor: float
    seconds: Mapping[int, float]
    wrong: tuple[int, ...] = ()

    @property
    def curve(self) -> Curve | None:
        """α and β per regime; None with fewer than two sizes."""
        return fit_curve(list(self.seconds), list(self.seconds.values())) if len(self.seconds) > 1 else None

    @property
    def bandwidth_bytes_per_second(self) -> float | None:
        """Bytes per second and direction, of the largest message."""
        if not self.seconds:
            return None
        largest = max(self.seconds)
        return self.factor * largest / self.seconds[largest]


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """Copies of one size; ``source`` or ``target`` None is the host.  Bandwidth from the median copy."""

    source: int | None
    target: int | None
    bandwidth_bytes_per_second: float
    right: bool
    peer_access: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkMeasurement:
    """Everything about the links of one host.  ``failures``: probe → why it did not come to its end."""

    device_kind: DeviceKind
    device_count: int
    series: tuple[Series, ...] = ()
    copies: tuple[Copy, ...] = ()
    failures: Mapping[str, str] | None = None


def measure_links(
    python: str,
    device_kind: DeviceKind,
    device_count: int,
    directory: Path,
    *,
    sizes: Sequence[int] | None = None,
    budget_seconds: float = 0.15,
    deadline_seconds: float | None = None,
    nodes: int = 1,
    node_rank: int = 0,
    rendezvous: str | None = None,
) -> LinkMeasurement:
    """Launch the probes with ``python`` and collect what they say; a probe that fails is a reason, not an exception.

    ``directory`` takes the launches' files.  Each launch ends by its deadline, by default two minutes and three
    seconds for each pair; of more than one pair three sizes are timed.  With several nodes this is called on each,
    with the first one's ``rendezvous`` (host:port); each then has its own ranks' account.  Takes about ten seconds
    for two processes.
    """
    chosen = list(sizes or (SIZES if device_kind == "cpu" else CUDA_SIZES))
    pairs = device_count * (device_count - 1) // 2
    deadline = deadline_seconds or _DEADLINE_SECONDS + _PAIR_SECONDS * pairs
    options = _options(chosen, pairs, budget_seconds)
    failures: dict[str, str] = {}
    series: tuple[Series, ...] = ()
    copies: tuple[Copy, ...] = ()
    if device_count > 1:
        spec = RunSpec(
            strategy="ddp",
            device_kind=device_kind,
            device_count=device_count,
            nodes=nodes,
            deadline_seconds=deadline,
            task=Collective(operation="all_reduce", message_bytes=tuple(chosen)),
        )
        place = {"node_rank": node_rank, "rendezvous": rendezvous}
        result = _launch(_ranks_plan(spec, python, directory, options, place), "ranks", failures)
        series = parse_series(result.ranks, device_count) if result else ()
    if device_kind != "cpu" and nodes == 1:
        plan = _copies_plan(python, device_kind, device_count, directory, options, deadline)
        result = _launch(plan, "copies", failures)
        copies = parse_copies(result.ranks) if result else ()
        if "copies" in failures:
            failures["copies"] += _last_pair(directory / "copies" / "progress.txt")
    return LinkMeasurement(
        device_kind=device_kind, device_count=device_count, series=series, copies=copies, failures=failures
    )


def _options(sizes: list[int], pairs: int, budget_seconds: float) -> dict[str, Any]:
    """What the probes are asked; of several pairs three sizes each."""
    return {
        "sizes": sizes,
        "pair_sizes": sizes if pairs == 1 else sorted({sizes[0], sizes[len(sizes) // 2], sizes[-1]}),
        "budget_seconds": budget_seconds,
        "most_calls": 50,
        "copy_bytes": 64 << 20,
        "copies": 10,
    }


def _ranks_plan(
    spec: RunSpec, python: str, directory: Path, options: dict[str, Any], place: dict[str, Any]
) -> launch.LaunchPlan:
    return launch.LaunchPlan(
        specs=(spec,), python=python, directory=directory / "ranks", options=options, module=LINKS_MODULE, **place
    )


def _copies_plan(
    python: str, device_kind: DeviceKind, device_count: int, directory: Path, options: dict[str, Any], deadline: float
) -> launch.LaunchPlan:
    # One process that drives all devices: for the launch that is what data_parallel is, whatever it then does.
    spec = RunSpec(
        strategy="data_parallel",
        device_kind=device_kind,
        device_count=device_count,
        deadline_seconds=deadline,
        task=Training(workload="mlp", batch=1),
    )
    return launch.LaunchPlan(
        specs=(spec,), python=python, directory=directory / "copies", options=options, module=COPIES_MODULE
    )


def _launch(plan: launch.LaunchPlan, name: str, failures: dict[str, str]) -> CaseResult | None:
    try:
        (result,) = launch.run(plan)
    except BenchRunnerError as error:
        failures[name] = str(error)
        return None
    if result.outcome != "ok":
        failures[name] = result.reason or result.outcome
        return None
    return result


def _last_pair(path: Path) -> str:
    try:
        words = path.read_text(encoding="utf-8").split()
    except OSError:
        return ""
    return f" (the last copy begun was from device {words[-2]} to {words[-1]})" if len(words) > 1 else ""


def parse_series(ranks: Sequence[Mapping[str, Any]], world_size: int) -> tuple[Series, ...]:
    """The series behind what the ranks sent: all-reduce over all, then the pairs in ascending order."""
    everyone = tuple(range(world_size))
    found = [_series("all_reduce", everyone, [rank["all_reduce"] for rank in ranks])]
    names = sorted({name for rank in ranks for name in rank["pairs"]}, key=_pair)
    for name in names:
        told = [rank["pairs"][name] for rank in ranks if name in rank["pairs"]]
        found += [
            _series(operation, _pair(name), [entry[operation] for entry in told])
            for operation in ("send", "all_reduce")
            if operation in told[0]
        ]
    return tuple(found)


def _pair(name: str) -> tuple[int, int]:
    first, second = name.split("-")
    return int(first), int(second)


def _series(operation: str, ranks: tuple[int, ...], told: Sequence[Mapping[str, Any]]) -> Series:
    count = len(ranks)
    # A there-and-back is two messages, one after the other.
    messages, factor = (2, 1.0) if operation == "send" else (1, 2 * (count - 1) / count)
    wrong = sorted({int(size) for entry in told for size in entry["wrong"]})
    seconds = {}
    for size in told[0]["seconds"]:
        calls = zip(*(entry["seconds"][size] for entry in told if size in entry["seconds"]), strict=False)
        seconds[int(size)] = fmean(max(call) for call in calls) / messages
    return Series(name=operation, ranks=ranks, factor=factor, seconds=dict(sorted(seconds.items())), wrong=tuple(wrong))


def parse_copies(ranks: Sequence[Mapping[str, Any]]) -> tuple[Copy, ...]:
    """Host copies, then copies between devices, from the one process that made them."""
    found: list[Copy] = []
    for told in ranks:
        for host in told["host"]:
            size, device, right = host["bytes"], host["device"], bool(host["right"])
            found.append(
                Copy(source=None, target=device, right=right, bandwidth_bytes_per_second=_rate(size, host["to_device"]))
            )
            found.append(
                Copy(source=device, target=None, right=right, bandwidth_bytes_per_second=_rate(size, host["to_host"]))
            )
        found.extend(
            Copy(
                source=pair["source"],
                target=pair["target"],
                right=bool(pair["right"]),
                peer_access=pair["peer_access"],
                bandwidth_bytes_per_second=_rate(pair["bytes"], pair["seconds"]),
            )
            for pair in told["pairs"]
        )
    return tuple(found)


def _rate(size: int, seconds: Sequence[float]) -> float:
    return size / max(median(seconds), 1e-9)
