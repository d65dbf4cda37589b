# SPDX-License-Identifier: Apache-2.0
"""Behaviour that the captured exchanges do not cover: refusals, versions, side effects."""

import json
from zlib import crc32

import msgspec
import pytest
import structlog
from structlog.testing import capture_logs

from cometmq.ha.proof import registration_proof
from cometmq.namesrv.group_keys import GroupKeys
from cometmq.remoting.bodies.topic_config import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigTable,
    encode_register_body,
)
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.commands.namesrv import RegisterBroker, UnregisterBroker
from cometmq.remoting.raw import RawCommand
from cometmq.runtime.incremental import finish
from cometmq.testing.remoting.frames import encode_frame

BROKER = {
    "brokerName": "broker-a",
    "brokerAddr": "127.0.0.1:1",
    "clusterName": "C",
    "haServerAddr": "127.0.0.1:2",
    "brokerId": "0",
}


async def ask(link, code, ext=None, body=b"", **header):
    frame = encode_frame(RawCommand(code=code, ext=ext or {}, body=body, opaque=7, **header))
    answers = await link.exchange(frame)
    assert len(answers) == 1
    return answers[0]


def topics(*names, version=1):
    table = {name: TopicConfig(topic_name=name, topic_sys_flag=2) for name in names}
    return RegisterBrokerBody([], TopicConfigTable(DataVersion(version, 0), table))


async def register(link, *names, version=1, **changes):
    body = encode_register_body(topics(*names, version=version), compressed=False)
    return await ask(link, 103, BROKER | changes, body)


async def test_a_broker_that_takes_the_name_and_id_of_a_live_one_is_logged(link, namesrv):
    namesrv.log = structlog.get_logger()
    slave = {"brokerId": "1", "brokerAddr": "127.0.0.1:5"}
    namesake = {"brokerAddr": "127.0.0.1:9"}
    with capture_logs() as logs:
        for changes in ({}, {}, slave, namesake, namesake):
            await register(link, "T", **changes)
        await ask(link, 104, BROKER | namesake)
        await register(link, "T")  # the name is free
    warnings = [entry for entry in logs if entry["log_level"] == "warning"]
    assert [entry["event"] for entry in warnings] == ["broker.address_replaced"]
    assert (warnings[0]["address"], warnings[0]["replaced"]) == ("127.0.0.1:9", "127.0.0.1:1")


async def test_a_deposed_master_is_refused_and_a_broker_without_epochs_is_not(link, namesrv):
    namesrv.log = structlog.get_logger()
    successor = {"brokerAddr": "127.0.0.1:9", "groupEpoch": "5"}
    with capture_logs() as logs:
        await register(link, "T", groupEpoch="4")
        header, _ = await register(link, "T", **successor)
        assert header.code == ResponseCode.SUCCESS
        header, _ = await register(link, "T", groupEpoch="4")
    assert (header.code, header.remark) == (
        ResponseCode.SYSTEM_ERROR,
        "stale epoch: 127.0.0.1:1 registers in epoch 4, but the group broker-a is in epoch 5",
    )
    (event,) = [entry for entry in logs if entry["event"] == "broker.deposed"]
    assert (event["epoch"], event["group_epoch"]) == (4, 5)
    assert [entry for entry in logs if entry["log_level"] != "info"] == []
    with capture_logs() as logs:
        for _ in range(3):
            await register(link, "T", groupEpoch="4")
    stale = [entry for entry in logs if entry["event"] == "broker.stale"]
    assert [entry["log_level"] for entry in stale] == ["warning"]  # it does not notice
    assert finish(namesrv.routes.routing("T")).broker_datas[0].broker_addrs == {0: "127.0.0.1:9"}
    header, _ = await register(link, "T")  # RocketMQ's brokers send no epoch
    assert header.code == ResponseCode.SUCCESS
    assert finish(namesrv.routes.routing("T")).broker_datas[0].broker_addrs == {0: "127.0.0.1:1"}


@pytest.mark.parametrize("serialization", [0, 1])
async def test_unknown_codes_are_answered(link, serialization):
    header, _ = await ask(link, 999, serialization=serialization)
    assert (header.code, header.opaque) == (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, 7)
    assert header.remark == " request type 999 not supported"


async def test_a_missing_field_is_named_and_the_connection_stays(link):
    header, _ = await ask(link, 105)
    assert header.code == ResponseCode.SYSTEM_ERROR
    assert "topic" in header.remark
    assert (await ask(link, 106))[0].code == 0


