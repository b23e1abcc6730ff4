"""The machine judged: gather once, then every check.  Links, which take longer and start processes, are apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from bench_runner.finding import Finding
from bench_runner.machine import checks_devices, checks_driver, checks_host, checks_torch, checks_twins
from bench_runner.machine.state import Demand, MachineState, gather_state

CHECKS: Final[tuple[Callable[[MachineState], Finding], ...]] = (
    checks_driver.check_presence,
    checks_driver.check_driver,
    checks_driver.check_cuda_init,
    checks_driver.check_driver_version,
    checks_torch.check_build,
    checks_torch.check_available,
    checks_torch.check_architecture,
    checks_torch.check_kernels,
    checks_torch.check_nccl,
    checks_torch.check_mapping,
    checks_devices.check_visible,
    checks_devices.check_rank_count,
    checks_devices.check_mig,
    checks_devices.check_unlike,
    checks_devices.check_busy,
    checks_devices.check_memory_errors,
    checks_devices.check_throttling,
    checks_devices.check_power_limit,
    checks_twins.check_narrow_link,
    checks_host.check_shm,
    checks_host.check_memlock,
    checks_host.check_open_files,
    checks_host.check_threads,
    checks_host.check_port,
    checks_host.check_nccl_interface,
    checks_host.check_gloo_interface,
    checks_host.check_iommu,
    checks_host.check_acs,
    checks_host.check_pynvml,
)


def judge(state: MachineState) -> list[Finding]:
    """Every check over gathered values; pure."""
    return [*(check(state) for check in CHECKS), *checks_twins.check_twins(state)]


def machine_findings(
    python: str,
    *,
    demand: Demand | None = None,
    environ: Mapping[str, str] | None = None,
    deadline_seconds: float = 90.0,
) -> list[Finding]:
    """Gather this machine, with torch asked in ``python``'s environment, and judge it.

    Takes as long as torch's import there, and never longer than ``deadline_seconds`` and a little.
    """
    return judge(gather_state(python, demand=demand, environ=environ, deadline_seconds=deadline_seconds))
