"""JSON schemas of what this program writes, made from the code: ``python -m bench_runner.schemas docs/schemas``.

A test holds the stored files to these functions, so that a changed field shows in a review.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, get_args

from bench_runner.record import RECORD_SCHEMA
from bench_runner.spec import TASKS
from bench_runner.store import ProblemKind, record_adapter

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def record_schema() -> dict[str, Any]:
    """One line of a file under ``results/<machine>/runs/``."""
    schema = record_adapter().json_schema()
    definitions: dict[str, Any] = schema["$defs"]
    for part in (schema, *definitions.values()):
        _tidy(part)
    for kind, known in TASKS.items():
        task = definitions[known.__name__]
        task["properties"] = {"kind": {"const": kind}, **task["properties"]}
        task["required"] = ["kind", *task["required"]]
    del schema["properties"]["schema"]
    schema["properties"] = {"schema": {"const": RECORD_SCHEMA}, **schema["properties"]}
    schema["required"] = ["schema", *schema["required"]]
    return {"$schema": _DIALECT, "$id": RECORD_SCHEMA, "title": "A stored measurement", **schema}


def _tidy(part: dict[str, Any]) -> None:
    """pydantic's titles repeat the names; reStructuredText's quotes are for Python's readers."""
    part.pop("title", None)
    for value in part.get("properties", {}).values():
        value.pop("title", None)
    if "description" in part:
        part["description"] = " ".join(part["description"].replace("``", "`").split())


def report_schema() -> dict[str, Any]:
    """The document of ``bench-runner report --json``."""
    from bench_runner.analysis.frame import COLUMNS
    from bench_runner.report.document import SCHEMA

    types = {"string": "string", "Int64": "integer", "float64": "number", "boolean": "boolean"}
    columns = {name: {"type": [types.get(dtype, "string"), "null"]} for name, dtype in COLUMNS.items()}
    texts = {"type": "array", "items": {"type": "string"}}
    return {
        "$schema": _DIALECT,
        "$id": SCHEMA,
        "title": "Stored results, a row for each metric value (docs/metrics.md) and for each run that gave none",
        **_closed(
            {
                "schema": {"const": SCHEMA},
                "machines": _list_of(
                    {
                        "machine": {"type": "string"},
                        "description": texts,
                        "step_gaps": texts,
                        "not_measured": texts,
                        "warnings": texts,
                    }
                ),
                "rows": _list_of(columns),
                "problems": _list_of(
                    {
                        "path": {"type": "string"},
                        "kind": {"enum": list(get_args(ProblemKind))},
                        "message": {"type": "string"},
                        "line": {"type": ["integer", "null"]},
                    }
                ),
            }
        ),
    }


def _closed(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": list(properties),
        "properties": properties,
    }


def _list_of(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": _closed(properties)}


SCHEMAS: Final[dict[str, Callable[[], dict[str, Any]]]] = {
    "record-1.json": record_schema,
    "report-1.json": report_schema,
}


def as_text(schema: dict[str, Any]) -> str:
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def main(argv: Sequence[str]) -> int:
    """Write the schemas into the folder named by the one argument."""
    folder = Path(argv[0])
    for name, make in SCHEMAS.items():
        (folder / name).write_text(as_text(make()), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