async def test_a_registration_with_a_wrong_checksum_is_refused(link, namesrv):
    body = encode_register_body(topics("T"), compressed=False)
    wrong = str((crc32(body) & 0x7FFFFFFF) ^ 1)
    header, _ = await ask(link, 103, BROKER | {"bodyCrc32": wrong}, body)
    assert (header.code, header.remark) == (1, "crc32 not match")
    assert finish(namesrv.routes.topics.selecting()) == []
    right = str(crc32(body) & 0x7FFFFFFF)
    assert (await ask(link, 103, BROKER | {"bodyCrc32": right}, body))[0].code == 0
    assert finish(namesrv.routes.topics.selecting()) == ["T"]


async def test_a_compressed_registration_is_read(link, namesrv):
    body = encode_register_body(topics("T", "U"), compressed=True)
    assert (await ask(link, 103, BROKER | {"compressed": "true"}, body))[0].code == 0
    assert finish(namesrv.routes.topics.selecting()) == ["T", "U"]


async def test_a_stranger_cannot_lock_out_a_master_with_an_epoch(link, namesrv, clock):
    stranger = {"brokerAddr": "6.6.6.6:1", "groupEpoch": str(2**62)}
    await register(link, "T", groupEpoch="5")
    header, _ = await register(link, "T", **stranger)
    assert header.remark.startswith("stale epoch: 6.6.6.6:1 registers in epoch 4611686018427387904")
    assert finish(namesrv.routes.routing("T")).broker_datas[0].broker_addrs == {0: "127.0.0.1:1"}
    # a stranger that is there before the group
    later = {"brokerName": "broker-b"}
    assert (await register(link, "U", **later, **stranger))[0].code == 0
    namesrv.log = structlog.get_logger()
    with capture_logs() as logs:
        for _ in range(20):
            header, _ = await register(link, "U", **later, groupEpoch="5", version=2)
            clock.advance(750)
    assert header.code == 0
    assert finish(namesrv.routes.routing("U")).broker_datas[0].broker_addrs == {0: "127.0.0.1:1"}
    contested = [entry for entry in logs if entry["event"] == "epoch.contested"]
    assert [entry["broker_name"] for entry in contested] == ["broker-b"]


KEYS = (b"k" * 32, b"o" * 32)


def proven(key=KEYS[0], *, body=b"", leaves=False, **changes):
    """Return the header of a registration, or of a deregistration, with its proof."""
    ext = BROKER | {"groupEpoch": "5"} | changes
    kind: type[RegisterBroker | UnregisterBroker] = UnregisterBroker if leaves else RegisterBroker
    header = msgspec.convert(ext, kind, strict=False)
    return ext | {"groupProof": registration_proof((key,), header, body) or ""}


@pytest.fixture(params=["a file", "a folder"])
def keyed(request, namesrv, tmp_path):
    """Return a name server that has the keys of the group, for all groups or for this one."""
    path = tmp_path / "keys"
    if request.param == "a folder":
        path.mkdir()
        (path / "..data").mkdir()
        (path / "broker-a").write_bytes(b"\n".join(KEYS) + b"\n")
    else:
        path.write_bytes(b"\n".join(KEYS) + b"\n")
    namesrv.group_keys = GroupKeys(str(path))
    return namesrv


async def test_with_a_key_only_members_register_and_leave(link, keyed):
    body = encode_register_body(topics("T"), compressed=False)
    wrong = b"w" * 32
    header, _ = await ask(link, 103, BROKER | {"groupEpoch": "9"}, body)
    assert (header.code, "127.0.0.1:1 sends none" in header.remark) == (16, True)
    for ext in (proven(wrong, body=body), proven(body=b"another"), proven() | {"groupProof": "x"}):
        header, _ = await ask(link, 103, ext, body)
        assert (header.code, "sends one with another key" in header.remark) == (16, True)
    assert not keyed.routes.live_brokers()
    for key in KEYS:
        assert (await ask(link, 103, proven(key, body=body), body))[0].code == 0
    for changes in ({"brokerAddr": "6.6.6.6:1"}, {"brokerId": "1"}, {"groupEpoch": "6"}):
        assert (await ask(link, 103, proven(body=body) | changes, body))[0].code == 16
    assert (await register(link, "T", brokerAddr="6.6.6.6:1"))[0].code == 16  # without an epoch
    assert (await ask(link, 104, BROKER))[0].code == 16
    assert (await ask(link, 104, proven()))[0].code == 16  # a registration is not a leave
    assert list(keyed.routes.live_brokers()) == ["127.0.0.1:1"]
    assert (await ask(link, 104, proven(leaves=True)))[0].code == 0
    assert not keyed.routes.live_brokers()


