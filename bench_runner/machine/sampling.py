"""Watch the devices while something runs: clocks, power, temperature, throttle reasons, load, memory, once a second.

The sampler is a thread of the *control* process; the workers know nothing of it.  It never raises out of itself:
what cannot be read any more (a container that loses its devices in mid-run) ends up as a warning beside what was read
before.

    with Sampler() as sampler:
        results = launch.run(plan)
    summary = sampler.window(begin, end)      # of one case, by the clock time.time()
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from types import TracebackType
from typing import Any, Final, Self

from bench_runner.machine.memory import normalised
from bench_runner.machine.nvml import throttle_names
from bench_runner.machine.nvml_library import NvmlUnavailable, code_text, session

PERIOD_SECONDS: Final = 1.0
# At the tenth failure in a row a device is given up: a lost one does not come back within a run.
_MOST_FAILURES: Final = 10
_FIRST_SECONDS: Final = 2.0
_STOP_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSample:
    """One device at one moment.  ``at`` is time.time(); ``None``: not read; energy counts since the driver's start."""

    at: float
    uuid: str
    sm_clock_mhz: int | None = None
    power_watts: float | None = None
    temperature_celsius: int | None = None
    utilisation_percent: int | None = None
    memory_used_bytes: int | None = None
    throttle_reasons: tuple[str, ...] | None = None
    energy_joules: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Smallest, middle and largest of the samples, in the unit of the field's name."""

    minimum: float
    median: float
    maximum: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSampling:
    """What the samples of one device come to.

    ``throttle_share`` gives for each reason seen the share of samples with it, 0 to 1.  ``energy_joules`` is the
    difference of the device's own counter between the first and the last sample, ``energy_seconds`` the time between
    them; both are None where the device has no counter.
    """

    uuid: str
    samples: int
    sm_clock_mhz: Spread | None = None
    power_watts: Spread | None = None
    temperature_celsius: Spread | None = None
    utilisation_percent: Spread | None = None
    memory_used_bytes: Spread | None = None
    throttle_share: dict[str, float] | None = None
    energy_joules: float | None = None
    energy_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingSummary:
    """All devices over one window of time.  ``not_sampled``: why there is nothing at all (no NVML).

    ``warnings`` say what went wrong in mid-run: the figures then cover a part of the window.
    """

    devices: tuple[DeviceSampling, ...] = ()
    warnings: tuple[str, ...] = ()
    not_sampled: str | None = None


