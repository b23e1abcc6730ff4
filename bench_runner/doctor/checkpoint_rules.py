"""What a checkpoint's content means for those who load it: pure rules."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from bench_runner.doctor.checkpoint import CheckpointProbe
from bench_runner.doctor.faults import probe_finding
from bench_runner.doctor.signatures import signature_named
from bench_runner.finding import Finding

_MIB: Final = 1 << 20
_PREFIXES: Final = ("module.", "_orig_mod.")
_READ_REMEDY: Final = {
    "damaged": (
        "take another copy; a file that was being written when the job ended is cut off: write to a temporary name "
        "and rename it"
    ),
    "foreign": "name a file that torch.save wrote",
    "unsafe": (
        "do not load it with weights_only=False unless you trust whoever made it: a pickle can run any code; save "
        "state_dict()s and plain values instead of whole objects"
    ),
}
_finding = partial(probe_finding, "checkpoint")


def judge_checkpoint(probe: CheckpointProbe) -> list[Finding]:
    """All findings; a file that cannot be read gets one."""
    if probe.unreadable is not None:
        reason = probe.unreadable["reason"]
        return [_finding(reason, "fail", f"{probe.path}: {probe.unreadable['detail']}", remedy=_READ_REMEDY[reason])]
    findings: list[Finding] = []
    if probe.content is not None:
        for rule in (_content, _devices, _prefixes, _not_finite, _storages, _resume):
            findings += rule(probe.content, probe.model)
    if probe.model is not None:
        findings += _model(probe.model)
    if probe.error is not None:
        remedy = "see to the model's factory, or to the memory of this machine"
        findings.append(_finding("error", "fail", f"{probe.path}: {probe.error}", remedy=remedy))
    return findings


def _content(content: dict[str, Any], _model: dict[str, Any] | None) -> list[Finding]:
    if content["tensors"] == 0:
        return [
            _finding("empty", "fail", "there is no tensor in it", remedy="name the file that holds the model's state")
        ]
    size = content["tensor_bytes"] / _MIB
    message = f"{content['tensors']} tensors, {size:.1f} MiB; {len(content['keys'])} in the model's state"
    return [_finding("content", "pass", message)]


def _devices(content: dict[str, Any], _model: dict[str, Any] | None) -> list[Finding]:
    devices: dict[str, list[int]] = content["devices"]
    evidence = tuple(
        f"{name}: {count} tensors, {size / _MIB:.1f} MiB" for name, (count, size) in sorted(devices.items())
    )
    away = sorted(name for name in devices if name not in ("cpu", "meta"))
    if not away:
        return [_finding("devices", "pass", "all tensors were saved from the CPU", evidence=evidence)]
    extra = sum(devices[name][1] for name in away) / _MIB
    message = (
        f"its tensors were saved from {', '.join(away)}: loaded without map_location, every rank puts {extra:.1f} MiB"
        " there"
    )
    return [
        _finding(
            "checkpoint-device", "warn", message, evidence=evidence, remedy=signature_named("checkpoint-device").remedy
        )
    ]


def _prefixes(content: dict[str, Any], model: dict[str, Any] | None) -> list[Finding]:
    keys: list[str] = content["keys"]
    if model is not None and not model["missing"] and not model["unexpected"]:
        return []  # whatever the prefixes, this model has them too
    for prefix in _PREFIXES:
        bearing = sum(1 for key in keys if key.startswith(prefix))
        if bearing:
            wrapper = "DistributedDataParallel" if prefix == "module." else "torch.compile"
            return [
                _finding(
                    "prefix",
                    "warn",
                    f"{bearing} of {len(keys)} names begin with {prefix!r}, which {wrapper} puts there",
                    evidence=tuple(keys[:3]),
                    remedy=(
                        "save model.module.state_dict() (or model._orig_mod), or take it off when loading: "
                        f"torch.nn.modules.utils.consume_prefix_in_state_dict_if_present(state, {prefix!r})"
                    ),
                )
            ]
    return []


def _not_finite(content: dict[str, Any], _model: dict[str, Any] | None) -> list[Finding]:
    names: list[str] = content["not_finite"]
    if not names:
        return []
    message = f"{len(names)}{' or more' if len(names) >= 20 else ''} tensors hold NaN or infinity"
    return [_finding("not-finite", "fail", message, evidence=tuple(names), remedy="go back to an earlier checkpoint")]


def _storages(content: dict[str, Any], _model: dict[str, Any] | None) -> list[Finding]:
    """A view saves the whole storage below it."""
    if content["storage_bytes"] <= 2 * content["tensor_bytes"] + _MIB:
        return []
    message = "tensors are views of larger ones, and torch.save wrote all of these"
    actual = f"{content['storage_bytes'] / _MIB:.1f} MiB for {content['tensor_bytes'] / _MIB:.1f} MiB of tensors"
    return [_finding("views", "warn", message, actual=actual, remedy="clone() such tensors before they are saved")]


def _resume(content: dict[str, Any], model: dict[str, Any] | None) -> list[Finding]:
    optimizer, progress = content["optimizer"], content["progress"]
    if content["bare"] or (optimizer is None and not progress):
        return [_finding("resume", "pass", "weights alone: a training cannot be resumed from it as it was")]
    if optimizer is None:
        remedy = "save optimizer.state_dict() too: without its moments the losses jump after a resume"
        return [_finding("resume-optimizer", "warn", "there is progress, but no optimizer state", remedy=remedy)]
    findings: list[Finding] = []
    if not progress:
        remedy = "save the epoch or step too, and hand it to set_epoch and to the schedule on resume"
        findings.append(
            _finding("resume-progress", "warn", "there is optimizer state, but no epoch or step", remedy=remedy)
        )
    if model is not None and optimizer["parameters"] != model["parameters"]:
        findings.append(
            _finding(
                "resume-parameters",
                "fail",
                "the optimizer's state is of another number of parameters than the model has",
                expected=str(model["parameters"]),
                actual=str(optimizer["parameters"]),
                remedy="build the optimizer over the same parameters in the same order as when it was saved",
            )
        )
    return findings or [_finding("resume", "pass", f"optimizer state and {progress[0]} are there")]


def _model(model: dict[str, Any]) -> list[Finding]:
    missing, unexpected, shapes = model["missing"], model["unexpected"], model["shapes"]
    evidence = tuple(f"missing: {key}" for key in missing[:5]) + tuple(f"unexpected: {key}" for key in unexpected[:5])
    if model["matching"] == 0 and model["wanted"]:
        rest = model["matching_without_prefixes"]
        hint = f"; without the wrappers' prefixes {rest} would" if rest else ""
        return [
            _finding(
                "nothing-loads",
                "fail",
                f"none of the model's {model['wanted']} names is in the file{hint}: strict=False would load nothing,"
                " silently",
                evidence=evidence,
                remedy="take the prefix off (see doctor.checkpoint.prefix) and load with strict=True",
            )
        ]
    findings: list[Finding] = []
    if shapes:
        remedy = "build the model with the sizes it was saved with"
        findings.append(
            _finding(
                "shapes", "fail", f"{len(shapes)} tensors differ in shape", evidence=tuple(shapes[:8]), remedy=remedy
            )
        )
    if missing or unexpected:
        message = f"{len(missing)} of the model's names are missing, {len(unexpected)} are unexpected"
        remedy = (
            "load with strict=True into the model that was saved; what strict=False leaves out keeps its random values"
        )
        findings.append(_finding("keys", "fail", message, evidence=evidence, remedy=remedy))
    return findings or [_finding("model", "pass", f"all {model['wanted']} names and shapes fit the model")]
