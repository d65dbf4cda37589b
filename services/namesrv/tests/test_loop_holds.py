# SPDX-License-Identifier: Apache-2.0
"""No registration holds the loop for more than 20 ms, whatever it contains."""

import asyncio
import json
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import msgspec
import pytest

from cometmq.namesrv import admission
from cometmq.namesrv.app import expire
from cometmq.namesrv.broker_groups import BrokerId
from cometmq.namesrv.handlers import HANDLERS, brokers
from cometmq.namesrv.namesrv import Namesrv
from cometmq.namesrv.route_table import Registration
from cometmq.remoting.bodies.topic_config import DataVersion, TopicConfig
from cometmq.remoting.codes import RequestCode as Code
from cometmq.remoting.commands import COMMANDS
from cometmq.remoting.connection import Codec
from cometmq.remoting.errors import SystemBusy
from cometmq.remoting.header import decode_header
from cometmq.remoting.log import NO_LOG
from cometmq.remoting.names import ORDER_NAMESPACE
from cometmq.remoting.transport.dispatch import Dispatcher, Hooks
from cometmq.remoting.transport.hub import Hub
from cometmq.remoting.transport.protocol import PeerProtocol
from cometmq.remoting.transport.server_peer import ServerPeer
from cometmq.remoting.transport.settings import ServerSettings
from cometmq.runtime.incremental import finish
from cometmq.testing.broker.holds import HOLD_S_MAX, adjusted, longest_hold
from cometmq.testing.broker.scripted import PEER_ADDRESSES, Wire, frames_of
from cometmq.testing.broker.scripts import frame

ATTEMPTS = 8
CHUNK_BYTES = 256 << 10
COUNT = 90_000


class Port:
    """A name server's port without sockets."""

    def __init__(self, namesrv: Namesrv) -> None:
        settings = ServerSettings()
        self.hub = Hub(Codec(COMMANDS), settings, clock_ms=namesrv.clock.monotonic_ms, log=NO_LOG)

        def closed(peer: PeerProtocol) -> None:
            namesrv.routes.disconnected(peer)

        self.hub.on_close = closed
        namesrv.sweep_in(self.hub.tasks)
        self._dispatcher = Dispatcher(HANDLERS, namesrv, Hooks(), self.hub)
        self._count = 0

    def connect(self) -> tuple[ServerPeer, Wire]:
        self._count += 1
        peer, wire = ServerPeer(self.hub, self._dispatcher), Wire(self._count)
        peer.connection_made(cast("asyncio.Transport", wire))
        return peer, wire


def topic(number: int, **more: Any) -> tuple[str, dict[str, Any]]:
    name = f"topic-{number:06d}"
    return name, {
        "order": False, "perm": 6, "readQueueNums": 4, "topicFilterType": "SINGLE_TAG",
        "topicName": name, "topicSysFlag": 0, "writeQueueNums": 4, **more,
    }  # fmt: skip


def body(table: dict[str, Any], counter: int = 1, indent: int | None = None) -> bytes:
    version = {"counter": counter, "stateVersion": 0, "timestamp": 1}
    wrapper = {"dataVersion": version, "topicConfigTable": table}
    whole = {"filterServerList": [], "topicConfigSerializeWrapper": wrapper}
    if indent is not None:
        return json.dumps(whole, indent=indent).encode()
    return msgspec.json.encode(whole)


def compressed(count: int) -> bytes:
    version = b'{"counter":1,"stateVersion":0,"timestamp":1}'
    lines = [b"topic-%06d 4 4 6 SINGLE_TAG" % number for number in range(count)]
    parts = [version, None, *lines, b"[]"]
    data = b"".join(
        count.to_bytes(4, "big") if part is None else len(part).to_bytes(4, "big") + part
        for part in parts
    )
    return zlib.compress(data)


def plain() -> bytes:
    return body(dict(map(topic, range(COUNT))))


