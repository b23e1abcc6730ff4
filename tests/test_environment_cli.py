"""``bench-runner env`` through the program's own entry: exit codes, one JSON document, one line for an error."""

from __future__ import annotations

import inspect
import json
import re
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from bench_runner.cli import build_app, main
from bench_runner.environment import prefix as prefixes
from bench_runner.environment.supply import CACHE_VARIABLE, CHANNEL_VARIABLE
from tests.conda_channel import Channel

ROOT = Path(__file__).parents[1]


def schema(name: str) -> Any:
    return json.loads((ROOT / "docs" / "schemas" / f"{name}-1.json").read_text())


@pytest.fixture
def channel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Channel:
    monkeypatch.setenv("BENCH_RUNNER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("BENCH_RUNNER_CHANNEL_URL", raising=False)
    made = Channel(tmp_path / "conda-forge")
    made.add("libx", files={"lib/x": b"x"})
    return made


def document(capsys: pytest.CaptureFixture[str], name: str) -> Any:
    """The one document on standard output, valid by its schema."""
    found = json.loads(capsys.readouterr().out)
    jsonschema.validate(found, schema(name))
    return found


def test_create_then_again_then_compare(channel: Channel, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lock = str(channel.write_lock(tmp_path / "conda-lock.yml", url="https://conda.example.invalid/conda-forge"))
    create = ["env", "create", str(tmp_path / "p"), "--lock", lock, "--json"]
    assert main([*create, "--channel-url", channel.path.as_uri()]) == 0
    assert document(capsys, "env-create")["built"] is True
    assert main([*create, "--offline"]) == 0
    assert document(capsys, "env-create")["built"] is False

    assert main(["env", "diff", lock, str(tmp_path / "p"), "--json"]) == 0
    assert document(capsys, "env-diff")["verdict"] == "same"
    assert main(["env", "export", str(tmp_path / "p"), "-o", str(tmp_path / "e.json")]) == 0
    assert capsys.readouterr().out == ""
    assert main(["env", "diff", str(tmp_path / "e.json"), str(tmp_path / "p")]) == 0
    assert "The same." in capsys.readouterr().out

    channel.add("libx", "2.0", files={"lib/x": b"y"})
    other = str(channel.write_lock(tmp_path / "other.yml"))
    assert main(["env", "diff", other, str(tmp_path / "e.json"), "--json"]) == 1
    (difference,) = document(capsys, "env-diff")["differences"]
    assert (difference["name"], difference["left"], difference["right"]) == ("libx", "2.0 0", "1.0 0")


def test_create_says_where_it_is_and_how_to_check_it(
    channel: Channel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = str(channel.write_lock(tmp_path / "conda-lock.yml"))
    assert main(["env", "create", str(tmp_path / "p"), "--lock", lock]) == 0
    said = capsys.readouterr()
    assert f"{tmp_path / 'p'}: 1 packages, built" in said.out
    assert "bench-runner verify --only environment --prefix" in said.out
    assert "fetch and unpack packages" in said.err


def test_errors_are_one_line_and_have_their_codes(
    channel: Channel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = str(channel.write_lock(tmp_path / "conda-lock.yml", url="http://127.0.0.1:9/conda-forge"))
    for arguments, code, words in (
        (["create", str(tmp_path / "p"), "--lock", lock], 3, "127.0.0.1:9 cannot be reached"),
        (["create", str(tmp_path / "p"), "--lock", lock, "--offline"], 3, "not in the package cache"),
        (["create", str(tmp_path / "p"), "--lock", str(tmp_path / "no.yml")], 2, "No such file"),
        (["create", str(tmp_path / "p"), "--lock", lock, "--channel-url", "ftp://x"], 2, "--channel-url"),
        (["diff", lock, str(tmp_path / "nowhere")], 2, "no such file or folder"),
        (["export", str(tmp_path / "nowhere")], 2, "no such folder"),
        (["export", str(tmp_path)], 2, "no environment there"),
        (["prune", "--root", str(tmp_path / "conda-forge")], 2, "no conda-lock"),
    ):
        assert main(["env", *arguments]) == code, arguments
        said = capsys.readouterr()
        assert said.out == ""
        assert words in said.err
        assert len(said.err.splitlines()) == 1
    assert main(["env", "create", str(tmp_path / "p"), "--lock", lock, "--offline", "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["schema"] == "bench-runner/error/1"


def test_export_of_the_environment_at_hand(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env", "export"]) == 0
    found = document(capsys, "environment")
    assert found["prefix"] == sys.prefix


def test_prune_removes_what_belongs_to_no_lock(
    channel: Channel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = channel.write_lock(tmp_path / "conda-lock.yml")
    environments = tmp_path / ".asv" / "env"
    environments.mkdir(parents=True)
    for sha256 in ("a" * 64, "b" * 64):
        folder = environments / prefixes.locked_directory(sha256)
        folder.mkdir()
        (folder / prefixes.LOCK_NAME).touch()
        prefixes.write_mark(folder, lock_sha256=sha256, platform="linux-64", packages=1)
    prune = ["env", "prune", "--root", str(tmp_path), "--json"]
    assert main([*prune, "--dry-run"]) == 0
    assert len(document(capsys, "env-prune")["removed"]) == 2
    assert len(list(environments.iterdir())) == 2
    assert main(prune) == 0
    assert len(document(capsys, "env-prune")["removed"]) == 2
    assert not list(environments.iterdir())
    assert main(["env", "prune", "--root", str(tmp_path)]) == 0
    assert "no locked environments" in capsys.readouterr().out
    assert lock.exists()


def test_the_docs_name_commands_and_variables_that_exist() -> None:
    text = (ROOT / "docs" / "building-environments.md").read_text()
    group = next(g for g in build_app().registered_groups if g.name == "env")
    assert group.typer_instance is not None
    commands = {command.name: command.callback for command in group.typer_instance.registered_commands}
    named = set(re.findall(r"bench-runner env (\w+)", text))
    assert named == set(commands)
    options = {
        f"--{name.replace('_', '-')}" for c in commands.values() if c for name in inspect.signature(c).parameters
    }
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)) <= options
    assert set(re.findall(r"BENCH_RUNNER_\w+", text)) == {CACHE_VARIABLE, CHANNEL_VARIABLE, prefixes.LOCK_VARIABLE}
    for target in re.findall(r"\]\((schemas/[^)]+)\)", text):
        assert (ROOT / "docs" / target).exists()
