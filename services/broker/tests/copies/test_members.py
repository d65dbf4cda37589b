# SPDX-License-Identifier: Apache-2.0
import asyncio
import re
from pathlib import Path

import pytest

from cometmq.broker.copies.members import (
    MemberAddress,
    check_members,
    parse_members,
    record_of,
    timing_of,
)
from cometmq.broker.settings import BrokerSettings
from cometmq.ha.places.etcd import EtcdRecord
from cometmq.ha.places.file import FileRecord
from cometmq.remoting.errors import SettingsError
from cometmq.runtime.settings import load

GOOD = {
    "groupRecord": "file:/tmp/record",
    "groupMembers": "0=10.0.0.1:10911;1=10.0.0.2:10911/10999",
    "brokerId": "1",
    "minInSync": "2",
}


def settings(**changes: str) -> BrokerSettings:
    given = {**GOOD, **changes}
    return load(BrokerSettings, prefix="COMETMQ_TEST", env={}, cli=given).value


def test_members_listen_on_the_next_port_unless_they_say_otherwise():
    assert parse_members("0=10.0.0.1:10911; 7=[::1]:10911/10999;") == {
        0: MemberAddress("10.0.0.1:10911", "10.0.0.1:10912"),
        7: MemberAddress("[::1]:10911", "[::1]:10999"),
    }


@pytest.mark.parametrize(
    "text", ["10.0.0.1:10911", "0=10.0.0.1", "-1=h:1", "0=h:1/x", "0=h:65535", "x=h:1", "0="]
)
def test_a_member_that_cannot_be_read_is_named(text):
    with pytest.raises(SettingsError, match=r"groupMembers: .* is not brokerId=HOST:LISTENPORT"):
        parse_members(text)


def test_a_broker_is_listed_once():
    with pytest.raises(SettingsError, match="names broker 3 twice"):
        parse_members("3=a:1;3=b:1")


def test_a_record_is_kept_in_a_file_or_in_etcd(tmp_path: Path):
    def kind(place):
        return type(record_of(settings(groupRecord=place)))

    assert kind(f"file:{tmp_path}/record") is FileRecord
    assert kind("etcd:a:2379,b:2379/groups/one") is EtcdRecord
    assert kind("etcd:https://a:2379/groups/one") is EtcdRecord


@pytest.mark.parametrize("place", ["file:relative", "etcd:a:2379", "etcd:a/key", "zk:a/b"])
def test_another_place_is_refused(place):
    with pytest.raises(SettingsError, match=f"groupRecord={place}: "):
        check_members(settings(groupRecord=place))


async def test_etcd_is_asked_as_the_user_of_the_settings():
    requests = []

    async def answer(reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = re.search(r"Content-Length: (\d+)", head)
        assert length is not None
        size = int(length[1])
        requests.append((head.split()[1], await reader.readexactly(size)))
        is_log_in = requests[-1][0].endswith("authenticate")
        body = b'{"token": "t"}' if is_log_in else b'{"header": {"revision": "7"}}'
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        place = f"etcd:127.0.0.1:{port}/groups/one"
        record = record_of(settings(groupRecord=place, etcdUser="broker", etcdPassword="secret"))
        assert await record.read() is None
        await record.close()
    assert [path for path, _ in requests] == ["/v3/auth/authenticate", "/v3/kv/range"]
    assert requests[0][1] == b'{"name":"broker","password":"secret"}'


def test_settings_that_agree_pass():
    check_members(settings())
    check_members(settings(groupMembers="0=a:1;1=b:1;2=c:1"))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"brokerRole": "SYNC_MASTER"}, "brokerRole=SYNC_MASTER sets a fixed role"),
        ({"brokerRole": "SLAVE"}, "brokerRole=SLAVE sets a fixed role"),
        ({"brokerId": "2"}, "brokerId=2 is not in groupMembers"),
        ({"groupMembers": ""}, "brokerId=1 is not in groupMembers"),
        ({"minInSync": "3"}, "minInSync=3 is more than the 2 copies"),
        ({"heardWithinMills": "6000"}, "heardWithinMills=6000 must be below"),
    ],
)
def test_settings_that_contradict_each_other_are_one_line(changes, text):
    with pytest.raises(SettingsError, match=text) as caught:
        check_members(settings(**changes))
    assert "\n" not in str(caught.value)


def test_the_lease_outlasts_the_renew_deadline():
    for deadline_ms in (500, 6_001, 600_000):
        timing = timing_of(settings(renewDeadlineMills=str(deadline_ms)))
        assert timing.lease_duration_ms >= 1.3 * timing.renew_deadline_ms
