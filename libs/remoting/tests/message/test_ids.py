# SPDX-License-Identifier: Apache-2.0
"""Ids locate records or identify senders; malformed ids are rejected."""

import time
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.remoting.message.ids import (
    UniqueIds,
    host_text,
    offset_message_id,
    pack_host,
    parse_offset_message_id,
    unpack_host,
)

HOSTS = st.one_of(st.binary(min_size=4, max_size=4), st.binary(min_size=16, max_size=16))


@given(HOSTS, st.integers(0, 65535), st.integers(-(2**63), 2**63 - 1))
def test_an_offset_message_id_names_host_and_offset(
    address: bytes, port: int, physical_offset: int
) -> None:
    host = pack_host(address, port)
    text = offset_message_id(host, physical_offset)
    assert text == text.upper()
    assert parse_offset_message_id(text) == (host, physical_offset)
    assert unpack_host(host) == (address, port)


@pytest.mark.parametrize("text", ["", "0" * 31, "g" * 32, " " * 32, "0 " * 16])
def test_what_is_no_offset_message_id_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="hex"):
        parse_offset_message_id(text)


def test_hosts_are_written_for_people() -> None:
    assert host_text(pack_host(bytes([10, 0, 0, 1]), 10911)) == "10.0.0.1:10911"
    assert host_text(pack_host(bytes(15) + b"\x01", 1)) == "[0:0:0:0:0:0:0:1]:1"


@pytest.fixture
def zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    def move(name: str) -> None:
        monkeypatch.setenv("TZ", name)
        time.tzset()

    yield move
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("name", "month_start_ms"),
    [
        ("UTC", 1_698_796_800_000),
        ("CST-8", 1_698_796_800_000 - 8 * 3_600_000),
        # Summer time ended on the 5th.
        ("EST5EDT,M3.2.0,M11.1.0", 1_698_796_800_000 + 4 * 3_600_000),
    ],
)
def test_the_month_of_an_id_is_the_local_one(
    zone: Callable[[str], None], name: str, month_start_ms: int
) -> None:
    zone(name)
    now_ms = 1_700_000_000_000
    ids = UniqueIds(address=bytes(4), process_id=0, instance=0, clock_ms=lambda: now_ms)
    assert int(ids.next_id()[20:28], 16) == now_ms - month_start_ms


def test_a_renewed_generator_is_another_one() -> None:
    ids = UniqueIds(address=bytes(4), process_id=1, instance=2, clock_ms=lambda: 0)
    before = ids.next_id()
    ids.renew(process_id=3, instance=4)
    assert ids.next_id()[8:20] == "000300000004" != before[8:20]


def test_unique_ids_count_within_the_month_of_the_clock(zone: Callable[[str], None]) -> None:
    zone("UTC")
    now = [1_700_000_000_000]  # 2023-11-14T22:13:20Z
    ids = UniqueIds(
        address=bytes([127, 0, 0, 1]), process_id=0x10112, instance=7, clock_ms=lambda: now[0]
    )
    since_month = now[0] - 1_698_796_800_000
    assert ids.next_id() == f"7F000001011200000007{since_month:08X}0001"
    assert ids.next_id().endswith("0002")
    now[0] = 1_701_388_800_000  # 2023-12-01T00:00:00Z
    assert ids.next_id() == "7F000001011200000007000000000003"
