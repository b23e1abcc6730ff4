"""The gate: its order of things, when it measures more, what it says, and its renderings."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from bench_runner import baseline, profile
from bench_runner.cli import gate as cli_gate
from bench_runner.cli import main
from bench_runner.comparing import Compared, compare_sides
from bench_runner.errors import UsageError
from bench_runner.finding import Finding
from bench_runner.gate import GateResult, Steps, pass_gate
from bench_runner.record import RunRecord
from bench_runner.report.gate import gate_document, gate_text, prolog_line
from bench_runner.report.junit import junit_xml
from bench_runner.sides import Side, select
from tests import builders
from tests.test_cli_compare import SCHEMA as COMPARE_SCHEMA
from tests.test_cli_compare import keep
from tests.test_compare import failures, trainings

SCHEMA = json.loads((Path(__file__).parent.parent / "docs" / "schemas" / "gate-1.json").read_text())
DRIFT = Finding(
    check="environment.packages.drift",
    status="fail",
    message="numpy differs",
    expected="2.2.6",
    actual="2.3.0",
    evidence=("conda-meta/numpy.json",),
    remedy="bench-runner env create env",
)
WARNING = replace(DRIFT, check="machine.driver", status="warn", message="an <old> driver\x07")
FINE = Finding(check="environment.lock", status="pass", message="matches")
SKIPPED = Finding(check="machine.gpu", status="skip", message="no GPU")


def noisy(factor: float, count: int, start: int = 0, spread: float = 0.07) -> list[RunRecord]:
    """Launches around ``factor`` that swing by ``spread`` either way."""
    return [
        replace(
            builders.training_record(seconds=0.1 * factor * (1 + spread * (-1) ** index), launch_index=index),
            record_id=f"{factor}-{index}",
            launch_id=f"{factor}-{index}",
        )
        for index in range(start, start + count)
    ]


class Machine:
    """A machine to measure on, and the time that goes by: a minute a launch."""

    def __init__(self, factor: float = 1.0, findings: Sequence[Finding] = (FINE,), spread: float = 0.07) -> None:
        self.factor, self.findings, self.spread = factor, findings, spread
        self.asked: list[int] = []
        self.shares: list[float] = []
        self.now = 0.0

    def run(self, launches: int) -> list[RunRecord]:
        records = noisy(self.factor, launches, sum(self.asked), self.spread)
        self.asked.append(launches)
        self.now += 60.0 * launches
        return records

    def steps(self, before: Sequence[RunRecord], results: Path, threshold: float = 0.05) -> Steps:
        def compare(records: Sequence[RunRecord], share: float) -> Compared:
            self.shares.append(share)
            now = Side(selector="now", records=tuple(records))
            return compare_sides(
                Side(selector="before", records=tuple(before)), now, results, threshold=threshold, share=share
            )

        return Steps(verify=lambda: self.findings, run=self.run, compare=compare, clock=lambda: self.now)


def passed(machine: Machine, before: Sequence[RunRecord], results: Path, **options: Any) -> GateResult:
    return pass_gate(machine.steps(before, results), **{"launches": 5, "max_minutes": None, **options})


def test_nothing_changed_passes(tmp_path: Path) -> None:
    result = passed(Machine(spread=0.002), noisy(1.0, 5, spread=0.002), tmp_path)
    assert (result.verdict, result.launches, result.looks) == ("pass", 5, 1)
    assert result.reasons == ("no change of 5.0% or more for the worse",)
    assert result.minutes == pytest.approx(5)


def test_slower_fails_with_the_metric_and_the_change(tmp_path: Path) -> None:
    result = passed(Machine(1.2, spread=0.002), noisy(1.0, 5, spread=0.002), tmp_path)
    assert result.verdict == "fail"
    assert any("step_time +20 %" in reason for reason in result.reasons)


def test_a_failed_verification_measures_nothing(tmp_path: Path) -> None:
    machine = Machine(findings=(FINE, DRIFT))
    result = passed(machine, noisy(1.0, 5), tmp_path)
    assert (result.verdict, result.compared, machine.asked) == ("fail", None, [])
    assert result.reasons == ("verify: environment.packages.drift: numpy differs",)


def test_a_warning_does_not_stop_the_gate(tmp_path: Path) -> None:
    result = passed(Machine(findings=(WARNING,), spread=0.002), noisy(1.0, 5, spread=0.002), tmp_path)
    assert result.verdict == "pass"


def test_what_cannot_be_seen_is_inconclusive_and_says_how_many_launches(tmp_path: Path) -> None:
    machine = Machine()
    result = passed(machine, noisy(1.0, 20), tmp_path)
    assert result.verdict == "inconclusive"
    assert machine.asked == [5]
    assert result.launches_needed is not None
    assert result.launches_needed > 10
    assert "launches a side" in gate_text(result, "b")


def test_with_time_launches_are_added_until_it_is_clear(tmp_path: Path) -> None:
    machine = Machine()
    result = passed(machine, noisy(1.0, 60), tmp_path, max_minutes=1000)
    assert result.verdict == "pass"
    assert len(machine.asked) == result.looks > 1
    assert result.launches == sum(machine.asked)
    assert machine.shares == [0.5**look for look in range(1, result.looks + 1)]


def test_one_launch_a_side_asks_for_more_of_them(tmp_path: Path) -> None:
    machine = Machine()
    result = passed(machine, noisy(1.0, 1), tmp_path, launches=1)
    assert (result.verdict, machine.asked, result.launches_needed) == ("inconclusive", [1], None)
    text = " ".join(gate_text(result, "b").split())
    assert "one launch a side does not tell how far launches differ" in text
    assert "would not settle" not in text
    patient = Machine()
    passed(patient, noisy(1.0, 1), tmp_path, launches=1, max_minutes=10)
    assert patient.asked[:2] == [1, 2]


def test_the_time_is_kept(tmp_path: Path) -> None:
    machine = Machine()
    result = passed(machine, noisy(1.0, 60), tmp_path, max_minutes=8)
    assert machine.asked == [5, 3]
    assert (result.verdict, result.minutes) == ("inconclusive", pytest.approx(8))


def test_launches_that_cannot_help_are_not_measured(tmp_path: Path) -> None:
    # Three launches of a noisy baseline: not even a thousand now would show 5 %.
    machine = Machine()
    result = passed(machine, noisy(1.0, 3), tmp_path, max_minutes=1000)
    assert (result.verdict, machine.asked) == ("inconclusive", [5])


@pytest.mark.parametrize(
    ("before", "now", "verdict", "reason"),
    [
        (trainings(), failures("failed", "boom"), "fail", "outcome: the candidate failed in 1 of 1 launches: boom"),
        (trainings(), failures("skipped", "no GPU"), "fail", "was skipped in 1 of 1 launches: no GPU"),
        ([*trainings(), *trainings(devices=4)], trainings(), "inconclusive", "ddp/4/mlp/fp32/b8: not measured now"),
        (trainings(), trainings(rank_changes={"backend": "nccl"}), "inconclusive", "backend gloo against nccl"),
        (trainings(), trainings(rank_changes={"peak_rss_bytes": None}), "inconclusive", "the candidate has no value"),
        (trainings(rank_changes={"peak_rss_bytes": None}), trainings(), "pass", "no change"),
        (trainings(), [*trainings(), *trainings(devices=4)], "pass", "no change"),
        (
            [*trainings(), *failures("skipped", "no GPU", strategy="data_parallel")],
            [*trainings(), *failures("skipped", "no GPU", strategy="data_parallel")],
            "pass",
            "no change",
        ),
    ],
)
def test_what_the_baseline_has_must_be_judged(
    tmp_path: Path, before: list[RunRecord], now: list[RunRecord], verdict: str, reason: str
) -> None:
    def compare(records: Sequence[RunRecord], share: float) -> Compared:
        sides = [Side(selector=name, records=tuple(some)) for name, some in (("before", before), ("now", records))]
        return compare_sides(*sides, tmp_path, share=share)

    steps = Steps(verify=None, run=lambda launches: now, compare=compare, clock=lambda: 0.0)
    result = pass_gate(steps, launches=1, max_minutes=None)
    assert result.verdict == verdict
    assert any(reason in line for line in result.reasons)


def renderings(result: GateResult) -> tuple[dict[str, Any], ET.Element, str, str]:
    document = json.loads(json.dumps(gate_document(result, "before", verified=True)))
    jsonschema.validate(document, SCHEMA)
    if document["comparison"] is not None:
        jsonschema.validate(document["comparison"], COMPARE_SCHEMA)
    return (
        document,
        ET.fromstring(junit_xml(result, "before")),
        gate_text(result, "before"),
        prolog_line(result, "before"),
    )


def test_renderings_of_a_failed_verification(tmp_path: Path) -> None:
    result = passed(Machine(findings=(FINE, WARNING, SKIPPED, DRIFT)), noisy(1.0, 5), tmp_path)
    document, root, text, line = renderings(result)
    assert (document["verdict"], document["comparison"]) == ("fail", None)
    (suite,) = root
    assert suite.attrib == {"name": "verify", "tests": "4", "failures": "1", "errors": "0", "skipped": "1"}
    failure = suite.find("testcase[@name='environment.packages.drift']/failure")
    assert failure is not None
    assert "remedy: bench-runner env create env" in str(failure.text)
    assert "an <old> driver\\x07" in str(suite.findtext("testcase/system-out"))
    assert "FAIL environment.packages.drift: numpy differs" in text
    assert line == "bench-runner gate before: fail: verify: environment.packages.drift: numpy differs"


def test_renderings_of_regressions_and_of_open_questions(tmp_path: Path) -> None:
    before = [*noisy(1.0, 5, spread=0.002), *trainings(devices=4)]
    result = passed(Machine(1.2, spread=0.002), before, tmp_path)
    document, root, text, line = renderings(result)
    assert document["launches"] == 5
    assert [suite.get("name") for suite in root] == ["verify", "compare"]
    assert (root.get("failures"), root.get("errors")) == ("2", "1")
    assert root.find(".//testcase[@name='step_time']/failure[@type='regression']") is not None
    assert root.find(".//testcase[@classname='compare.ddp/4/mlp/fp32/b8']/error") is not None
    assert max(len(row) for row in text.splitlines()) <= 80
    assert line.startswith("bench-runner gate before: fail: ddp/2/mlp/fp32/b8: throughput -16.7 %")
    assert line.endswith("(and 1 more)")
    assert len(line) <= 200


@pytest.fixture
def results(tmp_path: Path) -> Path:
    root = tmp_path / "results"
    keep(root, "box", trainings())
    keep(root, "slow", trainings(1.3))
    keep(root, "single", trainings(count=1))
    baseline.freeze(root, "good", select("box", root).records)
    baseline.freeze(root, "one", select("single", root).records)
    return root


Gate = Callable[..., tuple[int, str, str]]


@pytest.fixture
def gate(results: Path, capsys: pytest.CaptureFixture[str]) -> Gate:
    def call(*arguments: object) -> tuple[int, str, str]:
        code = main(["gate", "--no-verify", "--results", str(results), *(str(argument) for argument in arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.mark.parametrize(
    ("name", "candidate", "code", "verdict"),
    [("good", "box", 0, "pass"), ("good", "slow", 1, "fail"), ("one", "single", 4, "inconclusive")],
)
def test_the_command_on_stored_results(
    gate: Gate, tmp_path: Path, name: str, candidate: str, code: int, verdict: str
) -> None:
    junit = tmp_path / "gate.xml"
    told, out, _ = gate("--baseline", name, "--candidate", candidate, "--json", "--junit", junit)
    document = json.loads(out)
    jsonschema.validate(document, SCHEMA)
    assert (told, document["verdict"], document["verification"]) == (code, verdict, None)
    assert ET.parse(junit).getroot().tag == "testsuites"
    told, out, _ = gate("--baseline", name, "--candidate", candidate, "--prolog")
    assert (told, out.count("\n")) == (code, 1)
    assert out.startswith(f"bench-runner gate {name}: {verdict}: ")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--baseline", "nothing"], "baseline nothing: not found"),
        (["--baseline", "good", "--candidate", "nothing"], "nothing: no machine"),
        (["--baseline", "good", "--candidate", "box", "--max-minutes", "5"], "--candidate and --max-minutes"),
        (["--baseline", "good", "--launches", "0"], "--launches 0"),
        (["--baseline", "good", "--max-minutes", "nan"], "--max-minutes nan"),
        (["--baseline", "good", "--json", "--prolog"], "choose one"),
        (["--baseline", "good", "--env", "mine"], "--env mine"),
    ],
)
def test_errors_are_one_line(gate: Gate, arguments: list[str], named: str) -> None:
    code, _, err = gate(*arguments)
    assert code == 2
    assert named in err
    assert err.count("\n") == 1


PROFILE = '[[training]]\nworkload = "mlp"\nbatch = 8\n'


def frozen_with(root: Path, name: str, *texts: str | None) -> Side:
    records = [
        replace(record, profile="mine", profile_text=text)
        for record, text in zip(trainings(count=len(texts)), texts, strict=True)
    ]
    baseline.freeze(root, name, records)
    return select(f"baseline:{name}", root)


def test_a_baseline_holds_the_profile_that_it_was_measured_with(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench_runner.session.default_root", lambda: tmp_path)
    before = frozen_with(results, "own", PROFILE, PROFILE)
    chosen = profile.load(cli_gate._profile(before))
    assert (chosen.name, chosen.own_text, [case.label for case in chosen.cases]) == ("mine", PROFILE, ["mlp/fp32/b8"])
    assert cli_gate._profile(select("baseline:good", results)) == "quick"


@pytest.mark.parametrize(
    ("texts", "told"),
    [((None, None), "that it does not hold; name it, --profile mine.toml"), ((PROFILE, "# 2"), "2 versions of mine")],
)
def test_a_profile_that_is_not_known_is_asked_for(results: Path, texts: tuple[str | None, ...], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        cli_gate._profile(frozen_with(results, "own", *texts))


def test_a_profile_name_from_elsewhere_is_no_path(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a plain one"):
        profile.keep_text("../../x", PROFILE, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_baseline_stops_the_gate_before_it_measures(gate: Gate, results: Path) -> None:
    path = results / "baselines" / "good.jsonl"
    path.write_bytes(path.read_bytes()[:-50])
    code, _, err = gate("--baseline", "good", "--candidate", "box")
    assert code == 2
    assert "baseline good is damaged" in err