NESTED = {"attributes": {"a": {"b": "},"}, "c": {"d": "e"}}}


def huge() -> dict[str, Any]:
    return {"attributes": {f"k{number}": {"x": "},"} for number in range(500_000)}}


BODIES: dict[str, tuple[dict[str, str], Callable[[], bytes]]] = {
    "plain": ({}, plain),
    "nested": ({}, lambda: body(dict(topic(number, **NESTED) for number in range(60_000)))),
    "one huge value": ({}, lambda: body(dict([topic(1, **huge()), topic(2)]))),
    "one long text": ({}, lambda: body(dict([topic(1, x="\\" * 7_000_000), topic(2)]))),
    "with spaces": ({}, lambda: body(dict(map(topic, range(40_000))), indent=4)),
    "compressed": ({"compressed": "true"}, lambda: compressed(COUNT)),
    "not strict": ({}, lambda: plain().replace(b'"perm":6', b"perm:6")),
}  # fmt: skip


def registration(data: bytes, more: dict[str, str] | None = None, *, opaque: int = 1) -> bytes:
    ext = {
        "brokerName": "b", "brokerAddr": "10.0.0.1:10911", "clusterName": "C",
        "haServerAddr": "10.0.0.1:10912", "brokerId": "0", "compressed": "false",
        "bodyCrc32": str(zlib.crc32(data) & 0x7FFFFFFF), **(more or {}),
    }  # fmt: skip
    return frame(Code.REGISTER_BROKER, ext, data, opaque=opaque)


async def answers(wire: Wire, count: int) -> list[Any]:
    async with asyncio.timeout(30):
        while len(frames_of(bytes(wire.sent))) < count:  # noqa: ASYNC110  # no event
            await asyncio.sleep(0)
    return [decode_header(*found[:2]) for found in frames_of(bytes(wire.sent))]


@pytest.mark.load
@pytest.mark.parametrize("name", BODIES)
async def test_registrations_hold_the_loop_for_a_bounded_time(namesrv: Namesrv, name: str) -> None:
    more, make = BODIES[name]
    data = registration(make(), more)
    assert len(data) < 1 << 24
    port = Port(namesrv)
    holds = [HOLD_S_MAX]
    while holds[-1] >= HOLD_S_MAX:
        assert len(holds) <= ATTEMPTS, holds
        peer, wire = port.connect()
        with longest_hold() as held:
            for start in range(0, len(data), CHUNK_BYTES):
                chunk = data[start : start + CHUNK_BYTES]
                held.measure(partial(peer.data_received, chunk))
                await asyncio.sleep(0)
            (answer,) = await answers(wire, 1)
        assert answer.code in (0, 1)
        if answer.code == 0:
            assert finish(namesrv.routes.topics.selecting())
        holds.append(adjusted(held.longest_s))
        for known in finish(namesrv.routes.topics.selecting()):  # quickly, while it is not measured
            namesrv.routes.delete_topic(known)
        peer.connection_lost(None)


async def test_registrations_of_one_connection_keep_their_order(namesrv: Namesrv) -> None:
    peer, wire = Port(namesrv).connect()
    large = dict(map(topic, range(20_000)))
    small = {"last": topic(0, topicName="last", perm=4)[1]}
    heartbeat = frame(
        Code.QUERY_DATA_VERSION,
        {"brokerName": "b", "brokerAddr": "10.0.0.1:10911", "clusterName": "C", "brokerId": "0"},
        b'{"counter":3,"stateVersion":0,"timestamp":1}',
        opaque=3,
    )
    large["last"] = topic(0, topicName="last", perm=6)[1]
    peer.data_received(
        registration(body(large)) + registration(body(small, counter=3), opaque=2) + heartbeat
    )
    assert not wire.sent
    found = await answers(wire, 3)
    assert [answer.opaque for answer in found] == [1, 2, 3]
    assert found[2].ext["changed"] == "false"
    route = finish(namesrv.routes.routing("last"))
    assert route is not None
    assert route.queue_datas[0].perm == 4


