# SPDX-License-Identifier: Apache-2.0
"""Sends that are alone in their turn of the loop are stored and answered at once."""

import asyncio
import socket
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.broker.app import BrokerApp
from cometmq.broker.native import IS_BUILT
from cometmq.broker.settings import BrokerSettings
from cometmq.broker.storing.store_driver import StoreDriver
from cometmq.peers.long_forms import examples, seeds
from cometmq.remoting.log import NO_LOG
from cometmq.remoting.transport.direct_answers import DirectAnswers
from cometmq.runtime.clock import SystemClock
from cometmq.runtime.settings import load
from cometmq.store.writer import Writer
from cometmq.testing.broker.scripted import frames_of
from cometmq.testing.broker.scripts import frame

from .send_runs import CASES, play_alone, play_together, run
from .send_script import TOPIC, Script

pytestmark = pytest.mark.skipif(not IS_BUILT, reason="cometmq-accel is built only with cargo")

SENDS = 200


def without_shortcut(patch: pytest.MonkeyPatch) -> None:
    """Store each run at the end of the turn, and send answers as rows."""
    put_run = StoreDriver.put_run

    def put_later(driver: StoreDriver, *run: Any, at_once: bool) -> None:
        put_run(driver, *run)

    patch.setattr(StoreDriver, "put_run", put_later)
    patch.setattr(DirectAnswers, "reply", lambda *_: None)


def stored_runs(patch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the size of each run that is stored at once."""
    counts: list[int] = []
    store_run = Writer.store_run

    def counted(writer: Writer, source: Any, count: int, written: Any) -> Any:
        counts.append(count)
        return store_run(writer, source, count, written)

    patch.setattr(Writer, "store_run", counted)
    return counts


@pytest.mark.parametrize("name", [name for name in CASES if name != "bounded"])
@seeds(1, long=3)
def test_a_chunk_that_is_alone_gives_the_same_broker(name, seed, monkeypatch):
    steps = Script(seed, oddity=0).write(turns=25)
    case = CASES[name]
    without, _ = run(case, steps, lane=False, player=play_alone)
    counts = stored_runs(monkeypatch)
    alone, _ = run(case, steps, lane=True, is_direct=True, has_sockets=True, player=play_alone)
    assert len(counts) > 5
    answers = [list(map(frames_of, state.pop("answers"))) for state in (without, alone)]
    assert answers[0] == answers[1]
    del alone["reading"], without["reading"]  # `DirectIO` reads instead of the transports
    assert alone == without


@pytest.mark.parametrize("name", CASES)
@examples(3, long=10)
@given(
    seed=st.integers(0, 2**32),
    oddity=st.sampled_from([0.1, 0.3, 1.0]),
    player=st.sampled_from([play_alone, play_together]),
)
def test_disturbances_have_the_same_effects_as_at_the_end_of_a_turn(name, seed, oddity, player):
    steps, case = Script(seed, oddity=oddity).write(turns=12), CASES[name]

    def play() -> dict[str, Any]:
        state, _ = run(case, steps, lane=True, is_direct=True, has_sockets=True, player=player)
        return state

    with pytest.MonkeyPatch.context() as patch:
        without_shortcut(patch)
        later = play()
    at_once = play()
    assert at_once == later


def exchange(sock: socket.socket, first: int, count: int) -> None:
    """Send messages, each after the answer to the one before."""
    for number in range(first, first + count):
        ext = {
            "a": "g", "b": TOPIC, "c": "TBW102", "d": "4", "e": "0", "f": "0",
            "g": "1700000000000", "h": "0", "i": f"UNIQ_KEY\x01{number:032X}", "j": "0",
            "k": "false", "m": "false",
        }  # fmt: skip
        sock.sendall(frame(310, ext, b"body", opaque=number))
        with sock.makefile("rb", buffering=0) as stream:
            (size,) = struct.unpack(">i", stream.read(4))
            while size:
                size -= len(stream.read(size))


@pytest.mark.parametrize(("flush", "calls_max"), [("ASYNC_FLUSH", 54), ("SYNC_FLUSH", 120)])
async def test_a_lone_send_costs_few_functions_of_python(
    flush: str, calls_max: int, tmp_path: Path
) -> None:
    given = {
        "listenPort": "0", "bindAddress": "127.0.0.1", "brokerIP1": "127.0.0.1",
        "storePathRootDir": str(tmp_path), "flushDiskType": flush,
    }  # fmt: skip
    loaded = load(BrokerSettings, prefix="COMETMQ_TEST", env={}, cli=given)
    broker = BrokerApp(loaded, log=NO_LOG, clock=SystemClock())
    await broker.start()
    broker.broker.tables.topics.create(TOPIC, queue_nums=4)
    host, _, port = broker.addresses[0].rpartition(":")
    calls = 0

    def note(code: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call" and "/cometmq/" in code.f_code.co_filename

    run_there: Callable[..., Any] = asyncio.get_running_loop().run_in_executor
    with socket.create_connection((host, int(port))) as sock:
        await run_there(None, exchange, sock, 0, 20)
        sys.setprofile(note)  # of this thread
        try:
            await run_there(None, exchange, sock, 20, SENDS)
        finally:
            sys.setprofile(None)
    await broker.stop()
    assert calls / SENDS < calls_max
