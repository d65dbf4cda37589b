# SPDX-License-Identifier: Apache-2.0
"""Connections of unknown programs are few and brief, and crowd out nobody else."""

from typing import Any

from cometmq.broker.copies.streams.serving import (
    MEMBER_MS,
    OPENINGS_MAX,
    PLAIN_OPENINGS_MAX,
    Openings,
)


class Transport:
    """A transport that records whether it was closed."""

    def __init__(self) -> None:
        self.is_aborted = False

    def abort(self) -> None:
        self.is_aborted = True


def opened(openings: Openings, host: str, *, now_ms: int = 0, is_known: bool = False) -> Any:
    transport: Any = Transport()
    openings.add(transport, host, now_ms, is_known=is_known)
    return transport


def test_the_host_with_most_connections_loses_its_oldest() -> None:
    openings = Openings()
    member = opened(openings, "10.0.0.1")
    strangers = [opened(openings, "10.0.0.9") for _ in range(2 * OPENINGS_MAX)]
    assert len(openings) == OPENINGS_MAX
    assert not member.is_aborted
    assert [one.is_aborted for one in strangers] == [
        number <= OPENINGS_MAX for number in range(2 * OPENINGS_MAX)
    ]


def test_many_hosts_cannot_crowd_out_a_known_slave_or_a_new_member() -> None:
    openings = Openings()
    slave = opened(openings, "10.0.0.1", is_known=True)
    for number in range(2 * OPENINGS_MAX):
        opened(openings, f"10.1.{number // 200}.{number % 200}")
    member = opened(openings, "10.0.0.2")
    for number in range(OPENINGS_MAX // 2):  # while the member proves itself
        opened(openings, f"10.2.0.{number}")
    assert not slave.is_aborted
    assert not member.is_aborted
    openings.remove(member)
    assert len(openings) == OPENINGS_MAX - 1


def test_plain_members_have_a_limit_of_their_own() -> None:
    openings = Openings()
    plain = [opened(openings, f"10.0.0.{number}") for number in range(PLAIN_OPENINGS_MAX + 1)]
    proving = opened(openings, "10.0.1.1")
    openings.note_member(proving, is_plain=False)
    for transport in plain:
        openings.note_member(transport, is_plain=True)
    assert [one.is_aborted for one in plain] == [True, *[False] * PLAIN_OPENINGS_MAX]
    assert not proving.is_aborted
    openings.note_member(plain[0], is_plain=True)  # closed already


def test_connections_that_take_too_long_are_closed() -> None:
    openings = Openings()
    silent, member = opened(openings, "10.0.0.1"), opened(openings, "10.0.0.2")
    openings.note_member(member, is_plain=False)
    assert openings.expire(MEMBER_MS, silent_ms=20_000) == []
    assert not member.is_aborted
    assert openings.expire(MEMBER_MS + 1, silent_ms=20_000) == []
    assert member.is_aborted
    assert openings.expire(20_001, silent_ms=20_000) == ["10.0.0.1"]
    assert silent.is_aborted
    assert not len(openings)
    opened(openings, "10.0.0.3")
    openings.close()
    assert not len(openings)
