"""The HTML report in a real browser: nothing goes wrong, the filter filters, names stay text."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench_runner.report import html
from tests.browser import CHROMIUM, WHY_NOT, Page, browser
from tests.test_report_html import HOSTILE, session

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason=WHY_NOT)]

DRAWN = "document.querySelectorAll('#m0 .canvas[data-drawn]').length"
PLOTS = "document.querySelectorAll('#m0 .canvas').length"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    records = [
        *session(HOSTILE),
        *session(HOSTILE, session_id="old", day=1),
        *session("node-1"),
        *session("node-2", factor=1.3),
    ]
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(html.render(records), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def tab() -> Iterator[Page]:
    with browser() as page:
        yield page


@pytest.fixture
def page(tab: Page, report: Path) -> Page:
    tab.messages.clear()
    tab.look()
    tab.open(report)
    return tab


def visible_rows(page: Page, table: str) -> list[str]:
    rows: list[str] = page.value(
        f"[...document.querySelectorAll('{table} tbody tr')].filter((row) => row.offsetParent)"
        ".map((row) => row.cells[0].textContent)"
    )
    return rows


def type_filter(page: Page, text: str) -> None:
    page.value(f"document.getElementById('filter').value = {text!r}")
    page.value("document.getElementById('filter').dispatchEvent(new Event('input'))")


def draw_everything(page: Page) -> None:
    """Open the first machine and bring each of its plots into view."""
    page.value("document.getElementById('m0').open = true")
    for place in range(page.value(PLOTS)):
        page.value(f"document.querySelectorAll('#m0 .canvas')[{place}].scrollIntoView()")
        page.wait_for(f"document.querySelectorAll('#m0 .canvas')[{place}].dataset.drawn === 'yes'")


def test_every_plot_is_drawn_and_the_console_is_silent(page: Page) -> None:
    draw_everything(page)
    assert page.value(DRAWN) == page.value(PLOTS) == 8
    assert page.value("[...document.querySelectorAll('#m0 .canvas')].every((c) => c.querySelector('svg'))")
    assert page.messages == []


def test_machine_named_like_a_script_stays_text(page: Page) -> None:
    draw_everything(page)
    assert page.value("document.querySelector('#overview tbody a').textContent") == HOSTILE
    assert page.value("document.querySelector('#m0 summary h2').textContent") == HOSTILE
    page.wait_for("document.querySelector('#compare-plot svg .ytick text')")
    assert HOSTILE in page.value(
        "[...document.querySelectorAll('#compare-plot .ytick text')].map((t) => t.textContent)"
    )
    # The page's own three, and plotly.js.
    assert page.value("document.scripts.length") == 4
    assert not any(message.startswith("dialog") for message in page.messages)


def test_filter_narrows_table_comparison_and_machines(page: Page) -> None:
    assert visible_rows(page, "#overview") == [HOSTILE, "node-1", "node-2"]
    assert page.value("document.getElementById('shown').value") == "3 of 3"
    type_filter(page, "node")
    assert visible_rows(page, "#overview") == ["node-1", "node-2"]
    assert visible_rows(page, "#compare-table") == ["node-1", "node-2"]
    shown = "[...document.querySelectorAll('details.machine')].filter((d) => d.offsetParent).map((d) => d.id)"
    assert page.value(shown) == ["m1", "m2"]
    assert page.value("document.getElementById('shown').value") == "2 of 3"
    type_filter(page, "node-2 h100")
    assert visible_rows(page, "#overview") == ["node-2"]
    type_filter(page, "nothing like it")
    assert visible_rows(page, "#overview") == []
    assert visible_rows(page, "#compare-table") == []
    type_filter(page, "")
    assert visible_rows(page, "#overview") == [HOSTILE, "node-1", "node-2"]
    assert page.messages == []


def test_measure_chooses_what_is_compared_best_first(page: Page) -> None:
    assert visible_rows(page, "#compare-table")[-1] == "node-2"
    last = "document.querySelector('#compare-table tbody tr:last-child').cells[3].textContent"
    assert page.value(last) == "−23.1%"
    page.value(
        "(() => { const s = document.getElementById('measure');"
        " s.value = [...s.options].find((o) => o.textContent.startsWith('Latency')).value;"
        " s.dispatchEvent(new Event('change')); })()"
    )
    assert page.value("document.getElementById('compare-unit').textContent") == "µs (lower is better)"
    assert page.messages == []


def test_data_of_a_plot_can_be_downloaded(page: Page) -> None:
    page.value("document.getElementById('m0').open = true")
    # Take the download's content where the page hands it over.
    page.value("window.taken = []; URL.createObjectURL = (blob) => { taken.push(blob); return 'blob:x'; }; undefined")
    page.value("HTMLAnchorElement.prototype.click = function () { taken.push(this.download); }")
    page.value("document.querySelector('#m0 button.csv').click()")
    assert page.value("taken[1]") == "m0-b0.csv"
    lines = page.value("taken[0].text()").splitlines()
    assert lines[0] == "figure,series,role,x,y,unit"
    assert "Throughput,DDP,measured,2,145.455,samples/s" in lines
    page.value("taken = []; document.querySelector('#compare button.csv').click()")
    lines = page.value("taken[0].text()").splitlines()
    assert lines[0] == "machine,accelerators,measure,unit,value"
    assert lines[-1].startswith("node-2,2 × NVIDIA")


def test_dark_phone_and_print(page: Page) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    assert page.value(background) == "rgb(255, 255, 255)"
    draw_everything(page)
    page.look(dark=True)
    page.wait_for(f"{background} === 'rgb(20, 23, 27)'")
    label = "document.querySelector('#m0 .canvas .xtitle')"
    page.wait_for(f"getComputedStyle({label}).fill === 'rgb(230, 233, 237)'")
    page.look(width=390, height=844)
    page.wait_for("document.querySelector('#m0 .canvas svg').getBoundingClientRect().width < 390")
    assert page.value("document.documentElement.scrollWidth") <= 390
    page.look(dark=True, media="print")
    page.wait_for(f"{background} === 'rgb(255, 255, 255)'")
    page.wait_for(f"getComputedStyle({label}).fill === 'rgb(0, 0, 0)'")
    assert page.value("getComputedStyle(document.querySelector('.bar')).display") == "none"
    assert page.messages == []


def test_link_opens_its_machine(page: Page) -> None:
    assert not page.value("document.getElementById('m2').open")
    page.value("document.querySelectorAll('#overview tbody a')[2].click()")
    page.wait_for("document.getElementById('m2').open")
