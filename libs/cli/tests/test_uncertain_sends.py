# SPDX-License-Identifier: Apache-2.0
"""Messages of `produce` that are refused, may be stored, or are stored without a confirmation."""

import asyncio
import json
from unittest.mock import AsyncMock

import pytest

from cometmq.cli.verbs.lines import Line
from cometmq.cli.verbs.patience import MaybeStored, Patience
from cometmq.cli.verbs.produce import _send_all
from cometmq.cli.verbs.sent import Sent, failure_notes, print_sent
from cometmq.client import Message, MessageQueue, SendResult
from cometmq.client.errors import ClientError, SendFailed
from cometmq.client.message import SendStatus
from cometmq.remoting.errors import AccessDenied, ConnectionLost, ServiceNotAvailable, SystemBusy


async def test_a_failed_send_ends_waiting_for_input_and_leaves_the_others_in_flight():
    is_refused = asyncio.Event()

    async def messages():
        for number, body in enumerate((b"slow", b"bad"), 1):
            yield Line(number, body), Message("T", body)
        await asyncio.Event().wait()  # an open pipe

    async def send_one(message):
        if message.body == b"bad":
            is_refused.set()
            raise ClientError("refused")
        await is_refused.wait()
        await asyncio.sleep(0.05)
        return SendResult(SendStatus.SLAVE_NOT_AVAILABLE, "id", "", MessageQueue("T", "b", 0), 0)

    sent = Sent()
    async with asyncio.timeout(60):
        with pytest.raises(ClientError, match="refused"):
            await _send_all(send_one, messages(), sent, Patience(0), rate=None, in_flight=8)
    assert (sent.count, sent.unconfirmed) == (1, {"SLAVE_NOT_AVAILABLE": 1})


class _Failing:
    """A producer whose sends fail with these errors; the last one repeats forever."""

    def __init__(self, *errors):
        self.errors = list(errors)
        self.admin = AsyncMock()  # the broker answers all other requests

    async def queues(self, topic):
        return [MessageQueue(topic, "b", 0)]

    async def send(self, message, queue=None, timeout_ms=0):
        raise self.errors.pop(0) if len(self.errors) > 1 else self.errors[0]


def failing(*errors):
    return _Failing(*errors)


def _send_failed(cause, *, may_be_stored):
    text = "which may be stored" if may_be_stored else "was not stored"
    failed = SendFailed(f"{text}: {cause}", brokers=("b",), may_be_stored=may_be_stored)
    failed.__cause__ = cause
    return failed


MESSAGE = Message("T", b"x", message_id="1")


LOST = _send_failed(ConnectionLost("lost"), may_be_stored=True)


REFUSED = _send_failed(ServiceNotAvailable("too few copies"), may_be_stored=False)


@pytest.mark.parametrize("last", [REFUSED, SystemBusy("busy"), AccessDenied("no"), LOST])
async def test_a_message_that_an_earlier_attempt_may_have_stored_is_never_called_unstored(last):
    with pytest.raises(MaybeStored, match="may be stored") as caught:
        await Patience(0.2).send(failing(LOST, last), MESSAGE)
    assert "not stored" not in str(caught.value)
    assert ("--timeout" in str(caught.value)) == (not isinstance(last, AccessDenied))


async def test_a_message_that_every_broker_refused_is_not_stored():
    with pytest.raises(ClientError, match=r"was not stored: .*too few copies.* gave up") as caught:
        await Patience(0.2).send(failing(REFUSED), MESSAGE)
    assert not isinstance(caught.value, MaybeStored)


async def test_a_message_that_may_be_stored_is_told_without_retries_too():
    with pytest.raises(MaybeStored, match="which may be stored: "):
        await Patience(0).send(failing(LOST), MESSAGE)


async def test_messages_that_may_be_stored_are_counted():
    all_in_flight = asyncio.Barrier(3)

    async def messages():
        for number, body in enumerate((b"refused", b"lost", b"lost too"), 1):
            yield Line(number, body), Message("T", body)

    async def send_one(message):
        await all_in_flight.wait()
        if message.body == b"refused":
            raise ClientError("refused")
        raise MaybeStored("may be stored")

    sent = Sent()
    with pytest.raises(MaybeStored):
        await _send_all(send_one, messages(), sent, Patience(0), rate=None, in_flight=8)
    assert (sent.count, sent.uncertain_count) == (0, 2)
    (note,) = failure_notes(sent)
    assert note.startswith("2 messages may be stored: the result is unknown, because a broker has")
    assert note.endswith("; sending the whole input again would store up to 2 messages twice")
    sent.count = 1_000
    assert failure_notes(sent)[-1].endswith(" would store 1,000 to 1,002 messages twice")


def test_messages_stored_without_a_confirmation_are_counted(capsys):
    sent = Sent(count=100, unconfirmed={"SLAVE_NOT_AVAILABLE": 98, "FLUSH_SLAVE_TIMEOUT": 1})
    print_sent(sent, as_json=True)
    shown = capsys.readouterr()
    assert json.loads(shown.out)["unconfirmed"] == 99
    first, second = shown.err.splitlines()
    assert first.startswith("cometmq: FLUSH_SLAVE_TIMEOUT: the master has stored 1 message, but no")
    assert second.startswith(
        "cometmq: SLAVE_NOT_AVAILABLE: the master has stored 98 messages, but no slave was close"
    )
    print_sent(Sent(count=100), as_json=True)
    shown = capsys.readouterr()
    assert ("unconfirmed" in shown.out, shown.err) == (False, "")
