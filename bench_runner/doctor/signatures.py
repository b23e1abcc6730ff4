"""What logs say when a known fault strikes: one row a signature, with the cause and the remedy.

``symptom`` marks lines that say only that something went wrong elsewhere (a time-out, a peer that has gone): they are
judged together with the rest of the log, never alone.  docs/troubleshooting.md shows this table; a test keeps it so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """One way in which a fault shows in a log.  ``needles``: plain strings of which a line must hold one to match."""

    name: str
    needles: tuple[str, ...]
    pattern: re.Pattern[str]
    cause: str
    remedy: str
    status: Literal["warn", "fail"] = "fail"
    symptom: bool = False


def _signature(
    name: str,
    needles: tuple[str, ...],
    cause: str,
    remedy: str,
    *,
    pattern: str | None = None,
    status: Literal["warn", "fail"] = "fail",
    symptom: bool = False,
) -> Signature:
    compiled = re.compile(pattern or "|".join(re.escape(needle) for needle in needles))
    return Signature(
        name=name, needles=needles, pattern=compiled, cause=cause, remedy=remedy, status=status, symptom=symptom
    )


SIGNATURES: Final = (
    _signature(
        "port-taken",
        ("EADDRINUSE", "ddress already in use"),
        "The rendezvous port is held by another process, often a job that did not end.",
        "let the launcher choose a free port (`torchrun --standalone`, or `--rdzv-endpoint HOST:0`), or end the process"
        " that `ss -ltnp` shows on this port",
    ),
    _signature(
        "unused-parameters",
        ("Expected to have finished reduction in the prior iteration", "did not receive grad for rank"),
        "Parameters of the model took no part in the loss of some rank, so that DDP waits for their gradients.",
        "use or remove the parameters named by their indices (`list(model.named_parameters())[i]`), or freeze them with"
        " requires_grad_(False); find_unused_parameters=True also works but costs a walk over the graph each step",
    ),
    _signature(
        "different-model",
        ("appears not to match", "DDP expects same model across all ranks"),
        "The model was not built alike on all ranks (other sizes, other number of parameters).",
        "build the model from values that every rank shares: a fixed number of classes, the same configuration file",
    ),
    _signature(
        "checkpoint-device",
        ("Attempting to deserialize object on",),
        "A checkpoint remembers the device its tensors were saved from, and torch.load puts them there again.",
        "load with torch.load(path, map_location='cpu', weights_only=True) and move the model afterwards; what a file "
        "holds: `bench-runner doctor checkpoint FILE`",
    ),
    _signature(
        "rank-missing",
        (
            "waiting for clients",
            "wait timeout after",
            "client socket has timed out",
        ),
        "Fewer processes came to the rendezvous than the world size says, or the master could not be reached.",
        "start as many processes as the world size says (--nproc-per-node × --nnodes), and check MASTER_ADDR and "
        "MASTER_PORT on every node; do not raise the time-out",
        pattern=r"waiting for clients|wait timeout after \d+ ?ms, keys: " r"|client socket has timed out after",
    ),
    _signature(
        "out-of-memory",
        ("out of memory", "OutOfMemoryError", "can't allocate memory", "std::bad_alloc"),
        "A rank asked for more memory than its device or host has.",
        "lower the batch per device, or see which process holds memory where: `bench-runner doctor memory -- COMMAND`",
        pattern=r"(?:CUDA|HIP|NPU|XPU) out of memory|OutOfMemoryError|can't allocate memory|std::bad_alloc",
    ),
    _signature(
        "shared-memory",
        ("shared memory", "Bus error", "bus error", "/dev/shm"),  # noqa: S108 - text to look for
        "Shared memory is too small for the loader's workers or for NCCL, as in a container with the default of 64 MiB"
        " for /dev/shm.",
        "start the container with `--shm-size=16g` or `--ipc=host`; more memory for the container does not help",
        pattern=r"insufficient shared memory|out of shared memory|[Bb]us error"
        r"|unable to (?:open|mmap|write|allocate)[^\n]*shared memory|(?:No space left on device|Error while"
        r" creating)[^\n]*shm"
        r"|shm[^\n]*No space left on device",
    ),
    _signature(
        "loader-worker-died",
        ("DataLoader worker",),
        "A data loader's worker process was killed or crashed, mostly for want of memory or shared memory.",
        "use fewer workers per rank (num_workers counts for each rank), or raise the limit of memory; look into"
        " `dmesg`",
        pattern=r"DataLoader worker \(pid\(?s?\)? [\d, ]+\) (?:exited unexpectedly|is killed by signal)",
    ),
    _signature(
        "collective-mismatch",
        ("mismatch between collectives", "preamble.length", "op.nbytes"),
        "The ranks called different collectives, or the same one with different sizes.",
        "make every rank call the same collectives in the same order, with tensors of the same size and type",
        pattern=(
            r"mismatch between collectives on ranks|op\.preamble\.length <= op\.nbytes|preamble\.length > op\.nbytes"
        ),
    ),
    _signature(
        "interface",
        ("socket interface found", "Unable to find address for", "Unable to resolve hostname", "No interface found"),
        "The network interface asked for does not exist: NCCL takes lists and `^`, gloo takes one exact name.",
        "set NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME to a name that `ip -brief link` shows on every node",
    ),
    _signature(
        "duplicate-device",
        ("Duplicate GPU detected",),
        "Two ranks of a node use the same device.",
        "call torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) before init_process_group, and give each rank"
        " its own",
    ),
    _signature(
        "barrier-device",
        ("device used by this process is currently unknown",),
        "A barrier guesses the device from the rank, which is wrong as soon as ranks and devices do not match.",
        "give the process group its device: init_process_group(..., device_id=torch.device('cuda', local_rank))",
        status="warn",
    ),
    _signature(
        "locked-memory",
        ("ibv_reg_mr", "ibv_create_cq", "ibv_create_qp"),
        "InfiniBand cannot register memory: the limit of locked memory is too low.",
        "set the limit of locked memory to unlimited: `ulimit -l unlimited`, `docker run --ulimit memlock=-1`",
        pattern=(
            r"ibv_(?:reg_mr|create_cq|create_qp)\w* failed|ibv_(?:reg_mr|create_cq|create_qp)[^\n]*annot allocate"
            r" memory"
        ),
    ),
    _signature(
        "nccl-library",
        ("undefined symbol: nccl", "undefined symbol: pnccl"),
        "Another NCCL is loaded than the one torch was built with.",
        "keep one NCCL in the environment and none on LD_LIBRARY_PATH; which one is loaded: `bench-runner verify`",
    ),
    _signature(
        "mkl-pin",
        ("iJIT_NotifyEvent",),
        "torch was built against an older MKL than the one installed.",
        "install the MKL that the lock file names (`bench-runner verify` shows both)",
    ),
    _signature(
        "numpy-abi",
        ("compiled using NumPy 1.x cannot be run in", "_ARRAY_API not found"),
        "torch was built against NumPy 1 and meets NumPy 2: torch.from_numpy does not work.",
        "install the NumPy that the lock file names, or a torch that was built for NumPy 2",
    ),
    _signature(
        "driver-too-old",
        ("NVIDIA driver on your system is too old", "CUDA driver version is insufficient for CUDA runtime version"),
        "The driver is older than the CUDA that torch was built for.",
        "update the driver, or install a torch built for an older CUDA; both versions: `bench-runner verify`",
    ),
    _signature(
        "architecture-missing",
        ("no kernel image is available",),
        "torch was built without kernels for this device's architecture.",
        "install a torch whose torch.cuda.get_arch_list() has the device's compute capability",
    ),
    _signature(
        "fabric",
        ("system not yet initialized", "CUDA error 802", "Error 802"),
        "The NVSwitch fabric is not up, so that CUDA cannot start although nvidia-smi works.",
        "start the fabric manager of the driver's own version: `systemctl start nvidia-fabricmanager`",
    ),
    _signature(
        "torchvision-mismatch",
        ("operator torchvision::",),
        "torchvision was built for another torch, or for another CUDA.",
        "install torch and torchvision of one release and one CUDA, as the lock file names them",
        pattern=r"operator torchvision::\w+ does not exist",
    ),
    _signature(
        "cudnn-library",
        (
            "cuDNN version incompatibility",
            "Could not load library libcudnn",
            "libcudnn",
            "CUDNN_STATUS_NOT_INITIALIZED",
        ),
        "Another cuDNN is loaded than the one torch was built with.",
        "take the directories with foreign CUDA libraries off LD_LIBRARY_PATH; which are loaded: `bench-runner verify`",
        pattern=r"cuDNN version incompatibility|(?:Could not load library|cannot open shared object file)[^\n]*libcudnn"
        r"|libcudnn[^\n]*cannot open shared object file|CUDNN_STATUS_NOT_INITIALIZED",
    ),
    _signature(
        "device-lost",
        ("fallen off the bus", "GPU is lost", "Failed to initialize NVML: Unknown Error"),
        "The driver or the container lost the device while the job ran.",
        "look into `dmesg` for Xid errors; in a container restart it, with the devices passed by CDI or cgroup rules"
        " that `systemctl daemon-reload` does not undo",
    ),
    _signature(
        "device-fault",
        (
            "NVRM: Xid",
            "an illegal memory access was encountered",
            "uncorrectable ECC error",
            "unspecified launch failure",
        ),
        "A kernel or the device itself failed.",
        "run `bench-runner doctor startup` to see whether the device computes rightly alone; for a program's own kernel"
        " run once with CUDA_LAUNCH_BLOCKING=1",
    ),
    _signature(
        "fork-after-device",
        ("Cannot re-initialize CUDA in forked subprocess",),
        "A process forked after it had used the device.",
        "start workers with the spawn method: multiprocessing_context='spawn', torch.multiprocessing.spawn",
    ),
    _signature(
        "loss-not-finite",
        ("nan", "NaN", "inf", "NAN"),
        "The loss or a gradient is no number any more; with DDP one rank's NaN reaches every rank by the average.",
        "look at the batch of the rank that showed it first; torch.autograd.set_detect_anomaly(True) names the"
        " operation, and clip or skip steps whose gradient norm is not finite",
        pattern=r"(?i)\b(?:loss|grad(?:ient)?[_ -]?norm)\b['\"]?\s{0,3}[=:]?\s{0,3}(?:tensor\()?[-+]?(?:nan|inf)\b",
    ),
    _signature(
        "collective-timeout",
        ("Watchdog caught collective operation timeout",),
        "A collective did not end in time; the cause lies in a rank that is behind, gone, or cut off.",
        "find the lagging rank: run `bench-runner doctor log` over the logs of all ranks",
        symptom=True,
    ),
    _signature(
        "gloo-timeout",
        ("Timed out waiting",),
        "A collective over gloo did not end in time; the cause lies in a rank that is behind, gone, or cut off.",
        "find the lagging rank: run `bench-runner doctor log` over the logs of all ranks",
        pattern=r"Timed out waiting \d+ ?ms for (?:recv|send) operation",
        symptom=True,
    ),
    _signature(
        "peer-gone",
        ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "socketProgress", "ncclRemoteError"),
        "Another rank ended before this one: it failed, was killed, or had fewer steps to do.",
        "look at the rank that ended first: run `bench-runner doctor log` over the logs of all ranks",
        symptom=True,
    ),
)


Needles = tuple[tuple[str, int], ...]
_ALL_NEEDLES: Final[Needles] = tuple((needle, place) for place, row in enumerate(SIGNATURES) for needle in row.needles)


def needles_in(text: str) -> Needles:
    """The needles that occur in ``text`` (many lines), for ``matching`` over each of its lines."""
    return tuple((needle, place) for needle, place in _ALL_NEEDLES if needle in text)


def matching(line: str, needles: Needles = _ALL_NEEDLES) -> list[Signature]:
    """The signatures that ``line`` bears, in the table's order."""
    places = {place for needle, place in needles if needle in line}
    return [SIGNATURES[place] for place in sorted(places) if SIGNATURES[place].pattern.search(line)]


def signature_named(name: str) -> Signature:
    """The row called ``name``; KeyError if there is none."""
    for signature in SIGNATURES:
        if signature.name == name:
            return signature
    raise KeyError(name)
