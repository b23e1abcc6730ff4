"""Judgement on the driver: is there one, does it answer, does it start, is it new enough for the build of torch."""

from __future__ import annotations

from typing import Final

from bench_runner.finding import Finding
from bench_runner.machine.nvml import cuda_version_text
from bench_runner.machine.nvml_library import code_text
from bench_runner.machine.state import MachineState

# The first driver of each major version of CUDA; any minor version of that CUDA runs on it ("minor version
# compatibility", NVIDIA's CUDA compatibility guide, table 1).
MINIMUM_DRIVER: Final = {11: "450.80.02", 12: "525.60.13", 13: "580.65.06"}
_NO_GPU: Final = "no NVIDIA device on this host: GPU checks skipped"
_LOADED: Final = "sudo modprobe nvidia && nvidia-smi; if that fails: sudo dmesg | grep -i nvrm"
_RESTART: Final = "restart the container (GPUs given to it can be lost when the host reloads systemd)"

_INIT_NAMES: Final = {
    2: "out of memory",
    3: "not initialized",
    34: "stub library",
    46: "device unavailable",
    100: "no device",
    101: "invalid device",
    802: "system not yet initialized",
    803: "system driver mismatch",
    804: "compatibility mode not supported on this hardware",
    999: "unknown error",
}


def check_presence(state: MachineState) -> Finding:
    """Are there devices, by anyone's account?"""
    check = "machine.gpu"
    torch = state.torch
    if state.nvml.devices:
        counts: dict[str, int] = {}
        for device in state.nvml.devices:
            counts[device.name or "unknown"] = counts.get(device.name or "unknown", 0) + 1
        text = ", ".join(f"{count} × {name}" for name, count in counts.items())
        return Finding(check=check, status="pass", message=text, actual=str(len(state.nvml.devices)))
    if torch is not None and torch.devices:
        text = ", ".join(device.name for device in torch.devices)
        return Finding(check=check, status="pass", message=f"{text} (by torch's account)", actual=str(torch.count))
    if state.pci.gpus:
        return Finding(
            check=check,
            status="pass",
            message=f"{len(state.pci.gpus)} NVIDIA devices on the PCI bus",
            actual=str(len(state.pci.gpus)),
            evidence=state.pci.gpus,
        )
    if state.has_gpu:
        nodes = ", ".join(state.pci.device_nodes)
        return Finding(check=check, status="pass", message=f"device nodes {nodes}", evidence=state.pci.device_nodes)
    return Finding(check=check, status="skip", message=_NO_GPU, actual="0", evidence=state.nvml.not_read[:1])


def check_driver(state: MachineState) -> Finding:
    """NVML's own answer, each of its codes told apart."""
    check = "machine.driver"
    code = state.nvml.code
    if code == 0:
        version = state.nvml.driver_version or state.kernel_driver or "of unknown version"
        return Finding(check=check, status="pass", message=f"driver {version} answers", actual=version)
    if not state.has_gpu and code in (9, 12, None):
        return Finding(check=check, status="skip", message=_NO_GPU, evidence=state.nvml.not_read[:1])
    evidence = [state.nvml.reason or "NVML gave no reason"]
    if state.kernel_driver:
        evidence.append(f"kernel module {state.kernel_driver} (/proc/driver/nvidia/version)")
    if state.pci.gpus:
        evidence.append(f"on the PCI bus: {', '.join(state.pci.gpus)}")
    evidence.append(f"device nodes: {', '.join(state.pci.device_nodes) or 'none'}")
    if state.container:
        evidence.append(f"in a container ({state.container})")
    message, remedy = _driver_fault(state, code)
    return Finding(
        check=check,
        status="warn" if code is None else "fail",
        message=message,
        expected="NVML answers",
        actual="not asked" if code is None else code_text(code),
        evidence=tuple(evidence),
        remedy=remedy,
    )


