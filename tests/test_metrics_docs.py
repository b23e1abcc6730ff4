"""docs/metrics.md and docs/schemas/ are held to the code."""

import json
import re
from pathlib import Path

import jsonschema
import orjson
import pytest

from bench_runner import cli, schemas, store
from bench_runner.analysis.frame import COLUMNS, frame_of
from bench_runner.analysis.metrics import BUS_FACTORS, METRICS
from bench_runner.report.document import report_document
from bench_runner.report.tables import sections
from tests import builders

DOCS = Path(__file__).parents[1] / "docs"
METRICS_PAGE = (DOCS / "metrics.md").read_text()


def table_below(heading: str) -> list[list[str]]:
    """The rows of the first table in the section ``heading``, without its head."""
    section = METRICS_PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_table_of_metrics_says_what_the_code_says() -> None:
    in_code = [[m.name, m.unit, m.direction, m.ranks, m.meaning] for m in METRICS.values()]
    assert table_below("What is measured") == in_code


def test_table_of_columns_names_every_column_in_order() -> None:
    assert [name for row in table_below("The frame") for name in row[0].split(", ")] == list(COLUMNS)


def test_table_of_bus_factors_says_what_the_code_says() -> None:
    for operation, _, factor in table_below("Collectives"):
        python = re.sub(r"(\d)\(", r"\1*(", factor.replace("−", "-"))
        for n in (2, 3, 8):
            assert BUS_FACTORS[operation](n) == eval(python, {"n": n})  # type: ignore[index]
    assert [row[0] for row in table_below("Collectives")] == list(BUS_FACTORS)


@pytest.mark.parametrize("name", schemas.SCHEMAS)
def test_stored_schema_is_that_of_the_code(name: str) -> None:
    made = schemas.as_text(schemas.SCHEMAS[name]())
    assert (DOCS / "schemas" / name).read_text() == made, "run: python -m bench_runner.schemas docs/schemas"
    jsonschema.Draft202012Validator.check_schema(json.loads(made))


def test_generator_writes_what_is_stored(tmp_path: Path) -> None:
    assert schemas.main([str(tmp_path)]) == 0
    for name in schemas.SCHEMAS:
        assert (tmp_path / name).read_bytes() == (DOCS / "schemas" / name).read_bytes()


def some_records() -> list[store.RunRecord]:
    return [
        builders.training_record(
            rank_changes={"memory": (builders.device_memory(),)}, machine=builders.machine(gpus=2)
        ),
        builders.collective_record(),
        builders.failed_record(failure="exception", traceback="x", failed_rank=0),
    ]


def test_stored_lines_follow_the_schema() -> None:
    validator = jsonschema.Draft202012Validator(json.loads((DOCS / "schemas" / "record-1.json").read_text()))
    for record in some_records():
        validator.validate(orjson.loads(store.to_line(record)))


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("schema",), "bench-runner/record/2"),
        (("outcome",), "fine"),
        (("spec", "task", "kind"), "other"),
        (("spec", "task", "precision"), "fp8"),
        (("ranks", 0, "step_seconds"), 3),
        (("machine", "name"), None),
    ],
)
def test_schema_refuses_what_the_reader_refuses(place: tuple[str | int, ...], value: object) -> None:
    document = orjson.loads(store.to_line(some_records()[0]))
    part = document
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = value
    validator = jsonschema.Draft202012Validator(schemas.record_schema())
    assert not validator.is_valid(document)
    with pytest.raises(store.LineProblem):
        store.parse_line(orjson.dumps(document))


def test_report_document_follows_its_schema() -> None:
    records = some_records()
    problem = store.Problem(path="x.jsonl", kind="damaged", message="cut off", line=3)
    document = report_document(frame_of(records), sections(records), [problem])
    jsonschema.Draft202012Validator(schemas.report_schema()).validate(document)
    json.dumps(document, allow_nan=False)
    assert [row["reason"] for row in document["rows"] if row["outcome"] != "ok"] == ["rank 1 raised RuntimeError: boom"]


def test_commands_of_the_report_page_are_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store.write(some_records(), tmp_path / "results", label="x")
    monkeypatch.chdir(tmp_path)
    lines = [
        line for line in (DOCS / "report.md").read_text().splitlines() if line.startswith("    bench-runner report")
    ]
    assert len(lines) == 6
    for line in lines:
        arguments = line.split("#")[0].split()[1:]
        if "--plots" not in arguments:  # tests/test_report_plots.py draws them
            assert cli.main(arguments) == 0, line
    assert {path.name for path in tmp_path.iterdir()} == {"results", "report.md", "report.html", "results.parquet"}
