"""Reads a checkpoint as data: what it holds and where its tensors were saved from, without a GPU.

``torch.load`` with ``weights_only=True`` refuses everything but tensors and plain containers.  The device of each
tensor is what torch.load tells the ``map_location`` function; the data stay in the file (mmap) until they are read.
"""

from __future__ import annotations

import math
import pickle
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import torch

from bench_runner.errors import UsageError
from bench_runner.worker.doctor_program import call_factory, load_factory

MOST_KEYS: Final = 100_000
_MODEL_KEYS: Final = ("model", "state_dict", "model_state_dict", "model_state", "module", "net", "network", "weights")
_OPTIMIZER_KEYS: Final = (
    "optimizer",
    "optimizer_state_dict",
    "optim",
    "optimizer_state",
    "optimizers",
    "optimizer_states",
)
_PROGRESS_KEYS: Final = ("epoch", "step", "global_step", "iteration", "iter", "current_epoch", "epochs_run")
_LARGEST_PICKLE_BYTES: Final = 1 << 29
_CHUNK: Final = 1 << 24


def run(_rank: int, world: dict[str, Any], _directory: Path, say: Any) -> None:
    """Say what the file holds, and how it fits the model if one is given."""
    options = world["options"]
    path = Path(options["path"])
    problem = archive_problem(path)
    if problem is not None:
        say("unreadable", **problem)
        return
    origins: dict[int, str] = {}

    def stay_here(storage: Any, location: str) -> Any:
        origins[storage.data_ptr()] = location
        return storage

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about foreign pickles, which are told in our own words or read well
            content = torch.load(path, map_location=stay_here, weights_only=True, mmap=zipfile.is_zipfile(path))
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError, AttributeError, TypeError, OSError,
            IndexError, ImportError, MemoryError, UnicodeDecodeError, AssertionError) as error:  # fmt: skip
        say("unreadable", **load_problem(error))
        return
    say("content", **describe(content, origins))
    if options.get("model"):
        say("model", **compare(model_state(content), options["model"]))


def archive_problem(path: Path) -> dict[str, str] | None:
    """What is wrong with the file as an archive, before anything is loaded from it; None for nothing."""
    with path.open("rb") as file:
        head = file.read(4)
    if not head:
        return {"reason": "damaged", "detail": "the file is empty"}
    if not zipfile.is_zipfile(path):
        if head[:2] == b"PK":
            return {"reason": "damaged", "detail": "the archive has no directory: the file is cut off"}
        if head[:1] != b"\x80":
            return {"reason": "foreign", "detail": "neither an archive nor a pickle, as torch.save writes them"}
        return None
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError) as error:
        return {"reason": "damaged", "detail": str(error)}
    pickles = [entry for entry in entries if entry.filename.endswith("data.pkl")]
    if not pickles:
        return {"reason": "foreign", "detail": "an archive, but none that torch.save wrote"}
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
        return {"reason": "foreign", "detail": "its entries are compressed, which torch.save never does"}
    if any(entry.file_size > _LARGEST_PICKLE_BYTES for entry in pickles):
        return {"reason": "foreign", "detail": f"its data.pkl is larger than {_LARGEST_PICKLE_BYTES} bytes"}
    return None


def load_problem(error: BaseException) -> dict[str, str]:
    """Why torch.load refused: ``unsafe`` (more than tensors and containers), or ``damaged``."""
    text = str(error)
    unsafe = "weights_only" in text.lower() or "Weights only load failed" in text
    named = next((line.strip() for line in text.splitlines() if "GLOBAL" in line or "Unsupported" in line), "")
    damaged = any(
        word in text for word in ("invalid load key", "pickle data was truncated", "PytorchStreamReader", "EOF")
    )
    if unsafe and not damaged:
        return {"reason": "unsafe", "detail": (named or text.splitlines()[0])[:500]}
    return {"reason": "damaged", "detail": f"{type(error).__name__}: {(text.splitlines() or [''])[0]}"[:500]}