def _driver_fault(state: MachineState, code: int | None) -> tuple[str, str]:
    """Message and remedy for a code of NVML other than 0."""
    if code == 12:
        return _no_library(state)
    faults = {
        None: (
            "the driver's state is not known: nvidia-ml-py is missing in the environment of bench-runner",
            "pip install nvidia-ml-py",
        ),
        4: (
            "no permission to talk to the driver",
            "ls -l /dev/nvidiactl; add the user to the group that owns it, or allow the devices in the job's cgroup",
        ),
        9: ("the driver's library is installed but its kernel module is not loaded", _LOADED),
        10: (
            "the driver does not answer; it is probably stuck",
            "sudo dmesg | grep -iE 'nvrm|xid'; reboot the host when a call of nvidia-smi hangs as well",
        ),
        15: (
            "a GPU has fallen off the bus",
            "sudo dmesg | grep -i xid; drain the host and reboot it; a second time is a case for the vendor",
        ),
        18: (
            "the driver's library and its kernel module are of different versions (an update without a reboot)",
            "sudo reboot, or with no process on the GPUs: sudo rmmod nvidia_drm nvidia_modeset nvidia_uvm nvidia "
            "&& sudo modprobe nvidia",
        ),
        999: (
            "the driver answers with an unknown error",
            _RESTART if state.container else "sudo dmesg | grep -iE 'nvrm|xid'; reload the driver or reboot the host",
        ),
    }
    general = "the driver's library cannot be initialised"
    return faults.get(code) or (general, "nvidia-smi; sudo dmesg | grep -iE 'nvrm|xid'")


def _no_library(state: MachineState) -> tuple[str, str]:
    message = "there are NVIDIA devices, but the driver's library libnvidia-ml.so.1 is not found"
    if state.container:
        wanted = state.environ.get("NVIDIA_VISIBLE_DEVICES")
        hidden = f" (NVIDIA_VISIBLE_DEVICES={wanted})" if wanted in ("void", "none", "") else ""
        return (
            f"{message}: the container was started without them{hidden}",
            "docker run --gpus all …, with the NVIDIA Container Toolkit installed on the host",
        )
    return message, "install the NVIDIA driver (Debian, Ubuntu: sudo apt-get install nvidia-driver), then reboot"


def check_cuda_init(state: MachineState) -> Finding:
    """cuInit's answer, asked without CUDA_VISIBLE_DEVICES."""
    check = "machine.cuda"
    cuda = state.cuda
    if not state.has_gpu and not cuda.library:
        return Finding(check=check, status="skip", message=_NO_GPU)
    evidence = [f"NVML sees {len(state.nvml.devices)} devices"]
    if cuda.version:
        evidence.append(f"cuDriverGetVersion: {cuda_version_text(cuda.version)}")
    if cuda.failure:
        evidence.append(cuda.failure)
    if cuda.init_code == 0 and cuda.failure is None:
        text = cuda_version_text(cuda.version) if cuda.version else "unknown"
        return Finding(check=check, status="pass", message=f"cuInit succeeds; the driver's CUDA is {text}", actual=text)
    if not state.has_gpu and cuda.init_code in (100, None):
        return Finding(check=check, status="skip", message=_NO_GPU, evidence=tuple(evidence))
    message, remedy = _init_fault(state)
    code = cuda.init_code
    actual = "no answer" if code is None else f"{code} ({_INIT_NAMES.get(code, 'error')})"
    return Finding(
        check=check,
        status="fail",
        message=message,
        expected="cuInit returns 0",
        actual=actual,
        evidence=tuple(evidence),
        remedy=remedy,
    )


