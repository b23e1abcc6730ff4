"""Judgement on the host: shared memory, locked memory, threads, ports, interface names, IOMMU and ACS."""

from __future__ import annotations

from typing import Final

from bench_runner.finding import Finding
from bench_runner.machine.limits import UNLIMITED
from bench_runner.machine.network import Network
from bench_runner.machine.state import MachineState

_MIB: Final = 1 << 20
_SHM: Final = "/dev/shm"  # noqa: S108 - named in messages, nothing is written there
# NCCL's shared memory transport takes some 10 to 30 MiB a rank (4 MiB a channel and direction); torch's loader keeps
# two batches a worker in flight (prefetch_factor).
_NCCL_BYTES_PER_RANK: Final = 32 * _MIB
_BATCHES_PER_WORKER: Final = 2
_FILES_PER_RANK: Final = 256
_USUAL_WORKERS: Final = 2


def shm_needed(ranks: int, workers: int, batch_bytes: int, *, gpu: bool) -> int:
    """Bytes of /dev/shm that a job is going to want, generously."""
    return ranks * ((_NCCL_BYTES_PER_RANK if gpu else 0) + workers * _BATCHES_PER_WORKER * batch_bytes)


def check_shm(state: MachineState) -> Finding:
    """Is /dev/shm large enough for NCCL's segments and the loaders' batches?"""
    check = "machine.shm"
    free, demand = state.limits.shm_free_bytes, state.demand
    if free is None:
        return Finding(check=check, status="skip", message=f"{_SHM} cannot be read")
    workers = _USUAL_WORKERS if demand.loader_workers is None else demand.loader_workers
    need = shm_needed(state.ranks, workers, demand.batch_bytes, gpu=state.has_gpu)
    total = state.limits.shm_total_bytes or free
    evidence = (
        f"{_SHM}: {free // _MIB} of {total // _MIB} MiB free",
        f"{state.ranks} ranks × {workers} loader workers × {_BATCHES_PER_WORKER} batches of "
        f"{demand.batch_bytes // _MIB} MiB"
        + (f", and {_NCCL_BYTES_PER_RANK // _MIB} MiB a rank for NCCL" * state.has_gpu),
    )
    if free >= need:
        message = f"{_SHM} has {free // _MIB} MiB free"
        return Finding(check=check, status="pass", message=message, actual=f"{free // _MIB} MiB", evidence=evidence)
    size = max(1, -(-2 * need // 2**30))
    full = total >= need
    remedy = "df -h /dev/shm; rm what earlier jobs left there (ls -l /dev/shm)"
    if not full and state.container:
        remedy = f"docker run --shm-size={size}g …  (or --ipc=host); the container's memory limit is no substitute"
    elif not full:
        remedy = f"sudo mount -o remount,size={size}G /dev/shm"
    return Finding(
        check=check,
        status="fail",
        message=f"{_SHM} is too small: NCCL or a DataLoader worker would die in it",
        expected=f"{need // _MIB} MiB",
        actual=f"{free // _MIB} MiB",
        evidence=evidence,
        remedy=remedy,
    )


def check_memlock(state: MachineState) -> Finding:
    """InfiniBand registers memory, which needs an unlimited memlock."""
    check = "machine.memlock"
    limit = state.limits.memlock_bytes
    if limit is None:
        return Finding(check=check, status="skip", message="the limit of locked memory cannot be read")
    shown = "unlimited" if limit == UNLIMITED else f"{limit // 1024} KiB"
    if not state.network.infiniband:
        message = f"memlock is {shown}; without InfiniBand it does not matter"
        return Finding(check=check, status="pass", message=message, actual=shown)
    if limit == UNLIMITED:
        return Finding(check=check, status="pass", message="memlock is unlimited", actual=shown)
    return Finding(
        check=check,
        status="fail",
        message=f"memlock is {shown} on a host with InfiniBand: registering memory fails",
        expected="unlimited",
        actual=shown,
        evidence=(f"InfiniBand devices: {', '.join(state.network.infiniband)}", f"ulimit -l: {shown}"),
        remedy="docker run --ulimit memlock=-1 …"
        if state.container
        else "echo '* - memlock unlimited' | sudo tee /etc/security/limits.d/memlock.conf, and log in again",
    )


def check_open_files(state: MachineState) -> Finding:
    """Each rank opens files for its libraries, sockets to its peers and pipes to its workers."""
    check = "machine.open-files"
    limit = state.limits.open_files
    if limit is None:
        return Finding(check=check, status="skip", message="the limit of open files cannot be read")
    need = _FILES_PER_RANK + 16 * state.ranks * (1 + (state.demand.loader_workers or 0))
    if limit == UNLIMITED or limit >= need:
        return Finding(check=check, status="pass", message=f"{limit} open files allowed", actual=str(limit))
    return Finding(
        check=check,
        status="warn",
        message=f"only {limit} open files are allowed a process",
        expected=f"at least {need}",
        actual=str(limit),
        evidence=(
            f"ulimit -n: {limit}",
            f"{state.ranks} ranks, {state.demand.loader_workers or 0} loader workers each",
        ),
        remedy="ulimit -n 65536",
    )


def _positive(text: str | None) -> int | None:
    """A number in a variable; None for anything else."""
    return int(text[:9]) if text and text.isascii() and text.isdecimal() and int(text[:9]) > 0 else None


def check_threads(state: MachineState) -> Finding:
    """More threads and loader workers than cores slow every rank down."""
    check = "machine.threads"
    ranks, cores = state.ranks, state.cores_allowed
    threads = _positive(state.environ.get("OMP_NUM_THREADS"))
    workers = (state.demand.loader_workers or 0) * ranks
    evidence = [f"{cores} cores allowed (affinity and control group)", f"{ranks} ranks on this host"]
    problems = []
    if threads is not None and threads * ranks > cores and threads > 1:
        problems.append(f"OMP_NUM_THREADS={threads} × {ranks} ranks = {threads * ranks} threads")
    if workers > cores:
        problems.append(f"{state.demand.loader_workers} loader workers × {ranks} ranks = {workers} processes")
    if ranks > cores:
        problems.append(f"{ranks} ranks")
    if not problems:
        return Finding(check=check, status="pass", message=f"{cores} cores for {ranks} ranks", actual=str(cores))
    share = max(1, cores // ranks)
    return Finding(
        check=check,
        status="warn",
        message=f"more threads or workers than the {cores} cores that this process may use",
        expected=f"at most {cores}",
        actual="; ".join(problems),
        evidence=(*evidence, *problems),
        remedy=f"export OMP_NUM_THREADS={share}, and num_workers={share} or fewer (it counts per rank)",
    )


def check_port(state: MachineState) -> Finding:
    """A fixed MASTER_PORT that somebody already listens on."""
    check = "machine.port"
    port = state.environ.get("MASTER_PORT")
    if port is None:
        return Finding(check=check, status="pass", message="MASTER_PORT is not set: the launcher takes a free port")
    number = _positive(port)
    if number is None or number > 65535:
        return Finding(
            check=check,
            status="fail",
            message=f"MASTER_PORT={port!r} is no port",
            expected="1 to 65535",
            actual=port,
            evidence=(f"MASTER_PORT={port!r}",),
            remedy="unset MASTER_PORT",
        )
    taken = state.listener
    if taken is None:
        return Finding(check=check, status="pass", message=f"nobody listens on MASTER_PORT={number}", actual=port)
    owner = f"process {taken.pid}: {taken.command or 'unknown'}" if taken.pid else "an unknown process"
    kill = f"kill {taken.pid}, if it is left over; else " if taken.pid else ""
    return Finding(
        check=check,
        status="fail",
        message=f"MASTER_PORT={number} is taken by {owner}",
        expected="a free port",
        actual="taken",
        evidence=(f"listening on {number}: {owner}",),
        remedy=f"{kill}unset MASTER_PORT",
    )


def nccl_matches(value: str, names: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Interfaces that NCCL_SOCKET_IFNAME selects, and the entries that match none.

    NCCL's syntax: a list of prefixes; ``^`` in front excludes them, ``=`` (``^=``) makes the names exact.
    """
    exclude = value.startswith("^")
    rest = value[1:] if exclude else value
    exact = rest.startswith("=")
    entries = [entry for entry in (rest[1:] if exact else rest).split(",") if entry]

    def fits(name: str, entry: str) -> bool:
        return name == entry if exact else name.startswith(entry)

    matched = tuple(name for name in names if any(fits(name, entry) for entry in entries) is not exclude)
    unmatched = tuple(entry for entry in entries if not any(fits(name, entry) for name in names))
    return matched, unmatched


def _interface_names(network: Network) -> tuple[str, ...]:
    return tuple(interface.name for interface in network.interfaces or ())


def _interface_fault(state: MachineState, check: str, variable: str, message: str, remedy: str) -> Finding:
    names = ", ".join(f"{i.name} ({i.state})" for i in state.network.interfaces or ()) or "none"
    value = state.environ[variable]
    return Finding(
        check=check,
        status="fail",
        message=f"{variable}={value!r}: {message}",
        expected="an interface of this host that is up",
        actual=value,
        evidence=(f"interfaces here: {names}",),
        remedy=remedy,
    )


def check_nccl_interface(state: MachineState) -> Finding:
    """NCCL_SOCKET_IFNAME in NCCL's syntax."""
    check, variable = "machine.interface.nccl", "NCCL_SOCKET_IFNAME"
    value = state.environ.get(variable)
    if not value:
        return Finding(check=check, status="pass", message=f"{variable} is not set: NCCL chooses")
    names = _interface_names(state.network)
    if not names:
        return Finding(check=check, status="skip", message="the interfaces of this host cannot be read")
    matched, unmatched = nccl_matches(value, names)
    up = [i.name for i in state.network.interfaces or () if i.name in matched and i.state != "down"]
    if not up:
        why = f"matches only interfaces that are down ({', '.join(matched)})" if matched else "matches no interface"
        return _interface_fault(state, check, variable, why, f"unset {variable}")
    note = f" ({', '.join(unmatched)} matches nothing)" if unmatched and not value.startswith("^") else ""
    message = f"{variable}={value!r} selects {', '.join(up)}{note}"
    return Finding(check=check, status="pass", message=message, actual=", ".join(up))


def check_gloo_interface(state: MachineState) -> Finding:
    """GLOO_SOCKET_IFNAME: exact names, by commas; NCCL's ``^``, ``=`` and prefixes mean nothing to gloo."""
    check, variable = "machine.interface.gloo", "GLOO_SOCKET_IFNAME"
    value = state.environ.get(variable)
    if not value:
        return Finding(check=check, status="pass", message=f"{variable} is not set: gloo takes the host name's address")
    names = _interface_names(state.network)
    if not names:
        return Finding(check=check, status="skip", message="the interfaces of this host cannot be read")
    unknown = [entry for entry in value.split(",") if entry not in names]
    down = [i.name for i in state.network.interfaces or () if i.name in value.split(",") and i.state == "down"]
    if unknown:
        foreign = value.startswith(("^", "="))
        syntax = "is NCCL's syntax, gloo takes exact names" if foreign else f"no interface is called {unknown[0]!r}"
        example = next((name for name in names if name != "lo"), names[0])
        return _interface_fault(state, check, variable, syntax, f"export {variable}={example}")
    if down:
        return _interface_fault(state, check, variable, f"{', '.join(down)} is down", f"sudo ip link set {down[0]} up")
    return Finding(check=check, status="pass", message=f"{variable}={value!r} exists", actual=value)


def check_iommu(state: MachineState) -> Finding:
    """An IOMMU that translates, with several GPUs: peer-to-peer copies can hang or deliver zeros."""
    check = "machine.iommu"
    pci = state.pci
    if pci.gpus is None or len(pci.gpus) < 2:
        return Finding(check=check, status="skip", message="fewer than two GPUs on a bus that can be read")
    if not pci.translated:
        return Finding(check=check, status="pass", message="the IOMMU does not translate the GPUs' addresses")
    return Finding(
        check=check,
        status="warn",
        message="the IOMMU translates the GPUs' addresses: peer-to-peer copies can hang or deliver wrong data",
        expected="off or pass-through",
        actual="translating",
        evidence=(
            f"translated: {', '.join(pci.translated)}",
            f"kernel command line: {' '.join(pci.iommu_arguments) or 'nothing about the IOMMU'}",
        ),
        remedy="boot with iommu=pt (GRUB_CMDLINE_LINUX), or switch the IOMMU off in the firmware; to go on for now: "
        "export NCCL_P2P_DISABLE=1; bench-runner verify --only links checks the values",
    )


def check_acs(state: MachineState) -> Finding:
    """ACS on the bridges above the GPUs sends peer-to-peer traffic up to the root complex."""
    check = "machine.acs"
    pci = state.pci
    if pci.gpus is None or len(pci.gpus) < 2:
        return Finding(check=check, status="skip", message="fewer than two GPUs on a bus that can be read")
    if pci.redirecting is None:
        return Finding(check=check, status="skip", message="the bridges' configuration takes root to read")
    if not pci.redirecting:
        return Finding(check=check, status="pass", message="no bridge above the GPUs redirects peer traffic (ACS)")
    return Finding(
        check=check,
        status="warn",
        message="ACS redirects peer-to-peer traffic through the root complex: slow, and known to hang NCCL",
        expected="redirection off",
        actual=f"{len(pci.redirecting)} bridges redirect",
        evidence=(f"bridges: {', '.join(pci.redirecting)}",),
        remedy="; ".join(f"sudo setpci -s {bridge} ECAP_ACS+6.w=0000" for bridge in pci.redirecting),
    )


def check_pynvml(state: MachineState) -> Finding:
    """The deprecated package pynvml shares its module's name with nvidia-ml-py; the one installed last wins."""
    check = "machine.nvidia-ml-py"
    if state.deprecated_pynvml is None:
        return Finding(check=check, status="pass", message="the deprecated package pynvml is not installed")
    return Finding(
        check=check,
        status="warn",
        message=f"the deprecated package pynvml {state.deprecated_pynvml} is installed beside nvidia-ml-py",
        expected="nvidia-ml-py alone",
        actual=f"pynvml {state.deprecated_pynvml}",
        evidence=("both provide the module pynvml",),
        remedy="pip uninstall -y pynvml && pip install --force-reinstall nvidia-ml-py",
    )
