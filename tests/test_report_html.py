import base64
import gzip
import json
from collections import Counter
from datetime import UTC, datetime
from html.parser import HTMLParser
from math import isnan
from pathlib import Path
from typing import Any

import pytest

from bench_runner import cli, store
from bench_runner.analysis.summary import collective_curves, training_cases
from bench_runner.record import RunRecord
from bench_runner.report import figures, html
from bench_runner.report.page import page_of
from tests import builders

HOSTILE = "<script>alert(1)</script>"
PHASES = {"data": (0.001,), "forward": (0.02,), "backward": (0.05,), "optimizer": (0.01,)}


def session(name: str = "box", session_id: str = "new", day: int = 2, factor: float = 1.0) -> list[RunRecord]:
    """A machine with two devices: single, DataParallel, DDP, an all-reduce, and a failure."""
    common: dict[str, Any] = {
        "machine": builders.machine(name, gpus=2),
        "session_id": session_id,
        "started_at": f"2026-11-{day:02d}T10:00:00Z",
    }
    memory = (
        builders.device_memory(0),
        builders.device_memory(1, process_used_bytes=None, peak_allocated_bytes=0),
    )
    cuda = {"device_kind": "cuda"}
    extra = {"phase_seconds": PHASES, "memory": memory, "parameters": 1_000_000}
    sizes = [1 << power for power in range(10, 24, 2)]
    return [
        builders.training_record(
            strategy="single", devices=1, seconds=0.1 * factor, rank_changes=extra, task=cuda, **common
        ),
        builders.training_record(
            strategy="data_parallel", devices=2, seconds=0.15 * factor, rank_changes=extra, task=cuda, **common
        ),
        builders.training_record(devices=1, seconds=0.1 * factor, rank_changes=extra, task=cuda, **common),
        builders.training_record(devices=2, seconds=0.11 * factor, rank_changes=extra, task=cuda, **common),
        builders.collective_record(seconds={size: [[1e-4 + size / 1e10] * 5] * 2 for size in sizes}, **common),
        builders.failed_record(reason=f"died of {HOSTILE}", **common),
    ]


