# SPDX-License-Identifier: Apache-2.0
"""Tables that do not fit into one registration, at name servers that follow RocketMQ's rules."""

from typing import Any

import msgspec
import pytest

from cometmq.broker.registration.bodies import PART_BYTES, PART_BYTES_MIN, part_version
from cometmq.broker.registration.identity import Link
from cometmq.broker.registration.registration import Registration
from cometmq.broker.tables.topics import Topics
from cometmq.remoting.bodies.codec import REGISTER
from cometmq.remoting.bodies.dialect import decode_json
from cometmq.remoting.bodies.topic_config import DataVersion, TopicConfig, TopicConfigTable
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import Response
from cometmq.remoting.errors import CommandError, ConnectionLost
from cometmq.runtime.incremental import finish
from cometmq.testing.broker.logs import RecordingLog
from cometmq.testing.broker.namesrvs import NS1, NS2, ScriptedNamesrvs, config, registration

TOPIC_COUNT = 12_000


class JavaNamesrv:
    """Reads the topics of a registration only if its version is new, and bounds a frame's size."""

    def __init__(self, frame_bytes_max: int = 16 << 20) -> None:
        self.frame_bytes_max = frame_bytes_max
        self.version: DataVersion | None = None
        self.topics: dict[str, TopicConfig] = {}
        self.sizes: list[int] = []

    def restart(self) -> None:
        self.version = None
        self.topics.clear()

    async def invoke(
        self, address: str, code: int, header: Any = None, body: bytes = b"", *, timeout_ms: int
    ) -> Response:
        assert timeout_ms > 0
        if len(body) > self.frame_bytes_max:
            raise ConnectionLost(address)
        self.sizes.append(len(body))
        if code == RequestCode.QUERY_DATA_VERSION:
            is_same = decode_json(DataVersion, body) == self.version
            return Response(0, None, {"changed": str(not is_same).lower()}, b"")
        table = REGISTER.decode(body).topic_config_serialize_wrapper
        if table.data_version != self.version:
            self.topics |= table.topic_config_table
        self.version = table.data_version
        return Response(0, None, {}, b"")

    def disconnect(self, address: str, reason: str = "") -> None:
        del address, reason


@pytest.fixture(scope="module")
def table() -> TopicConfigTable:
    names = [f"{'g' * 100}-{number}" for number in range(TOPIC_COUNT)]
    return TopicConfigTable(DataVersion(7, 1_000), {name: config(name) for name in names})


@pytest.fixture
def large(table: TopicConfigTable) -> Topics:
    topics = Topics(clock_ms=lambda: 1_005)
    finish(topics.becoming([table.topic_config_table], table.data_version))
    return topics


def registered_with(namesrv: JavaNamesrv, topics: Topics, **changes: Any) -> Registration:
    return registration(namesrv, topics, **changes)  # type: ignore[arg-type]  # a Connections


@pytest.mark.parametrize("compressed", [False, True])
async def test_a_large_table_is_registered_whole(large: Topics, *, compressed: bool) -> None:
    namesrv = JavaNamesrv()
    subject, link = registered_with(namesrv, large, compressed_register=compressed), Link(NS1)

    assert await subject.registrant.register(link)

    assert namesrv.topics.keys() == large.table.keys()
    assert namesrv.version == large.version
    assert len(namesrv.sizes) > 2
    assert max(namesrv.sizes) <= PART_BYTES


async def test_a_period_sends_no_part_again_unless_the_name_server_lacks_it(large: Topics) -> None:
    namesrv = JavaNamesrv()
    subject, link = registered_with(namesrv, large), Link(NS1)
    await subject.registrant.register(link)

    namesrv.sizes.clear()
    assert await subject.registrant.register(link)
    assert sum(namesrv.sizes) < 1_000

    namesrv.restart()
    assert await subject.registrant.register(link)
    assert namesrv.topics.keys() == large.table.keys()


async def test_a_change_of_a_large_table_sends_the_change(large: Topics) -> None:
    namesrv = JavaNamesrv()
    subject, link = registered_with(namesrv, large), Link(NS1)
    await subject.registrant.register(link)
    namesrv.sizes.clear()

    large.put(config("new"))
    assert await subject.registrant.register(link)

    assert "new" in namesrv.topics
    assert sum(namesrv.sizes) < 1_000


async def test_the_parts_shrink_to_what_a_name_server_accepts(large: Topics) -> None:
    namesrv = JavaNamesrv(frame_bytes_max=PART_BYTES_MIN + (32 << 10))
    subject, link = registered_with(namesrv, large), Link(NS1)
    attempts = 1
    while not await subject.registrant.register(link):
        attempts += 1
        assert attempts < 10
    assert namesrv.topics.keys() == large.table.keys()


async def test_an_interrupted_registration_is_repeated_whole(large: Topics) -> None:
    namesrv = JavaNamesrv()
    subject, link = registered_with(namesrv, large), Link(NS1)
    whole, namesrv.frame_bytes_max = namesrv.frame_bytes_max, PART_BYTES // 2
    await subject.registrant.register(link)
    namesrv.frame_bytes_max = whole
    large.put(config("meanwhile"))

    assert await subject.registrant.register(link)

    assert namesrv.topics.keys() == large.table.keys()
    assert namesrv.version == large.version


async def test_a_broker_that_nobody_lists_says_why(namesrvs: ScriptedNamesrvs) -> None:
    log = RecordingLog()
    topics = Topics(clock_ms=lambda: 5)
    subject = registration(namesrvs, topics, f"{NS1};{NS2}", log=log)
    first, second = Link(NS1), Link(NS2)
    subject.links = {NS1: first, NS2: second}
    assert subject.route_fault is None, "not tried yet"
    namesrvs.refusing[NS1] = CommandError(1, "too many topics")
    namesrvs.dead.add(NS2)

    await subject.attempt(first)
    await subject.attempt(second)
    assert subject.route_fault is not None
    assert f"{NS1}: " in subject.route_fault
    assert "too many topics" in subject.route_fault
    assert NS2 in subject.route_fault
    assert len(log.named("broker.unlisted")) == 1

    namesrvs.dead.clear()
    await subject.attempt(second)
    assert subject.route_fault is None
    assert subject.route_gap is not None
    assert NS1 in subject.route_gap
    assert NS2 not in subject.route_gap
    assert len(log.named("broker.listed")) == 1

    namesrvs.refusing.clear()
    await subject.attempt(first)
    assert (subject.route_fault, subject.route_gap) == (None, None)


def test_no_version_of_a_part_is_that_of_a_table(large: Topics) -> None:
    versions = {msgspec.structs.astuple(part_version(large.version, n)) for n in range(1, 100)}
    assert len(versions) == 99
    assert msgspec.structs.astuple(large.version) not in versions
