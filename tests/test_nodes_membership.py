"""Who takes part in a run over several nodes: options, MASTER_ADDR, and Slurm's variables."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_runner.errors import UsageError
from bench_runner.nodes.membership import find_membership
from bench_runner.nodes.slurm import MOST_HOSTS, parse_hosts, slurm_task

# The variables of `srun --nodes=3 --ntasks-per-node=1` on three of slurmd 22.05's nodes, as `env` showed them.
STEP = {
    "SLURM_JOB_ID": "12345",
    "SLURM_JOB_NODELIST": "n[1-4]",
    "SLURM_JOB_NUM_NODES": "4",
    "SLURM_NNODES": "3",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "n[1-3]",
    "SLURM_STEP_NUM_NODES": "3",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_NODEID": "2",
    "SLURM_PROCID": "2",
    "SLURM_LOCALID": "0",
}
BATCH = {"SLURM_JOB_ID": "12345", "SLURM_JOB_NODELIST": "n[1-4]", "SLURM_JOB_NUM_NODES": "4", "SLURM_NODEID": "0"}


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("n1", ["n1"]),
        ("node[01-03,7],login", ["node01", "node02", "node03", "node7", "login"]),
        ("gpu[098-101]", ["gpu098", "gpu099", "gpu100", "gpu101"]),
        ("r[1-2]n[1-2]-ib", ["r1n1-ib", "r1n2-ib", "r2n1-ib", "r2n2-ib"]),
        ("a.b.example,c-[3]", ["a.b.example", "c-3"]),
    ],
)
def test_host_lists_are_written_out(text: str, hosts: list[str]) -> None:
    assert list(parse_hosts(text)) == hosts


@pytest.mark.parametrize(
    "text",
    ["", ",", "n[", "n]", "n[1-]", "n[3-1]", "n[]", "n[[1]]", "a b", "n[1,]", "n[a-b]", "a,,b", "n[1-2", "n[1 - 2]"],
)
def test_what_is_no_host_list_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"SLURM_JOB_NODELIST = .*not a list of hosts"):
        parse_hosts(text)


@pytest.mark.parametrize(
    "text", ["n[0-999999999]", "n[0-9999]x[0-9999]", ",".join(f"n[{i}-{i + 40000}]" for i in (0, 1))]
)
def test_a_list_that_names_too_many_is_refused_quickly(text: str) -> None:
    with pytest.raises(UsageError):
        parse_hosts(text)


NAMES = st.from_regex(r"[a-z][a-z0-9.-]{0,8}", fullmatch=True)
WIDTHS = st.integers(1, 4)


@given(st.lists(st.tuples(NAMES, WIDTHS, st.integers(0, 900), st.integers(0, 40)), min_size=1, max_size=5))
def test_ranges_are_as_wide_as_they_are_written(parts: list[tuple[str, int, int, int]]) -> None:
    text = ",".join(f"{name}[{first:0{width}d}-{first + more}]" for name, width, first, more in parts)
    expected = [
        f"{name}{str(number).zfill(len(f'{first:0{width}d}'))}"
        for name, width, first, more in parts
        for number in range(first, first + more + 1)
    ]
    assert list(parse_hosts(text)) == expected


@given(st.text(alphabet="nab0123456789[]-, .", max_size=30))
def test_any_text_is_hosts_or_a_usage_error(text: str) -> None:
    try:
        hosts = parse_hosts(text)
    except UsageError:
        return
    assert 0 < len(hosts) <= MOST_HOSTS
    assert not any(re.search(r"[\[\],\s]", host) or not host for host in hosts)


def test_a_task_of_a_step_knows_its_place() -> None:
    task = slurm_task(STEP)
    assert task is not None
    assert (task.nodes, task.node_rank, task.hosts, task.tasks, task.in_step) == (3, 2, ("n1", "n2", "n3"), 3, True)
    assert task.port == 15_000 + 2345
    assert slurm_task({}) is None


@given(st.dictionaries(st.sampled_from(sorted(STEP)), st.text(max_size=12), max_size=len(STEP)))
def test_damaged_variables_are_a_usage_error_or_a_task(changes: dict[str, str]) -> None:
    try:
        task = slurm_task({**STEP, **changes})
    except UsageError:
        return
    assert task is None or 0 <= task.node_rank < task.nodes == len(task.hosts)


def find(environment: dict[str, str] | None = None, **options: Any) -> Any:
    fields = {"nodes": None, "endpoint": None, "node_rank": None, **options}
    return find_membership(environment=environment or {}, **fields)


def test_by_hand_the_options_say_it_all() -> None:
    member = find(nodes="2", endpoint="10.0.0.1:29400", node_rank=1)
    assert (member.nodes, member.host, member.port, member.node_rank) == (2, "10.0.0.1", 29400, 1)
    assert find(nodes="2", endpoint="[fd00::1]:29400").endpoint == "[fd00::1]:29400"
    assert find(nodes="2", endpoint="head:29400").node_rank is None
    assert find() is None
    assert find(nodes="1") is None


def test_master_addr_and_port_serve_where_there_is_no_endpoint() -> None:
    variables = {"MASTER_ADDR": "head", "MASTER_PORT": "4711"}
    member = find(variables, nodes="4", node_rank=3)
    assert (member.host, member.port) == ("head", 4711)
    assert find({**STEP, **variables}, nodes="3").host == "head"
    assert find({**STEP, "MASTER_ADDR": "head"}, nodes="3").port == 17345
    assert find(variables, nodes="2", endpoint="other:1").host == "other"


def test_in_a_slurm_step_nothing_has_to_be_said() -> None:
    for nodes in ("all", "3"):
        member = find(STEP, nodes=nodes)
        assert (member.nodes, member.node_rank, member.host, member.port) == (3, 2, "n1", 17345)
        assert member.run_id == "slurm-12345"


@pytest.mark.parametrize(
    ("environment", "options", "said"),
    [
        ({}, {"endpoint": "h:1"}, "say how many with --nodes"),
        ({}, {"node_rank": 0}, "say how many with --nodes"),
        ({}, {"nodes": "two"}, "--nodes two: must be a number"),
        ({}, {"nodes": "0"}, "--nodes 0: must be a number"),
        ({}, {"nodes": "2"}, "name node 0's address"),
        ({}, {"nodes": "all"}, "outside of Slurm"),
        ({"MASTER_ADDR": "h"}, {"nodes": "2"}, "MASTER_PORT: not set"),
        ({"MASTER_ADDR": "h", "MASTER_PORT": "x"}, {"nodes": "2"}, "MASTER_PORT = x"),
        ({}, {"nodes": "2", "endpoint": "h"}, "must be HOST:PORT"),
        ({}, {"nodes": "2", "endpoint": "fd00::1:29400"}, "must be HOST:PORT"),
        ({}, {"nodes": "2", "endpoint": "a..b:1"}, "a..b: no name of a host"),
        ({"MASTER_ADDR": "x" * 80, "MASTER_PORT": "1"}, {"nodes": "2"}, "no name of a host"),
        ({}, {"nodes": "2", "endpoint": "h:70000"}, "from 1 to 65535"),
        ({}, {"nodes": "2", "endpoint": "h:1", "node_rank": 2}, "--node-rank 2: must be from 0 to 1"),
        ({}, {"nodes": "2", "endpoint": "h:1", "join_seconds": 0.0}, "--join-timeout 0"),
        (BATCH, {"nodes": "all"}, "start it with `srun --nodes=4 --ntasks=4 --ntasks-per-node=1"),
        (STEP, {"nodes": "4"}, "this Slurm step has 3"),
        ({**STEP, "SLURM_STEP_NUM_TASKS": "6"}, {"nodes": "3"}, "has 6 tasks, not one a node"),
    ],
)
def test_what_is_missing_or_contradicts_is_one_line(environment: dict, options: dict, said: str) -> None:
    with pytest.raises(UsageError) as raised:
        find(environment, **options)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)