async def test_a_connection_that_ends_leaves_no_broker(namesrv: Namesrv) -> None:
    port = Port(namesrv)
    data = registration(body(dict(map(topic, range(20_000)))))
    for turns in (1, 5, 10, 20, 30, 40, 50):
        peer, _ = port.connect()
        peer.data_received(data)
        for _ in range(turns):
            await asyncio.sleep(0)
        peer.connection_lost(None)
        while namesrv.reading_bytes:  # noqa: ASYNC110  # no event
            await asyncio.sleep(0)
        assert not namesrv.routes.live_brokers()
        assert finish(namesrv.routes.topics.selecting()) == []
        assert namesrv.routes.topics.entry_count == 0


TOPIC_COUNT = 150_000
GROUP_COUNT = 5_000
B = {"brokerName": "b1", "clusterName": "C", "brokerAddr": "10.0.0.1:10911", "brokerId": "0"}
PLAIN: tuple[dict[str, str], bytes] = ({}, b"")
REQUESTS: dict[int, tuple[dict[str, str], bytes]] = {
    Code.PUT_KV_CONFIG: ({"namespace": "NS", "key": "k", "value": "v"}, b""),
    Code.GET_KV_CONFIG: ({"namespace": "NS", "key": "k"}, b""),
    Code.DELETE_KV_CONFIG: ({"namespace": "NS", "key": "k"}, b""),
    Code.GET_KVLIST_BY_NAMESPACE: ({"namespace": "NS"}, b""),
    Code.QUERY_DATA_VERSION: (B, b'{"counter":3,"stateVersion":0,"timestamp":1}'),
    Code.GET_ROUTEINFO_BY_TOPIC: ({"topic": "shared"}, b""),
    Code.GET_BROKER_CLUSTER_INFO: ({}, b""),
    Code.WIPE_WRITE_PERM_OF_BROKER: ({"brokerName": "b1"}, b""),
    Code.ADD_WRITE_PERM_OF_BROKER: ({"brokerName": "b1"}, b""),
    Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: ({}, b""),
    Code.GET_TOPICS_BY_CLUSTER: ({"cluster": "C"}, b""),
    Code.GET_SYSTEM_TOPIC_LIST_FROM_NS: ({}, b""),
    Code.GET_UNIT_TOPIC_LIST: ({}, b""),
    Code.GET_HAS_UNIT_SUB_TOPIC_LIST: ({}, b""),
    Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: ({}, b""),
    Code.UPDATE_NAMESRV_CONFIG: ({}, b"orderMessageEnable=true"),
    Code.GET_NAMESRV_CONFIG: ({}, b""),
    Code.DELETE_TOPIC_IN_NAMESRV: ({"topic": "shared"}, b""),
    Code.REGISTER_BROKER: ({**B, "haServerAddr": "", "compressed": "false"}, body({}, 9)),
    Code.UNREGISTER_BROKER: (B, b""),  # the last: the others need the broker
}


def fill(namesrv: Namesrv, connection: Any) -> None:
    """Register two brokers with many topics, and many brokers that have one topic."""
    one = [TopicConfig(topic_name=f"topic-{number:06d}") for number in range(TOPIC_COUNT)]
    shared = [TopicConfig(topic_name="shared")]
    for number in range(GROUP_COUNT):
        address = f"10.0.{number // 250}.{number % 250}:10911"
        broker = BrokerId("C", f"b{number}", 0, address)
        topics = one if number in (1, 2) else shared
        work = Registration(broker, "", DataVersion(1, 1), topics, ())
        finish(namesrv.routes.registering(work, connection=connection, now_ms=0))
    for number in range(40_000):
        namesrv.kv_config.put("NS", f"key-{number}", "x" * 60)


