# SPDX-License-Identifier: Apache-2.0
"""What a commit or a changed table causes in the same turn of the loop."""

import asyncio

from cometmq.broker.turn import OncePerTurn, Signal


def test_a_signal_calls_everything_in_order() -> None:
    found: list[str] = []
    signal: Signal[[str]] = Signal()
    signal("nobody")
    signal.connect(lambda name: found.append(f"first {name}"))
    signal.connect(lambda name: found.append(f"second {name}"))
    signal("a")
    assert found == ["first a", "second a"]


async def test_an_action_runs_once_per_turn() -> None:
    ran: list[None] = []
    act = OncePerTurn(lambda: ran.append(None))
    for turn in range(1, 3):
        act()
        act()
        await asyncio.sleep(0)
        assert len(ran) == turn
