"""Checkpoints made by torch, by hand, and by those who mean harm."""

import io
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from bench_runner.doctor.checkpoint import CheckpointProbe, probe_checkpoint  # noqa: E402
from bench_runner.errors import UsageError  # noqa: E402
from bench_runner.worker import doctor_checkpoint  # noqa: E402
from tests.integration.checkpoints import on_device  # noqa: E402


def events_of(path: Path, model: str | None = None) -> dict[str, dict[str, Any]]:
    """What the worker says, without a process of its own."""
    said: dict[str, dict[str, Any]] = {}
    options = {"options": {"path": str(path), "model": model}}
    doctor_checkpoint.run(0, options, path.parent, lambda kind, **values: said.update({kind: values}))
    return said


def test_devices_are_found_without_having_them(tmp_path: Path) -> None:
    path = on_device(tmp_path / "last.pt", {"model": torch.nn.Linear(8, 2).state_dict(), "epoch": 3}, "cuda:3")
    content = events_of(path)["content"]
    assert content["devices"] == {"cuda:3": [2, 72]}
    assert content["keys"] == ["weight", "bias"]
    assert content["progress"] == ["epoch"]


def test_legacy_format_is_read(tmp_path: Path) -> None:
    path = tmp_path / "old.pt"
    torch.save({"weight": torch.ones(3)}, path, _use_new_zipfile_serialization=False)
    assert events_of(path)["content"]["tensors"] == 1


def test_optimizer_and_views_and_nan(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    state = {"weight": torch.zeros(1 << 20)[:2], "bias": torch.tensor([float("nan")])}
    path = tmp_path / "a.pt"
    torch.save({"state_dict": state, "optimizer": optimizer.state_dict()}, path)
    content = events_of(path)["content"]
    assert content["optimizer"] == {"parameters": 2, "with_state": 2}
    assert content["not_finite"] == ["state_dict.bias"]
    assert content["storage_bytes"] > 1 << 22


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (os.system, ("touch /tmp/bench-runner-must-not-exist",))


def zip_of(path: Path, name: str, data: bytes, compression: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr(name, data)


def test_hostile_and_damaged_files_are_told_apart(tmp_path: Path) -> None:
    good = tmp_path / "good.pt"
    torch.save(torch.nn.Linear(64, 64).state_dict(), good)
    whole = good.read_bytes()
    path = tmp_path / "x.pt"

    torch.save(Evil(), path)
    assert events_of(path)["unreadable"]["reason"] == "unsafe"
    path.write_bytes(pickle.dumps(Evil()))
    assert events_of(path)["unreadable"]["reason"] in ("unsafe", "damaged")
    assert not Path("/tmp/bench-runner-must-not-exist").exists()

    for data in (b"", whole[:100], whole[: len(whole) // 2], whole[:-10], b"\x80\x02"):
        path.write_bytes(data)
        assert events_of(path)["unreadable"]["reason"] == "damaged", data[:20]
    path.write_bytes(b"no checkpoint at all\n" * 10)
    assert events_of(path)["unreadable"]["reason"] == "foreign"
    zip_of(path, "hello.txt", b"hello")
    assert events_of(path)["unreadable"]["reason"] == "foreign"
    zip_of(path, "a/data.pkl", b"\x00" * 100_000, zipfile.ZIP_DEFLATED)
    assert events_of(path)["unreadable"]["reason"] == "foreign"


def test_every_cut_and_flipped_byte_gets_a_word(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    torch.save({"w": torch.arange(6.0)}, buffer)
    whole = buffer.getvalue()
    path = tmp_path / "cut.pt"
    for position in range(1, len(whole), 61):
        path.write_bytes(whole[:position])
        assert set(events_of(path)) == {"unreadable"}
        flipped = bytearray(whole)
        flipped[position] ^= 0x5A
        path.write_bytes(bytes(flipped))
        assert set(events_of(path)) <= {"unreadable", "content"}
        assert events_of(path)


MODEL_FILE = """
import torch
def make_model():
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))
def wrapped():
    return torch.nn.Sequential(make_model())
"""


def test_keys_against_a_model_in_a_process_of_its_own(tmp_path: Path) -> None:
    import sys

    (tmp_path / "program.py").write_text(MODEL_FILE)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))
    path = tmp_path / "ddp.pt"
    torch.save({f"module.{name}": value for name, value in model.state_dict().items()}, path)
    probe = probe_checkpoint(path, python=sys.executable, model=f"{tmp_path}/program.py:make_model")
    assert isinstance(probe, CheckpointProbe)
    assert probe.error is None
    assert probe.model is not None
    assert (probe.model["matching"], probe.model["matching_without_prefixes"]) == (0, 4)


@pytest.mark.slow
def test_model_that_cannot_be_made_is_told_beside_the_content(tmp_path: Path) -> None:
    import sys

    (tmp_path / "broken.py").write_text("def make_model():\n    raise RuntimeError('no weights today')\n")
    path = on_device(tmp_path / "a.pt", {"w": torch.ones(2)})
    probe = probe_checkpoint(path, python=sys.executable, model=f"{tmp_path}/broken.py:make_model")
    assert probe.content is not None
    assert probe.error is not None
    assert "no weights today" in probe.error


def test_wrong_name_of_a_model_is_wrong_usage(tmp_path: Path) -> None:
    import sys

    (tmp_path / "program.py").write_text(MODEL_FILE)
    path = on_device(tmp_path / "a.pt", {"w": torch.ones(2)})
    with pytest.raises(UsageError, match=r"has no function make_modle; it defines make_model, wrapped"):
        probe_checkpoint(path, python=sys.executable, model=f"{tmp_path}/program.py:make_modle")