class Reader(HTMLParser):
    """What a browser would find: elements with their attributes, and the text in them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.scripts: dict[str, str] = {}
        self._script: str | None = None
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "script":
            self._script = dict(attrs).get("id") or "code"

    def handle_endtag(self, tag: str) -> None:
        self._script = None

    def handle_data(self, data: str) -> None:
        if self._script:
            self.scripts[self._script] = data
        else:
            self.texts.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def page() -> Reader:
    records = [*session(), *session(HOSTILE), *session(session_id="old", day=1, factor=1.1)]
    return Reader(html.render(records, problems=[f"{HOSTILE}:3: damaged"]))


def test_page_is_one_file_that_loads_nothing(page: Reader) -> None:
    for _, attributes in page.elements:
        for name in ("src", "href", "action", "data"):
            target = attributes.get(name) or "#"
            assert target.startswith(("#", "data:")), target
    policy = next(a["content"] for a in page.all("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none';")
    assert "eval" not in policy


def test_names_stay_text(page: Reader) -> None:
    assert list(page.scripts) == ["data", "plotly", "code"]
    assert len([text for text in page.texts if text == HOSTILE]) >= 2
    assert f"{HOSTILE}:3: damaged" in page.texts
    assert "<" not in page.scripts["data"]
    assert json.loads(page.scripts["data"])["machines"][0]["name"] == HOSTILE


def test_plotly_is_in_it_once_and_whole(page: Reader) -> None:
    source = gzip.decompress(base64.b64decode(page.scripts["plotly"]))
    assert b"plotly.js v" in source[:200]
    assert len(source) > 1_000_000


def test_every_plot_has_words_data_and_a_table(page: Reader) -> None:
    data = json.loads(page.scripts["data"], parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    plots = [a["data-plot"] for a in page.all("figure") if "data-plot" in a]
    assert sorted(plots) == sorted(data["figures"])
    words = [a["aria-label"] for a in page.all("div") if a.get("role") == "img"]
    assert len(words) == len(plots)
    assert all(words)
    blocks = [a for a in page.all("section") if a.get("class") == "block"]
    assert len(page.all("table")) == len(blocks) + 2
    assert len([a for a in page.all("button") if a.get("class") == "csv"]) == len(blocks) + 1


def test_structure_serves_screen_readers(page: Reader) -> None:
    assert page.all("html")[0]["lang"] == "en"
    assert all(a.get("scope") in ("col", "row") for a in page.all("th"))
    ids = Counter(a["id"] for _, a in page.elements if "id" in a)
    assert {name for name, count in ids.items() if count > 1} == set()
    for attribute in ("aria-labelledby", "for"):
        assert all(a[attribute] in ids for _, a in page.elements if attribute in a)


def test_what_was_not_measured_and_read_is_there(page: Reader) -> None:
    assert f"failed 1 ×, DDP on 2 (mlp/fp32/b8): died of {HOSTILE}" in page.texts
    assert "Not everything could be read:" in page.texts


def test_verification_is_shown_when_given() -> None:
    finding = {"check": "environment.a", "status": "fail", "message": HOSTILE, "remedy": "run x"}
    shown = Reader(html.render(session(), findings={"verdict": "fail", "findings": [finding]}))
    assert "Verification: fail" in shown.texts
    assert HOSTILE in shown.texts
    assert "run x" in shown.texts


def test_page_is_the_same_for_the_same_results() -> None:
    moment = datetime(2026, 11, 30, tzinfo=UTC)
    assert html.render(session(), made=moment) == html.render(session(), made=moment)


def test_machine_without_any_number_has_its_place() -> None:
    shown = Reader(html.render([builders.failed_record(machine=builders.machine("broken"))]))
    assert "broken" in shown.texts
    assert "1 failed" in shown.texts
    assert json.loads(shown.scripts["data"])["measures"] == []


# --- what stands on it


def test_newest_session_is_shown_and_all_are_history() -> None:
    (system,) = page_of([*session(), *session(session_id="old", day=1, factor=1.1)]).systems
    titles = [block.title for block in system.blocks]
    assert titles == [
        "Training: mlp, fp32, batch 8 per device",
        "Parts of a step: mlp, fp32, batch 8 per device",
        "Memory: DataParallel on 2, mlp, fp32, batch 8 per device",
        "Memory: DDP on 2, mlp, fp32, batch 8 per device",
        "all-reduce over gloo",
        "History: mlp, fp32, batch 8 per device",
    ]
    single = system.blocks[0].table.rows[0]
    assert single[3] == "80.00"
    old_and_new = {one.name: one.y for one in system.blocks[-1].figures[0].series}
    assert old_and_new["single ×1"] == pytest.approx((80 / 1.1, 80), rel=1e-4)


def test_one_session_has_no_history() -> None:
    (system,) = page_of(session()).systems
    assert not any(block.name == "history" for block in system.blocks)


def test_throughput_has_ideal_and_predicted_lines() -> None:
    (system,) = page_of(session()).systems
    figure = system.blocks[0].figures[0]
    lines = {one.name: (one.role, one.x, one.y) for one in figure.series}
    assert lines["ideal"] == ("ideal", (1, 2), (80.0, 160.0))
    assert lines["DDP"][:2] == ("measured", (1, 2))
    role, devices, (rate,) = lines["DDP predicted"]
    assert (role, devices) == ("predicted", (2,))
    # Phases of the single device take 81 ms; what communication adds makes it slower than perfect scaling of them.
    assert 16 / 0.09 < rate < 16 / 0.081
    assert "DDP: 80.0 at 1, 145 at 2" in figure.alt


def test_efficiency_is_against_the_plain_device() -> None:
    (system,) = page_of(session()).systems
    lines = {one.name: one.y for one in system.blocks[0].figures[1].series}
    assert lines["DDP"] == pytest.approx((100, 90.909), rel=1e-4)
    assert lines["DataParallel"] == pytest.approx((66.667,), rel=1e-4)


def test_collectives_carry_their_fit() -> None:
    (system,) = page_of(session()).systems
    block = next(block for block in system.blocks if block.name == "all_reduce")
    roles = [one.role for one in block.figures[0].series]
    assert roles == ["measured", "fit"]
    measured, fit = block.figures[0].series
    assert fit.y == pytest.approx(measured.y, rel=1e-3)
    assert "fit for 2 ranks: α 100 µs, 1/β 10.0 GB/s" in (block.table.note or "")


def test_memory_is_a_matrix_with_unknown_cells_unknown() -> None:
    (system,) = page_of(session()).systems
    block = next(block for block in system.blocks if block.title.startswith("Memory: DDP"))
    assert [one.name for one in block.figures[0].series] == ["rank 0", "rank 1"]
    for one in block.figures[0].series:
        assert one.x == ("device 0", "device 1")
        assert one.y[0] == pytest.approx(1500 / 1024, rel=1e-4)
        assert isnan(one.y[1])
    assert block.table.rows == (("rank 0", "1500 MiB", "–"), ("rank 1", "1500 MiB", "–"))


def test_machines_are_compared_by_what_they_share() -> None:
    page = page_of([*session("a"), *session("b", factor=2.0), *session("c")[:1]])
    assert page.measures[0].label == "Throughput, single on 1: mlp, fp32, batch 8 per device"
    ddp = next(m for m in page.measures if m.label.startswith("Throughput, DDP on 2"))
    assert [system.measures.get(ddp) for system in page.systems] == [
        pytest.approx(145.455),
        pytest.approx(72.7273),
        None,
    ]
    assert [m.unit for m in page.measures if m.label.startswith(("Bus", "Latency"))] == ["GB/s", "µs"]


def test_figures_without_numbers_are_none() -> None:
    records = [builders.training_record()]
    ((case, groups),) = training_cases(records).items()
    assert figures.efficiency(case, groups) is None
    assert figures.phases(case, groups) is None
    assert figures.memory(groups[0]) is None
    assert collective_curves(records) == {}


# --- the command


def test_command_writes_the_page_with_all_sessions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store.write([*session(), *session(session_id="old", day=1)], tmp_path / "results", label="x")
    target = tmp_path / "report.html"
    assert cli.main(["report", "--results", str(tmp_path / "results"), "-o", str(target)]) == 0
    assert capsys.readouterr().out == ""
    assert "History: mlp, fp32, batch 8 per device" in Reader(target.read_text(encoding="utf-8")).texts


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not JSON"),
        ("[]", "not a document of bench-runner verify"),
        ('{"schema": "bench-runner/report/1"}', "not a document of bench-runner verify"),
        ('{"schema": "bench-runner/verify/2"}', "another version"),
        ('{"schema": "bench-runner/verify/1", "findings": 3}', "no list"),
        (None, "cannot be read"),
    ],
)
def test_unusable_verification_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, message: str
) -> None:
    store.write(session(), tmp_path / "results", label="x")
    path = tmp_path / "verify.json"
    if content is not None:
        path.write_text(content)
    code = cli.main(["report", "--results", str(tmp_path / "results"), "--verify", str(path), "--format", "html"])
    captured = capsys.readouterr()
    assert (code, captured.out) == (2, "")
    assert message in captured.err
    assert captured.err.count("\n") == 1


def test_verification_reaches_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store.write(session(), tmp_path / "results", label="x")
    document = {
        "schema": "bench-runner/verify/1",
        "verdict": "warn",
        "findings": [{"check": "a.b", "status": "warn", "message": "careful", "remedy": "do"}],
    }
    (tmp_path / "verify.json").write_text(json.dumps(document))
    arguments = ["--verify", str(tmp_path / "verify.json"), "--format", "html"]
    assert cli.main(["report", "--results", str(tmp_path / "results"), *arguments]) == 0
    assert "Verification: warn" in Reader(capsys.readouterr().out).texts
