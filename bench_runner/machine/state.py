"""All that the checks of a machine judge, gathered once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from bench_runner.machine import host, nvml
from bench_runner.machine.cuda_driver import CudaDriver, read_cuda_driver
from bench_runner.machine.limits import Limits, read_limits
from bench_runner.machine.network import Listener, Network, listener, read_network
from bench_runner.machine.pci import PciState, read_pci
from bench_runner.machine.torch_probe import TorchProbe, probe_torch
from bench_runner.machine.visible import PhysicalDevice, Visible, parse


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What a job is going to ask of this host.  ``ranks`` None: one process a visible device.

    ``loader_workers`` counts per rank, as torch does (None: not known); ``batch_bytes`` is one batch of one
    worker in shared memory.
    """

    ranks: int | None = None
    loader_workers: int | None = None
    batch_bytes: int = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineState:
    """What was gathered; ``torch`` None: not asked.  ``environ`` is the environment a job would inherit."""

    nvml: nvml.NvmlState
    cuda: CudaDriver
    torch: TorchProbe | None = None
    pci: PciState = field(default_factory=PciState)
    network: Network = field(default_factory=Network)
    limits: Limits = field(default_factory=Limits)
    cores_allowed: int = 1
    kernel_driver: str | None = None
    container: str | None = None
    listener: Listener | None = None
    deprecated_pynvml: str | None = None
    environ: Mapping[str, str] = field(default_factory=dict)
    demand: Demand = field(default_factory=Demand)

    @property
    def physical(self) -> tuple[PhysicalDevice, ...]:
        """The devices as NVML numbers them."""
        return tuple(
            PhysicalDevice(
                index=device.index,
                uuid=device.uuid,
                pci_bus_id=device.pci_bus_id,
                name=device.name,
                mig_uuids=device.mig_uuids,
            )
            for device in self.nvml.devices
        )

    @property
    def visible(self) -> Visible:
        """What CUDA_VISIBLE_DEVICES leaves of them."""
        return parse(self.environ.get("CUDA_VISIBLE_DEVICES"), self.physical, self.environ.get("CUDA_DEVICE_ORDER"))

    @property
    def has_gpu(self) -> bool:
        """Whether anything at all speaks of an NVIDIA device here: bus, device nodes, NVML."""
        return bool(self.pci.gpus or self.pci.device_nodes or self.nvml.devices)

    @property
    def ranks(self) -> int:
        """Processes of a job on this host: as demanded, else one a device, and two on a host without any."""
        if self.demand.ranks is not None:
            return self.demand.ranks
        return self.visible.count or (1 if self.has_gpu else 2)


def gather_state(
    python: str | None,
    *,
    demand: Demand | None = None,
    environ: Mapping[str, str] | None = None,
    root: Path = host.ROOT,
    deadline_seconds: float = 90.0,
) -> MachineState:
    """Ask every source, the slow ones at the same time.  ``python`` None leaves torch out.

    The CUDA driver is asked without CUDA_VISIBLE_DEVICES: what the variable hides is no fault of the driver's.
    """
    variables = dict(os.environ if environ is None else environ)
    unmasked = {key: value for key, value in variables.items() if key != "CUDA_VISIBLE_DEVICES"}
    with ThreadPoolExecutor(3) as pool:
        torch = pool.submit(probe_torch, python, variables, deadline_seconds) if python else None
        cuda = pool.submit(read_cuda_driver, unmasked, min(20.0, deadline_seconds))
        devices = pool.submit(nvml.read, min(20.0, deadline_seconds))
        return MachineState(
            nvml=devices.result(),
            cuda=cuda.result(),
            torch=None if torch is None else torch.result(),
            pci=read_pci(root),
            network=read_network(root),
            limits=read_limits(root),
            cores_allowed=host.cores_allowed(root=root),
            kernel_driver=host.kernel_driver_version(root),
            container=host.container_hint(variables, root),
            listener=_listener(variables.get("MASTER_PORT"), root),
            deprecated_pynvml=_installed_version("pynvml"),
            environ=variables,
            demand=demand or Demand(),
        )


def _listener(port: str | None, root: Path) -> Listener | None:
    return listener(int(port), root) if port and port.isascii() and port.isdecimal() and len(port) < 6 else None


def _installed_version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
