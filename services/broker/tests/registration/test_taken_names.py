# SPDX-License-Identifier: Apache-2.0

import pytest

from cometmq.broker.registration import listing
from cometmq.broker.registration import registration as registrations
from cometmq.broker.registration.identity import Link
from cometmq.broker.tables.topics import Topics
from cometmq.ha.proof import is_registration_proven, new_body_digest
from cometmq.remoting.bodies.dialect import encode_json
from cometmq.remoting.bodies.route import BrokerData, ClusterInfo
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Response
from cometmq.remoting.commands.namesrv import RegisterBroker, UnregisterBroker
from cometmq.remoting.errors import CometError, CommandError, ConnectionLost
from cometmq.testing.broker.logs import RecordingLog
from cometmq.testing.broker.namesrvs import ME, NS1, ScriptedNamesrvs, registration, running, until

HOLDER = "10.0.0.8:10911"


def list_holder(namesrvs: ScriptedNamesrvs, holder: str) -> None:
    """Make the name servers list an address under this broker's name and id."""
    group = BrokerData(cluster="C", broker_name="broker-a", broker_addrs={0: holder, 1: holder})
    body = encode_json(ClusterInfo(broker_addr_table={"broker-a": group}))
    namesrvs.answers[int(RequestCode.GET_BROKER_CLUSTER_INFO)] = Response(0, None, {}, body)


def answer_as(namesrvs: ScriptedNamesrvs, text: str) -> None:
    """Answer like a broker with these settings at every reachable address."""
    namesrvs.answers[int(RequestCode.GET_BROKER_CONFIG)] = Response(0, None, {}, text.encode())


@pytest.mark.parametrize("answer", ["brokerName=broker-a\n", "", "brokerName=\\u00x\n"])
async def test_a_broker_does_not_register_over_a_running_one(
    namesrvs: ScriptedNamesrvs, topics: Topics, answer: str
) -> None:
    list_holder(namesrvs, HOLDER)
    answer_as(namesrvs, answer)
    log = RecordingLog()
    subject = registration(namesrvs, topics, log=log)
    async with running(subject):
        await subject.wait_for_first_round(5_000)
        fault = subject.name_fault
        assert fault is not None
        assert HOLDER in fault
        assert "brokerName=broker-a" in fault
        assert not namesrvs.registrations()

        namesrvs.dead.add(HOLDER)
        subject.notify()
        await until(namesrvs, 1)
        assert subject.name_fault is None
    assert [facts["holder"] for facts in log.named("broker.name_taken")] == [HOLDER]


@pytest.mark.parametrize(("broker_id", "other"), [(0, "brokerName"), (1, "brokerId")])
async def test_a_slave_is_told_to_change_its_id(
    namesrvs: ScriptedNamesrvs, topics: Topics, broker_id: int, other: str
) -> None:
    list_holder(namesrvs, HOLDER)
    answer_as(namesrvs, "brokerName=broker-a")
    subject = registration(namesrvs, topics)
    subject.use_role(broker_id, 5)
    async with running(subject):
        await subject.wait_for_first_round(5_000)
        assert f": give this broker another {other}, or stop" in (subject.name_fault or "")


@pytest.mark.parametrize(
    "error", [CommandError(ResponseCode.NO_PERMISSION, "no"), ConnectionLost("plaintext")]
)
async def test_a_refusal_proves_that_the_holder_runs(
    namesrvs: ScriptedNamesrvs, topics: Topics, error: CometError
) -> None:
    list_holder(namesrvs, HOLDER)
    namesrvs.refusing[HOLDER] = error
    subject = registration(namesrvs, topics)
    async with running(subject):
        await subject.wait_for_first_round(5_000)
        assert subject.name_fault is not None


@pytest.mark.parametrize(
    ("holder", "settings"),
    [
        (ME.broker_addr, "brokerName=broker-a"),  # restarted before the name server noticed
        ("10.0.0.7:10911", "brokerName=broker-a"),  # restarted at a new address
        (HOLDER, "brokerName=broker-b"),  # a different broker got the old address
    ],
)
async def test_an_address_without_a_broker_of_this_name_is_replaced(
    namesrvs: ScriptedNamesrvs, topics: Topics, holder: str, settings: str
) -> None:
    list_holder(namesrvs, holder)
    answer_as(namesrvs, settings)
    namesrvs.dead.add("10.0.0.7:10911")
    log = RecordingLog()
    subject = registration(namesrvs, topics, log=log)
    async with running(subject):
        await until(namesrvs, 1)
    assert len(namesrvs.registrations()) == 1
    assert not log.named("broker.name_taken")


async def test_a_broker_takes_over_a_name_only_if_it_is_told_to(
    namesrvs: ScriptedNamesrvs, topics: Topics
) -> None:
    list_holder(namesrvs, HOLDER)
    answer_as(namesrvs, "brokerName=broker-a")
    log = RecordingLog()
    subject = registration(namesrvs, topics, log=log, take_over_name=True)
    async with running(subject):
        await until(namesrvs, 1)
    assert [facts["holder"] for facts in log.named("broker.name_taken_over")] == [HOLDER]


async def test_a_displaced_broker_registers_again_at_once(
    namesrvs: ScriptedNamesrvs, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registrations, "WATCH_MS", 1)
    monkeypatch.setattr(listing, "COMPARE_MS", 1)
    answer_as(namesrvs, "brokerName=broker-a")
    log = RecordingLog()
    subject = registration(namesrvs, topics, log=log)
    async with running(subject):
        await until(namesrvs, 1)
        list_holder(namesrvs, HOLDER)
        await until(namesrvs, 3)
        assert subject.name_fault is None
    assert {facts["holder"] for facts in log.named("broker.displaced")} == {HOLDER}