async def test_brokers_of_other_groups_register_without_a_proof(link, keyed):
    other = {"brokerName": "broker-b", "brokerAddr": "127.0.0.1:7"}
    assert (await register(link, "T", **other))[0].code == 0


def test_changed_keys_are_read_again(tmp_path):
    (tmp_path / "g").write_bytes(KEYS[0] + b"\n")
    keys = GroupKeys(str(tmp_path))
    (tmp_path / "g").write_bytes(KEYS[1] + b"\n" + KEYS[0] + b"\n")
    (tmp_path / "h").write_bytes(KEYS[1] + b"\n")
    (tmp_path / "half").write_bytes(b"short")
    assert [keys.refresh(), keys.refresh()] == [[], []]
    assert (keys.of("g"), keys.of("h"), keys.of("half")) == (KEYS[::-1], KEYS[1:], ())
    (tmp_path / "g").write_bytes(b"short\n")
    assert keys.refresh() == []
    (fault,) = keys.refresh()
    assert f"groupKeyFile={tmp_path}/g: the key in line 1 has 5 bytes" in fault
    (tmp_path / "h").unlink()
    keys.refresh()
    assert (keys.of("g"), keys.of("h")) == (KEYS[::-1], ())
    assert GroupKeys().refresh() == []


@pytest.mark.parametrize(
    ("ext", "body"),
    [
        ({}, b"{"),
        ({}, b"[1]"),
        ({"compressed": "true"}, b"no zlib"),
        ({}, b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":7}}}'),
        ({}, b"[" * 100_000),
    ],
)
async def test_a_broken_registration_is_refused_and_changes_nothing(link, namesrv, ext, body):
    header, _ = await ask(link, 103, BROKER | ext, body)
    assert header.code == ResponseCode.SYSTEM_ERROR
    assert not namesrv.routes.live_brokers()
    assert (await ask(link, 106))[0].code == 0


async def test_a_registration_without_a_body_keeps_the_broker_alive(link, namesrv):
    assert (await ask(link, 103, BROKER))[0].code == 0
    assert list(namesrv.routes.live_brokers()) == ["127.0.0.1:1"]


async def test_the_connection_that_registered_last_is_the_live_one(link, namesrv):
    await register(link, "T")
    assert namesrv.routes.live_brokers()["127.0.0.1:1"].connection is link


async def test_a_broker_unregisters(link, namesrv):
    await register(link, "T")
    assert (await ask(link, 104, BROKER))[0].code == 0
    assert finish(namesrv.routes.topics.selecting()) == []


@pytest.mark.parametrize(
    ("version", "ext", "is_standard"),
    [
        (400, {}, False),
        (401, {}, True),
        (121, {"acceptStandardJsonOnly": "true"}, True),
        (479, {}, True),
    ],
)
async def test_broker_ids_are_quoted_for_clients_that_expect_json(link, version, ext, is_standard):
    await register(link, "T")
    _, body = await ask(link, 105, {"topic": "T"} | ext, version=version)
    assert (b'"brokerAddrs":{"0":"127.0.0.1:1"}' in body) is is_standard
    assert (b'"brokerAddrs":{0:"127.0.0.1:1"}' in body) is not is_standard


@pytest.mark.parametrize(("version", "has_it"), [(401, False), (409, False), (413, True)])
async def test_routes_of_clients_of_5_say_that_no_slave_acts_as_master(link, version, has_it):
    """rocketmq-client-rust 1.0.0, which says version 474, refuses a route without this member."""
    await register(link, "T")
    _, body = await ask(link, 105, {"topic": "T"}, version=version)
    (group,) = json.loads(body)["brokerDatas"]
    assert group.get("enableActingMaster") == (False if has_it else None)


async def test_ordered_topics_are_in_the_route_only_if_enabled(link, namesrv):
    await register(link, "T")
    ext = {"namespace": "ORDER_TOPIC_CONFIG", "key": "T", "value": "broker-a:4"}
    await ask(link, 100, ext)
    assert "orderTopicConf" not in json.loads((await ask(link, 105, {"topic": "T"}))[1])
    namesrv.settings = namesrv.settings.updated({"orderMessageEnable": "true"})
    route = json.loads((await ask(link, 105, {"topic": "T"}))[1])
    assert route["orderTopicConf"] == "broker-a:4"
    _, body = await register(link, "T")
    assert json.loads(body) == {"table": {"T": "broker-a:4"}}


async def test_values_are_saved_before_the_answer(link, files):
    await ask(link, 100, {"namespace": "N", "key": "k", "value": "v"})
    assert json.loads(files.saved["kvConfig.json"]) == {"configTable": {"N": {"k": "v"}}}
    await ask(link, 102, {"namespace": "N", "key": "k"})
    assert json.loads(files.saved["kvConfig.json"]) == {"configTable": {"N": {}}}


async def test_a_disk_error_is_answered(link, files):
    files.error = OSError(28, "No space left on device")
    header, _ = await ask(link, 100, {"namespace": "N", "key": "k", "value": "v"})
    assert header.code == ResponseCode.SYSTEM_ERROR
    assert header.remark.endswith("kvConfig.json: No space left on device")


async def test_settings_change_by_name_and_are_saved(link, namesrv, files):
    header, _ = await ask(link, 318, body=b"orderMessageEnable=true\nunknownKey=1\n")
    assert header.code == 0
    assert namesrv.settings.value.order_message_enable is True
    assert b"orderMessageEnable=true\n" in files.saved["namesrv.properties"]
    assert b"orderMessageEnable=true\n" in (await ask(link, 319))[1]


async def test_only_changed_keys_are_logged(link, namesrv, files):
    namesrv.log = structlog.get_logger()
    with capture_logs() as events:
        await ask(link, 318, body=b"unknownKey=1\n")
        assert not files.saved
        await ask(link, 318, body=b"orderMessageEnable=true\nclusterTest=false\nunknownKey=1\n")
        await ask(link, 318, body=b"orderMessageEnable=true\n")
    changes = [event for event in events if event["event"] == "settings.changed"]
    assert [event["keys"] for event in changes] == [["orderMessageEnable"]]


@pytest.mark.parametrize(
    ("body", "remark"),
    [
        (b"a=\\u1", "string2Properties error"),
        (b"a=\xff", "string2Properties error"),
        (b"listenPort=1", "listenPort cannot be changed while the program runs"),
        (b"kvConfigPath=/etc/passwd", "kvConfigPath cannot be changed while the program runs"),
        (b"orderMessageEnable=2", "orderMessageEnable=2: must be true or false"),
    ],
)
async def test_bad_settings_change_nothing(link, namesrv, files, body, remark):
    before = namesrv.settings
    header, _ = await ask(link, 318, body=body)
    assert (header.code, header.remark) == (ResponseCode.SYSTEM_ERROR, remark)
    assert namesrv.settings is before
    assert not files.saved


async def test_write_permission_comes_back_with_the_next_changed_registration(link):
    await register(link, "T")
    header, _ = await ask(link, 205, {"brokerName": "broker-a"})
    assert header.ext == {"wipeTopicCount": "1"}
    assert json.loads((await ask(link, 105, {"topic": "T"}))[1])["queueDatas"][0]["perm"] == 4
    await register(link, "T", version=2)
    assert json.loads((await ask(link, 105, {"topic": "T"}))[1])["queueDatas"][0]["perm"] == 6


async def test_a_version_query_keeps_an_unchanged_broker_alive(link, namesrv, clock):
    await register(link, "T", "U")
    clock.advance(100_000)
    header, body = await ask(link, 322, BROKER, b'{"counter":1,"timestamp":0}')
    assert (header.ext, json.loads(body)) == ({"changed": "false"}, {"counter": 1, "timestamp": 0})
    gone = namesrv.routes.expire(now_ms=clock.monotonic_ms() + 1, silence_ms_max=120_000)
    assert gone == []
    assert (await ask(link, 322, BROKER, b"{{"))[0].code == ResponseCode.SYSTEM_ERROR


async def test_a_topic_is_deleted_in_one_cluster(link, namesrv):
    await register(link, "T")
    await ask(link, 216, {"topic": "T", "clusterName": "other"})
    assert finish(namesrv.routes.topics.selecting()) == ["T"]
    await ask(link, 216, {"topic": "T", "clusterName": "C"})
    assert finish(namesrv.routes.topics.selecting()) == []
    assert (await ask(link, 105, {"topic": "T"}))[0].code == ResponseCode.TOPIC_NOT_EXIST
