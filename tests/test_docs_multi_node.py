"""docs/multi-node.md is held to the code: its commands parse, its manifest is one, its limits are the code's."""

import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest

from bench_runner.cli import build_app, main
from bench_runner.nodes.membership import JOIN_SECONDS, find_membership
from bench_runner.nodes.slurm import LOWEST_PORT, PORTS
from bench_runner.nodes.wire import SILENCE_SECONDS

TEXT = (Path(__file__).parents[1] / "docs" / "multi-node.md").read_text(encoding="utf-8")
COMMANDS = [line.strip() for line in TEXT.splitlines() if line.startswith("    bench-runner ")]


@pytest.mark.parametrize("line", [line for line in COMMANDS if "slurm" in line])
def test_slurm_commands_make_a_script(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = shlex.split(line)[1:]
    end = words.index("--")
    assert main([*words[:end], "--dry-run", *words[end:]]) == 0
    last = capsys.readouterr().out.rstrip().splitlines()[-1]
    assert last.endswith(shlex.join(words[end + 1 :]))


def test_every_option_in_a_command_exists() -> None:
    from typer.main import get_command

    group = get_command(build_app())
    for line in COMMANDS:
        words = shlex.split(line)[1:]
        command = group
        while hasattr(command, "commands") and words[0] in command.commands:
            command = command.commands[words.pop(0)]
        known = {option for parameter in command.params for option in parameter.opts}
        own = words[: words.index("--")] if "--" in words else words
        assert {word for word in own if word.startswith("--")} <= known, line


def test_numbers_are_the_codes() -> None:
    assert f"{JOIN_SECONDS:.0f} s for each" in TEXT
    assert f"{LOWEST_PORT} to {LOWEST_PORT + PORTS - 1}" in TEXT
    assert SILENCE_SECONDS == 60
    assert "after a minute without a sign of life" in TEXT


def test_the_manifest_starts_nodes_that_find_each_other() -> None:
    import yaml

    (manifest,) = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
    service, job = yaml.safe_load_all(manifest)
    name, spec = service["metadata"]["name"], job["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    words = [*container["command"], *container["args"]]
    given = dict(pairwise(words))
    assert (service["kind"], job["kind"], spec["completionMode"]) == ("Service", "Job", "Indexed")
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert spec["completions"] == spec["parallelism"] == int(given["--nodes"])
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    for index in range(spec["completions"]):
        member = find_membership(given["--nodes"], given["--rdzv-endpoint"], index, {})
        assert member is not None
        # Pods of an indexed Job are named after the job and their index, in the subdomain that the service serves.
        assert member.host == f"{job['metadata']['name']}-0.{pod['subdomain']}"
        assert pod["subdomain"] == name
