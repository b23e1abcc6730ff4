"""Situations of a machine → verdict, evidence, remedy.  Made-up values of healthy boxes, with one thing wrong each."""

# ruff: noqa: E501 - a table reads best with one situation a line
from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from bench_runner.finding import Finding
from bench_runner.machine.checks_host import nccl_matches, shm_needed
from bench_runner.machine.checks_torch import runs_on
from bench_runner.machine.cuda_driver import CudaDriver
from bench_runner.machine.limits import UNLIMITED, Limits
from bench_runner.machine.network import Interface, Listener, Network
from bench_runner.machine.nvml import DeviceProcess, NvmlDevice, NvmlState
from bench_runner.machine.pci import PciState
from bench_runner.machine.state import Demand, MachineState
from bench_runner.machine.torch_probe import TorchDevice, TorchProbe
from bench_runner.machine.verify import judge

MIB, GIB = 1 << 20, 1 << 30
Changes = dict[str, Any]


def device(index: int, **changes: Any) -> NvmlDevice:
    healthy = NvmlDevice(
        index=index,
        name="NVIDIA H100 80GB HBM3",
        uuid=f"GPU-{index:04d}",
        pci_bus_id=f"00000000:{16 + index:02x}:00.0",
        memory_total_bytes=80 * GIB,
        memory_used_bytes=GIB,
        power_watts=100.0,
        power_limit_watts=700.0,
        power_limit_default_watts=700.0,
        sm_clock_mhz=1980,
        sm_clock_max_mhz=1980,
        sm_clock_application_mhz=1980,
        temperature_celsius=35,
        throttle_reasons=("idle",),
        ecc_corrected=0,
        ecc_uncorrected=0,
        remapping_failed=False,
        pcie_generation=1,
        pcie_generation_max=5,
        pcie_width=16,
        pcie_width_max=16,
        nvlinks=(True,) * 18,
        mig=False,
        compute_mode="default",
        capability=(9, 0),
        processes=(),
    )
    return dataclasses.replace(healthy, **changes)


def torch_device(index: int, **changes: Any) -> TorchDevice:
    healthy = TorchDevice(index=index, name="NVIDIA H100 80GB HBM3", works=True, capability=(9, 0), uuid=f"{index:04d}")
    return dataclasses.replace(healthy, **changes)


def probe(count: int, **changes: Any) -> TorchProbe:
    healthy = TorchProbe(
        python="/env/bin/python",
        torch="2.13.0",
        path="/env/lib/torch/__init__.py",
        cuda="12.9",
        architectures=("sm_80", "sm_90", "sm_100", "compute_100"),
        nccl=True,
        available=True,
        count=count,
        devices=tuple(torch_device(i) for i in range(count)),
    )
    return dataclasses.replace(healthy, **changes)


NOT_AVAILABLE: Changes = {"available": False}
LIMITS = Limits(
    shm_total_bytes=64 * GIB, shm_free_bytes=64 * GIB, memlock_bytes=UNLIMITED, open_files=65536, processes=100000
)
NETWORK = Network(
    interfaces=tuple(Interface(name=n, state=s) for n, s in (("eth0", "up"), ("ib0", "down"), ("lo", "unknown")))
)


def box(count: int = 8, devices: dict[int, Changes] | None = None, **changes: Any) -> MachineState:
    """A healthy box of H100s; ``devices`` changes single ones."""
    described = tuple(device(i, **(devices or {}).get(i, {})) for i in range(count))
    addresses = tuple(f"0000:{16 + i:02x}:00.0" for i in range(count))
    healthy = MachineState(
        nvml=NvmlState(code=0, driver_version="575.57.08", cuda_version="12.9", devices=described),
        cuda=CudaDriver(library=True, version=12090, init_code=0, devices=count),
        torch=probe(count),
        pci=PciState(
            gpus=addresses, switches=4, redirecting=(), device_nodes=tuple(f"nvidia{i}" for i in range(count))
        ),
        network=NETWORK,
        limits=LIMITS,
        cores_allowed=64,
        kernel_driver="575.57.08",
    )
    return dataclasses.replace(healthy, **changes)


def without_driver(code: int | None, **changes: Any) -> MachineState:
    return box(nvml=NvmlState(code=code, reason=f"NVML code {code}"), torch=probe(0, **NOT_AVAILABLE), **changes)


