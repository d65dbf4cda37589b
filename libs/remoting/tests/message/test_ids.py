# SPDX-License-Identifier: Apache-2.0
"""Ids name places and senders; broken ones are refused."""

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


@given(HOSTS, st.integers(0, 65535), st.integers(0, 2**62))
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


def test_unique_ids_count_within_the_month_of_the_clock() -> None:
    now = [1_700_000_000_000]  # 2023-11-14T22:13:20Z
    ids = UniqueIds(
        address=bytes([127, 0, 0, 1]), process_id=0x10112, instance=7, clock_ms=lambda: now[0]
    )
    since_month = now[0] - 1_698_796_800_000
    assert ids.next_id() == f"7F000001011200000007{since_month:08X}0001"
    assert ids.next_id().endswith("0002")
    now[0] = 1_701_388_800_000  # 2023-12-01T00:00:00Z
    assert ids.next_id() == "7F000001011200000007000000000003"
