"""The doctor's plan for a job's start over a runner that is told which subsets pass and which hang."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_runner.doctor.document import fault_of
from bench_runner.doctor.startup import StartupReport, Trial, TrialOutcome, plan_startup, rerun_variables, stages_of
from bench_runner.doctor.startup_rules import judge_startup
from bench_runner.doctor.startup_run import require_device_kind, summarise_trial
from bench_runner.doctor.world import RankOutcome, WorldOutcome
from bench_runner.errors import SpecError
from bench_runner.machine.network import Interface, Network, usable_interfaces

PASSED = TrialOutcome(seconds=1.0)
HANGS = TrialOutcome(failure="hang", phase="collective", detail="not done after 60 s", seconds=60.0)
WRONG = TrialOutcome(
    failure="wrong-values", phase="collective", detail="all-reduce of 4 bytes: 1 of 1 values are wrong"
)


def runner(
    bad: Callable[[Trial], bool], outcome: TrialOutcome = HANGS
) -> tuple[Callable[[Trial], TrialOutcome], list[Trial]]:
    """Fails where ``bad`` says so, and keeps what was tried."""
    tried: list[Trial] = []

    def run(trial: Trial) -> TrialOutcome:
        tried.append(trial)
        return outcome if bad(trial) else PASSED

    return run, tried


def checks(report: StartupReport) -> dict[str, str]:
    return {f.check.removeprefix("doctor.startup."): f.status for f in judge_startup(report)}


def test_healthy_machine_goes_through_every_subset() -> None:
    run, tried = runner(lambda trial: False)
    report = plan_startup(4, 32, run)
    assert checks(report) == dict.fromkeys(["devices", "pairs", "subsets", "one-sample", "real-batch"], "pass")
    subsets = [trial.devices for trial in tried]
    assert subsets[:4] == [(0,), (1,), (2,), (3,)]
    assert len([s for s in subsets if len(s) == 2]) == 6
    assert subsets[-4:] == [(0, 1, 2), (0, 1, 2, 3), (0, 1, 2, 3), (0, 1, 2, 3)]
    assert [trial.batch for trial in tried[-2:]] == [1, 32]


def test_one_bad_pair_is_named_and_nothing_larger_is_tried() -> None:
    run, tried = runner(lambda trial: {1, 3} <= set(trial.devices))
    report = plan_startup(4, 32, run)
    findings = judge_startup(report)
    assert fault_of(findings) == "pairs"
    failing = next(finding for finding in findings if finding.status == "fail")
    assert "hangs with devices 1, 3" in failing.message
    assert any(line.startswith("devices 0, 2: passed") for line in failing.evidence)
    assert max(len(trial.devices) for trial in tried) == 2


def test_two_pass_four_hang_and_three_were_tried_between() -> None:
    run, _ = runner(lambda trial: len(trial.devices) >= 4)
    report = plan_startup(8, 32, run)
    assert report.failed is not None
    assert report.failed[0].devices == (0, 1, 2, 3)
    assert checks(report)["subsets"] == "fail"
    assert checks(report)["pairs"] == "pass"


@pytest.mark.parametrize(
    ("passes_with", "cause", "reruns"),
    [
        ("NCCL_P2P_DISABLE", "peer-to-peer", 1),
        ("NCCL_SHM_DISABLE", "shared-memory", 2),
        ("NCCL_SOCKET_IFNAME", "interface", 3),
    ],
)
def test_what_has_to_be_off_names_the_cause(passes_with: str, cause: str, reruns: int) -> None:
    run, tried = runner(lambda trial: len(trial.devices) > 1 and passes_with not in trial.variables)
    report = plan_startup(2, 32, run, rerun=True)
    assert len(report.reruns) == reruns
    assert checks(report)[cause] == "fail"
    assert tried[-1].devices == (0, 1)


def test_every_interface_that_is_up_is_tried_and_the_one_that_works_is_named() -> None:
    run, tried = runner(lambda trial: len(trial.devices) > 1 and trial.variables.get("NCCL_SOCKET_IFNAME") != "=eth1")
    report = plan_startup(2, 32, run, rerun=True, interfaces=("ib0", "eth1", "eth2"))
    assert [trial.interface for trial in tried[-2:]] == ["ib0", "eth1"]
    cause = judge_startup(report)[-1]
    assert (cause.check, "pass only over the interface eth1" in cause.message) == ("doctor.startup.interface", True)
    assert cause.remedy is not None
    assert "export NCCL_SOCKET_IFNAME=eth1" in cause.remedy
    assert any(line.startswith("devices 0, 1 over the interface ib0: hang") for line in cause.evidence)


def test_loopback_is_the_last_interface() -> None:
    assert [v.get("NCCL_SOCKET_IFNAME") for _, v in rerun_variables(("eth0",))] == [None, None, "=eth0", "=lo"]


def test_interfaces_are_those_that_are_up_the_fastest_first() -> None:
    interfaces = (
        Interface(name="lo", state="unknown"),
        Interface(name="down0", state="down", speed_mbps=100_000),
        Interface(name="eth0", state="up", speed_mbps=1000),
        Interface(name="veth1", state="up"),
        Interface(name="ib0", state="up", speed_mbps=200_000),
    )
    assert usable_interfaces(Network(interfaces=interfaces)) == ("ib0", "eth0", "veth1")
    assert usable_interfaces(Network(interfaces=None)) == ()


def test_failure_that_stays_has_no_cause_invented() -> None:
    run, _ = runner(lambda trial: len(trial.devices) > 1, WRONG)
    report = plan_startup(2, 32, run, rerun=True)
    assert checks(report) == {"devices": "pass", "pairs": "fail", "cause-unknown": "warn"}
    assert any("wrong values" in finding.message for finding in judge_startup(report))


def test_device_that_fails_alone_is_not_rerun() -> None:
    run, tried = runner(lambda trial: trial.devices == (1,))
    report = plan_startup(3, 32, run, rerun=True)
    assert report.reruns == ()
    assert checks(report) == {"devices": "fail"}
    assert [trial.devices for trial in tried] == [(0,), (1,), (2,)]


@given(st.integers(1, 6), st.integers(1, 63))
def test_smallest_failing_subset_is_found_whatever_device_is_bad(count: int, bad_mask: int) -> None:
    bad = {device for device in range(count) if bad_mask >> device & 1}
    run, _ = runner(lambda trial: len(bad & set(trial.devices)) >= 2)
    report = plan_startup(count, 4, run)
    if len(bad) >= 2:
        assert report.failed is not None
        assert len(report.failed[0].devices) == 2
    else:
        assert report.failed is None
        assert report.stages == stages_of(count)


def rank(number: int, *phases: str, error: str | None = None, code: int | None = 0, log: str = "") -> RankOutcome:
    events: list[dict[str, Any]] = [{"kind": "phase", "name": name} for name in phases]
    if error is not None:
        events.append({"kind": "error", "error": error, "traceback": f"Traceback\n{error}"})
    return RankOutcome(rank=number, events=tuple(events), exit_code=code, log=log)


def world(*ranks: RankOutcome, timed_out: bool = False) -> WorldOutcome:
    return WorldOutcome(ranks=ranks, timed_out=timed_out, seconds=60.0, log="")


PAIR = Trial(stage="pairs", devices=(0, 1))
THROUGH = ("import", "device", "process-group", "collective")


def test_trial_that_passed() -> None:
    assert summarise_trial(PAIR, world(rank(0, *THROUGH), rank(1, *THROUGH))).failure is None


def test_hang_names_the_phase_and_the_rank_behind() -> None:
    outcome = summarise_trial(
        PAIR,
        world(
            rank(0, *THROUGH[:2], code=None, log="File x"), rank(1, "import", code=None, log="File y"), timed_out=True
        ),
    )
    assert (outcome.failure, outcome.phase, outcome.behind) == ("hang", "device", (1,))
    assert outcome.stacks[1] == ("File y",)


def test_hang_of_all_in_one_phase_has_nobody_behind() -> None:
    outcome = summarise_trial(
        PAIR, world(rank(0, *THROUGH[:3], code=None), rank(1, *THROUGH[:3], code=None), timed_out=True)
    )
    assert (outcome.phase, outcome.behind) == ("collective", ())


def test_wrong_values_and_errors_come_before_what_follows_from_them() -> None:
    outcome = summarise_trial(
        PAIR,
        world(
            rank(0, *THROUGH[:3], error="RuntimeError: Connection closed by peer", code=1),
            rank(1, *THROUGH[:3], error="WrongValuesError: all-reduce of 4 bytes: 1 of 1 values are wrong", code=1),
        ),
    )
    assert outcome.failure == "wrong-values"
    assert outcome.detail.startswith("rank 1: WrongValuesError")


def test_rank_that_is_killed_is_an_error() -> None:
    outcome = summarise_trial(PAIR, world(rank(0, *THROUGH[:3], code=None), rank(1, *THROUGH[:3], code=-11)))
    assert (outcome.failure, outcome.detail) == ("error", "rank 1 ended with exit code -11")


def test_unknown_device_kind_is_refused() -> None:
    with pytest.raises(SpecError, match="device"):
        require_device_kind("gpu")
