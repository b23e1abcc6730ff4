"""docs/troubleshooting.md and docs/schemas/doctor-1.json are held to the code.

When a table differs: ``python tests/test_doctor_docs.py`` writes it anew.
"""

import json
import re
from pathlib import Path

import jsonschema
import pytest

from bench_runner.doctor.document import doctor_document, doctor_text, fault_of
from bench_runner.doctor.faults import FAULTS, fault_finding
from bench_runner.doctor.signatures import SIGNATURES
from bench_runner.finding import Finding

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "troubleshooting.md"
SCHEMA = json.loads((ROOT / "docs" / "schemas" / "doctor-1.json").read_text())


def table(rows: list[tuple[str, str, str]]) -> str:
    lines = ["| fault | cause | remedy |", "|---|---|---|"]
    return "\n".join(
        lines + [f"| `{name}` | {cause} | {remedy.replace('|', '&#124;')} |" for name, cause, remedy in rows]
    )


def tables() -> dict[str, str]:
    return {
        "faults": table([(fault.name, fault.cause, fault.remedy) for fault in FAULTS.values()]),
        "signatures": table([(s.name, s.cause, s.remedy) for s in SIGNATURES]),
    }


@pytest.mark.parametrize("name", ["faults", "signatures"])
def test_the_page_shows_the_table_of_the_code(name: str) -> None:
    found = re.search(rf"<!-- {name}: begin -->\n(.*?)\n<!-- {name}: end -->", PAGE.read_text(), re.DOTALL)
    assert found
    assert found[1] == tables()[name]


def test_every_check_of_the_rules_is_on_the_page_and_the_other_way_round() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "bench_runner" / "doctor").glob("*.py"))
    page = PAGE.read_text()
    judged = set(re.findall(r'_finding\(\s*"([a-z-]+)",\s*"(?:warn|fail)"', sources))
    assert len(judged) > 25
    assert {name for name in judged if f".{name}`" not in page and f"`{name}`" not in page} == set()
    shown = set(re.findall(r"`doctor\.[a-z]+\.([a-z0-9-]+)`", page))
    assert {name for name in shown if f'"{name}"' not in sources and f".{name}" not in sources} == set()


def test_names_are_unique() -> None:
    names = [signature.name for signature in SIGNATURES]
    assert len(names) == len(set(names))


def test_document_keeps_to_its_schema() -> None:
    findings = [
        Finding(check="doctor.log.signatures", status="pass", message="ok"),
        fault_finding("log", "rank-died", "rank 1 failed first", evidence=("a.log:3",)),
    ]
    document = json.loads(json.dumps(doctor_document("log", findings, {"ranks": [1]})))
    jsonschema.validate(document, SCHEMA)
    assert document["fault"] == "rank-died"
    assert document["verdict"] == "fail"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**document, "more": 1}, SCHEMA)


def test_a_failure_names_the_fault_before_a_warning() -> None:
    warning = Finding(check="doctor.log.barrier-device", status="warn", message="m", remedy="r")
    assert fault_of([warning]) == "barrier-device"
    assert fault_of([warning, fault_finding("log", "straggler", "m")]) == "straggler"
    assert fault_of([]) is None


def test_text_shows_failures_first_and_no_control_characters() -> None:
    text = doctor_text(
        [
            Finding(check="doctor.log.a", status="pass", message="fine"),
            fault_finding("log", "straggler", "rank 1 \x1b[2J"),
        ]
    )
    assert text.startswith("FAIL  doctor.log.straggler: rank 1 \\x1b[2J")
    assert text.endswith("verdict: fail")


if __name__ == "__main__":
    page = PAGE.read_text()
    for name, text in tables().items():
        page = re.sub(
            rf"(<!-- {name}: begin -->\n).*?(<!-- {name}: end -->)",
            lambda m, t=text: m[1] + t + "\n" + m[2],
            page,
            flags=re.DOTALL,
        )
    PAGE.write_text(page)
