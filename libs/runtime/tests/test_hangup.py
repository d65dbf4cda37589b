# SPDX-License-Identifier: Apache-2.0
"""Signals cancel a command once for each request, and the third request kills it."""

import asyncio
import os
import signal
import subprocess
import sys
from time import sleep

import pytest

from cometmq.runtime.hangup import SAME_REQUEST_S, cancelled_by_signals

NUMBERS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
PROGRAM = """
import asyncio, sys, time
from cometmq.runtime.hangup import cancelled_by_signals

async def main():
    with cancelled_by_signals():
        print("ready", flush=True)
        try:
            await asyncio.sleep(60)
        finally:
            print("cleaning", flush=True)
            try:
                await asyncio.sleep(60)
            finally:
                print("blocked", flush=True)
                time.sleep(60)

asyncio.run(main())
"""


@pytest.fixture
def own_signals(monkeypatch):
    """The test sends signals to itself; the handlers that stay after the block go with it."""
    monkeypatch.setattr("cometmq.runtime.hangup.leave_terminal", lambda: None)
    before = {one: signal.getsignal(one) for one in NUMBERS}
    yield
    for one, handler in before.items():
        signal.signal(one, handler)


@pytest.mark.parametrize("number", NUMBERS)
def test_requests_cancel_the_command_then_its_cleanup_and_then_kill_it(number):
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE) as child:
        try:
            for line in (b"ready", b"cleaning", b"blocked"):
                assert child.stdout is not None
                assert child.stdout.readline().strip() == line
                sleep(2 * SAME_REQUEST_S)
                child.send_signal(number)
            assert child.wait(30) == -number
        finally:
            child.kill()


@pytest.mark.usefixtures("own_signals")
@pytest.mark.parametrize("number", NUMBERS)
async def test_a_signal_sent_twice_is_one_request(number, monkeypatch):
    monkeypatch.setattr("cometmq.runtime.hangup.monotonic", lambda: 1.0)  # the machine may be busy
    task = asyncio.current_task()
    assert task is not None
    with cancelled_by_signals():
        os.kill(os.getpid(), number)
        with pytest.raises(asyncio.CancelledError):
            await asyncio.sleep(60)
        os.kill(os.getpid(), number)
        await asyncio.sleep(SAME_REQUEST_S / 4)
        assert task.uncancel() == 0
    os.kill(os.getpid(), number)  # the end of the process is not disturbed, either


async def test_handlers_are_restored_after_a_command_without_signals():
    before = {one: signal.getsignal(one) for one in NUMBERS}
    with cancelled_by_signals():
        assert all(signal.getsignal(one) != before[one] for one in NUMBERS)
    assert {one: signal.getsignal(one) for one in NUMBERS} == before


async def test_ignored_signals_stay_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a background job of a shell
    try:
        with cancelled_by_signals():
            assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("own_signals")
@pytest.mark.parametrize("number", NUMBERS)
async def test_a_signal_does_not_cancel_within_a_callback(number):
    """asyncio's callback of a connection looks whether its future is done, and sets its result."""
    loop = asyncio.get_running_loop()
    failures: list[object] = []
    loop.set_exception_handler(lambda _loop, context: failures.append(context))
    connected = loop.create_future()

    def callback():
        assert not connected.done()
        os.kill(os.getpid(), number)
        connected.set_result(None)

    loop.call_soon(callback)
    with pytest.raises(asyncio.CancelledError), cancelled_by_signals():
        await connected
    assert not failures


@pytest.mark.usefixtures("own_signals")
async def test_a_signal_in_the_last_step_cancels_once():
    with pytest.raises(asyncio.CancelledError), cancelled_by_signals():
        os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.sleep(0.01)  # what follows the block is not cancelled
