import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_runner.report import formats

NAN = float("nan")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (12345.6, "12,350"),
        (0.0012345, "0.001234"),
        (99.999, "100.0"),
        (0.0, "0"),
        (-3.14159, "-3.142"),
        (NAN, "–"),
        (None, "–"),
    ],
)
def test_numbers_have_four_significant_digits(value: float | None, text: str) -> None:
    assert formats.number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.5, "1.50 s"),
        (0.9996, "1.00 s"),
        (2.5e-3, "2.50 ms"),
        (2.01e-4, "201 µs"),
        (5e-9, "5.00 ns"),
        (0.0, "0 s"),
        (NAN, "–"),
    ],
)
def test_seconds(value: float, text: str) -> None:
    assert formats.seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(1024, "1 KiB"), (64 << 20, "64 MiB"), (3_000_000_000, "2.79 GiB"), (1000, "1000 B"), (0, "0 B"), (NAN, "–")],
)
def test_sizes_are_powers_of_two(value: float, text: str) -> None:
    assert formats.size(float(value)) == text


def test_percent_and_span() -> None:
    assert formats.percent(0.9299) == "93.0%"
    assert formats.percent(NAN) == "–"
    assert formats.span("2.79 GiB", "5.03 GiB") == "2.79–5.03 GiB"
    assert formats.span("900 MiB", "1 GiB") == "900 MiB–1 GiB"
    assert formats.span("1 GiB", "1 GiB") == "1 GiB"


@given(st.floats(1e-12, 1e15))
def test_significant_is_close_to_the_value(value: float) -> None:
    shown = float(formats.significant(value, 4).replace(",", ""))
    assert shown == pytest.approx(value, rel=6e-4)


@given(st.text())
def test_foreign_text_becomes_one_harmless_line(text: str) -> None:
    shown = formats.printable(text)
    assert shown.isprintable()
    assert formats.ascii_only(shown).isascii()
    assert formats.encodable(shown, "ascii").isascii()


def test_escape_sequences_are_shown_and_not_sent() -> None:
    assert formats.printable("\x1b[31mred\nline") == "\\x1b[31mred line"
    assert formats.encodable("5 µs – ok", "latin-1") == "5 us - ok"
    assert formats.encodable("5 µs", "latin-1") == "5 µs"