@pytest.mark.parametrize(("broker_id", "is_back"), [(0, True), (1, False)])
async def test_the_displaced_master_of_a_group_registers_again_and_a_slave_does_not(
    namesrvs: ScriptedNamesrvs, topics: Topics, broker_id: int, is_back: bool
) -> None:
    log = RecordingLog()
    subject = registration(namesrvs, topics, log=log, group_record="file:/r")
    subject.use_role(broker_id, 5)
    link = Link(NS1)
    assert await subject.registrant.register(link)
    list_holder(namesrvs, HOLDER)
    assert await subject.registrant.listing.is_lost(link) is is_back


async def test_members_with_a_key_prove_their_registrations(
    namesrvs: ScriptedNamesrvs, topics: Topics
) -> None:
    keys = (b"k" * 32, b"o" * 32)
    subject = registration(namesrvs, topics, keys=keys)
    subject.use_role(0, 5)
    async with running(subject):
        await until(namesrvs, 1)
    await subject.unregister()
    sent, left = (
        next(one for one in namesrvs.requests if isinstance(one.header, kind))
        for kind in (RegisterBroker, UnregisterBroker)
    )
    assert isinstance(sent.header, RegisterBroker)
    assert isinstance(left.header, UnregisterBroker)
    assert (sent.header.broker_name, sent.header.group_epoch) == (ME.broker_name, 5)
    assert (left.header.broker_addr, left.header.group_epoch) == (ME.broker_addr, 5)
    digests = (new_body_digest(one.body).digest() for one in (sent, left))
    assert is_registration_proven(keys[:1], sent.header, next(digests))
    assert is_registration_proven(keys[:1], left.header, next(digests))


async def test_only_a_lasting_refusal_of_an_earlier_epoch_is_an_alarm(
    namesrvs: ScriptedNamesrvs, topics: Topics
) -> None:
    log = RecordingLog()
    subject = registration(namesrvs, topics, log=log)
    link = Link(NS1)
    namesrvs.refusing[NS1] = CommandError(
        ResponseCode.SYSTEM_ERROR, "stale epoch: 10.0.0.9:10911 registers in epoch 2, but ..."
    )
    for _ in range(4):
        assert not await subject.registrant.register(link)
        assert subject._pause_ms(link) < 1_000  # it is back at once when the refusals end
    assert log.alarms == []
    assert len(log.named("registration.refused")) == 4
    for _ in range(2):
        assert not await subject.registrant.register(link)
    assert [event.name for event in log.alarms] == ["namesrv.lost"]


def forget(namesrvs: ScriptedNamesrvs, *, changed: str = "true") -> None:
    namesrvs.answers[int(RequestCode.QUERY_DATA_VERSION)] = Response(
        0, None, {"changed": changed}, b""
    )


@pytest.mark.parametrize(
    ("holder", "event"), [(None, "registration.lost"), (ME.broker_addr, "registration.incomplete")]
)
async def test_a_broker_whose_registration_is_lost_sends_all_its_topics_again(
    namesrvs: ScriptedNamesrvs,
    topics: Topics,
    monkeypatch: pytest.MonkeyPatch,
    holder: str | None,
    event: str,
) -> None:
    monkeypatch.setattr(registrations, "WATCH_MS", 1)
    if holder is not None:
        list_holder(namesrvs, holder)
    log = RecordingLog()
    subject = registration(namesrvs, topics, log=log)
    async with running(subject):
        await until(namesrvs, 1)
        forget(namesrvs)
        while len(namesrvs.registrations()) < 3:
            await until(namesrvs, len(namesrvs.requests) + 1)
        assert subject.links[NS1].watch_ms >= 2  # if it is in vain, it is repeated ever more rarely
        forget(namesrvs, changed="false")
        while subject.links[NS1].watch_ms:
            await until(namesrvs, len(namesrvs.requests) + 1)
    assert namesrvs.topics_sent()[:3] == [{"T"}] * 3
    assert log.named(event)[0]["namesrv"] == NS1


@pytest.mark.parametrize("broker_id", [0, 1])
async def test_every_member_of_a_group_notices_that_it_was_removed(
    namesrvs: ScriptedNamesrvs, topics: Topics, broker_id: int
) -> None:
    subject = registration(namesrvs, topics, group_record="file:/r")
    subject.use_role(broker_id, 5)
    link = Link(NS1)
    assert await subject.registrant.register(link)
    forget(namesrvs)
    assert await subject.registrant.listing.is_lost(link)


async def test_a_name_server_that_does_not_know_the_question_is_asked_for_the_address(
    namesrvs: ScriptedNamesrvs, topics: Topics
) -> None:
    subject, link = registration(namesrvs, topics), Link(NS1)
    assert await subject.registrant.register(link)
    namesrvs.failing[int(RequestCode.QUERY_DATA_VERSION)] = CommandError(
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "not supported"
    )
    list_holder(namesrvs, ME.broker_addr)
    assert not await subject.registrant.listing.is_lost(link)
    list_holder(namesrvs, HOLDER)
    assert not await subject.registrant.listing.is_lost(link)  # it was compared just now
    link.compared_s = 0.0
    assert await subject.registrant.listing.is_lost(link)
