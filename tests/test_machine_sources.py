"""The other sources of a machine's state: CUDA driver, torch probe, PCI bus, network, limits, all together."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import struct
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_runner.machine.limits import read_limits
from bench_runner.machine.network import Listener, listener, read_network
from bench_runner.machine.pci import OtherDevice, acs_control, read_pci
from bench_runner.machine.state import gather_state
from bench_runner.machine.torch_probe import parse_probe, probe_command, probe_torch
from bench_runner.machine.verify import judge
from tests.fakes.driver import FakeDriver
from tests.test_machine_host import write

CUDA = ("read_cuda_driver()", "from bench_runner.machine.cuda_driver import read_cuda_driver")


def test_the_cuda_driver_answers(tmp_path: Path) -> None:
    answer = FakeDriver(tmp_path, 8).device("*", cuda=12040).ask(*CUDA)
    assert answer == {"library": True, "version": 12040, "init_code": 0, "devices": 8, "failure": None}


@pytest.mark.parametrize("code", [802, 803, 804, 999])
def test_cu_init_fails(tmp_path: Path, code: int) -> None:
    answer = FakeDriver(tmp_path, 8).error("cuInit", code).ask(*CUDA)
    assert (answer["init_code"], answer["version"], answer["devices"]) == (code, 12090, None)


def test_no_cuda_library(tmp_path: Path) -> None:
    answer = FakeDriver(tmp_path, cuda=False).ask(*CUDA)
    assert (answer["library"], answer["init_code"]) == (False, None)
    assert "libcuda.so.1" in answer["failure"]


def test_a_hanging_cu_init_leaves_the_version(tmp_path: Path) -> None:
    driver = FakeDriver(tmp_path).delay("cuInit", 100_000_000)
    answer = driver.ask("read_cuda_driver(deadline_seconds=6)", CUDA[1])
    assert (answer["library"], answer["version"], answer["init_code"]) == (True, 12090, None)
    assert "no answer within 6 s" in answer["failure"]


def program(path: Path, text: str) -> str:
    """A Python of the test's own, which ignores the probe and says what it likes."""
    path.write_text(f"#!{sys.executable}\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


BUILD = json.dumps({"part": "build", "torch": "2.13.0", "cuda": "12.9", "architectures": ["sm_90"], "nccl": True})
AVAILABLE = json.dumps({"part": "availability", "available": True, "count": 2, "warnings": [], "init_error": None})
DEVICE = json.dumps({"part": "device", "index": 0, "name": "H100", "works": True, "capability": [9, 0], "uuid": "u"})
STARTING = json.dumps({"part": "starting", "index": 1})


def test_a_probe_that_hangs_on_a_device_names_it(tmp_path: Path) -> None:
    lines = "\n".join(f"print({line!r}, flush=True)" for line in (BUILD, AVAILABLE, DEVICE, STARTING))
    python = program(tmp_path / "python", f"import time\n{lines}\ntime.sleep(600)")
    started = time.monotonic()
    probe = probe_torch(python, deadline_seconds=6)
    assert time.monotonic() - started < 60
    assert (probe.torch, probe.count, probe.hung_on) == ("2.13.0", 2, 1)
    assert probe.failure == "no answer within 6 s"
    assert [device.works for device in probe.devices] == [True]


def test_a_probe_that_crashes_keeps_what_it_said(tmp_path: Path) -> None:
    text = f"import os, sys\nprint({BUILD!r}, flush=True)\nprint('boom', file=sys.stderr, flush=True)\nos.abort()"
    probe = probe_torch(program(tmp_path / "python", text))
    assert (probe.torch, probe.failure, probe.stderr) == ("2.13.0", "killed by SIGABRT", ("boom",))


def test_a_probe_without_python() -> None:
    probe = probe_torch("/nonexistent/python")
    assert probe.failure is not None
    assert "/nonexistent/python" in probe.failure


def test_a_probe_without_torch(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('undefined symbol: ncclCommShrink')", encoding="utf-8")
    probe = probe_torch(sys.executable, {**os.environ, "PYTHONPATH": str(tmp_path)})
    assert probe.failure == "torch cannot be imported: ImportError: undefined symbol: ncclCommShrink"


def test_the_probe_does_not_see_our_modules() -> None:
    assert probe_command("/p")[:2] == ["/p", "-P"]


@given(st.lists(st.text(max_size=30) | st.sampled_from([BUILD, AVAILABLE, DEVICE, STARTING, "[1]", '{"part": "x"}'])))
def test_any_lines_are_read(lines: list[str]) -> None:
    probe = parse_probe("p", lines, None, ())
    assert probe.failure == "the probe broke off"
    assert len(probe.devices) == lines.count(DEVICE)


def pci_device(vendor: str, code: str) -> dict[str, str]:
    return {"vendor": vendor, "class": code}


def configuration(control: int) -> bytes:
    """4096 bytes of configuration space whose second extended capability is ACS with this control register."""
    space = bytearray(4096)
    struct.pack_into("<I", space, 0x100, 0x140 << 20 | 1 << 16 | 0x0001)
    struct.pack_into("<IHH", space, 0x140, 1 << 16 | 0x000D, 0x1F, control)
    return bytes(space)


def test_the_pci_bus(tmp_path: Path) -> None:
    bus = tmp_path / "sys/bus/pci/devices"
    tree = tmp_path / "sys/devices/pci0000:00"
    bridge = tree / "0000:00:01.0"
    places = {
        "0000:00:01.0": (bridge, "0x8086", "0x060400"),
        "0000:01:00.0": (bridge / "0000:01:00.0", "0x10de", "0x030200"),
        "0000:02:00.0": (bridge / "0000:02:00.0", "0x10de", "0x030200"),
        "0000:01:00.1": (bridge / "0000:01:00.1", "0x10de", "0x040300"),
        "0000:03:00.0": (tree / "0000:03:00.0", "0x10de", "0x068000"),
        "0000:04:00.0": (tree / "0000:04:00.0", "0x1002", "0x120000"),
        "0000:05:00.0": (tree / "0000:05:00.0", "0x1da3", "0x120000"),
        "0000:06:00.0": (tree / "0000:06:00.0", "0x8086", "0x038000"),
        "0000:07:00.0": (tree / "0000:07:00.0", "0x8086", "0x030000"),  # inside the processor
        "0000:08:00.0": (tree / "0000:08:00.0", "0x1a03", "0x030000"),  # a console on the board
    }
    bus.mkdir(parents=True)
    for name, (place, vendor, code) in places.items():
        place.mkdir(parents=True, exist_ok=True)
        (place / "vendor").write_text(vendor, encoding="utf-8")
        (place / "class").write_text(code, encoding="utf-8")
        (bus / name).symlink_to(place)
    (bridge / "config").write_bytes(configuration(0x1D))
    own = {"device": "0x74a1\n", "unique_id": "8b1f0a3c\n", "mem_info_vram_total": f"{192 << 30}\n"}
    write(tree / "0000:04:00.0", own)
    write(bridge / "0000:01:00.0", {"iommu_group/type": "DMA-FQ\n"})
    write(bridge / "0000:02:00.0", {"iommu_group/type": "identity\n"})
    write(tmp_path, {"proc/cmdline": "quiet intel_iommu=on\n", "dev/nvidia0": "", "dev/nvidiactl": ""})
    state = read_pci(tmp_path)
    assert state.gpus == ("0000:01:00.0", "0000:02:00.0")
    assert state.switches == 1
    assert state.other_devices == (
        OtherDevice(address="0000:04:00.0", model="1002:74a1", serial="8b1f0a3c", memory_bytes=192 << 30),
        OtherDevice(address="0000:05:00.0", model="1da3:0000"),
        OtherDevice(address="0000:06:00.0", model="8086:0000"),
    )
    assert state.translated == ("0000:01:00.0",)
    assert state.redirecting == ("0000:00:01.0",)
    assert (state.device_nodes, state.iommu_arguments) == (("nvidia0",), ("intel_iommu=on",))
    (bridge / "config").write_bytes(configuration(0x1)[:])
    assert read_pci(tmp_path).redirecting == ()
    (bridge / "config").write_bytes(configuration(0x1D)[:64])
    assert read_pci(tmp_path).redirecting is None


def test_no_pci_bus(tmp_path: Path) -> None:
    assert read_pci(tmp_path).gpus is None


@given(st.binary(max_size=600))
def test_any_configuration_space_ends(data: bytes) -> None:
    control = acs_control(bytes(0x100) + data)
    assert control is None or 0 <= control <= 0xFFFF


def test_a_capability_list_in_a_circle_ends() -> None:
    space = bytearray(4096)
    struct.pack_into("<I", space, 0x100, 0x100 << 20 | 1)
    assert acs_control(bytes(space)) is None


def test_the_network(tmp_path: Path) -> None:
    base = "sys/class/net"
    write(
        tmp_path,
        {
            f"{base}/eth0/operstate": "up\n",
            f"{base}/eth0/speed": "25000\n",
            f"{base}/eth1/operstate": "down\n",
            f"{base}/eth1/speed": "-1\n",
            f"{base}/bonding_masters": "bond0",
            "sys/class/infiniband/mlx5_0/node_type": "1: CA",
        },
    )
    network = read_network(tmp_path)
    assert network.interfaces is not None
    assert [(i.name, i.state, i.speed_mbps) for i in network.interfaces] == [
        ("eth0", "up", 25000),
        ("eth1", "down", None),
    ]
    assert network.infiniband == ("mlx5_0",)
    assert read_network(tmp_path / "nothing").interfaces is None


def test_who_listens_on_a_port() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
        assert listener(port) is None
        server.listen()
        found = listener(port)
        assert found is not None
        assert (found.port, found.pid) == (port, os.getpid())


def test_a_listener_whose_owner_is_not_known(tmp_path: Path) -> None:
    row = "   0: 0100007F:{:04X} 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 1"
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))  # bound and not listening: nobody else gets the port meanwhile
        port = reserved.getsockname()[1]
        write(tmp_path, {"proc/net/tcp": "  sl  local_address\n" + row.format(port) + "\n"})
        assert listener(port, tmp_path) == Listener(port=port)