def bare(**changes: Any) -> MachineState:
    """A host without any GPU, as a login node or a CI runner."""
    host = MachineState(
        nvml=NvmlState(code=12, reason="library not found", not_read=("NVML: library not found",)),
        cuda=CudaDriver(library=False, failure="libcuda.so.1: cannot open shared object file"),
        torch=probe(0, cuda=None, architectures=(), nccl=False, **NOT_AVAILABLE),
        pci=PciState(gpus=()),
        network=NETWORK,
        limits=LIMITS,
        cores_allowed=8,
    )
    return dataclasses.replace(host, **changes)


def limited(**changes: Any) -> Limits:
    return dataclasses.replace(LIMITS, **changes)


def cuda(**changes: Any) -> CudaDriver:
    return dataclasses.replace(CudaDriver(library=True, version=12090, init_code=0, devices=8), **changes)


IB = dataclasses.replace(NETWORK, infiniband=("mlx5_0",))
A100 = {"name": "NVIDIA A100"}
SMALL_SHM = limited(shm_total_bytes=64 * MIB, shm_free_bytes=64 * MIB)
SPLIT = {"mig": True, "mig_uuids": ("MIG-a", "MIG-b")}

# name, state, check, status, words that stand in message or evidence, words that stand in the remedy
CASES: list[tuple[str, MachineState, str, str, tuple[str, ...], tuple[str, ...]]] = [
    ("library missing on the host", without_driver(12), "driver", "fail", ("libnvidia-ml.so.1", "0000:10:00.0"), ("install the NVIDIA driver",)),
    ("container without GPUs", without_driver(12, container="docker"), "driver", "fail", ("container was started without",), ("--gpus all",)),
    ("container told to have none", without_driver(12, container="docker", environ={"NVIDIA_VISIBLE_DEVICES": "void"}), "driver", "fail", ("NVIDIA_VISIBLE_DEVICES=void",), ("--gpus all",)),
    ("no permission", without_driver(4), "driver", "fail", ("no permission", "code 4"), ("nvidiactl",)),
    ("module not loaded", without_driver(9), "driver", "fail", ("module is not loaded",), ("modprobe nvidia",)),
    ("driver stuck", without_driver(10), "driver", "fail", ("does not answer",), ("reboot",)),
    ("GPU lost", without_driver(15), "driver", "fail", ("fallen off the bus",), ("xid",)),
    ("update without reboot", without_driver(18), "driver", "fail", ("different versions", "kernel module 575.57.08"), ("reboot",)),
    ("unknown error on the host", without_driver(999), "driver", "fail", ("unknown error",), ("reboot the host",)),
    ("unknown error in a container", without_driver(999, container="docker"), "driver", "fail", ("in a container",), ("restart the container",)),
    ("another code", without_driver(17), "driver", "fail", ("code 17",), ("nvidia-smi",)),
    ("nvidia-ml-py missing", without_driver(None), "driver", "warn", ("nvidia-ml-py is missing",), ("pip install nvidia-ml-py",)),
    ("healthy driver", box(), "driver", "pass", ("575.57.08",), ()),
    ("no GPU: driver", bare(), "driver", "skip", ("no NVIDIA device",), ()),
    ("no GPU but the driver's library", bare(nvml=NvmlState(code=9)), "driver", "skip", ("no NVIDIA device",), ()),
    ("no GPU: presence", bare(), "gpu", "skip", ("GPU checks skipped",), ()),
    ("healthy presence", box(), "gpu", "pass", ("8 × NVIDIA H100",), ()),
    ("presence by the bus alone", without_driver(9), "gpu", "pass", ("8 NVIDIA devices on the PCI bus",), ()),
    ("presence by torch alone", bare(torch=probe(1, hip="6.4", cuda=None)), "gpu", "pass", ("by torch's account",), ()),
    ("Fabric Manager missing", box(cuda=cuda(init_code=802)), "cuda", "fail", ("fabric is not ready", "NVML sees 8"), ("nvidia-fabricmanager",)),
    ("802 without a switch", box(cuda=cuda(init_code=802), pci=PciState(gpus=("a",))), "cuda", "fail", ("no NVSwitch",), ("fabric",)),
    ("compat libraries of another version", box(cuda=cuda(init_code=803)), "cuda", "fail", ("does not match the kernel module",), ("cuda-compat",)),
    ("compat libraries on a path", box(cuda=cuda(init_code=804), environ={"LD_LIBRARY_PATH": "/usr/local/cuda/compat"}), "cuda", "fail", ("forward compatibility",), ("LD_LIBRARY_PATH",)),
    ("libcuda missing", box(cuda=CudaDriver(library=False, failure="not found")), "cuda", "fail", ("libcuda.so.1 is not found",), ("NVIDIA_DRIVER_CAPABILITIES",)),
    ("cuInit hangs", box(cuda=cuda(init_code=None, failure="cuInit gave no answer within 20 s")), "cuda", "fail", ("hangs or crashes", "no answer within 20 s"), ("reboot",)),
    ("stub library", box(cuda=cuda(init_code=34)), "cuda", "fail", ("stub",), ("stubs",)),
    ("uvm module missing", box(cuda=cuda(init_code=3)), "cuda", "fail", ("does not initialise",), ("nvidia_uvm",)),
    ("no device by CUDA", box(cuda=cuda(init_code=100)), "cuda", "fail", ("finds no device",), ("/dev/nvidia",)),
    ("unknown CUDA error", box(cuda=cuda(init_code=999)), "cuda", "fail", ("999",), ("nvidia_uvm",)),
    ("any other CUDA error", box(cuda=cuda(init_code=46)), "cuda", "fail", ("46 (device unavailable)",), ("dmesg",)),
    ("CUDA on a host without GPU", bare(cuda=CudaDriver(library=True, version=12090, init_code=100)), "cuda", "skip", ("no NVIDIA device",), ()),
    ("driver too old", box(cuda=cuda(version=12040), torch=probe(0, cuda="13.0", **NOT_AVAILABLE)), "driver-version", "fail", ("CUDA 12.4", "CUDA 13.0", "580.65.06"), ("580.65.06", "built for CUDA 12")),
    ("driver of an older minor version", box(cuda=cuda(version=12020)), "driver-version", "pass", ("minor version compatibility",), ()),
    ("driver of a later major version", box(cuda=cuda(version=13000)), "driver-version", "pass", ("directly",), ()),
    ("CPU build beside GPUs", box(torch=probe(0, cuda=None, **NOT_AVAILABLE)), "torch-build", "fail", ("CPU build",), ("CONDA_OVERRIDE_CUDA",)),
    ("CPU build without GPU", bare(), "torch-build", "skip", ("CPU build", "no NVIDIA device"), ()),
    ("torch missing", box(torch=TorchProbe(python="/p", failure="torch cannot be imported: No module named 'torch'")), "torch-build", "fail", ("No module named 'torch'",), ("/p -c 'import torch'",)),
    ("CUDA build without GPU", bare(torch=probe(0, **NOT_AVAILABLE)), "torch-devices", "skip", ("as it should be",), ()),
    ("not available: all hidden", box(torch=probe(0, **NOT_AVAILABLE), environ={"CUDA_VISIBLE_DEVICES": "-1"}), "visible-devices", "fail", ("'-1' is negative",), ("0,1,2,3,4,5,6,7",)),
    ("not available: hidden by an empty value", box(torch=probe(0, **NOT_AVAILABLE), environ={"CUDA_VISIBLE_DEVICES": ""}), "visible-devices", "fail", ("hides every device",), ("CUDA_VISIBLE_DEVICES=0,1",)),
    ("not available: driver", box(nvml=NvmlState(code=9), torch=probe(0, init_error="no driver", **NOT_AVAILABLE)), "torch-devices", "fail", ("driver does not answer", "no driver"), ("machine.driver",)),
    ("not available: cuInit", box(cuda=cuda(init_code=802), torch=probe(0, **NOT_AVAILABLE)), "torch-devices", "fail", ("cuInit fails with code 802",), ("machine.cuda",)),
    ("not available: too old", box(cuda=cuda(version=11080), torch=probe(0, **NOT_AVAILABLE)), "torch-devices", "fail", ("too old",), ("update the driver",)),
    ("not available: no cause", box(torch=probe(0, **NOT_AVAILABLE)), "torch-devices", "fail", ("0 of 8", "no source says why"), ("dmesg",)),
    ("fewer than visible", box(torch=probe(7)), "torch-devices", "fail", ("7 of 8",), ("nvidia-smi",)),
    ("torch crashes", box(torch=probe(0, available=None, failure="killed by SIGSEGV")), "torch-devices", "fail", ("SIGSEGV",), ("dmesg",)),
    ("healthy count", box(), "torch-devices", "pass", ("torch sees 8",), ()),
    ("masked count", box(torch=probe(2), environ={"CUDA_VISIBLE_DEVICES": "0,1"}), "torch-devices", "pass", ("torch sees 2",), ()),
    ("architecture missing", box(torch=probe(8, devices=tuple(torch_device(i, capability=(12, 0), works=False, error="no kernel image") for i in range(8)), architectures=("sm_80", "sm_90"))), "architecture", "fail", ("holds no code", "no kernel image", "sm_120"), ("get_arch_list",)),
    ("architecture there", box(), "architecture", "pass", ("every device",), ()),
    ("wrong values", box(torch=probe(8, devices=(*(torch_device(i) for i in range(7)), torch_device(7, works=False, error="wrong values: 0 instead of 9")))), "kernel", "fail", ("cuda:7", "wrong values: 0 instead of 9"), ("CUDA_VISIBLE_DEVICES",)),
    ("kernel hangs", box(torch=probe(8, devices=tuple(torch_device(i) for i in range(3)), failure="no answer within 90 s", hung_on=3)), "kernel", "fail", ("cuda:3: no answer within 90 s",), ("dmesg",)),
    ("available but no kernel ran", box(torch=probe(8, devices=(), failure="the probe broke off")), "kernel", "fail", ("the probe broke off",), ("dmesg",)),
    ("kernels ran", box(), "kernel", "pass", ("each of the 8 devices",), ()),
    ("kernels on no GPU", bare(), "kernel", "skip", ("no device",), ()),
    ("build without NCCL", box(torch=probe(8, nccl=False)), "nccl", "fail", ("without NCCL",), ("env create",)),
    ("mapping by UUID", box(), "device-order", "pass", ("cuda:7 (NVIDIA H100 80GB HBM3) → GPU 7, 00000000:17:00.0",), ()),
    ("mapping unknown among unlike devices", box(2, {1: A100}, torch=probe(2, devices=tuple(torch_device(i, uuid=None) for i in range(2)))), "device-order", "warn", ("→ unknown",), ("CUDA_DEVICE_ORDER=PCI_BUS_ID",)),
    ("mapping unknown among equal devices", box(2, torch=probe(2, devices=tuple(torch_device(i, uuid=None) for i in range(2)))), "device-order", "skip", ("→ unknown",), ()),
    ("index out of range", box(2, environ={"CUDA_VISIBLE_DEVICES": "0,2,1"}), "visible-devices", "fail", ("'2' is out of range (devices here: 0 to 1)", "'1' comes after '2'", "cuda:0 → GPU 0"), ("CUDA_VISIBLE_DEVICES=0,1",)),
    ("device twice", box(2, environ={"CUDA_VISIBLE_DEVICES": "1,1"}), "visible-devices", "fail", ("a second time",), ("CUDA_VISIBLE_DEVICES=0,1",)),
    ("UUID of another host", box(2, environ={"CUDA_VISIBLE_DEVICES": "GPU-9"}), "visible-devices", "fail", ("begins no UUID",), ("CUDA_VISIBLE_DEVICES=0,1",)),
    ("UUID prefix", box(2, environ={"CUDA_VISIBLE_DEVICES": "GPU-0001"}), "visible-devices", "pass", ("cuda:0 → GPU 1",), ()),
    ("two MIG slices", box(2, {0: SPLIT}, environ={"CUDA_VISIBLE_DEVICES": "MIG-a,MIG-b"}), "visible-devices", "warn", ("second MIG slice",), ("CUDA_VISIBLE_DEVICES",)),
    ("more ranks than devices", box(2, demand=Demand(ranks=4)), "ranks", "fail", ("4 processes", "2 visible"), ("--nproc-per-node 2",)),
    ("more ranks than devices by torchrun", box(2, environ={"LOCAL_WORLD_SIZE": "8"}), "ranks", "fail", ("LOCAL_WORLD_SIZE",), ("--nproc-per-node 2",)),
    ("as many ranks as devices", box(2, demand=Demand(ranks=2)), "ranks", "pass", ("2 processes",), ()),
    ("split device", box(2, {1: SPLIT}), "mig", "warn", ("1 of 2", "2 slices"), ("-i 1 -mig 0",)),
    ("split devices for a DDP job", box(2, {0: SPLIT, 1: SPLIT}, demand=Demand(ranks=2)), "mig", "fail", ("one DDP job",), ("-i 0,1 -mig 0",)),
    ("unlike devices", box(4, {3: A100}), "unlike-devices", "warn", ("NVIDIA A100: GPU 3",), ("CUDA_VISIBLE_DEVICES=0,1,2",)),
    ("busy device", box(2, {1: {"processes": (DeviceProcess(pid=4321, memory_bytes=5 * GIB),)}}), "busy", "warn", ("GPU 1", "process 4321, 5120 MiB"), ("-p 4321",)),
    ("busy by somebody unseen", box(2, {1: {"memory_used_bytes": 40 * GIB}}), "busy", "warn", ("40960 MiB used by processes that cannot be seen",), ("nvidia-smi",)),
    ("busy and exclusive", box(2, {0: {"compute_mode": "exclusive-process", "processes": (DeviceProcess(pid=1, memory_bytes=None),)}}), "busy", "fail", ("unknown memory", "exclusive-process"), ("-c DEFAULT",)),
    ("compute prohibited", box(2, {0: {"compute_mode": "prohibited"}}), "busy", "fail", ("prohibited",), ("-c DEFAULT",)),
    ("uncorrected errors", box(2, {1: {"ecc_uncorrected": 3}}), "ecc", "fail", ("GPU 1", "3 uncorrected"), ("--gpu-reset",)),
    ("row remapping failed", box(2, {1: {"remapping_failed": True}}), "ecc", "fail", ("remapping failed",), ("replace",)),
    ("many corrected errors", box(2, {0: {"ecc_corrected": 5000}}), "ecc", "warn", ("5000 corrected",), ("watch",)),
    ("hot device", box(2, {1: {"throttle_reasons": ("thermal-hardware",), "temperature_celsius": 91, "sm_clock_mhz": 900}}), "throttling", "warn", ("thermal-hardware", "91 °C", "900 of 1980 MHz"), ("air flow",)),
    ("idle is no throttling", box(), "throttling", "pass", ("no device is held back",), ()),
    ("capped device", box(2, {1: {"power_limit_watts": 400.0}}), "power-limit", "warn", ("400 of 700 W",), ("-i 1 -pl 700",)),
    ("slower twin", box(8, {5: {"sm_clock_max_mhz": 1755}}), "clocks", "warn", ("GPU 5", "1755"), ("-i 5 -rgc",)),
    ("twin with a lower application clock", box(8, {5: {"sm_clock_application_mhz": 1200}}), "application-clocks", "warn", ("GPU 5",), ("-i 5 -rac",)),
    ("twin with fewer lanes", box(8, {2: {"pcie_width": 8}}), "pcie-width", "warn", ("GPU 2", "8 lanes"), ("reseat",)),
    ("fewer lanes than possible", box(1, {0: {"pcie_width": 8}}), "pcie-link", "warn", ("8 of 16 lanes",), ("reseat",)),
    ("twin in an older slot", box(2, {1: {"pcie_generation_max": 4}}), "pcie-generation", "warn", ("GPU 1",), ("reseat",)),
    ("twin with a link down", box(8, {6: {"nvlinks": (True,) * 17 + (False,)}}), "nvlink", "warn", ("GPU 6", "17"), ("nvlink -s -i 6",)),
    ("twin with less memory", box(8, {6: {"memory_total_bytes": 40 * GIB}}), "memory", "warn", ("GPU 6",), ("-i 6",)),
    ("unlike devices are no twins", box(2, {1: {**A100, "sm_clock_max_mhz": 1410}}), "clocks", "skip", ("no two devices",), ()),
    ("small shared memory in a container", box(8, limits=SMALL_SHM, container="docker"), "shm", "fail", ("64 MiB", "8 ranks"), ("--shm-size=2g", "no substitute")),
    ("small shared memory on a host", box(8, limits=SMALL_SHM), "shm", "fail", ("64 MiB",), ("remount,size=2G",)),
    ("full shared memory", box(8, limits=limited(shm_free_bytes=MIB)), "shm", "fail", ("1 of 65536 MiB free",), ("df -h /dev/shm",)),
    ("small shared memory without GPUs", bare(limits=SMALL_SHM, container="docker"), "shm", "fail", ("2 ranks × 2 loader workers",), ("--shm-size",)),
    ("memlock with InfiniBand", box(network=IB, limits=limited(memlock_bytes=64 * 1024)), "memlock", "fail", ("64 KiB", "mlx5_0"), ("limits.d",)),
    ("memlock in a container with InfiniBand", box(network=IB, limits=limited(memlock_bytes=64 * 1024), container="docker"), "memlock", "fail", ("mlx5_0",), ("--ulimit memlock=-1",)),
    ("memlock without InfiniBand", box(limits=limited(memlock_bytes=64 * 1024)), "memlock", "pass", ("does not matter",), ()),
    ("unlimited memlock", box(network=IB), "memlock", "pass", ("unlimited",), ()),
    ("few open files", box(limits=limited(open_files=64)), "open-files", "warn", ("64",), ("ulimit -n",)),
    ("too many threads", box(8, cores_allowed=16, environ={"OMP_NUM_THREADS": "8"}), "threads", "warn", ("8 × 8 ranks = 64 threads", "16 cores"), ("OMP_NUM_THREADS=2",)),
    ("too many loader workers", bare(cores_allowed=2, demand=Demand(ranks=2, loader_workers=4)), "threads", "warn", ("4 loader workers × 2 ranks = 8",), ("per rank",)),
    ("more ranks than cores", box(8, cores_allowed=4), "threads", "warn", ("8 ranks",), ("OMP_NUM_THREADS=1",)),
    ("torchrun's one thread", box(8, cores_allowed=8, environ={"OMP_NUM_THREADS": "1"}), "threads", "pass", ("8 cores",), ()),
    ("taken port", box(environ={"MASTER_PORT": "29500"}, listener=Listener(port=29500, pid=77, command="python train.py")), "port", "fail", ("process 77: python train.py",), ("kill 77", "unset MASTER_PORT")),
    ("port taken by somebody else's process", box(environ={"MASTER_PORT": "29500"}, listener=Listener(port=29500)), "port", "fail", ("unknown process",), ("unset MASTER_PORT",)),
    ("port that is none", box(environ={"MASTER_PORT": "http"}), "port", "fail", ("'http' is no port",), ("unset",)),
    ("free port", box(environ={"MASTER_PORT": "29500"}), "port", "pass", ("nobody listens",), ()),
    ("NCCL interface missing", box(environ={"NCCL_SOCKET_IFNAME": "eno"}), "interface.nccl", "fail", ("matches no interface", "eth0 (up)"), ("unset NCCL_SOCKET_IFNAME",)),
    ("NCCL interface down", box(environ={"NCCL_SOCKET_IFNAME": "ib"}), "interface.nccl", "fail", ("only interfaces that are down (ib0)",), ("unset",)),
    ("NCCL prefix", box(environ={"NCCL_SOCKET_IFNAME": "eth,ens"}), "interface.nccl", "pass", ("selects eth0", "ens matches nothing"), ()),
    ("NCCL exclusion", box(environ={"NCCL_SOCKET_IFNAME": "^docker,lo"}), "interface.nccl", "pass", ("selects eth0",), ()),
    ("gloo with NCCL's syntax", box(environ={"GLOO_SOCKET_IFNAME": "^lo"}), "interface.gloo", "fail", ("NCCL's syntax",), ("GLOO_SOCKET_IFNAME=eth0",)),
    ("gloo interface missing", box(environ={"GLOO_SOCKET_IFNAME": "eth"}), "interface.gloo", "fail", ("no interface is called 'eth'",), ("GLOO_SOCKET_IFNAME=eth0",)),
    ("gloo interface down", box(environ={"GLOO_SOCKET_IFNAME": "ib0"}), "interface.gloo", "fail", ("ib0 is down",), ("ip link set ib0 up",)),
    ("gloo list", box(environ={"GLOO_SOCKET_IFNAME": "eth0,lo"}), "interface.gloo", "pass", ("exists",), ()),
    ("IOMMU translates", box(2, pci=PciState(gpus=("a", "b"), translated=("a", "b"), iommu_arguments=("intel_iommu=on",))), "iommu", "warn", ("intel_iommu=on", "translated: a, b"), ("iommu=pt", "NCCL_P2P_DISABLE=1")),
    ("IOMMU and one GPU", box(1, pci=PciState(gpus=("a",), translated=("a",))), "iommu", "skip", ("fewer than two",), ()),
    ("ACS redirects", box(2, pci=PciState(gpus=("a", "b"), redirecting=("0000:00:01.0",))), "acs", "warn", ("0000:00:01.0",), ("setpci -s 0000:00:01.0",)),
    ("ACS not readable", box(2, pci=PciState(gpus=("a", "b"))), "acs", "skip", ("root",), ()),
    ("deprecated package", box(deprecated_pynvml="11.5.3"), "nvidia-ml-py", "warn", ("11.5.3",), ("pip uninstall -y pynvml",)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "state", "check", "status", "words", "remedy"), CASES, ids=[case[0] for case in CASES]
)
def test_situations(
    name: str, state: MachineState, check: str, status: str, words: tuple[str, ...], remedy: tuple[str, ...]
) -> None:
    (finding,) = [finding for finding in judge(state) if finding.check == f"machine.{check}"]
    assert finding.status == status, finding
    text = " | ".join((finding.message, str(finding.expected), str(finding.actual), *finding.evidence))
    for word in words:
        assert word in text
    for word in remedy:
        assert word in (finding.remedy or "")