def _init_fault(state: MachineState) -> tuple[str, str]:
    """Message and remedy for a cuInit that did not succeed."""
    cuda = state.cuda
    if not cuda.library:
        return (
            "NVML works but the CUDA driver library libcuda.so.1 is not found",
            "in a container: -e NVIDIA_DRIVER_CAPABILITIES=compute,utility; else install the driver's compute part",
        )
    if cuda.init_code is None:
        return "cuInit hangs or crashes", "sudo dmesg | grep -iE 'nvrm|xid'; reboot the host"
    if cuda.init_code == 802:
        return _not_ready(state)
    compat = "LD_LIBRARY_PATH" in state.environ and "compat" in state.environ["LD_LIBRARY_PATH"]
    drop = "take the directory with the compat libcuda out of LD_LIBRARY_PATH" if compat else _COMPAT
    faults = {
        3: ("CUDA does not initialise", "ls -l /dev/nvidia-uvm || sudo modprobe nvidia_uvm"),
        34: ("the libcuda.so.1 found is a stub for linking", "take …/lib/stubs out of LD_LIBRARY_PATH"),
        100: (
            "CUDA finds no device although the bus has some",
            "ls -l /dev/nvidia*; in a container: --gpus all and NVIDIA_DRIVER_CAPABILITIES=compute,utility",
        ),
        803: ("libcuda.so.1 does not match the kernel module: compat libraries of another version", drop),
        804: ("forward compatibility libraries are in use on hardware that does not support them", drop),
        999: (
            "CUDA fails with an unknown error",
            _RESTART if state.container else "sudo rmmod nvidia_uvm && sudo modprobe nvidia_uvm, or reboot the host",
        ),
    }
    return faults.get(cuda.init_code) or ("CUDA does not initialise", "sudo dmesg | grep -iE 'nvrm|xid'")


_COMPAT: Final = "remove the package cuda-compat (or its directory from /etc/ld.so.conf.d), or update the driver"


def _not_ready(state: MachineState) -> tuple[str, str]:
    if state.pci.switches:
        return (
            "the NVSwitch fabric is not ready: Fabric Manager does not run, or not in the driver's version",
            "sudo systemctl enable --now nvidia-fabricmanager && systemctl status nvidia-fabricmanager",
        )
    return (
        "the system is not ready, and no NVSwitch is visible that a Fabric Manager would have to serve",
        "nvidia-smi -q | grep -iA3 -E 'fabric|mig|conf'; in a container or VM, see to the host's Fabric Manager",
    )


def check_driver_version(state: MachineState) -> Finding:
    """Is the driver new enough for the CUDA that torch was built with?"""
    check = "machine.driver-version"
    built = state.torch.cuda if state.torch else None
    version = state.cuda.version
    if built is None or not state.has_gpu or not version:
        missing = "torch was not built for CUDA" if built is None else "the driver's CUDA version is not known"
        reason = _NO_GPU if not state.has_gpu else missing
        return Finding(check=check, status="skip", message=reason)
    wanted = [int(part) for part in built.split(".")[:2] if part.isdecimal()]
    has = [version // 1000, version % 1000 // 10]
    driver = state.nvml.driver_version or state.kernel_driver or "unknown"
    evidence = (f"torch {state.torch.torch if state.torch else ''} built for CUDA {built}", f"driver {driver}")
    text = cuda_version_text(version)
    if wanted and wanted[0] > has[0]:
        minimum = MINIMUM_DRIVER.get(wanted[0], f"the first driver of CUDA {wanted[0]}")
        return Finding(
            check=check,
            status="fail",
            message=f"the driver (CUDA {text}) is too old for torch's build (CUDA {built})",
            expected=f"driver ≥ {minimum}",
            actual=f"driver {driver} (CUDA {text})",
            evidence=evidence,
            remedy=f"update the driver to {minimum} or newer, or install a torch built for CUDA {has[0]}",
        )
    how = "directly" if wanted <= has else "by minor version compatibility, without just-in-time compilation of PTX"
    message = f"the driver (CUDA {text}) runs torch's build (CUDA {built}) {how}"
    return Finding(check=check, status="pass", message=message, expected=built, actual=text, evidence=evidence)