def test_limits_of_this_process(tmp_path: Path) -> None:
    limits = read_limits()
    assert limits.open_files is not None
    assert limits.shm_total_bytes is None or limits.shm_total_bytes > 0
    assert read_limits(tmp_path).shm_total_bytes is None


@pytest.mark.parametrize(
    ("port", "error"), [("0", False), ("99999999999", False), ("http", False), ("", False), ("1", False)]
)
def test_any_master_port_is_gathered(port: str, error: bool) -> None:
    state = gather_state(None, environ={"MASTER_PORT": port})
    assert (state.listener is not None) is error
    assert state.environ == {"MASTER_PORT": port}


def test_a_whole_box_of_fake_devices_is_judged(tmp_path: Path) -> None:
    driver = FakeDriver(tmp_path, 8).device(5, clock_max_1=1755, ecc_uncorrected=2).error("cuInit", 802)
    imports = "from bench_runner.machine.state import gather_state\nfrom bench_runner.machine.verify import judge"
    findings = {
        finding["check"]: finding
        for finding in driver.ask("judge(gather_state(None))", imports, CUDA_VISIBLE_DEVICES="0,9")
    }
    assert findings["machine.gpu"]["message"] == "8 × NVIDIA H100 80GB HBM3"
    assert findings["machine.cuda"]["actual"] == "802 (system not yet initialized)"
    assert findings["machine.ecc"]["status"] == "fail"
    assert findings["machine.clocks"]["actual"] == "1755 MHz"
    assert "'9' is out of range" in findings["machine.visible-devices"]["evidence"][0]


def test_this_host_is_judged_without_torch() -> None:
    state = gather_state(None)
    findings = judge(dataclasses.replace(state, listener=None))
    assert len({finding.check for finding in findings}) == len(findings) >= 30
