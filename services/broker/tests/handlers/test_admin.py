# SPDX-License-Identifier: Apache-2.0

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cometmq.broker.clients.producers import Client
from cometmq.broker.copies.state import Slave
from cometmq.broker.handlers import admin
from cometmq.broker.handlers.runtime_info import OWN_KEYS, duration_text, size_text
from cometmq.broker.settings.file import SettingsFile
from cometmq.remoting.bodies.connections import Connection, ConsumerConnections, ProducerConnections
from cometmq.remoting.bodies.dialect import decode_json, encode_json
from cometmq.remoting.bodies.heartbeat import ConsumerData
from cometmq.remoting.bodies.kv import KVTable
from cometmq.remoting.bodies.offsets import ConsumerOffsetTable, DelayOffsetTable
from cometmq.remoting.bodies.settings import BrokerSetting, BrokerSettingsList
from cometmq.remoting.command import Call
from cometmq.remoting.commands.table import NoHeader
from cometmq.remoting.types import Language
from cometmq.runtime import properties
from cometmq.runtime.version import VERSION
from cometmq.runtime.worker import Worker
from cometmq.testing.broker import FakePeer, MemoryStore, expected_answer, memory_broker, replay
from cometmq.testing.broker.logs import RecordingLog
from cometmq.testing.broker.replay import Answer, answered_exchanges, name_of, serve
from cometmq.testing.remoting.golden import Exchange

GOLDEN = Path(__file__).parents[4] / "tests" / "golden"


def config_change(text: str) -> Call[NoHeader]:
    return Call(25, NoHeader(), body=text.encode(), peer=FakePeer())


def client_of(one: Connection) -> Client:
    language = int(Language[one.language])
    return Client(FakePeer(one.client_addr), one.client_id, language, one.version, seen_ms=0)


def assert_same(answer: Answer, expected: Answer) -> None:
    assert (answer.code, answer.remark, answer.ext) == (
        expected.code,
        expected.remark,
        expected.ext,
    )
    if expected.code == 0:
        assert json.loads(answer.body) == json.loads(expected.body)


@pytest.mark.parametrize("exchange", answered_exchanges(GOLDEN, "025-*"), ids=name_of)
async def test_captured_changes_of_settings(exchange: Exchange) -> None:
    broker = memory_broker()

    answer = await replay(broker, exchange, admin.update_broker_config)

    assert answer == expected_answer(exchange)
    now = properties.parse(broker.config.loaded.as_properties())
    for name, value in properties.parse(exchange.request.body_text or "").items():
        assert now.get(name, value) == value


@pytest.mark.parametrize("exchange", answered_exchanges(GOLDEN, "026-*"), ids=name_of)
async def test_captured_settings(exchange: Exchange) -> None:
    """Settings that the captured files leave at their defaults have the same values in both
    brokers.
    """
    broker = memory_broker()
    expected = expected_answer(exchange)

    answer = await replay(broker, exchange, admin.get_broker_config)

    assert (answer.code, answer.remark) == (0, None)
    assert answer.ext.keys() == expected.ext.keys()
    version, expected_version = (json.loads(one.ext["version"]) for one in (answer, expected))
    assert version.keys() == expected_version.keys()
    ours = properties.parse(answer.body.decode())
    java = properties.parse(expected.body.decode())
    assert java.keys() & ours.keys() >= {
        "brokerName", "brokerPermission", "flushDiskType", "deleteWhen", "messageDelayLevel"
    }  # fmt: skip
    for name in ("defaultTopicQueueNums", "messageDelayLevel", "fileReservedTime"):
        assert ours[name] == java[name]


