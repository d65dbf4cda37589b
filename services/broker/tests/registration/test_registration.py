# SPDX-License-Identifier: Apache-2.0

import asyncio
import zlib

import msgspec
import pytest

from cometmq.broker.registration import bodies, registrant
from cometmq.broker.registration import registration as registrations
from cometmq.broker.registration.bodies import CRC_MASK
from cometmq.broker.registration.identity import Link
from cometmq.broker.registration.registrant import SIGNED, Registrant, registration_signing
from cometmq.broker.settings import BrokerSettings
from cometmq.broker.tables.topics import Topics
from cometmq.remoting.bodies.codec import REGISTER
from cometmq.remoting.bodies.topic_config import RegisterBrokerBody, encode_register_body
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import Response
from cometmq.remoting.commands.namesrv import QueryDataVersion, RegisterBroker, UnregisterBroker
from cometmq.remoting.errors import ConnectFailed, RequestTimeout, SettingsError
from cometmq.remoting.signature import Signer
from cometmq.testing.broker.namesrvs import (
    ME,
    NS1,
    NS2,
    ScriptedNamesrvs,
    config,
    registration,
    running,
    until,
)


async def test_the_first_registration_carries_everything(
    namesrvs: ScriptedNamesrvs, topics: Topics
) -> None:
    subject = registration(namesrvs, topics)

    assert await subject.registrant.register(Link(NS1))

    request = namesrvs.requests[0]
    assert request.code == RequestCode.REGISTER_BROKER
    assert request.header == RegisterBroker(
        broker_name="broker-a",
        broker_addr="10.0.0.9:10911",
        cluster_name="C",
        ha_server_addr="10.0.0.9:10912",
        broker_id=0,
        compressed=False,
        body_crc32=zlib.crc32(request.body) & CRC_MASK,
    )
    sent = namesrvs.registrations()[0].topic_config_serialize_wrapper
    assert sent.topic_config_table == {"T": config("T")}
    assert sent.data_version == topics.version


@pytest.mark.parametrize("force", [True, False])
async def test_a_new_role_is_registered_with_its_epoch_at_once(
    namesrvs: ScriptedNamesrvs, topics: Topics, force: bool
) -> None:
    subject = registration(namesrvs, topics, force_register=force)
    async with running(subject):
        await subject.wait_for_first_round(5_000)
        before = len(namesrvs.requests)
        subject.use_role(2, 7)
        await until(namesrvs, before + 1)

    request = namesrvs.requests[before]
    assert isinstance(request.header, RegisterBroker)
    assert (request.header.broker_id, request.header.group_epoch) == (2, 7)
    assert namesrvs.registrations()[-1].topic_config_serialize_wrapper.topic_config_table


SHARED = "10.0.0.100:10911"
OWN = "10.0.0.9:10911"


def of(header: msgspec.Struct | None) -> tuple[str, int, str]:
    """Return kind, id and address of a registration or its end."""
    assert isinstance(header, RegisterBroker | UnregisterBroker)
    return type(header).__name__, header.broker_id, header.broker_addr


async def test_a_master_registers_the_address_of_its_group_then_unregisters_its_own(
    namesrvs: ScriptedNamesrvs, topics: Topics
) -> None:
    subject = registration(namesrvs, topics, shared_address=SHARED)
    subject.use_role(2, 6)
    async with running(subject):
        await until(namesrvs, 1)
        subject.use_role(0, 7)
        await until(namesrvs, 3)
        subject.register_again()
        await until(namesrvs, 4)

    assert [of(one.header) for one in namesrvs.requests] == [
        ("RegisterBroker", 2, OWN),
        ("RegisterBroker", 0, SHARED),
        ("UnregisterBroker", 2, OWN),
        ("RegisterBroker", 0, SHARED),
    ]


async def test_a_former_master_leaves_the_address_of_its_group_to_the_next_one(
    namesrvs: ScriptedNamesrvs, topics: Topics
) -> None:
    subject = registration(namesrvs, topics, shared_address=SHARED)
    subject.use_role(0, 7)
    async with running(subject):
        await until(namesrvs, 1)
        subject.use_role(2, 8)
        await until(namesrvs, 2)
        await subject.unregister()

    assert [of(one.header) for one in namesrvs.requests] == [
        ("RegisterBroker", 0, SHARED),
        ("RegisterBroker", 2, OWN),
        ("UnregisterBroker", 2, OWN),
    ]


