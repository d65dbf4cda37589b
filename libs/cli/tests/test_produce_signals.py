# SPDX-License-Identifier: Apache-2.0
"""A signal stops `produce` while lines stream in: it prints how many messages are stored."""

import asyncio
import json
import re
import signal
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from cometmq.cli.verbs.lines import Line
from cometmq.cli.verbs.patience import Patience
from cometmq.cli.verbs.produce import _send_all
from cometmq.cli.verbs.sent import Sent
from cometmq.client import Message
from cometmq.client.errors import BrokerMissing
from cometmq.peers.comet import PROGRAM
from cometmq.peers.processes import wait_until

SIGNALS = [signal.SIGINT, signal.SIGTERM]
STORED_MIN = 2_000
BLOCKED_POLLS = 5


def numbers_in(errors):
    """Return the printed message counts: how many are stored, and how many may be stored."""
    said = dict.fromkeys(("stored before the end", "may be stored"), 0)
    for number, what in re.findall(rf"([\d,]+) messages? ({'|'.join(said)})", errors):
        said[what] = int(number.replace(",", ""))
    return tuple(said.values())


def stored_in(topic, namesrv):
    command = [str(PROGRAM), "topic", "describe", topic, "--json", "-n", namesrv]
    shown = subprocess.run(command, capture_output=True, timeout=60, check=True)
    return sum(row["messages"] for row in json.loads(shown.stdout))


def distinct_in(topic, namesrv):
    """Count the messages without further copies of the same one.

    If a heartbeat finds out that the broker hangs, the producer sends again at once, and the broker
    stores what it has received of both attempts.
    """
    command = [str(PROGRAM), "consume", topic, "--from", "first", "--json", "-n", namesrv]
    count = str(stored_in(topic, namesrv))
    shown = subprocess.run([*command, "--max", count], capture_output=True, timeout=60, check=True)
    return len({json.loads(line)["message_id"] for line in shown.stdout.splitlines()})


def wait_until_blocked(child):
    """Wait until a `produce` has read the last answers and has the maximum number of sends in
    flight.
    """
    seen = []

    def is_blocked():
        state, *fields = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
        seen.append((state, *fields[10:12]))  # with its processor time
        return state == "S" and seen[-BLOCKED_POLLS:] == [seen[-1]] * BLOCKED_POLLS

    wait_until(is_blocked, 60, "silence of the broker")


@pytest.fixture
def stream():
    """Start a `produce` whose input does not end."""
    with ExitStack() as stack:

        def stream(topic, namesrv):
            pipe = subprocess.PIPE
            source = stack.enter_context(subprocess.Popen(["yes"], stdout=pipe))
            stack.callback(source.kill)
            child = stack.enter_context(
                subprocess.Popen(
                    [str(PROGRAM), "produce", topic, "-n", namesrv],
                    stdin=source.stdout,
                    stdout=subprocess.DEVNULL,
                    stderr=pipe,
                )
            )
            stack.callback(child.kill)
            wait_until(lambda: stored_in(topic, namesrv) > STORED_MIN, 60, "load")
            return child

        yield stream


@pytest.mark.parametrize("number", SIGNALS)
def test_the_printed_number_of_messages_is_the_stored_one(suite, topic, stream, number):
    child = stream(topic, suite.namesrv)
    child.send_signal(number)
    errors = child.stderr.read().decode()
    assert child.wait(60) == 130, errors
    assert numbers_in(errors) == (stored_in(topic, suite.namesrv), 0), errors


@pytest.fixture(scope="module")
def cluster(running_cluster, tmp_path_factory):
    with running_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        cluster.start_broker("broker-a")
        yield cluster


@pytest.mark.parametrize("signal_count", [1, 2])
@pytest.mark.parametrize("number", SIGNALS)
def test_sends_without_an_answer_may_be_stored(cluster, stream, number, signal_count):
    topic = f"Hung{number.name}{signal_count}"
    create = [str(PROGRAM), "topic", "create", topic, "-n", cluster.namesrv]
    subprocess.run(create, capture_output=True, timeout=60, check=True)
    child = stream(topic, cluster.namesrv)
    cluster.send("broker-a", signal.SIGSTOP)
    try:
        wait_until_blocked(child)
        child.send_signal(number)
        if signal_count == 1:
            assert child.wait(25) == 130  # retries would go on for 30 s
        else:
            with pytest.raises(subprocess.TimeoutExpired):
                child.wait(0.5)
            child.send_signal(number)
            assert child.wait(60) == 130
    finally:
        cluster.send("broker-a", signal.SIGCONT)
    errors = child.stderr.read().decode()
    stored, uncertain = numbers_in(errors)
    assert uncertain > 0, errors
    assert stored <= distinct_in(topic, cluster.namesrv) <= stored + uncertain, errors


async def test_a_second_cancellation_ends_the_pending_sends_at_once():
    async def messages():
        for number in (1, 2, 3):
            yield Line(number, b"x"), Message("T", b"x")
        await asyncio.Event().wait()  # an open pipe

    async def send_one(message):
        await asyncio.Event().wait()  # a hung broker

    sent = Sent()
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        sending = tasks.create_task(
            _send_all(send_one, messages(), sent, Patience(0), rate=None, in_flight=8)
        )
        await asyncio.sleep(0.1)
        sending.cancel()
        await asyncio.wait([sending], timeout=0.3)
        assert not sending.done()
        sending.cancel()
    assert sending.cancelled()
    assert (sent.count, sent.uncertain_count) == (0, 3)


async def test_a_stop_ends_the_pause_before_a_retry():
    class Down:
        async def send(self, message, queue=None, timeout_ms=0):
            raise BrokerMissing("down")

    producer: Any = Down()
    patience = Patience(300)
    asyncio.get_running_loop().call_later(0.3, patience.stop)
    async with asyncio.timeout(60):
        with pytest.raises(BrokerMissing) as caught:
            await patience.send(producer, Message("T", b"x", message_id="1"))
    assert str(caught.value) == "down"