def test_settings_have_defaults_and_sources_and_secrets_are_masked() -> None:
    broker = memory_broker(fileReservedTime="48", secretKey="hush", accessKey="inner")

    reply: Any = admin.get_broker_settings(broker, config_change(""))

    found = {it.name: it for it in decode_json(BrokerSettingsList, reply.body).settings}
    assert found["fileReservedTime"] == BrokerSetting(
        "fileReservedTime", "48", "72", "command line --file-reserved-time"
    )
    assert found["secretKey"].value == "******"
    assert found["flushDiskType"].source == "default"
    assert found["brokerName"].default is None
    assert b"hush" not in reply.body


@pytest.fixture
def store_folder(tmp_path: Path) -> str:
    (tmp_path / "commitlog").mkdir()
    return str(tmp_path)


@pytest.mark.parametrize(
    "exchange",
    [one for one in answered_exchanges(GOLDEN, "028-*") if expected_answer(one).code == 0],
    ids=name_of,
)
async def test_captured_runtime_figures(exchange: Exchange, store_folder: str) -> None:
    broker = memory_broker(storePathRootDir=store_folder)

    answer = await replay(broker, exchange, admin.get_broker_runtime_info)

    java = decode_json(KVTable, expected_answer(exchange).body).table
    ours = decode_json(KVTable, answer.body).table
    missing = {name for name in java.keys() - ours.keys() if "/" not in name and "_" not in name}
    assert missing == set()
    own = {name for name in ours.keys() - java.keys() if "/" not in name}
    assert own <= OWN_KEYS.keys()
    assert len(ours["putTps"].split(" ")) == 3
    assert ours["getTransferredTps"] == ours["getTransferedTps"]  # the names of 5.x and 4.9.4
    assert ours["brokerActive"] == "true"
    assert ours["brokerVersion"] == java["brokerVersion"]
    assert ours["brokerVersionDesc"] == java["brokerVersionDesc"]
    assert ours["cometmqVersion"] == VERSION  # two releases can speak the same protocol


@pytest.mark.parametrize("exchange", answered_exchanges(GOLDEN, "043-*"), ids=name_of)
async def test_captured_consumer_offsets(exchange: Exchange) -> None:
    broker = memory_broker()
    expected = expected_answer(exchange)
    table = broker.tables.offsets.table = decode_json(
        ConsumerOffsetTable, expected.body
    ).offset_table

    answer = await replay(broker, exchange, admin.get_all_consumer_offset)

    assert (answer.code, answer.ext) == (0, {})
    assert answer.body == encode_json(ConsumerOffsetTable(table))
    assert decode_json(ConsumerOffsetTable, answer.body) == decode_json(
        ConsumerOffsetTable, expected.body
    )


@pytest.mark.parametrize("exchange", answered_exchanges(GOLDEN, "045-*"), ids=name_of)
async def test_captured_delay_offsets(exchange: Exchange) -> None:
    broker = memory_broker()
    expected = expected_answer(exchange)
    for level, offset in decode_json(DelayOffsetTable, expected.body).offset_table.items():
        broker.deferred.delays.positions.offsets()[level] = offset  # type: ignore[index]  # MemoryPositions

    answer = await replay(broker, exchange, admin.get_all_delay_offset)

    assert (answer.code, answer.ext) == (0, {})
    assert decode_json(DelayOffsetTable, answer.body) == decode_json(
        DelayOffsetTable, expected.body
    )


@pytest.mark.parametrize("exchange", answered_exchanges(GOLDEN, "203-*"), ids=name_of)
async def test_captured_members_of_groups(exchange: Exchange) -> None:
    broker = memory_broker()
    expected = expected_answer(exchange)
    if expected.code == 0:
        wanted = decode_json(ConsumerConnections, expected.body)
        data = ConsumerData(
            consume_from_where=wanted.consume_from_where,
            consume_type=wanted.consume_type,
            group_name=exchange.request.ext["consumerGroup"],
            message_model=wanted.message_model,
            subscription_data_set=list(wanted.subscription_table.values()),
        )
        for one in wanted.connection_set:
            broker.clients.consumers.register(data, client_of(one))

    answer = await replay(broker, exchange, admin.get_consumer_connection_list)

    assert_same(answer, expected)


