"""``bench-runner compare`` as a user calls it: exit codes, text of 80 columns, JSON by its schema, damage named."""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from bench_runner import store
from bench_runner.cli import main
from bench_runner.noise_file import noise_path, profile_of, write_profile
from bench_runner.sides import select
from tests import builders
from tests.test_asv_results import write as write_asv
from tests.test_compare import failures, trainings

SCHEMA = json.loads((Path(__file__).parent.parent / "docs" / "schemas" / "compare-1.json").read_text())


def keep(results: Path, machine: str, records: list[Any]) -> None:
    named = [
        replace(
            record,
            record_id=f"{machine}-{record.session_id}-{i}",
            machine=builders.machine(machine, gpus=2, fingerprint=f"machine-{machine}"),
        )
        for i, record in enumerate(records)
    ]
    store.write(named, results, label="run")


@pytest.fixture
def results(tmp_path: Path) -> Path:
    root = tmp_path / "results"
    keep(root, "box", trainings())
    keep(root, "twin", trainings())
    keep(root, "slow", trainings(1.3))
    keep(root, "single", trainings(count=1))
    keep(root, "broken", failures("failed", "rank 1 raised RuntimeError: boom", 2))
    return root


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main(["compare", *(str(argument) for argument in arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize(
    ("sides", "options", "code", "verdict"),
    [
        (("box", "twin"), [], 0, "same"),
        (("box", "slow"), [], 1, "regression"),
        (("slow", "box"), [], 0, "improvement"),
        (("box", "slow"), ["--threshold", "100"], 0, "same"),
        (("single", "single"), [], 0, "inconclusive"),
        (("single", "single"), ["--strict"], 4, "inconclusive"),
        (("box", "broken"), [], 1, "regression"),
        (("broken", "broken"), ["--strict"], 4, "inconclusive"),
    ],
)
def test_exit_codes_and_documents(
    results: Path,
    capsys: pytest.CaptureFixture[str],
    sides: tuple[str, str],
    options: list[str],
    code: int,
    verdict: str,
) -> None:
    told, out, _ = run(capsys, *sides, "--results", results, "--json", *options)
    document = json.loads(out)
    jsonschema.validate(document, SCHEMA)
    assert (told, document["verdict"]) == (code, verdict)
    told, text, _ = run(capsys, *sides, "--results", results, *options)
    assert told == code
    assert text.splitlines()[-1].startswith(f"verdict: {verdict} (")
    assert max(len(line) for line in text.splitlines()) <= 80


def test_the_text_shows_numbers_reasons_and_differences(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, text, _ = run(capsys, "box", "slow", "--results", results)
    (row,) = [line for line in text.splitlines() if line.startswith("step_time")]
    assert "+30" in row
    assert row.endswith("WORSE")
    assert "- machine name: box -> slow" in text
    assert "asked for  a change of 10.0%" in text
    assert text.count("no noise profile") == 1


def test_the_text_is_the_same_every_time(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "box", "slow", "--results", results) == run(capsys, "box", "slow", "--results", results)


def test_reasons_of_failures_are_shown(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, text, _ = run(capsys, "box", "broken", "--results", results)
    assert "outcome WORSE: the candidate failed in 2 of 2 launches: rank 1 raised" in " ".join(text.split())


def test_damage_is_named_the_rest_compared_and_the_exit_code_2(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = next((results / "slow" / "runs").iterdir())
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:-1]) + lines[-1][:100])
    code, out, err = run(capsys, "box", "slow", "--results", results, "--json")
    document = json.loads(out)
    jsonschema.validate(document, SCHEMA)
    assert (code, document["verdict"], len(document["unreadable"])) == (2, "regression", 1)
    assert str(file) in document["unreadable"][0]
    assert str(file) in err


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        (["box", "nowhere"], 2, "nowhere: no machine"),
        (["box", "twin", "--threshold", "0"], 2, "--threshold 0: must be between"),
        (["box", "twin", "--threshold", "nan"], 2, "--threshold nan"),
        (["box", "twin", "--metric", "speed"], 2, "--metric speed: must be one of throughput"),
    ],
)
def test_errors_are_one_line(
    results: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, named: str
) -> None:
    told, out, err = run(capsys, *arguments, "--results", results)
    assert (told, out) == (code, "")
    assert err.startswith("bench-runner: error: ")
    assert named in err
    assert err.count("\n") == 1


def test_nothing_in_common_is_an_error_and_no_pass(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep(results, "collectives", [builders.collective_record()])
    code, _, err = run(capsys, "box", "collectives", "--results", results)
    assert code == 3
    assert "nothing to compare: box has ddp/2/mlp/fp32/b8; collectives has ddp/2/all_reduce" in err


def test_chosen_metrics(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "box", "slow", "--results", results, "--json", "--metric", "time_per_sample")
    assert {c["metric"] for c in json.loads(out)["comparisons"]} == {"time_per_sample"}


def test_results_of_asv_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = write_asv(tmp_path / "a"), write_asv(tmp_path / "b")
    two.write_text(two.read_text().replace("[0.5]", "[0.7]").replace('"2.0"', '"2.1"'))
    code, out, _ = run(capsys, one, two, "--json")
    document = json.loads(out)
    jsonschema.validate(document, SCHEMA)
    assert (code, document["verdict"]) == (0, "inconclusive")
    assert {"subject": "environment", "name": "package numpy", "baseline": "2.0", "candidate": "2.1"} in document[
        "differences"
    ]


def test_a_noise_profile_lets_one_launch_say_same(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = [replace(r, session_id=f"session-{i}") for i in range(3) for r in trainings()]
    keep(results, "box", before)
    profile = profile_of([r for r in select(str(results / "box"), results).records if r.session_id != "session-a"])
    assert write_profile(results, profile) == noise_path(results, "box")
    files = [results.parent / name for name in ("one.jsonl", "two.jsonl")]
    launches = [r for r in select(str(results / "box"), results).records if r.session_id == "session-a"]
    for place, record in zip(files, launches, strict=False):
        place.write_bytes(store.to_line(record))
    _, out, _ = run(capsys, *files, "--results", results, "--json")
    verdicts = {c["metric"]: c["verdict"] for c in json.loads(out)["comparisons"]}
    assert verdicts["step_time"] == "same"
    noise_path(results, "box").write_text("{")
    code, out, err = run(capsys, *files, "--results", results, "--json")
    assert code == 2
    assert "profile-noise" in err
    assert json.loads(out)["verdict"] == "inconclusive"


def test_what_stands_on_both_sides_is_said(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, text, _ = run(capsys, "box", "box", "--results", results)
    assert "5 record(s) stand on both sides" in text


def test_the_table_says_which_number_of_a_launch_it_compares(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, text, _ = run(capsys, "box", "slow", "--results", results)
    told = " ".join(text.split())
    assert "step_time: the lower quartile of its steps or calls (p25;" in told
    assert "peak_rss: the value itself" in told


def hostile(results: Path) -> tuple[str, str]:
    """Two record files whose machines and reasons are markup."""
    name = "<script>alert(1)</script>|*x*"
    broken = failures("failed", f"{name} \x1b[31m", 2, strategy="data_parallel")
    for file, factor in (("a.jsonl", 1.0), ("b.jsonl", 1.3)):
        machine = builders.machine(f"{name}{file}", fingerprint=file)
        own = [
            replace(record, record_id=f"{file}{place}", machine=machine)
            for place, record in enumerate([*trainings(factor), *broken])
        ]
        (results / file).write_bytes(b"".join(store.to_line(record) + b"\n" for record in own))
    return str(results / "a.jsonl"), str(results / "b.jsonl")


class Page(HTMLParser):
    """The page's tags, and its text by the cells of its tables."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.rows: list[list[str]] = []
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th") and self.rows:
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data


def test_markdown_and_html_say_the_same_as_the_text(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sides = hostile(results)
    code, text, _ = run(capsys, *sides, "--results", results)
    verdict = text.splitlines()[-1]
    told, markdown, _ = run(capsys, *sides, "--results", results, "--format", "markdown")
    page = tmp_path / "page.html"
    assert run(capsys, *sides, "--results", results, "-o", page)[0] == told == code == 1
    html = page.read_text(encoding="utf-8")
    read = Page(html)
    assert verdict in html
    assert verdict in markdown.replace("\\", "")
    rows = {row[0]: row for row in read.rows if row[0] == "step_time"}
    (line,) = [line for line in text.splitlines() if line.startswith("step_time")]
    assert all(cell in line for cell in rows["step_time"][:6])
    assert rows["step_time"][6] == "WORSE"
    assert "| step\\_time |" in markdown
    for shown in (html, markdown):
        assert "<script" not in shown
        assert "\x1b" not in shown
    assert "script" not in read.tags
    assert "<h2>What else differs</h2>" in html
    assert "### What else differs" in markdown


def test_a_comparison_of_one_launch_a_side_is_rendered_too(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for file_format in ("markdown", "html"):
        code, out, _ = run(capsys, "single", "broken", "--results", results, "--format", file_format)
        assert code == 1
        assert "WORSE" in out


def test_the_format_follows_the_files_name(results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, beginning in (
        ("c.md", "## Comparison"),
        ("c.txt", "baseline "),
        ("c.json", "{"),
        ("c.html", "<!DOCTYPE"),
    ):
        code, out, err = run(capsys, "box", "twin", "--results", results, "-o", tmp_path / name)
        assert (code, out) == (0, "")
        assert f"wrote {tmp_path / name}" in err
        assert (tmp_path / name).read_text(encoding="utf-8").startswith(beginning)
    jsonschema.validate(json.loads((tmp_path / "c.json").read_text()), SCHEMA)
    code, _, err = run(capsys, "box", "twin", "--results", results, "--format", "pdf")
    assert (code, err.count("\n")) == (2, 1)
    assert "--format pdf: must be one of text, markdown, html, json" in err