class Sampler:
    """Samples the devices with these UUIDs (None: all) until it is stopped.  See the module's head for its use."""

    def __init__(self, uuids: Sequence[str] | None = None, period_seconds: float = PERIOD_SECONDS) -> None:
        if not period_seconds > 0:
            raise ValueError(f"period_seconds = {period_seconds!r}: must be positive")
        self._uuids = None if uuids is None else [normalised(uuid) for uuid in uuids]
        self._period = period_seconds
        self._stop = threading.Event()
        self._first = threading.Event()
        self._samples: list[DeviceSample] = []
        self._warnings: dict[str, None] = {}
        self._not_sampled: str | None = None
        self._cpu_seconds = 0.0
        self._thread = threading.Thread(target=self._run, name="nvml-sampler", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        # So that even the shortest run has a sample from before it; a driver that hangs holds it up no longer.
        self._first.wait(_FIRST_SECONDS)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(_STOP_SECONDS)
        if self._thread.is_alive():
            # Blocked in the driver; the thread is a daemon and holds nobody up.
            self._warnings[f"sampling: the driver has not answered for {_STOP_SECONDS:g} s"] = None

    @property
    def cpu_seconds(self) -> float:
        """Processor time that sampling has taken so far."""
        return self._cpu_seconds

    def window(self, begin: float, end: float) -> SamplingSummary:
        """What the samples between two moments of time.time() come to."""
        inside = [sample for sample in list(self._samples) if begin <= sample.at <= end]
        return SamplingSummary(devices=summarise(inside), warnings=tuple(self._warnings), not_sampled=self._not_sampled)

    def _run(self) -> None:
        try:
            with session() as nvml:
                self._loop(nvml)
        except NvmlUnavailable as error:
            self._not_sampled = str(error)
        finally:
            self._first.set()

    def _loop(self, nvml: Any) -> None:
        handles = self._handles(nvml)
        failures: Counter[str] = Counter()
        due = time.monotonic()
        while handles and not self._stop.is_set():
            for uuid, handle in list(handles.items()):
                sample, lost = read_sample(nvml, uuid, handle)
                if lost is None:
                    self._samples.append(sample)
                    failures[uuid] = 0
                    continue
                self._warnings[f"sampling: {uuid}: {lost}"] = None
                failures[uuid] += 1
                if failures[uuid] >= _MOST_FAILURES:
                    del handles[uuid]
            self._cpu_seconds = time.thread_time()
            self._first.set()
            # Late by more than a period (a suspended machine): go on from now, do not catch up.
            due = max(due + self._period, time.monotonic())
            self._stop.wait(due - time.monotonic())

    def _handles(self, nvml: Any) -> dict[str, Any]:
        handles: dict[str, Any] = {}
        try:
            indices = range(nvml.nvmlDeviceGetCount() if self._uuids is None else 0)
            for index in indices:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                handles[nvml.nvmlDeviceGetUUID(handle)] = handle
        except nvml.NVMLError as error:
            self._warnings[f"sampling: the devices cannot be listed: {code_text(error.value)}"] = None
        for uuid in self._uuids or ():
            try:
                handles[uuid] = nvml.nvmlDeviceGetHandleByUUID(uuid)
            except nvml.NVMLError as error:
                self._warnings[f"sampling: {uuid}: {code_text(error.value)}"] = None
        return handles


def read_sample(nvml: Any, uuid: str, handle: Any) -> tuple[DeviceSample, str | None]:
    """One sample, and the reason when nothing at all could be read.  A single field that fails is None."""
    failure: str | None = None

    def get(function: str, *arguments: Any) -> Any:
        nonlocal failure
        try:
            return getattr(nvml, f"nvmlDeviceGet{function}")(handle, *arguments)
        except nvml.NVMLError as error:
            failure = code_text(error.value)
        except AttributeError:
            failure = f"the installed module pynvml has no nvmlDeviceGet{function}"
        return None

    clock, power = get("ClockInfo", nvml.NVML_CLOCK_SM), get("PowerUsage")
    utilisation, memory = get("UtilizationRates"), get("MemoryInfo")
    throttle, energy = get("CurrentClocksThrottleReasons"), get("TotalEnergyConsumption")
    temperature = get("Temperature", nvml.NVML_TEMPERATURE_GPU)
    nothing = all(v is None for v in (clock, power, utilisation, memory, throttle, energy, temperature))
    sample = DeviceSample(
        at=time.time(),
        uuid=uuid,
        sm_clock_mhz=clock,
        power_watts=None if power is None else power / 1000,
        temperature_celsius=temperature,
        utilisation_percent=None if utilisation is None else int(utilisation.gpu),
        memory_used_bytes=None if memory is None else int(memory.used),
        throttle_reasons=None if throttle is None else throttle_names(throttle),
        energy_joules=None if energy is None else energy / 1000,
    )
    return sample, failure if nothing else None


def summarise(samples: Sequence[DeviceSample]) -> tuple[DeviceSampling, ...]:
    """One summary a device, in the order in which the devices first appear."""
    by_device: dict[str, list[DeviceSample]] = {}
    for sample in samples:
        by_device.setdefault(sample.uuid, []).append(sample)
    return tuple(_summary(uuid, own) for uuid, own in by_device.items())


def _summary(uuid: str, own: list[DeviceSample]) -> DeviceSampling:
    def spread(value: Callable[[DeviceSample], float | None]) -> Spread | None:
        known = [number for number in map(value, own) if number is not None]
        return Spread(minimum=min(known), median=median(known), maximum=max(known)) if known else None

    told = [sample.throttle_reasons for sample in own if sample.throttle_reasons is not None]
    seen = Counter(reason for reasons in told for reason in reasons)
    energy = [sample for sample in own if sample.energy_joules is not None]
    joules: float | None = None
    if len(energy) > 1:
        joules = (energy[-1].energy_joules or 0.0) - (energy[0].energy_joules or 0.0)
    return DeviceSampling(
        uuid=uuid,
        samples=len(own),
        sm_clock_mhz=spread(lambda s: s.sm_clock_mhz),
        power_watts=spread(lambda s: s.power_watts),
        temperature_celsius=spread(lambda s: s.temperature_celsius),
        utilisation_percent=spread(lambda s: s.utilisation_percent),
        memory_used_bytes=spread(lambda s: s.memory_used_bytes),
        throttle_share={reason: count / len(told) for reason, count in seen.items()} if told else None,
        # The counter starts again with the driver; a negative difference says nothing.
        energy_joules=joules if joules is not None and joules >= 0 else None,
        energy_seconds=energy[-1].at - energy[0].at if joules is not None and joules >= 0 else None,
    )
