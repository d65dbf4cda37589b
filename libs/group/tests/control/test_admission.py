# SPDX-License-Identifier: Apache-2.0
"""Places of streams and orders: shares of connections, addresses and proven callers."""

import pytest

from cometmq.control.admission import (
    CALLS_MAX,
    CONNECTION_CALLS_MAX,
    PROVEN_CALLS_MAX,
    Caller,
    Streams,
    TooManyCalls,
    UnfinishedOrders,
    address_of,
)


def stranger(number, address="10.0.0.6"):
    return Caller(f"{address}:{number}")


ELECTOR = Caller("10.0.0.1:4000")
PROVEN = Caller("10.0.0.6:9", is_proven=True)


def test_a_connection_loses_its_own_oldest_stream():
    streams = Streams()
    first = streams.enter(stranger(1))
    others = [streams.enter(stranger(1)) for _ in range(CONNECTION_CALLS_MAX)]
    assert first.is_evicted.is_set()
    assert not any(one.is_evicted.is_set() for one in others)
    assert len(streams) == CONNECTION_CALLS_MAX


def test_a_stream_on_its_own_connection_outlasts_those_of_a_greedy_one():
    streams = Streams()
    mine = streams.enter(stranger(2))
    for number in (3, 4, 5):
        for _ in range(CONNECTION_CALLS_MAX):
            streams.enter(stranger(number))
    assert not mine.is_evicted.is_set()
    assert len(streams) == 1 + 3 * CONNECTION_CALLS_MAX


def test_proven_callers_have_places_of_their_own():
    streams, orders = Streams(), UnfinishedOrders()
    mine = streams.enter(PROVEN)
    for number in range(2 * CALLS_MAX):
        streams.enter(stranger(number, f"10.0.1.{number % 2}"))
    assert not mine.is_evicted.is_set()
    assert len(streams) == CALLS_MAX + 1
    for number in range(2 * PROVEN_CALLS_MAX):
        streams.enter(PROVEN._replace(connection=f"10.0.0.6:{number}"))
    assert len(streams) == PROVEN_CALLS_MAX + CALLS_MAX
    streams.leave(mine)
    streams.leave(mine)
    for number in range(CALLS_MAX):
        orders.enter(stranger(number))
    with pytest.raises(TooManyCalls, match="32 unfinished orders"):
        orders.enter(ELECTOR)
    orders.enter(PROVEN)
    orders.leave(stranger(0))
    orders.enter(ELECTOR)


def test_a_connection_has_a_share_of_the_orders():
    orders = UnfinishedOrders()
    for _ in range(CONNECTION_CALLS_MAX):
        orders.enter(stranger(1))
    with pytest.raises(TooManyCalls):
        orders.enter(stranger(1))
    orders.enter(ELECTOR)


@pytest.mark.parametrize(
    ("peer", "host"), [("ipv4:10.0.0.1:4000", "10.0.0.1"), ("ipv6:%5Bfd00::1%5D:4000", "[fd00::1]")]
)
def test_callers_are_known_by_their_addresses(peer, host):
    assert Caller(address_of(peer)).address == host
