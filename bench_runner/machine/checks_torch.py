"""Judgement on what torch makes of the devices: build, availability, architecture, kernels that ran."""

from __future__ import annotations

import re

from bench_runner.finding import Finding
from bench_runner.machine.state import MachineState
from bench_runner.machine.torch_probe import TorchDevice
from bench_runner.machine.visible import physical_of


def check_build(state: MachineState) -> Finding:
    """Can torch be imported, and was it built for the devices that are here?"""
    check = "machine.torch-build"
    probe = state.torch
    if probe is None:
        return Finding(check=check, status="skip", message="torch was not asked")
    if probe.torch is None:
        return Finding(
            check=check,
            status="fail",
            message=f"torch does not start in {probe.python}: {probe.failure}",
            expected="torch can be imported",
            actual=probe.failure,
            evidence=(f"python: {probe.python}", *probe.stderr),
            remedy=f"{probe.python} -c 'import torch'; bench-runner verify --only environment says what is broken",
        )
    kind = f"CUDA {probe.cuda}" if probe.cuda else f"ROCm {probe.hip}" if probe.hip else "CPU only"
    evidence = (f"torch {probe.torch} at {probe.path}", f"built for: {kind}")
    if probe.cuda or probe.hip:
        return Finding(
            check=check, status="pass", message=f"torch {probe.torch}, {kind}", actual=kind, evidence=evidence
        )
    if not state.has_gpu:
        message = f"torch {probe.torch} is a CPU build and this host has no NVIDIA device: GPU checks skipped"
        return Finding(check=check, status="skip", message=message, actual=kind, evidence=evidence)
    return Finding(
        check=check,
        status="fail",
        message=f"torch {probe.torch} is a CPU build on a host with NVIDIA devices",
        expected="a CUDA build",
        actual=kind,
        evidence=evidence,
        remedy="bench-runner env create PREFIX (the CUDA lock); conda solves for the CPU where it sees no driver: "
        "CONDA_OVERRIDE_CUDA=12.9 conda install 'pytorch=*=cuda*'",
    )


def check_available(state: MachineState) -> Finding:
    """Does torch see the devices that CUDA_VISIBLE_DEVICES leaves, and if not, why not?"""
    check = "machine.torch-devices"
    probe = state.torch
    if probe is None or probe.torch is None or not (probe.cuda or probe.hip):
        return Finding(check=check, status="skip", message="torch has no build for GPUs here")
    if probe.available is None:
        return Finding(
            check=check,
            status="fail",
            message=f"torch.cuda.is_available() gave no answer: {probe.failure}",
            expected="an answer",
            actual=probe.failure,
            evidence=(*_sources(state), *probe.stderr),
            remedy="sudo dmesg | grep -iE 'nvrm|xid'; the driver is stuck or crashes",
        )
    wanted = state.visible.count
    if probe.available and (probe.count == wanted or not state.nvml.devices):
        message = f"torch sees {probe.count} devices"
        return Finding(check=check, status="pass", message=message, actual=str(probe.count))
    if not state.has_gpu and not probe.available:
        message = "no NVIDIA device on this host: torch.cuda.is_available() is False, as it should be"
        return Finding(check=check, status="skip", message=message)
    sliced = [device for device in state.nvml.devices if device.mig]
    if probe.available and sliced and probe.count == 1:
        message = "torch sees 1 device: with MIG on, a process sees one slice"
        return Finding(check=check, status="pass", message=message, actual="1")
    cause, remedy = _why_not(state)
    state_word = f"{probe.count} devices" if probe.available else "is_available() False"
    return Finding(
        check=check,
        status="fail",
        message=f"torch sees {probe.count} of {wanted} visible devices: {cause}",
        expected=f"{wanted} devices",
        actual=state_word,
        evidence=(*_sources(state), *filter(None, (probe.init_error,)), *probe.warnings),
        remedy=remedy,
    )


def _sources(state: MachineState) -> tuple[str, ...]:
    """What each source says about devices, side by side."""
    probe, cuda = state.torch, state.cuda
    built = f"torch {probe.torch} (CUDA {probe.cuda}) sees {probe.count}" if probe else "torch was not asked"
    started = "gave no answer" if cuda.init_code is None else f"returned {cuda.init_code}"
    return (
        f"{built}; NVML sees {len(state.nvml.devices)}; cuInit {started}",
        f"CUDA_VISIBLE_DEVICES={state.environ.get('CUDA_VISIBLE_DEVICES', '(not set)')}",
    )


def _why_not(state: MachineState) -> tuple[str, str]:
    """The nearest cause of missing devices that the other sources show, and what to do about it."""
    probe, cuda = state.torch, state.cuda
    value = state.environ.get("CUDA_VISIBLE_DEVICES")
    if state.nvml.code != 0 and state.has_gpu:
        return "the driver does not answer", "see machine.driver: nvidia-smi"
    if cuda.init_code not in (0, None):
        return f"cuInit fails with code {cuda.init_code}", "see machine.cuda: bench-runner verify --only machine"
    built = int((probe.cuda if probe and probe.cuda else "0").split(".")[0])
    if cuda.version and built > cuda.version // 1000:
        return "the driver is too old for the build", "see machine.driver-version: update the driver"
    if value is not None and state.visible.count == 0 and state.nvml.devices:
        return f"CUDA_VISIBLE_DEVICES={value!r} hides them all", "unset CUDA_VISIBLE_DEVICES"
    return "no source says why", "sudo dmesg | grep -iE 'nvrm|xid'; nvidia-smi"


