# SPDX-License-Identifier: Apache-2.0
"""Nobody excludes others by opening connections."""

import random
import socket
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import pytest

from cometmq.remoting.transport.flow.places import Places


@dataclass(eq=False)
class Guest:
    name: str
    is_served: bool = False
    host: bytes = field(init=False)

    def __post_init__(self) -> None:
        address = self.name.partition("#")[0]
        kind = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.host = socket.inet_pton(kind, address) + bytes(4)


def full(*guests: Guest) -> Any:
    places: Any = Places()
    for guest in guests:
        places.enter(guest)
    return places


def test_the_host_with_the_most_strangers_makes_room() -> None:
    known = [Guest(f"10.0.0.1#{number}", is_served=True) for number in range(9)]
    others = [Guest("10.0.0.2#1"), Guest("10.0.0.3#1"), Guest("10.0.0.3#2"), Guest("10.0.0.2#2")]
    late = Guest("10.0.0.2#3")
    places = full(*known, *others, late)

    gone = []
    while (one := places.yielder(Guest("10.0.0.9"))) is not None:
        gone.append(one.name)
        if len(gone) == 5:
            break

    assert gone[0] == "10.0.0.2#1"
    assert sorted(gone[1:]) == ["10.0.0.2#2", "10.0.0.2#3", "10.0.0.3#1", "10.0.0.3#2"]


def test_a_host_with_the_majority_makes_room_for_others() -> None:
    many = [Guest(f"10.0.0.1#{number}", is_served=True) for number in range(6)]
    few = [Guest(f"10.0.0.2#{number}", is_served=True) for number in range(4)]
    places = full(*few, *many)

    assert places.yielder(Guest("10.0.0.1#x")) is None
    assert places.yielder(Guest("10.0.0.2#x")) is many[0]
    assert places.yielder(Guest("10.0.0.3#x")) is many[1]
    assert places.yielder(Guest("10.0.0.3#y")) is None  # four and four


def test_a_network_of_ipv6_is_one_host() -> None:
    many = [Guest(f"2001:db8::{number:x}") for number in range(1, 4)]
    places = full(Guest("2001:db8:0:1::1"), Guest("10.0.0.1"), *many)
    assert places.yielder(Guest("10.0.0.2")) is many[0]


def test_a_connection_that_ends_is_forgotten() -> None:
    guests = [Guest("10.0.0.1#1"), Guest("10.0.0.1#2", is_served=True)]
    places = full(*guests)
    assert places.yielder(Guest("10.0.0.2")) is guests[0]
    for guest in (*guests, *guests, Guest("10.0.0.3")):
        places.leave(guest)
    assert places.yielder(Guest("10.0.0.2")) is None
    assert (places._houses, places._ranks, places._most, places._total) == ({}, {}, 0, 0)


@pytest.mark.parametrize("host_count", [1, 3, 500])
def test_any_history_agrees_with_a_plain_count(host_count: int) -> None:
    chance = random.Random(host_count)
    places, present = full(), list[Guest]()
    for number in range(3_000):
        if present and chance.random() < 0.4:
            places.leave(present.pop(chance.randrange(len(present))))
        elif present and chance.random() < 0.2:
            chance.choice(present).is_served = True
        elif chance.random() < 0.3:
            found = places.yielder(Guest("192.0.2.1"))
            counts: dict[bytes, int] = {}
            for one in present:
                counts[one.host] = counts.get(one.host, 0) + (not one.is_served)
            if max(counts.values(), default=0):
                assert found is not None
                assert not found.is_served
                strangers = [one for one in present if one.host == found.host and not one.is_served]
                assert found is strangers[0]
            if found is not None:
                present.remove(found)
        else:
            guest = Guest(f"10.0.{chance.randrange(host_count) // 256}.{number % host_count % 256}")
            places.enter(guest)
            present.append(guest)
    for one in present:
        places.leave(one)
    assert (places._houses, places._ranks, places._most, places._total) == ({}, {}, 0, 0)


@pytest.mark.parametrize("host_count", [1, 20_000])
def test_a_flood_takes_constant_time(host_count: int) -> None:
    guests = [
        Guest(f"10.{at % host_count >> 16}.{at % host_count >> 8 & 255}.{at % host_count & 255}")
        for at in range(40_000)
    ]
    places = full(*guests[:20_000])
    begun = perf_counter()
    for guest in guests[20_000:]:
        assert places.yielder(guest) is not None
        places.enter(guest)
    assert perf_counter() - begun < 10  # a scan of all hosts would take minutes