def complete(finding: Finding) -> bool:
    return None not in (finding.expected, finding.actual) and bool(finding.evidence) and bool(finding.remedy)


@pytest.mark.parametrize("state", [case[1] for case in CASES], ids=[case[0] for case in CASES])
def test_every_judgement_is_complete_and_names_are_unique(state: MachineState) -> None:
    findings = judge(state)
    assert len({finding.check for finding in findings}) == len(findings)
    for finding in findings:
        if finding.status in ("warn", "fail"):
            assert complete(finding), finding


def test_a_healthy_box_has_nothing_to_complain_about() -> None:
    assert {finding.status for finding in judge(box())} <= {"pass", "skip"}


def test_a_host_without_gpu_passes_no_check_of_gpus() -> None:
    passed = {finding.check for finding in judge(bare()) if finding.status == "pass"}
    assert passed == {
        "machine.shm",
        "machine.memlock",
        "machine.open-files",
        "machine.threads",
        "machine.port",
        "machine.interface.nccl",
        "machine.interface.gloo",
        "machine.nvidia-ml-py",
    }
    assert {finding.status for finding in judge(bare())} == {"pass", "skip"}


def test_a_pass_of_the_kernel_check_rests_on_kernels_alone() -> None:
    claims = box(torch=probe(8, devices=()))
    (finding,) = [f for f in judge(claims) if f.check == "machine.kernel"]
    assert finding.status == "fail"


