# SPDX-License-Identifier: Apache-2.0
"""Requests to a former master are held and forwarded, within bounds."""

import asyncio

import pytest

from cometmq.broker.copies.gate import diversion
from cometmq.broker.copies.gate.diversion import NOT_SERVED
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.command import Response
from cometmq.remoting.errors import (
    AccessDenied,
    ConnectFailed,
    ConnectionLost,
    ServiceNotAvailable,
    SystemBusy,
)
from cometmq.remoting.signature import FORWARDED
from cometmq.testing.broker.scripted import frames_of
from cometmq.testing.broker.scripts import frame

from .gate_rig import (
    DONE,
    FORWARDED_HEAD,
    PULL,
    SEND,
    Rig,
    not_served,
    refusal,
    turns,
)


async def test_held_requests_are_served_here_if_the_hand_over_is_abandoned():
    rig = Rig()
    rig.diversion.hold()
    asked = [asyncio.get_running_loop().create_task(rig.ask(SEND, b"%d" % n)) for n in range(3)]
    await rig.until_held(3)
    assert rig.served == []
    assert rig.ask(PULL).remark == "served"
    rig.served.clear()
    rig.diversion.serve_here()
    assert [(await one).remark for one in asked] == ["served"] * 3
    assert rig.served == [b"0", b"1", b"2"]
    assert rig.client.asked == []
    assert rig.diversion.held_count == 0


async def test_held_requests_are_forwarded_and_never_served_here():
    answer = Response(int(ResponseCode.SUCCESS), None, {"msgId": "A"}, b"", "ok")
    rig = Rig(answer, answer)
    rig.diversion.hold()
    asked = asyncio.get_running_loop().create_task(rig.ask(SEND))
    await rig.until_held(1)
    rig.diversion.forward("10.0.0.2:10911", 2)
    rig.permission.confirmation = None
    reply = await asked
    assert (reply.code, reply.remark) == (0, "ok")
    assert reply.ext == {"msgId": "A", FORWARDED: "true"}
    assert (await rig.ask(SEND, b"later")).code == 0
    assert rig.served == []
    assert rig.client.asked == [
        ("10.0.0.2:10911", SEND, b"x"),
        ("10.0.0.2:10911", SEND, b"later"),
    ]
    assert rig.diversion.forwarded_count == 2


@pytest.mark.parametrize("is_binary", [False, True])
async def test_a_forwarded_request_is_not_forwarded_again(is_binary: bool):
    """Two brokers that follow each other would pass such a request back and forth."""
    rig = Rig()
    rig.diversion.forward("b1:10911", 2)
    ((_, head, _),) = frames_of(frame(SEND, {FORWARDED: "true"}, is_binary=is_binary))
    reply = await rig.ask(SEND, head=head)
    assert (reply.code, reply.ext) == (ResponseCode.SERVICE_NOT_AVAILABLE, {NOT_SERVED: "2"})
    assert "is not the master of its group now, it forwards requests itself" in reply.remark
    assert rig.client.asked == []


async def test_a_forwarded_request_is_not_served_by_a_broker_that_is_not_the_master():
    """The store would refuse it too, but not say whether it may have kept the message."""
    rig = Rig(is_master=False)
    reply = rig.ask(SEND, head=FORWARDED_HEAD)
    assert (reply.code, reply.ext) == (ResponseCode.SERVICE_NOT_AVAILABLE, {NOT_SERVED: "0"})
    assert rig.ask(SEND).remark == "served"


async def test_a_forwarded_request_that_was_held_is_refused_after_the_hand_over():
    rig = Rig()
    rig.diversion.hold()
    asked = asyncio.get_running_loop().create_task(rig.ask(SEND, head=FORWARDED_HEAD))
    await rig.until_held(1)
    rig.permission.confirmation = None
    rig.diversion.forward("b:1", 3)
    assert (await asked).ext == {NOT_SERVED: "3"}
    assert rig.served == []
    assert rig.client.asked == []


