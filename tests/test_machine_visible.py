"""CUDA_VISIBLE_DEVICES, entry by entry."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_runner.machine.visible import PhysicalDevice, parse, physical_of

UUIDS = ("GPU-aaaa1111-x", "GPU-aaaa2222-x", "GPU-bbbb3333-x", "GPU-cccc4444-x")
BOX = tuple(
    PhysicalDevice(index=i, uuid=uuid, pci_bus_id=f"00000000:{16 + i:02x}:00.0", name="H100")
    for i, uuid in enumerate(UUIDS)
)
SLICED = (
    PhysicalDevice(index=0, uuid=UUIDS[0], name="A100", mig_uuids=("MIG-1111-a", "MIG-1122-b")),
    PhysicalDevice(index=1, uuid=UUIDS[1], name="A100"),
)
# value, physical devices in logical order, what must stand in the reasons
CASES: list[tuple[str | None, tuple[int, ...], tuple[str, ...]]] = [
    (None, (0, 1, 2, 3), ()),
    ("", (), ()),
    ("  ", (), ()),
    ("0", (0,), ()),
    ("3,1", (3, 1), ()),
    (" 2 , 0 ", (2, 0), ()),
    ("1gpu2,2x", (1, 2), ()),
    ("+1", (1,), ()),
    ("-1", (), ("negative",)),
    ("0,-1,2", (0,), ("negative", "comes after '-1'")),
    ("0,4,1", (0,), ("out of range (devices here: 0 to 3)", "comes after '4'")),
    ("99999999999999999999", (), ("out of range",)),
    ("1,1", (), ("a second time",)),
    ("0,9,0", (), ("a second time",)),
    ("0,-1,0", (0,), ("negative", "comes after")),
    ("0,,1", (0,), ("neither an index nor a UUID", "comes after ''")),
    ("none", (), ("neither an index nor a UUID",)),
    ("NoDevFiles", (), ("neither",)),
    (UUIDS[2], (2,), ()),
    ("GPU-b", (2,), ()),
    ("GPU-c,GPU-aaaa1", (3, 0), ()),
    ("GPU-aaaa", (), ("begins the UUIDs of 2 devices",)),
    ("GPU-b,GPU-zz,GPU-c", (2,), ("begins no UUID", "comes after 'GPU-zz'")),
    ("GPU-b,0", (2,), ("another kind",)),
    ("0,GPU-b", (0,), ("another kind",)),
    ("GPU-b,GPU-bbbb3333-x", (), ("a second time",)),
    ("MIG-none", (), ("no UUID of a MIG slice",)),
]


@pytest.mark.parametrize(("value", "mapping", "reasons"), CASES)
def test_values(value: str | None, mapping: tuple[int, ...], reasons: tuple[str, ...]) -> None:
    visible = parse(value, BOX)
    assert visible.mapping == mapping
    text = " | ".join(entry.reason or "" for entry in visible.entries)
    for reason in reasons:
        assert reason in text
    if not reasons:
        assert not text.strip(" |")


@pytest.mark.parametrize(
    ("value", "mapping", "reason"),
    [
        ("MIG-1122", (0,), None),
        ("MIG-11", (), "begins the UUIDs of 2 slices"),
        ("MIG-1111,MIG-1122", (0,), "is a second MIG slice"),
        (f"MIG-{UUIDS[0]}/1/0", (0,), None),
        ("MIG-1111,GPU-aaaa2", (0,), "another kind"),
    ],
)
def test_slices(value: str, mapping: tuple[int, ...], reason: str | None) -> None:
    visible = parse(value, SLICED)
    assert visible.mapping == mapping
    reasons = [entry.reason for entry in visible.entries if entry.reason]
    assert (reason is None and not reasons) or reason in reasons[-1]


def test_uuids_that_were_not_read_cannot_be_matched() -> None:
    visible = parse("GPU-a", (PhysicalDevice(index=0),))
    assert visible.mapping == ()
    assert "not read" in (visible.entries[0].reason or "")


def test_an_index_is_uncertain_among_unlike_devices_unless_the_order_is_fixed() -> None:
    unlike = (PhysicalDevice(index=0, uuid="GPU-a", name="A"), PhysicalDevice(index=1, uuid="GPU-b", name="B"))
    assert not parse("1", unlike).certain
    assert not parse(None, unlike).certain
    assert parse("1", unlike, "PCI_BUS_ID").certain
    assert parse("GPU-b", unlike).certain
    assert parse("1", BOX).certain


def test_physical_of_matches_by_uuid_then_by_pci_address() -> None:
    assert physical_of("bbbb3333-x", None, BOX) == BOX[2]
    assert physical_of("GPU-BBBB3333-x", None, BOX) == BOX[2]
    assert physical_of(None, "00000000:11:00.0", BOX) == BOX[1]
    assert physical_of("other", "00000000:13:00.0", BOX) == BOX[3]
    assert physical_of("other", None, BOX) is None
    assert physical_of(None, None, BOX) is None


@given(st.text(max_size=60) | st.lists(st.sampled_from(["0", "3", "-1", "7", "GPU-b", "MIG-1", ""])).map(",".join))
def test_any_text_is_read_and_every_invisible_entry_has_a_reason(value: str) -> None:
    visible = parse(value, BOX)
    assert len(set(visible.mapping)) == len(visible.mapping)
    assert all(0 <= index < 4 for index in visible.mapping)
    shown = [entry for entry in visible.entries if entry.reason is None]
    assert [entry.physical for entry in shown] == list(visible.mapping)