@pytest.mark.parametrize(
    ("capability", "architectures", "runs"),
    [
        ((9, 0), ("sm_80", "sm_90"), True),
        ((8, 6), ("sm_80",), True),
        ((8, 0), ("sm_86",), False),
        ((12, 0), ("sm_90", "compute_90"), True),
        ((9, 0), ("sm_90a",), True),
        ((10, 0), ("sm_90a", "compute_90a"), False),
        ((7, 0), ("sm_75", "compute_80"), False),
        ((10, 3), ("sm_100f",), True),
        ((9, 0), (), None),
        (None, ("sm_90",), None),
        ((9, 0), ("nonsense",), False),
    ],
)
def test_runs_on(capability: tuple[int, int] | None, architectures: tuple[str, ...], runs: bool | None) -> None:
    assert runs_on(torch_device(0, capability=capability), architectures) is runs


def test_runs_on_amd() -> None:
    assert runs_on(torch_device(0, architecture="gfx942:sramecc+:xnack-"), ("gfx90a", "gfx942")) is True
    assert runs_on(torch_device(0, architecture="gfx1100"), ("gfx90a",)) is False


def test_shm_needed_grows_with_ranks_and_workers() -> None:
    assert shm_needed(8, 0, 16 * MIB, gpu=True) == 256 * MIB
    assert shm_needed(2, 4, 10 * MIB, gpu=False) == 160 * MIB


@pytest.mark.parametrize(
    ("value", "matched", "unmatched"),
    [
        ("eth", ("eth0", "eth1"), ()),
        ("=eth", (), ("eth",)),
        ("=eth0,eth1", ("eth0", "eth1"), ()),
        ("^eth", ("docker0", "lo"), ()),
        ("^=eth0", ("docker0", "eth1", "lo"), ()),
        ("ib,eth1", ("eth1",), ("ib",)),
        ("^", ("docker0", "eth0", "eth1", "lo"), ()),
    ],
)
def test_nccl_matches(value: str, matched: tuple[str, ...], unmatched: tuple[str, ...]) -> None:
    assert nccl_matches(value, ("docker0", "eth0", "eth1", "lo")) == (matched, unmatched)
