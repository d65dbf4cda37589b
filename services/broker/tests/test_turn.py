# SPDX-License-Identifier: Apache-2.0
"""What a commit or a changed table causes in the same turn of the loop."""

import asyncio

from cometmq.broker.turn import OncePerTurn, Signal


def test_a_signal_calls_everything_in_order() -> None:
    found: list[str] = []
    signal: Signal[[str]] = Signal()
    signal("nobody")
    signal.fire("nobody")
    signal.connect(lambda name: found.append(f"first {name}"))
    signal("a")
    signal.fire("b")
    assert found == ["first a", "first b"]
    signal.connect(lambda name: found.append(f"second {name}"))
    for call in (signal, signal.fire):
        found.clear()
        call("c")
        assert found == ["first c", "second c"]


async def test_an_action_runs_once_per_turn() -> None:
    ran: list[None] = []
    act = OncePerTurn(lambda: ran.append(None))
    for turn in range(1, 3):
        act()
        act()
        await asyncio.sleep(0)
        assert len(ran) == turn