@pytest.mark.parametrize("exchange", answered_exchanges(GOLDEN, "204-*"), ids=name_of)
async def test_captured_members_of_producer_groups(exchange: Exchange) -> None:
    broker = memory_broker()
    expected = expected_answer(exchange)
    if expected.code == 0:
        for one in decode_json(ProducerConnections, expected.body).connection_set:
            broker.clients.producers.register(exchange.request.ext["producerGroup"], client_of(one))

    answer = await replay(broker, exchange, admin.get_producer_connection_list)

    assert_same(answer, expected)


async def test_a_change_is_kept_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("# mine\nbrokerPermission=6\n")
    store, worker = MemoryStore(), Worker("settings")
    broker = memory_broker(store)
    broker.config.file = SettingsFile(path, worker)
    version = broker.tables.topics.version

    answer = await serve(
        broker, config_change("brokerPermission=4\nnoSuchKey=1\n"), admin.update_broker_config
    )
    worker.close()

    assert answer.code == 0
    assert path.read_text() == "# mine\nbrokerPermission=4\n"
    assert broker.settings.broker_permission == 4
    assert store.settings is broker.settings
    assert broker.config.version.counter == 1
    assert broker.tables.topics.version.counter == version.counter + 1
    assert broker.tables.topics.changes(version) == broker.tables.topics.table


async def test_a_change_without_effect_is_logged_with_the_reason() -> None:
    log = RecordingLog()
    broker = memory_broker()
    broker.log = log
    text = "transactionCheckMax=5\nbrokerPermission=4\n"
    await serve(broker, config_change(text), admin.update_broker_config)
    (event,) = log.named("settings.ineffective")
    reasons = event["settings"]
    assert isinstance(reasons, dict)
    assert reasons.keys() == {"transactionCheckMax"}
    await serve(broker, config_change("brokerPermission=6\n"), admin.update_broker_config)
    assert log.named("settings.ineffective") == [event]


async def test_a_change_of_automatic_topics_is_registered_at_once() -> None:
    broker = memory_broker()
    version = broker.tables.topics.version

    await serve(broker, config_change("autoCreateTopicEnable=false\n"), admin.update_broker_config)

    assert broker.settings.auto_create_topic_enable is False
    assert broker.tables.topics.changes(version) == broker.tables.topics.table


@pytest.mark.parametrize(
    ("text", "remark"),
    [
        ("storePathRootDir=/etc\n", "storePathRootDir cannot be changed"),
        ("brokerName=x\nbrokerPermission=4\n", "brokerName cannot be changed"),
        ("brokerPermission=9\n", "brokerPermission=9"),
        ("brokerPermission=\\u00\n", "string2Properties error"),
        ("namesrvAddr=host:port\n", "namesrvAddr="),
    ],
)
async def test_a_refused_change_changes_nothing(text: str, remark: str) -> None:
    broker = memory_broker()
    before = broker.settings

    answer = await serve(broker, config_change(text), admin.update_broker_config)

    assert answer.code == 1
    assert remark in (answer.remark or "")
    assert broker.settings is before
    assert broker.config.version.counter == 0


async def test_setting_equal_values_is_no_change() -> None:
    broker = memory_broker()
    text = broker.config.loaded.as_properties()

    answer = await serve(broker, config_change(text), admin.update_broker_config)

    assert answer.code == 0
    assert broker.config.version.counter == 0


async def test_a_file_that_cannot_be_written_is_an_answer(tmp_path: Path) -> None:
    broker, worker = memory_broker(), Worker("settings")
    folder = tmp_path / "broker.conf"
    folder.mkdir()
    broker.config.file = SettingsFile(folder, worker)

    answer = await serve(broker, config_change("brokerPermission=4"), admin.update_broker_config)
    worker.close()

    assert answer.code == 1
    assert (answer.remark or "").startswith(f"cannot save {folder}")
    assert broker.settings.broker_permission == 6


