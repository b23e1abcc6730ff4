"""The kernel's files, made up under a root of the test's own."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_runner.machine import host

GIB = 1 << 30


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def test_cpu_model_on_x86(tmp_path: Path) -> None:
    write(tmp_path, {"proc/cpuinfo": "processor\t: 0\nmodel name\t: Intel(R)  Xeon(R) 8480+\n\nprocessor\t: 1\n"})
    assert host.cpu_model(tmp_path) == "Intel(R) Xeon(R) 8480+"


def test_cpu_model_on_arm(tmp_path: Path) -> None:
    write(tmp_path, {"proc/cpuinfo": "processor : 0\nCPU implementer : 0x41\nCPU part : 0xd4f\n"})
    assert host.cpu_model(tmp_path) == "ARM part 0xd4f"


@pytest.mark.parametrize(
    ("files", "affinity", "cores"),
    [
        ({}, 16, 16),
        ({"proc/self/cgroup": "0::/pod\n", "sys/fs/cgroup/pod/cpu.max": "400000 100000\n"}, 16, 4),
        ({"proc/self/cgroup": "0::/pod\n", "sys/fs/cgroup/pod/cpu.max": "max 100000\n"}, 16, 16),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/cpu.max": "250000 100000\n"}, 16, 2),
        ({"proc/self/cgroup": "0::/not/seen/here\n", "sys/fs/cgroup/cpu.max": "50000 100000\n"}, 16, 1),
        (
            {
                "proc/self/cgroup": "4:cpu,cpuacct:/job\n",
                "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us": "800000",
                "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "800000",
                "sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000",
            },
            16,
            8,
        ),
        (
            {
                "proc/self/cgroup": "4:cpu:/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            3,
            3,
        ),
        ({"proc/self/cgroup": "0::/pod\n", "sys/fs/cgroup/pod/cpu.max": "900000 100000\n"}, 2, 2),
        ({"proc/self/cgroup": "nonsense\n0::/../../etc\n", "sys/fs/cgroup/cpu.max": "0 0\n"}, 5, 5),
    ],
)
def test_cores_allowed(tmp_path: Path, files: dict[str, str], affinity: int, cores: int) -> None:
    assert host.cores_allowed(affinity, write(tmp_path, files)) == cores


MEMINFO = f"MemTotal:       {64 * GIB // 1024} kB\nMemFree: 1 kB\n"


@pytest.mark.parametrize(
    ("files", "memory"),
    [
        ({"proc/meminfo": MEMINFO}, 64 * GIB),
        ({"proc/meminfo": MEMINFO, "proc/self/cgroup": "0::/p", "sys/fs/cgroup/p/memory.max": str(GIB)}, GIB),
        ({"proc/meminfo": MEMINFO, "proc/self/cgroup": "0::/p", "sys/fs/cgroup/p/memory.max": "max"}, 64 * GIB),
        (
            {
                "proc/meminfo": MEMINFO,
                "proc/self/cgroup": "9:memory:/j",
                "sys/fs/cgroup/memory/j/memory.limit_in_bytes": "9223372036854771712",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": str(2 * GIB),
            },
            2 * GIB,
        ),
        ({}, None),
    ],
)
def test_memory_allowed(tmp_path: Path, files: dict[str, str], memory: int | None) -> None:
    assert host.memory_allowed(write(tmp_path, files)) == memory


def test_numa_nodes(tmp_path: Path) -> None:
    assert host.numa_nodes(tmp_path) is None
    for name in ("node0", "node1", "has_cpu", "power"):
        (tmp_path / "sys/devices/system/node" / name).mkdir(parents=True)
    assert host.numa_nodes(tmp_path) == 2


@pytest.mark.parametrize(
    ("environ", "file", "kind"),
    [
        ({}, None, None),
        ({}, ".dockerenv", "docker"),
        ({}, "run/.containerenv", "podman"),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, ".dockerenv", "kubernetes"),
        ({"APPTAINER_CONTAINER": "/x.sif"}, None, "apptainer"),
        ({"container": "lxc"}, None, "lxc"),
        ({}, "run/systemd/container", "systemd-nspawn"),
    ],
)
def test_container_hint(tmp_path: Path, environ: dict[str, str], file: str | None, kind: str | None) -> None:
    if file:
        write(tmp_path, {file: "systemd-nspawn\n"})
    assert host.container_hint(environ, tmp_path) == kind


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 2024\nGCC version: 12", "550.54.15"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  575.57.08  Release Build", "575.57.08"),
        ("something else", None),
    ],
)
def test_kernel_driver_version(tmp_path: Path, text: str, version: str | None) -> None:
    write(tmp_path, {"proc/driver/nvidia/version": text})
    assert host.kernel_driver_version(tmp_path) == version


@given(
    cgroup=st.binary(max_size=200),
    cpu=st.binary(max_size=40),
    meminfo=st.binary(max_size=200),
)
def test_damaged_files_never_raise(
    tmp_path_factory: pytest.TempPathFactory, cgroup: bytes, cpu: bytes, meminfo: bytes
) -> None:
    root = tmp_path_factory.mktemp("root")
    for name, data in (
        ("proc/self/cgroup", cgroup),
        ("proc/cpuinfo", meminfo),
        ("sys/fs/cgroup/cpu.max", cpu),
        ("proc/meminfo", meminfo),
        ("proc/driver/nvidia/version", meminfo),
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    assert host.cores_allowed(4, root) in (1, 2, 3, 4)
    assert host.cpu_model(root)
    assert host.memory_allowed(root) is None or host.memory_allowed(root)
    host.kernel_driver_version(root)