def describe(content: Any, origins: dict[int, str]) -> dict[str, Any]:
    """Counts, devices, names; all plain values."""
    devices: dict[str, list[int]] = {}
    storages: dict[int, int] = {}
    tensor_bytes = tensors = 0
    not_finite: list[str] = []
    for name, tensor in _tensors(content):
        tensors += 1
        tensor_bytes += tensor.numel() * tensor.element_size()
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        counts = devices.setdefault(origins.get(storage.data_ptr(), "cpu"), [0, 0])
        counts[0] += 1
        counts[1] += tensor.numel() * tensor.element_size()
        if len(not_finite) < 20 and not _finite(tensor):
            not_finite.append(name)
    state = model_state(content)
    return {
        "top": sorted(map(str, content))[:200] if isinstance(content, dict) else type(content).__name__,
        "tensors": tensors,
        "tensor_bytes": tensor_bytes,
        "storage_bytes": sum(storages.values()),
        "devices": devices,
        "not_finite": not_finite,
        "keys": list(state)[:MOST_KEYS],
        "bare": state is content,
        "optimizer": _optimizer(content),
        "progress": [key for key in _PROGRESS_KEYS if isinstance(content, dict) and key in content],
    }


def _finite(tensor: torch.Tensor) -> bool:
    if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.layout != torch.strided:
        return True
    flat = tensor.reshape(-1)
    return all(
        bool(torch.isfinite(flat[start : start + _CHUNK].float()).all()) for start in range(0, len(flat), _CHUNK)
    )


def _tensors(value: Any, name: str = "", depth: int = 0) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor with its place; containers deeper than 50 are not looked into."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif depth < 50 and isinstance(value, dict):
        for key, item in value.items():
            yield from _tensors(item, f"{name}.{key}" if name else str(key), depth + 1)
    elif depth < 50 and isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _tensors(item, f"{name}[{index}]", depth + 1)


def _is_state(value: Any) -> bool:
    return isinstance(value, dict) and bool(value) and all(isinstance(item, torch.Tensor) for item in value.values())


def model_state(content: Any) -> dict[str, Any]:
    """The model's own state in a checkpoint: the whole, one of the usual keys, or the only dictionary of tensors."""
    if _is_state(content):
        return content
    if not isinstance(content, dict):
        return {}
    for key in _MODEL_KEYS:
        if _is_state(content.get(key)):
            return content[key]
    states = [value for value in content.values() if _is_state(value)]
    return states[0] if len(states) == 1 else {}


def _optimizer(content: Any) -> dict[str, int] | None:
    """How many parameters the optimizer's state names, and for how many it has state; None if there is none."""
    if not isinstance(content, dict):
        return None
    for key in _OPTIMIZER_KEYS:
        state = content.get(key)
        if isinstance(state, list | tuple) and state:
            state = state[0]
        if isinstance(state, dict) and "param_groups" in state:
            groups = state["param_groups"]
            parameters = sum(len(group.get("params", ())) for group in groups if isinstance(group, dict))
            return {"parameters": parameters, "with_state": len(state.get("state", {}))}
    return None


def compare(state: dict[str, Any], factory_name: str) -> dict[str, Any]:
    """The checkpoint's keys and shapes against the model's, as they are and with wrapper prefixes taken off."""
    model = call_factory(load_factory(factory_name), 0, 1)
    if not isinstance(model, torch.nn.Module):
        raise UsageError(f"{factory_name}: must return a torch.nn.Module, not {type(model).__name__}")
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    found = {str(name): tuple(tensor.shape) for name, tensor in state.items()}
    stripped = {strip_prefixes(name): shape for name, shape in found.items()}
    bare = {strip_prefixes(name): shape for name, shape in wanted.items()}
    shapes = [name for name in wanted if name in found and found[name] != wanted[name]]
    return {
        "parameters": len(list(model.parameters())),
        "wanted": len(wanted),
        "missing": sorted(set(wanted) - set(found))[:MOST_KEYS],
        "unexpected": sorted(set(found) - set(wanted))[:MOST_KEYS],
        "matching": len(set(wanted) & set(found)),
        "matching_without_prefixes": len(set(bare) & set(stripped)),
        "shapes": [f"{name}: file {list(found[name])}, model {list(wanted[name])}" for name in shapes[:100]],
        "elements": sum(math.prod(shape) for shape in wanted.values()),
    }


def strip_prefixes(name: str) -> str:
    """A parameter's name without what wrappers put into it."""
    return ".".join(part for part in name.split(".") if part not in ("_orig_mod", "_fsdp_wrapped_module")).removeprefix(
        "module."
    )