async def test_orders_of_the_operator_apply_although_a_pods_file_is_read_only(
    tmp_path: Path,
) -> None:
    broker, worker = memory_broker(), Worker("settings")
    folder = tmp_path / "broker.conf"
    folder.mkdir()
    broker.config.file = SettingsFile(folder, worker)

    changes = {"brokerPermission": "4"}
    changed = await admin.change_settings(broker, changes, peer="control", must_save=False)
    worker.close()

    assert changed == ("brokerPermission",)
    assert broker.settings.broker_permission == 4


async def test_figures_of_the_disk_and_of_delays(
    store_folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def usage(_path: object) -> object:
        # 700 bytes are reserved for root.
        return SimpleNamespace(total=1000, used=100, free=200)

    monkeypatch.setattr("cometmq.broker.storing.disk_figures.shutil.disk_usage", usage)
    store = MemoryStore()
    broker = memory_broker(store, storePathRootDir=store_folder)
    store.set_queue("SCHEDULE_TOPIC_XXXX", 2, max_offset=9, stored_ms=1)
    broker.deferred.delays.positions.offsets()[3] = 7  # type: ignore[index]  # MemoryPositions
    call = Call(28, NoHeader(), peer=FakePeer())

    answer = await serve(broker, call, admin.get_broker_runtime_info)

    table = decode_json(KVTable, bytes(answer.body)).table  # type: ignore[arg-type]
    assert table["scheduleMessageOffset_3"] == "7,9"
    assert table[f"commitLogDiskRatio_{store_folder}/commitlog"] == "0.34"
    assert table["commitLogDirCapacity"].startswith("Total : ")
    assert table["earliestMessageTimeStamp"] == "-1"


@pytest.mark.parametrize("refusals", [(), ("disk-full", "sync-failed")])
async def test_the_figures_name_the_reasons_why_messages_are_refused(
    refusals: tuple[str, ...], store_folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()
    stats = store.stats()._replace(is_writable=not refusals, refusals=refusals)
    monkeypatch.setattr(store, "stats", lambda: stats)
    broker = memory_broker(store, storePathRootDir=store_folder)

    answer = await serve(
        broker, Call(28, NoHeader(), peer=FakePeer()), admin.get_broker_runtime_info
    )

    table = decode_json(KVTable, bytes(answer.body)).table  # type: ignore[arg-type]
    assert table.get("writesRefused") == ("disk-full,sync-failed" if refusals else None)


@pytest.mark.parametrize(
    ("damaged", "told"),
    [
        ((0, 0), None),
        (
            (9, 3),
            "3, in 9 bytes of the log: T/0: 5-7; others in the same blocks that it delivers: 4",
        ),
    ],
)
async def test_the_figures_name_damaged_messages(
    damaged: tuple[int, int], told: str | None, store_folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()
    size, count = damaged
    stats = store.stats()._replace(
        damaged_bytes=size,
        damaged_message_count=count,
        damaged_messages="T/0: 5-7",
        spared_message_count=4,
    )
    monkeypatch.setattr(store, "stats", lambda: stats)
    broker = memory_broker(store, storePathRootDir=store_folder)

    answer = await serve(
        broker, Call(28, NoHeader(), peer=FakePeer()), admin.get_broker_runtime_info
    )

    table = decode_json(KVTable, bytes(answer.body)).table  # type: ignore[arg-type]
    assert table.get("messagesDamaged") == told


@pytest.mark.parametrize(
    ("settings", "acked", "missing"),
    [
        ({}, None, None),
        ({"brokerRole": "SYNC_MASTER"}, None, "not connected"),
        ({"brokerRole": "SYNC_MASTER"}, 900, None),
        ({"brokerRole": "SYNC_MASTER"}, 100, "too far behind"),
    ],
)
async def test_the_figures_of_a_sync_master_tell_why_it_has_no_second_copy(
    settings: dict[str, str],
    acked: int | None,
    missing: str | None,
    store_folder: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = MemoryStore()
    stats = store.stats()._replace(max_offset=1_000)
    monkeypatch.setattr(store, "stats", lambda: stats)
    broker = memory_broker(
        store, storePathRootDir=store_folder, haSlaveFallbehindMax="500", **settings
    )
    if acked is not None:
        slave = Slave("127.0.0.1:2", acked_offset=acked, is_following=True)
        broker.replication.slaves.connected.add(slave)

    answer = await serve(
        broker, Call(28, NoHeader(), peer=FakePeer()), admin.get_broker_runtime_info
    )

    table = decode_json(KVTable, bytes(answer.body)).table  # type: ignore[arg-type]
    assert table.get("slaveMissing") == missing


async def test_figures_of_puts_and_their_latencies(store_folder: str) -> None:
    broker = memory_broker(storePathRootDir=store_folder)
    broker.driver.sends.put_times.add(20, 1)
    broker.stats.get_time_max_ms = 7
    broker.driver.sends.waiting_count = 3
    call = Call(28, NoHeader(), peer=FakePeer())

    answer = await serve(broker, call, admin.get_broker_runtime_info)

    table = decode_json(KVTable, bytes(answer.body)).table  # type: ignore[arg-type]
    assert table["putMessageDistributeTime"].startswith("[<=0ms]:9 [0~10ms]:0 [10~50ms]:1 ")
    assert table["putMessageDistributeTime"].endswith(" [5~10s]:0 [10s~]:0 ")
    assert (table["putLatency99"], table["putMessageEntireTimeMax"]) == ("20.00", "20")
    assert (table["getMessageEntireTimeMax"], table["sendThreadPoolQueueSize"]) == ("7", "3")


@pytest.mark.parametrize("exchange", answered_exchanges(GOLDEN, "328-*"), ids=name_of)
async def test_captured_producers(exchange: Exchange) -> None:
    broker = memory_broker()
    broker.clock.advance(50_000)  # type: ignore[attr-defined]  # a FakeClock
    now_ms = broker.clock.now_ms()
    expected = json.loads(expected_answer(exchange).body)
    for group, clients in expected["data"].items():
        for one in clients:
            language, address = int(Language[one["language"]]), one["remoteIP"].removeprefix("/")
            one["lastUpdateTimestamp"] = now_ms - 10_000
            client = Client(FakePeer(address), one["clientId"], language, one["version"], 40_000)
            broker.clients.producers.register(group, client)

    answer = await replay(broker, exchange, admin.get_all_producer_info)

    assert (answer.code, answer.remark, answer.ext) == (0, None, {})
    assert json.loads(answer.body) == expected


@pytest.mark.parametrize("exchange", answered_exchanges(GOLDEN, "315-*"), ids=name_of)
async def test_captured_statistics(exchange: Exchange) -> None:
    broker = memory_broker()
    expected = expected_answer(exchange)
    if expected.code == 0:
        wanted = json.loads(expected.body)["statsMinute"]
        for _ in range(wanted["sum"]):
            broker.stats.count_put(exchange.request.ext["statsKey"], 1, 100)
        for at_ms in range(10_000, round(wanted["sum"] / wanted["tps"]) * 1000 + 1, 10_000):
            broker.measured.sampler.step(at_ms)

    answer = await replay(broker, exchange, admin.view_broker_stats_data)

    assert_same(answer, expected)


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (924, "924 B"), (2355, "2.3 KiB"), (252 << 30, "252.0 GiB")]
)
def test_sizes_are_written_as_rocketmq_writes_them(size: int, text: str) -> None:
    assert size_text(size) == text


def test_durations_are_written_as_rocketmq_writes_them() -> None:
    assert duration_text(93_784_000) == "[ 1 days, 2 hours, 3 minutes, 4 seconds ]"
    assert duration_text(-5) == "[ 0 days, 0 hours, 0 minutes, 0 seconds ]"
