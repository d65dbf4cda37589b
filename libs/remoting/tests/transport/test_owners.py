# SPDX-License-Identifier: Apache-2.0
"""Many connections of one account or address delay the requests of another by one of theirs."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from cometmq.remoting import OK, Call, RawCommand, Reply
from cometmq.remoting.log import NO_LOG
from cometmq.remoting.transport.flow.budget import UnsentBudget
from cometmq.remoting.transport.flow.places import ACCOUNT
from cometmq.remoting.transport.flow.room import Room
from cometmq.remoting.transport.flow.turns import BRIEF_S, Turns
from cometmq.remoting.transport.stats import TransportStats
from cometmq.testing.remoting.frames import encode_frame

from .queries import EXT, QUERY

MANY = 300
NEAR, FAR = bytes([10, 0, 0, 1]), bytes([10, 0, 0, 2])
NETWORK = bytes.fromhex("20010db800000001")
OTHER_NETWORK = bytes.fromhex("20010db800000002")


class Waiter:
    """A connection that notes when it is served."""

    def __init__(self, served: list["Waiter"], host: bytes, account: str | None = None) -> None:
        self.host = host + bytes(4)
        self.state: dict[str, object] = {} if account is None else {ACCOUNT: account}
        self.may_build = True
        self.intake = self
        self._served = served

    def catch_up(self) -> None:
        self._served.append(self)

    def resume_from(self, _reason: int) -> None:
        pass


class Loop:
    """Runs callbacks when the test asks for it."""

    def __init__(self) -> None:
        self.due: list[Callable[[], None]] = []

    def time(self) -> float:
        return 0.0

    def call_soon(self, call: Callable[[], None]) -> None:
        self.due.append(call)

    def call_later(self, _delay_s: float, call: Callable[[], None]) -> Callable[[], None]:
        self.due.append(call)
        return call

    def run_all(self) -> None:
        while self.due:
            self.due.pop(0)()


def room_of(loop: Any) -> Room:
    budget = UnsentBudget(
        loop, bytes_max=1 << 20, drain_timeout_ms=1, stats=TransportStats(), log=NO_LOG
    )
    return Room(budget, loop)


def crowd_and_one(served: list[Waiter], kind: str) -> tuple[list[Waiter], Waiter]:
    """Return many connections of one owner, and one of another."""
    if kind == "account":
        crowd = [Waiter(served, NEAR, "crowd") for _ in range(MANY)]
        return crowd, Waiter(served, NEAR, "one")
    if kind == "address":
        return [Waiter(served, NEAR) for _ in range(MANY)], Waiter(served, FAR)
    if kind == "stranger":
        return [Waiter(served, NEAR) for _ in range(MANY)], Waiter(served, NEAR, "one")
    hosts = [NETWORK + at.to_bytes(8, "big") for at in range(MANY)]
    return [Waiter(served, host) for host in hosts], Waiter(served, OTHER_NETWORK + bytes(8))


KINDS = ["account", "address", "stranger", "network"]


@pytest.mark.parametrize("kind", KINDS)
def test_owners_take_turns_for_room(kind: str) -> None:
    served: list[Waiter] = []
    loop = Loop()
    room = room_of(loop)
    crowd, one = crowd_and_one(served, kind)
    for peer in (*crowd, *crowd, one, one):
        room.wait(peer, peer.catch_up)  # type: ignore[arg-type]
    loop.run_all()
    assert [at for at, peer in enumerate(served) if peer is one] == [1, 3]
    assert len(served) == 2 * MANY + 2
    assert served[:5:2] == crowd[:3]  # the connections of the crowd take its turns
    assert not room


def test_a_connection_without_room_passes_its_turn_to_the_others() -> None:
    served: list[Waiter] = []
    loop = Loop()
    room = room_of(loop)
    crowd, one = crowd_and_one(served, "address")
    one.may_build = False
    for peer in (one, *crowd):
        room.wait(peer, peer.catch_up)  # type: ignore[arg-type]
    while room.count > 1:
        loop.due.pop(0)()
    assert served == crowd
    one.may_build = True
    loop.run_all()
    assert served[-1] is one


def test_an_ended_connection_leaves_no_turn_although_its_owner_has_changed() -> None:
    served: list[Waiter] = []
    loop = Loop()
    room = room_of(loop)
    (first, second, *_), _ = crowd_and_one(served, "address")
    for peer in (first, second):
        room.wait(peer, peer.catch_up)  # type: ignore[arg-type]
    first.state[ACCOUNT] = "a"
    room.drop(first)  # type: ignore[arg-type]
    assert room.count == 1
    loop.run_all()
    assert served == [second]


def test_a_turn_that_takes_long_lets_all_further_bytes_wait_for_the_owners_turns() -> None:
    """Each of a crowd's connections takes too little time to be slow."""
    loop: Any = Loop()
    turns = Turns(loop, 64)
    for _ in range(24):
        turns.spend(0.0004)
    assert not turns.is_long
    turns.spend(0.001)
    assert turns.is_long
    loop.run_all()
    assert not turns.is_long


async def test_bytes_that_take_time_count_towards_their_turn(
    start_server: Any, connect_raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    spent: list[float] = []
    monkeypatch.setattr(Turns, "spend", lambda _, spent_s: spent.append(spent_s))

    def serve(_: None, call: Call[Any]) -> Reply:
        end = time.monotonic() + (5 * BRIEF_S if call.opaque else 0)
        while time.monotonic() < end:
            pass
        return OK

    _, port = await start_server({QUERY: serve})
    reader, writer = await connect_raw(port)
    writer.write(encode_frame(RawCommand(code=QUERY, ext=EXT, opaque=1)))
    await reader.read(4096)
    assert max(spent) >= 5 * BRIEF_S