async def test_a_stopping_broker_forwards_for_a_while_after_a_hand_over(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(diversion, "LINGER_STEP_MS", 1)
    rig = Rig()
    rig.diversion.forward("a:1", 2)
    await rig.diversion.linger(600_000)  # returns at once, because this slave has not handed over
    rig.diversion.hold()
    rig.diversion.forward("a:1", 2)
    began_ms = rig.now_ms
    await rig.diversion.linger(5_000)
    assert rig.now_ms >= began_ms + 5_000
    before_ms = rig.now_ms
    await rig.diversion.linger(5_000)  # the time counts from the hand-over
    assert rig.now_ms <= before_ms + 200


async def test_lingering_ends_when_the_broker_is_master_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(diversion, "LINGER_STEP_MS", 1)
    rig = Rig()
    rig.diversion.hold()
    rig.diversion.forward("a:1", 2)
    end_ms = rig.now_ms + 10**12
    lingering = asyncio.get_running_loop().create_task(rig.diversion.linger(10**12))
    await asyncio.sleep(0)
    rig.diversion.serve_here()
    await lingering
    assert rig.now_ms < end_ms


async def test_a_new_master_that_is_not_open_yet_is_asked_again():
    answer = Response(int(ResponseCode.FLUSH_SLAVE_TIMEOUT), None, {}, b"", None)
    rig = Rig(ConnectFailed("no"), not_served(1), answer)
    rig.diversion.forward("a:1", 2)
    assert (await rig.ask(SEND)).code == ResponseCode.FLUSH_SLAVE_TIMEOUT
    assert len(rig.client.asked) == 3


async def test_a_new_master_that_does_not_open_is_given_up():
    rig = Rig(*[not_served(2)] * 100)
    rig.diversion.forward("a:1", 2)
    with pytest.raises(ServiceNotAvailable, match="a slave"):
        await rig.ask(SEND)
    assert 1 < len(rig.client.asked) < 50
    assert rig.epochs_seen == []


@pytest.mark.parametrize(("outcome", "remark"), [
    (not_served(2), "a slave"),
    (not_served(1), "a slave"),
    (ConnectFailed("no"), "this broker is not the master of its group now"),
])  # fmt: skip
async def test_an_established_master_that_does_not_serve_is_not_asked_again(outcome, remark):
    """Clients then look up the master; retries by every slave would only add load."""
    rig = Rig(outcome)
    rig.diversion.forward("a:1", 2)
    rig.now_ms += rig.diversion.forward_ms_max
    with pytest.raises(ServiceNotAvailable, match=remark):
        await rig.ask(SEND)
    assert rig.epochs_seen == []


@pytest.mark.parametrize("ext", [{}, {NOT_SERVED: ""}, {NOT_SERVED: "9" * 5_000}])
async def test_a_refusal_of_the_masters_store_is_passed_on_at_once(ext):
    """A master that is replaced refuses pending sends, although it has stored them."""
    rig = Rig(refusal(ext))
    rig.diversion.forward("a:1", 2)
    with pytest.raises(ServiceNotAvailable, match="a slave"):
        await rig.ask(SEND)
    assert rig.epochs_seen == []


async def test_requests_refused_by_a_former_master_are_sent_to_its_successor():
    """All of them cause one read of the record, and each is sent to each broker once."""
    rig = Rig(*[not_served(3)] * 50, *[DONE] * 51)
    rig.diversion.forward("a:1", 2)
    rig.now_ms += rig.diversion.forward_ms_max
    asked = [asyncio.get_running_loop().create_task(rig.ask(SEND)) for _ in range(50)]
    await rig.until_asked(50)
    await turns()
    assert len(rig.client.asked) == 50
    assert rig.epochs_seen == [3]
    rig.diversion.forward("b:1", 3)
    assert [(await one).remark for one in asked] == ["ok"] * 50
    assert [address for address, *_ in rig.client.asked] == ["a:1"] * 50 + ["b:1"] * 50
    assert rig.served == []
    assert rig.diversion.forwarded_count == 50


async def test_requests_refused_by_a_former_master_are_served_by_its_successor_itself():
    rig = Rig(not_served(3))
    rig.diversion.forward("a:1", 2)
    asked = asyncio.get_running_loop().create_task(rig.ask(SEND))
    await rig.until_asked(1)
    rig.diversion.serve_here()
    assert (await asked).remark == "served"


async def test_a_request_is_refused_if_its_next_master_stays_unknown():
    rig = Rig(not_served(3))
    rig.diversion.forward_ms_max = 500
    rig.diversion.forward("a:1", 2)
    with pytest.raises(ServiceNotAvailable, match="does not know the master of epoch 3 yet"):
        await rig.ask(SEND)
    assert len(rig.client.asked) == 1


async def test_a_client_allowed_by_its_address_is_sent_to_the_master_itself():
    """The master sees the address of the forwarding broker."""
    rig = Rig(AccessDenied("no access key"))
    rig.diversion.forward("a:1", 2)
    with pytest.raises(ServiceNotAvailable, match="is not the master of its group now, the master"):
        await rig.ask(SEND)


async def test_a_forwarded_request_is_served_here_once_this_broker_is_master_again():
    """The client might not retry after another code, and the request is known not to be stored."""
    rig = Rig(*[not_served(1)] * 100)
    rig.diversion.forward("a:1", 2)
    asked = asyncio.get_running_loop().create_task(rig.ask(SEND))
    await rig.until_asked(1)
    rig.diversion.serve_here()
    assert (await asked).remark == "served"
    assert {address for address, *_ in rig.client.asked} == {"a:1"}


async def test_a_forwarded_request_is_held_while_the_next_switchover_is_in_progress():
    answer = Response(int(ResponseCode.SUCCESS), None, {}, b"", "ok")
    rig = Rig(not_served(1), answer)
    rig.diversion.forward("a:1", 2)
    asked = asyncio.get_running_loop().create_task(rig.ask(SEND))
    await rig.until_asked(1)
    rig.diversion.hold()
    await rig.until_held(1)
    rig.diversion.forward("b:1", 2)
    assert (await asked).remark == "ok"
    assert [address for address, *_ in rig.client.asked] == ["a:1", "b:1"]
    assert rig.served == []


async def test_a_request_that_may_have_been_served_is_not_sent_again():
    rig = Rig(ConnectionLost("gone"))
    rig.diversion.forward("a:1", 2)
    with pytest.raises(SystemBusy, match="did not answer"):
        await rig.ask(SEND)


async def test_memory_of_held_requests_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(diversion, "HELD_BYTES_MAX", 70)
    rig = Rig()
    rig.diversion.hold()
    held = asyncio.get_running_loop().create_task(rig.ask(SEND, b"x" * 8))
    await asyncio.sleep(0)
    with pytest.raises(SystemBusy, match="waiting for a switchover"):
        await rig.ask(SEND, b"x" * 8)
    rig.diversion.serve_here()
    assert (await held).remark == "served"
    assert rig.ask(SEND, b"x" * 8).remark == "served"