def check_mapping(state: MachineState) -> Finding:
    """Which physical device is cuda:0, by UUID or PCI address; what matches nothing stays unknown."""
    check = "machine.device-order"
    probe = state.torch
    if probe is None or not probe.devices or not state.nvml.devices:
        return Finding(check=check, status="skip", message="no devices that torch and NVML both describe")
    lines, unknown = [], []
    for device in probe.devices:
        physical = physical_of(device.uuid, device.pci_bus_id, state.physical)
        if physical is None:
            unknown.append(device.index)
            lines.append(f"cuda:{device.index} ({device.name}) → unknown")
        else:
            lines.append(f"cuda:{device.index} ({device.name}) → GPU {physical.index}, {physical.pci_bus_id}")
    if not unknown:
        message = f"{len(lines)} devices matched by UUID or PCI address"
        return Finding(check=check, status="pass", message=message, evidence=tuple(lines))
    certain = state.visible.certain
    return Finding(
        check=check,
        status="skip" if certain else "warn",
        message=f"which physical device is cuda:{unknown[0]} is not known",
        expected="each device matched by UUID or PCI address",
        actual=f"{len(unknown)} unmatched",
        evidence=tuple(lines),
        remedy=None if certain else "export CUDA_DEVICE_ORDER=PCI_BUS_ID",
    )


def runs_on(device: TorchDevice, architectures: tuple[str, ...]) -> bool | None:
    """Whether the build holds code for the device; None when that cannot be told.

    Machine code (``sm_80``) runs on the same major version from its minor version on, PTX (``compute_90``) is compiled
    for anything newer, and code for a suffixed target (``sm_90a``) runs on exactly that version.
    """
    if device.architecture is not None and architectures and architectures[0].startswith("gfx"):
        return device.architecture.split(":")[0] in architectures
    if device.capability is None or not architectures:
        return None
    major, minor = device.capability
    for name in architectures:
        match = re.fullmatch(r"(sm|compute)_(\d+)(\d)([a-z]?)", name)
        if match is None:
            continue
        kind, has_major, has_minor, suffix = match[1], int(match[2]), int(match[3]), match[4]
        if suffix == "a":
            fits = (has_major, has_minor) == (major, minor)
        elif kind == "compute" and not suffix:
            fits = (has_major, has_minor) <= (major, minor)
        else:
            fits = has_major == major and has_minor <= minor
        if fits:
            return True
    return False


def check_architecture(state: MachineState) -> Finding:
    """Does the build hold code for each device?"""
    check = "machine.architecture"
    probe = state.torch
    if probe is None or not probe.devices or not probe.architectures:
        return Finding(check=check, status="skip", message="no device, or a build that does not list architectures")
    missing = [device for device in probe.devices if runs_on(device, probe.architectures) is False]
    listed = ", ".join(probe.architectures)
    if not missing:
        message = "torch's build holds code for every device"
        return Finding(check=check, status="pass", message=message, actual=listed)
    return Finding(
        check=check,
        status="fail",
        message=f"torch {probe.torch} holds no code for {missing[0].name}",
        expected=", ".join(sorted({_architecture(device) for device in missing})),
        actual=listed,
        evidence=tuple(f"cuda:{d.index} {d.name}: {_architecture(d)}, {d.error or 'not run'}" for d in missing),
        remedy="install a torch build whose torch.cuda.get_arch_list() names the architecture: a newer CUDA build for "
        "newer cards, an older one for old cards",
    )


def _architecture(device: TorchDevice) -> str:
    if device.capability is None:
        return device.architecture or "unknown"
    return f"sm_{device.capability[0]}{device.capability[1]}"


def check_kernels(state: MachineState) -> Finding:
    """The one proof: a kernel ran on every visible device and gave the right values."""
    check = "machine.kernel"
    probe = state.torch
    if probe is None or probe.torch is None or not probe.available:
        return Finding(check=check, status="skip", message="torch sees no device to run a kernel on")
    broken = [device for device in probe.devices if not device.works]
    untested = (probe.count or 0) - len(probe.devices)
    if not broken and not untested and probe.failure is None:
        message = f"a kernel ran on each of the {len(probe.devices)} devices, with the right values"
        return Finding(check=check, status="pass", message=message, actual=str(len(probe.devices)))
    evidence = [f"cuda:{d.index} {d.name}: {'right values' if d.works else d.error}" for d in probe.devices]
    if probe.hung_on is not None:
        evidence.append(f"cuda:{probe.hung_on}: {probe.failure} while a kernel was tried on it")
    elif probe.failure:
        evidence.append(probe.failure)
    guilty = [device.index for device in broken] or ([probe.hung_on] if probe.hung_on is not None else [])
    named = ", ".join(f"cuda:{index}" for index in guilty) or "not all devices"
    return Finding(
        check=check,
        status="fail",
        message=f"{named}: no kernel ran there with the right values",
        expected=f"{probe.count} devices compute",
        actual=f"{len(probe.devices) - len(broken)} do",
        evidence=(*evidence, *probe.stderr),
        remedy="sudo dmesg | grep -iE 'nvrm|xid'; leave the device out by CUDA_VISIBLE_DEVICES until it is mended",
    )


def check_nccl(state: MachineState) -> Finding:
    """Is NCCL in a CUDA build?  Without it DDP on GPUs has no fast backend."""
    check = "machine.nccl"
    probe = state.torch
    if probe is None or not (probe.cuda or probe.hip) or not state.has_gpu:
        return Finding(check=check, status="skip", message="no CUDA build, or no GPU")
    if probe.nccl:
        return Finding(check=check, status="pass", message="torch was built with NCCL")
    return Finding(
        check=check,
        status="fail",
        message="torch was built without NCCL: DDP on GPUs would go over gloo and the CPU",
        expected="NCCL",
        actual="none",
        evidence=(f"torch {probe.torch} at {probe.path}",),
        remedy="bench-runner env create PREFIX (the CUDA lock has NCCL)",
    )
