"""A real ``asv run`` in an environment that the plugin builds from a local channel.

The channel's ``python`` is the running interpreter's executable with a ``pyvenv.cfg`` that names its home: the
standard library is the running interpreter's, while ``sys.prefix`` and site-packages are the new prefix's own.
``asv_runner`` is the one that is installed here, packed as a conda package.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import asv_runner
import pytest

from bench_runner.environment.prefix import MARK_NAME, built_prefixes, read_mark
from tests.conda_channel import Channel, FileContent, serve

ROOT = Path(__file__).parents[2]
SUITE = """
import os
import sys

import bench_runner


def track_place():
    assert sys.prefix == os.environ["ASV_ENV_DIR"]
    assert bench_runner.__file__.startswith(os.environ["ASV_CONF_DIR"])
    return float(len(os.environ["ASV_CONDA_LOCK_SHA256"]))


track_place.version = "1"
"""


ON_PATH = """
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
"""
UNWANTED = shutil.ignore_patterns("__pycache__", "worker")


def packed(folder: Path, root: str) -> dict[str, FileContent]:
    """A folder's files as a package's, below ``root``."""
    return {
        f"{root}/{path.relative_to(folder).as_posix()}": path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.fixture(scope="module")
def channel(tmp_path_factory: pytest.TempPathFactory) -> Channel:
    made = Channel(tmp_path_factory.mktemp("channel") / "conda-forge")
    made.add_interpreter()
    source = Path(asv_runner.__file__).parent
    made.add(
        "asv_runner", metadata.version("asv_runner"), noarch="python", files=packed(source, "site-packages/asv_runner")
    )
    return made


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    shutil.copytree(
        ROOT / "bench_runner", root / "bench_runner", ignore=shutil.ignore_patterns("__pycache__", "worker")
    )
    (root / "benchmarks").mkdir()
    (root / "benchmarks" / "__init__.py").write_text(ON_PATH)
    (root / "benchmarks" / "tiny.py").write_text(SUITE)
    shutil.copy(ROOT / "asv.conf.json", root)
    asv(root, "machine", "--yes", "--machine", "box")
    return root


def asv(tree: Path, *arguments: str, code: int = 0) -> str:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("GIT_", "PYTHON", "XDG_", "BENCH_"))}
    environment |= {"HOME": str(tree.parent), "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, "-m", "asv", *arguments],
        cwd=tree,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_asv_run_builds_the_locked_environment_and_measures_in_it(tree: Path, channel: Channel) -> None:
    with serve(channel.path.parent) as url:
        channel.write_lock(tree / "conda-lock.yml", url=f"{url}/conda-forge")
        asv(tree, "run", "--quick", "--machine", "box")
    environments = built_prefixes(tree / ".asv" / "env")
    assert [path.name[:11] for path in environments] == ["conda-lock-"]
    result = next(p for p in (tree / "results" / "box").glob("*.json") if p.name != "machine.json")
    assert result.name.endswith(f"-conda-lock-py{sys.version_info[0]}.{sys.version_info[1]}.json")
    assert "64.0" in asv(tree, "show", "HEAD", "--machine", "box")

    # The channel is gone: the finished environment serves again.
    asv(tree, "run", "--quick", "--machine", "box")


@pytest.mark.slow
def test_a_changed_lock_is_another_folder_under_the_same_name(tree: Path, channel: Channel) -> None:
    lock = channel.write_lock(tree / "conda-lock.yml")
    asv(tree, "run", "--quick", "--machine", "box")
    lock.write_text(lock.read_text() + "# locked anew\n")
    asv(tree, "run", "--quick", "--machine", "box")
    assert len(built_prefixes(tree / ".asv" / "env")) == 2
    names = {p.name.partition("-")[2] for p in (tree / "results" / "box").glob("*.json") if p.name != "machine.json"}
    assert len(names) == 1


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["mark", "python"])
def test_a_half_built_or_broken_environment_is_built_anew(tree: Path, channel: Channel, damage: str) -> None:
    channel.write_lock(tree / "conda-lock.yml")
    asv(tree, "run", "--quick", "--machine", "box")
    (prefix,) = built_prefixes(tree / ".asv" / "env")
    (prefix / (MARK_NAME if damage == "mark" else "bin/python")).unlink()
    asv(tree, "run", "--quick", "--machine", "box")
    assert read_mark(prefix) is not None
    assert (prefix / "bin" / "python").exists()


def test_unreachable_channel_is_one_clear_line(tree: Path, channel: Channel) -> None:
    channel.write_lock(tree / "conda-lock.yml", url="http://127.0.0.1:9/conda-forge")
    output = asv(tree, "run", "--quick", "--machine", "box", code=1)
    assert "127.0.0.1:9 cannot be reached (Connection refused)" in output
    assert "-E existing" in output
    assert "Traceback" not in output
    assert not any((path / MARK_NAME).exists() for path in built_prefixes(tree / ".asv" / "env"))


def test_missing_lock_is_one_clear_line(tree: Path) -> None:
    output = asv(tree, "run", "--quick", "--machine", "box", code=1)
    assert "conda-lock.yml: No such file or directory" in output
    assert "Traceback" not in output