@pytest.mark.load
async def test_no_request_holds_the_loop_whatever_the_tables_contain(namesrv: Namesrv) -> None:
    requests = {**{code: PLAIN for code in HANDLERS if code not in REQUESTS}, **REQUESTS}
    assert requests.keys() == HANDLERS.keys()
    port = Port(namesrv)
    peer, wire = port.connect()
    fill(namesrv, peer)
    longest: dict[int, list[float]] = {}
    for code, (ext, data) in requests.items():
        holds = longest[code] = []
        while not holds or (holds[-1] >= HOLD_S_MAX and len(holds) < ATTEMPTS):
            wire.sent.clear()
            with longest_hold() as held:
                held.measure(partial(peer.data_received, frame(code, ext, data)))
                while not wire.sent:  # noqa: ASYNC110  # no event
                    await asyncio.sleep(0)
                while namesrv.routes.topics.is_removed("b1"):  # noqa: ASYNC110  # no event
                    await asyncio.sleep(0)
            (answer,) = await answers(wire, 1)
            assert answer.code == 0, (code, answer.remark)
            holds.append(adjusted(held.longest_s))
            if code == Code.UNREGISTER_BROKER:
                assert namesrv.routes.topics.count_of("b1") == 0
    assert {code: holds for code, holds in longest.items() if min(holds) >= HOLD_S_MAX} == {}


async def test_a_long_answer_whose_turn_does_not_come_is_refused(
    namesrv: Namesrv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "WAIT_S_MAX", 0.05)
    peer, wire = Port(namesrv).connect()
    fill(namesrv, peer)
    peer.data_received(frame(Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {}) * 200)
    found = await answers(wire, 200)
    refused = [answer.remark for answer in found if answer.code == SystemBusy.CODE]
    assert 100 < len(refused) < 200
    assert str(refused[-1]).startswith("[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control")


