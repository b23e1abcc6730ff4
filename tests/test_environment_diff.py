"""Differences between environments: pure values, and what a word on the command line stands for."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_runner import store
from bench_runner.environment.diff import GROUPS, Difference, Side, compare_sides, group_of, to_document
from bench_runner.environment.export import ExportedPackage
from bench_runner.environment.info import LoadedLibrary
from bench_runner.environment.sides import read_side, side_of_info
from bench_runner.errors import UnreadableError
from bench_runner.report.environments import diff_text
from tests import builders

ROOT = Path(__file__).parents[1]
SCHEMA = json.loads((ROOT / "docs" / "schemas" / "env-diff-1.json").read_text())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def conda(name: str, version: str = "1.0", build: str = "0", **changes: object) -> ExportedPackage:
    return ExportedPackage(name=name, version=version, manager="conda", build=build, **changes)  # type: ignore[arg-type]


def pip(name: str, version: str = "1.0") -> ExportedPackage:
    return ExportedPackage(name=name, version=version, manager="pip", installer="pip")


def side(*packages: ExportedPackage, **changes: object) -> Side:
    return Side(label="x", kind="prefix", packages=packages, **changes)  # type: ignore[arg-type]


def differences(left: Side, right: Side) -> list[Difference]:
    found = compare_sides(left, right)
    VALIDATOR.validate(json.loads(json.dumps(to_document(found))))
    return list(found.differences)


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("pytorch", "torch"),
        ("libtorch", "torch"),
        ("torchvision", "torch"),
        ("triton", "torch"),
        ("cuda-cudart", "CUDA"),
        ("libcublas", "CUDA"),
        ("nvidia-cublas-cu12", "CUDA"),
        ("libmagma", "CUDA"),
        ("libcurl", "rest"),
        ("curl", "rest"),
        ("nccl", "NCCL"),
        ("nvidia-nccl-cu12", "NCCL"),
        ("libcudnn", "cuDNN"),
        ("nvidia-cudnn-cu12", "cuDNN"),
        ("mkl", "BLAS"),
        ("libblas", "BLAS"),
        ("libopenblas", "BLAS"),
        ("liblapacke", "BLAS"),
        ("_openmp_mutex", "OpenMP"),
        ("llvm-openmp", "OpenMP"),
        ("libgomp", "OpenMP"),
        ("intel-openmp", "OpenMP"),
        ("python", "Python"),
        ("python_abi", "Python"),
        ("numpy", "Python"),
        ("zlib", "rest"),
    ],
)
def test_group_of(name: str, group: str) -> None:
    assert group_of(name) == group


@pytest.mark.parametrize(
    ("left", "right", "fields"),
    [
        (conda("a"), conda("a", version="2.0"), ("version",)),
        (conda("a"), conda("a", build="1"), ("build",)),
        (conda("a", build="cuda129_0"), conda("a", "1.1", "cpu_0"), ("version", "build")),
        (conda("a", channel="https://x.org/conda-forge"), conda("a", channel="https://x.org/main"), ("channel",)),
        (conda("a", channel="https://x.org/conda-forge"), conda("a", channel="http://mirror/conda-forge/"), ()),
        (conda("a", sha256="a" * 64), conda("a", sha256="b" * 64), ("hash",)),
        (conda("a", md5="a" * 32), conda("a", md5="b" * 32, sha256="c" * 64), ("hash",)),
        (conda("a", sha256="a" * 64), conda("a"), ()),
        (conda("pytorch", "2.10.0", "cpu"), pip("torch", "2.10.0+cpu"), ()),
        (conda("pytorch", "2.10.0", "cpu"), pip("torch", "2.9.1"), ("version",)),
        (conda("nccl", "2.27.3.1"), pip("nvidia-nccl-cu12", "2.27.5"), ("version",)),
        (conda("asv_runner", "0.3.0"), pip("asv-runner", "0.3.0"), ()),
        (pip("torch", "2.10.0+cu128"), pip("torch", "2.10.0+cpu"), ("version",)),
    ],
)
def test_what_differs_in_one_package(left: ExportedPackage, right: ExportedPackage, fields: tuple[str, ...]) -> None:
    assert [d.fields for d in differences(side(left), side(right))] == ([fields] if fields else [])


def test_packages_on_one_side_and_pip_over_conda() -> None:
    left = side(conda("numpy"), conda("zlib"))
    right = side(conda("numpy"), pip("numpy", "2.0"))
    found = {d.name: d for d in differences(left, right)}
    assert (found["zlib"].left, found["zlib"].right, found["zlib"].fields) == ("1.0 0", None, ("presence",))
    assert found["numpy"].right == "1.0 0, 2.0 (pip)"


def test_the_order_is_what_matters_first() -> None:
    names = ["zlib", "python", "llvm-openmp", "mkl", "libcudnn", "nccl", "libcublas", "pytorch"]
    found = differences(side(*(conda(n) for n in names)), side(*(conda(n, "2") for n in names)))
    assert [d.group for d in found] == [g for g in GROUPS if g != "variables"]


def test_facts_libraries_and_variables_of_records() -> None:
    base = builders.environment(
        torch="2.10.0",
        cuda="12.9",
        packages={"pytorch": "2.10.0=cuda129_1", "numpy": "2.3.0"},
        libraries=(LoadedLibrary(name="libnccl.so.2", path="/a/libnccl.so.2", version="2.27"),),
        variables={"NCCL_DEBUG": "INFO"},
    )
    other = dataclasses.replace(
        base,
        cuda=None,
        python="3.13.0",
        libraries=(LoadedLibrary(name="libnccl.so.2", path="/b/libnccl.so.2", version="2.28"),),
        variables={"NCCL_ALGO": "Ring"},
    )
    found = {(d.what, d.name): d for d in differences(side_of_info("a", base), side_of_info("b", other))}
    assert found[("fact", "torch is built for")].left == "CUDA 12.9"
    assert found[("fact", "torch is built for")].right == "CPU"
    assert found[("fact", "python")].group == "Python"
    assert found[("library", "libnccl.so.2")].group == "NCCL"
    assert found[("variable", "NCCL_DEBUG")].right is None
    assert found[("variable", "NCCL_ALGO")].left is None
    assert len(found) == 5


def test_a_record_does_not_miss_what_records_never_hold() -> None:
    record = side_of_info("r", builders.environment(packages={"pytorch": "2.10.0=cpu"}))
    whole = side(conda("pytorch", "2.10.0", "cpu"), conda("zlib"), conda("mkl"))
    found = compare_sides(record, whole)
    assert {d.name for d in found.differences} == {"mkl"}
    assert any("1 packages" in note for note in found.not_compared)


def test_text_shows_control_characters_and_both_values() -> None:
    text = diff_text(compare_sides(side(conda("a\x1b[31m")), side(conda("b"))))
    assert "\x1b" not in text
    assert "only in A" in text
    assert "2 differences." in text
    assert diff_text(compare_sides(side(), side())).endswith("The same.\n")


packages = st.lists(
    st.builds(
        ExportedPackage,
        name=st.sampled_from(["pytorch", "torch", "nccl", "mkl", "python", "zlib", "asv_runner", "_openmp_mutex"]),
        version=st.sampled_from(["1.0", "2.0", "2.0+cpu", ""]),
        manager=st.sampled_from(["conda", "pip"]),
        build=st.sampled_from([None, "0", "cuda"]),
        channel=st.sampled_from([None, "conda-forge", "https://x/pkgs/main"]),
        sha256=st.sampled_from([None, "a" * 64, "b" * 64]),
    ),
    max_size=8,
)


@given(packages, packages)
def test_the_comparison_is_symmetric_and_finds_nothing_in_itself(
    ours: list[ExportedPackage], theirs: list[ExportedPackage]
) -> None:
    left, right = side(*ours), side(*theirs)
    assert differences(left, left) == []
    forth, back = differences(left, right), differences(right, left)
    assert [(d.name, d.left, d.right, d.fields) for d in forth] == [(d.name, d.right, d.left, d.fields) for d in back]


def test_a_word_can_be_a_lock(tmp_path: Path) -> None:
    found = read_side(str(ROOT / "conda-lock.yml"))
    assert found.kind == "lock"
    assert found.facts["torch is built for"] == "CUDA 12.9"
    cpu = read_side(str(ROOT / "conda-lock-cpu.yml"))
    groups = {d.group for d in differences(found, cpu)}
    assert {"torch", "CUDA", "NCCL", "cuDNN"} <= groups


def test_a_word_can_be_a_run_record(tmp_path: Path) -> None:
    path = store.write(
        [
            builders.training_record(environment=builders.environment(python="3.11.1")),
            builders.training_record(environment=builders.environment(python="3.12.2")),
        ],
        tmp_path,
        label="x",
    )
    assert read_side(str(path)).facts["python"] == "3.12.2"
    assert read_side(f"{path}:1").facts["python"] == "3.11.1"
    with pytest.raises(UnreadableError, match="no record there"):
        read_side(f"{path}:9")
    path.chmod(0o644)
    path.write_text("garbage\n")
    with pytest.raises(UnreadableError, match="not JSON"):
        read_side(str(path))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.json", b"{}", "neither an environment export nor a run record"),
        ("x.json", b"[1]", "neither an environment export nor a run record"),
        ("x.json", b"{", "not valid JSON"),
        ("x.yml", b"a: b", "version"),
        ("x.jsonl", b"\n\n", "no record there"),
        ("x.jsonl", b'{"schema": "bench-runner/record/999"}\n', "newer than this program"),
        ("x", b"\xff\xfe", "not valid JSON"),
    ],
)
def test_anything_else_is_one_line(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UnreadableError, match=message) as caught:
        read_side(str(tmp_path / name))
    assert "\n" not in str(caught.value)


def test_words_that_name_nothing(tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match="no such file or folder"):
        read_side(str(tmp_path / "nowhere"))
    with pytest.raises(UnreadableError, match="no environment there"):
        read_side(str(tmp_path))


@given(st.binary(max_size=200), st.sampled_from(["x.json", "x.jsonl", "x.yml"]))
def test_damaged_files_are_refused_not_raised(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, name: str
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / name
    path.write_bytes(content)
    with pytest.raises(UnreadableError):
        read_side(str(path))