async def test_a_registration_that_fails_keeps_the_own_address_listed(
    namesrvs: ScriptedNamesrvs, topics: Topics
) -> None:
    subject, link = registration(namesrvs, topics, shared_address=SHARED), Link(NS1)
    subject.use_role(2, 6)
    assert await subject.registrant.register(link)
    subject.use_role(0, 7)
    namesrvs.refusing[NS1] = RequestTimeout(NS1)
    assert not await subject.registrant.register(link)
    assert len(namesrvs.requests) == 1
    namesrvs.refusing.clear()
    assert await subject.registrant.register(link)
    assert of(namesrvs.requests[-1].header) == ("UnregisterBroker", 2, OWN)


async def test_a_new_role_does_not_wait_for_a_stuck_registration(
    namesrvs: ScriptedNamesrvs, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = registration(namesrvs, topics)
    async with running(subject):
        await subject.wait_for_first_round(5_000)
        before = len(namesrvs.requests)
        namesrvs.frozen.add(NS1)
        namesrvs.arrived.clear()
        subject.register_again()
        await namesrvs.arrived.wait()
        await asyncio.sleep(0)
        subject.use_role(1, 6)
        assert namesrvs.disconnected == []  # the registration may still be answered
        monkeypatch.setattr(registrant, "STUCK_MS", -1)
        subject.use_role(0, 7)
        assert namesrvs.disconnected == [NS1]
        await until(namesrvs, before + 1)

    request = namesrvs.requests[-1]
    assert isinstance(request.header, RegisterBroker)
    assert (request.header.broker_id, request.header.group_epoch) == (0, 7)


async def test_a_new_role_does_not_wait_for_a_stuck_question(
    namesrvs: ScriptedNamesrvs, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registrations, "WATCH_MS", 1)
    monkeypatch.setattr(registrant, "STUCK_MS", -1)
    subject = registration(namesrvs, topics)
    async with running(subject):
        await subject.wait_for_first_round(5_000)
        namesrvs.frozen.add(NS1)
        namesrvs.arrived.clear()
        await namesrvs.arrived.wait()  # whether the registration is still known
        await asyncio.sleep(0)
        before = len(namesrvs.requests)
        subject.use_role(0, 7)
        assert namesrvs.disconnected == [NS1]
        await until(namesrvs, before + 1)
    assert isinstance(namesrvs.requests[before].header, RegisterBroker)


async def test_a_connection_without_an_answer_is_closed(
    namesrvs: ScriptedNamesrvs, topics: Topics
) -> None:
    subject, link = registration(namesrvs, topics), Link(NS1)
    namesrvs.refusing[NS1] = RequestTimeout("no answer")
    assert not await subject.registrant.register(link)
    assert namesrvs.disconnected == [NS1]
    namesrvs.refusing[NS1] = ConnectFailed("refused")
    assert not await subject.registrant.register(link)
    assert namesrvs.disconnected == [NS1]


async def test_a_change_sends_only_the_changed_topics_and_a_period_sends_all(
    namesrvs: ScriptedNamesrvs, topics: Topics
) -> None:
    subject, link = registration(namesrvs, topics), Link(NS1)
    await subject.registrant.register(link)
    topics.put(config("U"))
    await subject.registrant.register(link)
    await subject.registrant.register(link)

    assert namesrvs.topics_sent() == [{"T"}, {"U"}, {"T", "U"}]
    assert link.acknowledged == topics.version


async def test_unchanged_topics_are_encoded_once(
    namesrvs: ScriptedNamesrvs, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[RegisterBrokerBody] = []

    def encode_and_note(body: RegisterBrokerBody, *, compressed: bool) -> bytes:
        encoded.append(body)
        return encode_register_body(body, compressed=compressed)

    monkeypatch.setattr(bodies, "encode_register_body", encode_and_note)
    changes: dict[str, object] = {}
    subject = Registrant(
        ME, topics, namesrvs,
        settings=lambda: msgspec.structs.replace(BrokerSettings(), **changes),
    )  # fmt: skip
    link = Link(NS1)
    for _ in range(3):
        await subject.register(link)
    await subject.register(Link(NS2))
    assert len(encoded) == 1
    assert len({request.body for request in namesrvs.requests}) == 1

    for changed in ({"broker_permission": 4}, {"compressed_register": True}):
        changes |= changed
        await subject.register(link)
        assert namesrvs.requests[-1].body != namesrvs.requests[-2].body
    topics.put(config("U"))
    for _ in range(2):
        await subject.register(link)
    assert namesrvs.topics_sent()[-2:] == [{"U"}, {"T", "U"}]
    perms = namesrvs.registrations()[-1].topic_config_serialize_wrapper.topic_config_table
    assert {one.perm for one in perms.values()} == {4}


async def test_after_a_lost_connection_everything_is_sent_at_once(
    namesrvs: ScriptedNamesrvs, topics: Topics
) -> None:
    subject = registration(namesrvs, topics)
    async with running(subject):
        await until(namesrvs, 1)
        topics.put(config("U"))
        subject.connection_lost(NS1)
        await until(namesrvs, 2)

    assert namesrvs.topics_sent()[-1] == {"T", "U"}


def test_a_name_server_is_tried_soon_however_long_it_was_gone(
    namesrvs: ScriptedNamesrvs, topics: Topics
) -> None:
    subject, link = registration(namesrvs, topics), Link(NS1)
    pauses_ms = []
    for count in range(1, 100):
        link.failed_count = count
        pauses_ms.append(subject._pause_ms(link))
    assert pauses_ms[:3] == [500, 1_000, 2_000]
    assert set(pauses_ms[3:]) == {2_000}


async def test_known_versions_are_not_sent_again(
    namesrvs: ScriptedNamesrvs, topics: Topics
) -> None:
    subject = registration(namesrvs, topics)
    async with running(subject):
        await until(namesrvs, 1)
        topics.put(config("U"))

        assert await subject.announce() == 1
        assert await subject.announce() == 1

    assert namesrvs.topics_sent() == [{"T"}, {"U"}]


async def test_an_unreachable_name_server_delays_no_other(
    namesrvs: ScriptedNamesrvs, topics: Topics
) -> None:
    namesrvs.dead.add(NS2)
    subject = registration(namesrvs, topics, f"{NS1};{NS2}")
    async with running(subject):
        await until(namesrvs, 1)
        topics.put(config("U"))

        assert await subject.announce() == 1
        assert subject.up_count == 1

        namesrvs.dead.clear()
        subject.notify()
        await until(namesrvs, 4)

    assert {request.address for request in namesrvs.requests} == {NS1, NS2}
    last = [request for request in namesrvs.requests if request.address == NS2][-1]
    body = REGISTER.decode(last.body)
    assert set(body.topic_config_serialize_wrapper.topic_config_table) == {"T", "U"}


async def test_the_first_round_ends_when_each_name_server_was_tried(
    namesrvs: ScriptedNamesrvs, topics: Topics
) -> None:
    namesrvs.dead.add(NS2)
    subject = registration(namesrvs, topics, f"{NS1};{NS2}")
    async with running(subject), asyncio.timeout(60):
        await subject.wait_for_first_round(60_000)

        assert subject.links[NS1].is_up
        assert subject.links[NS2].failed_count == 1


async def test_a_failure_is_retried_with_everything(
    namesrvs: ScriptedNamesrvs, topics: Topics
) -> None:
    subject, link = registration(namesrvs, topics), Link(NS1)
    await subject.registrant.register(link)
    namesrvs.dead.add(NS1)
    topics.put(config("U"))

    assert not await subject.registrant.register(link)
    assert (link.is_up, link.failed_count, link.acknowledged) == (False, 1, None)
    namesrvs.dead.clear()
    assert await subject.registrant.register(link)

    assert namesrvs.topics_sent()[-1] == {"T", "U"}
    assert (link.is_up, link.failed_count) == (True, 0)


async def test_the_compressed_form_is_equivalent(
    namesrvs: ScriptedNamesrvs, topics: Topics
) -> None:
    subject = registration(namesrvs, topics, compressed_register=True)

    await subject.registrant.register(Link(NS1))

    header = namesrvs.requests[0].header
    assert isinstance(header, RegisterBroker)
    assert header.compressed
    sent = namesrvs.registrations()[0].topic_config_serialize_wrapper
    assert sent.topic_config_table == {"T": config("T")}
    assert sent.data_version == topics.version


@pytest.mark.parametrize("perm", [0, 2, 4])
async def test_a_missing_broker_permission_applies_to_all_topics(
    namesrvs: ScriptedNamesrvs, topics: Topics, perm: int
) -> None:
    subject = registration(namesrvs, topics, broker_permission=perm)

    await subject.registrant.register(Link(NS1))

    sent = namesrvs.registrations()[0].topic_config_serialize_wrapper
    assert sent.topic_config_table["T"].perm == perm
    assert topics.table["T"].perm == 6


@pytest.mark.parametrize(("may_create", "perm"), [(True, 7), (False, 6)])
async def test_the_default_topic_is_inherited_only_where_sends_create_topics(
    namesrvs: ScriptedNamesrvs, topics: Topics, may_create: bool, perm: int
) -> None:
    """A broker that once created topics keeps TBW102 in its file."""
    topics.put(msgspec.structs.replace(config("TBW102"), perm=7))
    subject = registration(namesrvs, topics, auto_create_topic_enable=may_create)

    await subject.registrant.register(Link(NS1))

    sent = namesrvs.registrations()[0].topic_config_serialize_wrapper.topic_config_table
    assert {name: one.perm for name, one in sent.items()} == {"T": 6, "TBW102": perm}
    assert topics.table["TBW102"].perm == 7


@pytest.mark.parametrize(("changed", "registered"), [("true", 1), ("false", 0)])
async def test_without_force_the_version_is_queried_first(
    namesrvs: ScriptedNamesrvs, topics: Topics, changed: str, registered: int
) -> None:
    namesrvs.answers[RequestCode.QUERY_DATA_VERSION] = Response(0, None, {"changed": changed}, b"")
    subject, link = registration(namesrvs, topics, force_register=False), Link(NS1)

    assert await subject.registrant.register(link)

    assert isinstance(namesrvs.requests[0].header, QueryDataVersion)
    assert msgspec.json.decode(namesrvs.requests[0].body) == {"timestamp": 5, "counter": 1}
    assert len(namesrvs.registrations()) == registered
    assert link.acknowledged == topics.version


async def test_an_answer_sets_master_and_ordered_topics(
    namesrvs: ScriptedNamesrvs, topics: Topics
) -> None:
    namesrvs.answers[RequestCode.REGISTER_BROKER] = Response(
        0,
        None,
        {"haServerAddr": "10.0.0.8:10912", "masterAddr": "10.0.0.8:10911"},
        b'{"table":{"T":"broker-a:4"}}',
    )
    subject = registration(namesrvs, topics)

    await subject.registrant.register(Link(NS1))

    assert subject.registrant.master_address == "10.0.0.8:10911"
    assert subject.registrant.master_ha_address == "10.0.0.8:10912"
    assert topics.table["T"].order


async def test_an_unreadable_answer_is_a_failure_of_that_name_server(
    namesrvs: ScriptedNamesrvs, topics: Topics
) -> None:
    namesrvs.answers[RequestCode.REGISTER_BROKER] = Response(0, None, {}, b"{nonsense")
    link = Link(NS1)

    assert not await registration(namesrvs, topics).registrant.register(link)

    assert link.failed_count == 1


async def test_leaving_unregisters_everywhere_and_nothing_follows(
    namesrvs: ScriptedNamesrvs, topics: Topics
) -> None:
    namesrvs_text = f"{NS1};{NS2}"
    subject = registration(namesrvs, topics, namesrvs_text)
    async with running(subject):
        await until(namesrvs, 2)
        namesrvs.dead.add(NS1)
        await subject.unregister()
        topics.put(config("U"))
        subject.notify()
        subject.connection_lost(NS2)
        await asyncio.sleep(0)

    last = namesrvs.requests[-1]
    assert (last.address, last.header) == (
        NS2,
        UnregisterBroker(
            broker_name="broker-a", broker_addr="10.0.0.9:10911", cluster_name="C", broker_id=0
        ),
    )
    assert len(namesrvs.requests) == 3


async def test_another_list_of_name_servers_is_followed_at_once(
    namesrvs: ScriptedNamesrvs, topics: Topics
) -> None:
    subject = registration(namesrvs, topics)
    async with running(subject):
        await until(namesrvs, 1)
        subject.use_addresses(NS2)
        await until(namesrvs, 2)

        assert set(subject.links) == {NS2}
    assert [request.address for request in namesrvs.requests] == [NS1, NS2]


@pytest.mark.parametrize(("asked", "used"), [(1_000, 10_000), (30_000, 30_000), (90_000, 60_000)])
def test_the_period_stays_within_rocketmqs_bounds(
    namesrvs: ScriptedNamesrvs, topics: Topics, asked: int, used: int
) -> None:
    subject = registration(namesrvs, topics, register_name_server_period=asked)

    assert subject.period_ms == used


def test_only_registrations_are_signed() -> None:
    settings = msgspec.structs.replace(BrokerSettings(), access_key="broker-1", secret_key="secret")
    (hook,) = registration_signing(settings)
    signed = {}
    for code in (*SIGNED, RequestCode.GET_BROKER_CLUSTER_INFO, RequestCode.GET_ALL_TOPIC_CONFIG):
        ext: dict[str, str] = {"brokerName": "broker-a"}
        hook(code, ext, b"body")
        signed[code] = Signer("secret").has_signed(ext, b"body") and ext["AccessKey"] == "broker-1"
    assert {code for code, is_signed in signed.items() if is_signed} == SIGNED
    assert registration_signing(BrokerSettings()) == ()
    with pytest.raises(SettingsError, match="accessKey and secretKey belong together"):
        registration_signing(msgspec.structs.replace(BrokerSettings(), access_key="broker-1"))
