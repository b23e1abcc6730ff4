"""Profiles: the built-in ones load, a user's is validated with table and field named."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_runner.errors import BenchRunnerError, SpecError, UnreadableError, UsageError
from bench_runner.profile import BUILT_IN, KIB, MESSAGE_BYTES, MIB, load


def write(folder: Path, text: str) -> str:
    path = folder / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_profiles_load_and_their_sizes_are_those_that_asv_knows(name):
    profile = load(name)
    assert profile.training
    assert profile.description
    for case in profile.collectives:
        assert set(case.collective.message_bytes) <= set(MESSAGE_BYTES)
        assert max(case.cpu_message_bytes) == 64 * MIB


def test_each_built_in_profile_contains_the_smaller_one():
    quick, standard, full = ({case.label for case in load(name).cases} for name in BUILT_IN)
    assert quick < standard < full


def test_a_users_profile(tmp_path):
    profile = load(
        write(
            tmp_path,
            """
            description = "mine"
            strategies = ["ddp"]
            devices = [1, 3, "all"]
            seed = 7
            [[training]]
            workload = "my_models:factory"
            batch = 12
            precision = "bf16"
            deadline_seconds = 30
            device_kinds = ["cuda"]
            [[collective]]
            operation = "broadcast"
            message_bytes = ["1 KiB", "2MiB", 12]
            cpu_message_bytes = [1024]
            [[checkpoint]]
            workload = "my_models:factory"
            repeats = 2
            """,
        )
    )
    assert profile.name == "mine"
    assert profile.devices == (1, 3, "all")
    assert profile.training[0].training.workload == "my_models:factory"
    assert profile.training[0].deadline_seconds == 30.0
    assert profile.collectives[0].collective.message_bytes == (12, KIB, 2 * MIB)
    assert profile.collectives[0].cpu_message_bytes == (KIB,)
    assert profile.checkpoints[0].checkpoint.repeats == 2
    assert profile.cases[-1].label == "checkpoint/my_models:factory"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('[[training]]\nworkload = "mpl"\nbatch = 1', "training[0].workload"),
        ('[[training]]\nworkload = "mlp"', "training[0].batch"),
        ('[[training]]\nworkload = "mlp"\nbatch = 1\nbach = 2', "training[0].bach"),
        ('[[training]]\nworkload = "mlp"\nbatch = 1\ndeadline_seconds = -1', "training[0].deadline_seconds"),
        ('[[training]]\nworkload = "mlp"\nbatch = 1\ndevice_kinds = ["gpu"]', "training[0].device_kinds"),
        ('[[training]]\nworkload = "mlp"\nbatch = "8"', "training[0].batch"),
        ('[[collective]]\noperation = "all_reduce"\nmessage_bytes = ["1 KB"]', "collective[0].message_bytes"),
        ("[[collective]]\nmessage_bytes = [4]", "collective[0].operation"),
        ("[[checkpoint]]\nrepeats = 2", "checkpoint[0].workload"),
        ('[[checkpoint]]\nworkload = "mlp"\nrepeats = 0', "checkpoint[0].repeats"),
        ('[[checkpoint]]\nworkload = "mlp"\nsaves = 3', "checkpoint[0].saves"),
        ('devices = [0]\n[[collective]]\noperation = "all_reduce"', "devices"),
        ('devices = "all"\n[[collective]]\noperation = "all_reduce"', "devices"),
        ('strategies = ["dpp"]\n[[collective]]\noperation = "all_reduce"', "strategies"),
        ('seed = "x"\n[[collective]]\noperation = "all_reduce"', "seed"),
        ("training = 3", "training"),
        ("nothing = 1", "nothing"),
        ("", "training"),
        ('[[collective]]\noperation = "all_reduce"\n[[collective]]\noperation = "all_reduce"', "training"),
    ],
)
def test_a_mistake_is_named_by_table_and_field(tmp_path, text, named):
    path = write(tmp_path, text)
    with pytest.raises(SpecError) as caught:
        load(path)
    assert caught.value.field == f"profile {path}: {named}"


def test_what_is_no_profile(tmp_path):
    with pytest.raises(UsageError, match=r"profile fast: there is quick, standard, full"):
        load("fast")
    with pytest.raises(UsageError, match=r"No such file"):
        load(str(tmp_path / "absent.toml"))
    with pytest.raises(UnreadableError, match=r"not TOML"):
        load(write(tmp_path, "= ="))
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UnreadableError, match=r"not TOML"):
        load(str(tmp_path / "binary.toml"))
    (tmp_path / "large.toml").write_bytes(b"#" * (2 << 20))
    with pytest.raises(UnreadableError, match=r"larger than"):
        load(str(tmp_path / "large.toml"))


@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "replace")))
def test_any_content_is_a_profile_or_one_clear_error(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("profile") / "p.toml"
    path.write_bytes(content)
    with pytest.raises(BenchRunnerError) as caught:
        load(str(path))
    assert str(path) in str(caught.value)
