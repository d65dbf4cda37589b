# SPDX-License-Identifier: Apache-2.0
"""What slow handlers do later, in steps, is charged to their connections."""

import asyncio
import inspect
import time
from types import SimpleNamespace
from typing import Any

import pytest

from cometmq.remoting import OK, Call, RawCommand, Reply, RequestCode
from cometmq.remoting.connection import Codec
from cometmq.remoting.log import NO_LOG
from cometmq.remoting.transport.dispatch import Dispatcher, Hooks, InOrder
from cometmq.remoting.transport.flow import turns
from cometmq.remoting.transport.flow.turns import SLOW, Timed
from cometmq.remoting.transport.hub import Hub
from cometmq.remoting.transport.settings import ServerSettings
from cometmq.testing.remoting.frames import encode_frame

CODE = RequestCode.GET_CONSUMER_LIST_BY_GROUP
STEP_S = 0.0004


def occupy(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


async def steps(count: int) -> str:
    for _ in range(count):
        occupy(STEP_S)
        await asyncio.sleep(0)
    return "done"


async def test_short_steps_are_charged_once_they_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, charges = 0.0, list[float]()
    monkeypatch.setattr(turns, "thread_time", lambda: now_s)

    async def work() -> str:
        nonlocal now_s
        for _ in range(20):
            now_s += STEP_S
            await asyncio.sleep(0)
        return "done"

    assert await Timed(work(), charges.append) == "done"
    assert charges == pytest.approx([3 * STEP_S] * 6)


async def test_errors_and_cancellation_pass_through() -> None:
    seen: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise ValueError("ended") from None

    with pytest.raises(ValueError, match="ended"):
        async with asyncio.timeout(0.001):
            await Timed(work(), lambda _: None)
    assert seen == ["cancelled"]


async def test_a_connection_with_long_work_is_slow(
    start_server: Any, eventually: Any, connect_raw: Any
) -> None:
    peers: set[Any] = set()

    async def handle(_: None, call: Call[Any]) -> Reply:
        peers.add(call.peer)
        await steps(20)
        return OK

    _, port = await start_server({CODE: handle})
    _, writer = await connect_raw(port)
    frame = encode_frame(RawCommand(code=CODE, ext={"consumerGroup": "g"}))
    writer.write(frame * 10)
    await eventually(lambda: peers and next(iter(peers)).intake.pace.rank == SLOW)


@pytest.mark.parametrize("is_in_order", [False, True])
async def test_work_whose_task_is_cancelled_before_it_begins_is_closed(is_in_order: bool) -> None:
    """A port that closes cancels tasks which this turn of the loop has created."""
    hub = Hub(Codec({}), ServerSettings(), clock_ms=lambda: 0, log=NO_LOG)
    dispatcher: Dispatcher[None] = Dispatcher({}, None, Hooks(), hub)
    peer: Any = SimpleNamespace(intake=SimpleNamespace(wait_for_work=list))
    peer.intake.charge = peer.intake.task_ended = list
    peer.intake.resume_from = lambda _reason: None
    peer.intake.task_begun = lambda _share: False

    async def answer() -> Reply:
        return OK

    work = answer()
    call = Call(CODE, None, peer=peer)
    assert dispatcher._start(peer, call, InOrder(work) if is_in_order else work) is is_in_order
    await hub.tasks.close()
    assert inspect.getcoroutinestate(work) == inspect.CORO_CLOSED