async def test_a_registration_whose_turn_does_not_come_is_refused(
    namesrv: Namesrv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(brokers, "REGISTRATION_WAIT_S_MAX", 0.05)
    port, data = Port(namesrv), registration(body(dict(map(topic, range(20_000)))))
    wires = []
    for _ in range(len(PEER_ADDRESSES) * 10):  # fewer bytes than each address may have
        peer, wire = port.connect()
        wires.append(wire)
        peer.data_received(data)
    found = [(await answers(wire, 1))[0] for wire in wires]
    refused = [str(it.remark) for it in found if it.code == SystemBusy.CODE]
    assert len(found) - 10 < len(refused) < len(found)
    assert "start flow control for a while" in refused[-1]
    assert namesrv.reading_bytes == 0
    peer, wire = port.connect()
    peer.data_received(data)
    assert (await answers(wire, 1))[0].code == 0


async def test_a_removed_broker_may_return_before_its_topics_are_swept(namesrv: Namesrv) -> None:
    port = Port(namesrv)
    peer, wire = port.connect()
    fill(namesrv, peer)
    back = {"new": topic(1, topicName="new")[1]}
    peer.data_received(frame(Code.UNREGISTER_BROKER, B))
    again, wire = port.connect()
    again.data_received(registration(body(back, 2), B))
    assert namesrv.routes.topics.is_removed("b1")
    assert namesrv.routes.topics.of("topic-000001").keys() == {"b2"}
    (answer,) = await answers(wire, 1)
    assert answer.code == 0
    assert not namesrv.routes.topics.is_removed("b1")
    assert namesrv.routes.topics.count_of("b1") == 1
    assert finish(namesrv.routes.topics.selecting(lambda queues: "b1" in queues)) == ["new"]
    for _ in range(TOPIC_COUNT // 5_000):  # until the task has ended, which was started first
        await asyncio.sleep(0)
    assert finish(namesrv.routes.topics.selecting(lambda queues: "b1" in queues)) == ["new"]


@pytest.mark.load
@pytest.mark.parametrize("text", ["x" * 60, '"' * 40, "\x01" * 60_000])
async def test_key_values_at_their_limit_hold_the_loop_for_a_bounded_time(
    namesrv: Namesrv, text: str
) -> None:
    settings, kv_config = namesrv.settings.value, namesrv.kv_config
    while kv_config.growth(ORDER_NAMESPACE, key := f"k{kv_config.count}", text) + kv_config.size < (
        settings.kv_bytes_max
    ):
        kv_config.put(ORDER_NAMESPACE, key, text)
    requests = [
        frame(Code.GET_KVLIST_BY_NAMESPACE, {"namespace": ORDER_NAMESPACE}),
        frame(Code.DELETE_KV_CONFIG, {"namespace": ORDER_NAMESPACE, "key": "no"}),
        registration(body({})),
    ]
    peer, wire = Port(namesrv).connect()
    for data in requests:
        holds: list[float] = []
        while not holds or holds[-1] >= HOLD_S_MAX:
            assert len(holds) < ATTEMPTS, holds
            wire.sent.clear()
            with longest_hold() as held:
                held.measure(partial(peer.data_received, data))
                (answer,) = await answers(wire, 1)
            assert answer.code == 0, answer.remark
            holds.append(adjusted(held.longest_s))


def fill_clusters(namesrv: Namesrv, connection: Any, count: int, first: int = 0) -> None:
    """Register brokers, each in a cluster of its own, that share a topic."""
    for number in range(first, first + count):
        broker = BrokerId(f"C{number}", f"b{number}", 0, f"10.1.{number >> 8}.{number & 255}:1")
        shared = [TopicConfig(topic_name="shared")]
        work = Registration(broker, "", DataVersion(1, 1), shared, ())
        finish(namesrv.routes.registering(work, connection=connection, now_ms=0))


@pytest.mark.load
async def test_a_connection_that_ends_with_many_brokers_holds_the_loop_briefly(
    namesrv: Namesrv,
) -> None:
    port = Port(namesrv)
    others, _ = port.connect()
    topics = [TopicConfig(topic_name=f"topic-{number}") for number in range(4_900)]
    one = Registration(BrokerId("C", "b", 0, "10.0.0.1:1"), "", DataVersion(1, 1), topics, ())
    finish(namesrv.routes.registering(one, connection=others, now_ms=0))
    fill_clusters(namesrv, others, 4_900, first=100)
    holds = [HOLD_S_MAX]
    while holds[-1] >= HOLD_S_MAX:
        assert len(holds) <= ATTEMPTS, holds
        peer, _ = port.connect()
        fill_clusters(namesrv, peer, namesrv.settings.value.connection_brokers_max)
        with longest_hold() as held:
            held.measure(partial(peer.connection_lost, None))
            while namesrv.routes.topics.is_removed("b1"):  # noqa: ASYNC110  # no event
                await asyncio.sleep(0)
        holds.append(adjusted(held.longest_s))
        assert len(namesrv.routes.live_brokers()) == 4_901


@pytest.mark.load
async def test_brokers_that_expire_together_hold_the_loop_briefly(namesrv: Namesrv) -> None:
    holds = [HOLD_S_MAX]
    port = Port(namesrv)
    silence_ms = namesrv.settings.value.broker_expire_ms
    while holds[-1] >= HOLD_S_MAX:
        assert len(holds) <= ATTEMPTS, holds
        peer, _ = port.connect()
        fill_clusters(namesrv, peer, 5_000)
        for live in namesrv.routes.live_brokers().values():
            live.updated_ms = namesrv.clock.monotonic_ms() - silence_ms - 1
        with longest_hold() as held:
            held.measure(partial(expire, namesrv))
            while namesrv.routes.live_brokers():  # noqa: ASYNC110  # no event
                await asyncio.sleep(0)
        holds.append(adjusted(held.longest_s))
    assert namesrv.routes.groups.cluster_count == 0
