# SPDX-License-Identifier: Apache-2.0

import asyncio
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from cometmq.broker import app
from cometmq.broker.app import BrokerApp
from cometmq.broker.opening import server_settings
from cometmq.broker.registration.addresses import (
    Ports,
    advertised,
    advertised_host,
    check_advertised,
    choose_ports,
    explicit_ha_port,
    is_unspecified,
    outward_ip,
    packed_host,
    with_ha_port,
)
from cometmq.broker.settings import BrokerSettings
from cometmq.broker.start_checks import check_settings
from cometmq.broker.storing.disk_jobs import Workers
from cometmq.broker.storing.store_driver import StoreDriver
from cometmq.peers.ports import free_port
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.commands.offsets import UpdateConsumerOffset
from cometmq.remoting.commands.send import SendMessageV2
from cometmq.remoting.errors import LockHeld, SettingsError
from cometmq.remoting.log import NO_LOG
from cometmq.remoting.transport.client import RemotingClient
from cometmq.remoting.transport.settings import ClientSettings, TlsMode
from cometmq.runtime.admin_http import AdminHttp
from cometmq.runtime.clock import SystemClock
from cometmq.runtime.settings import Loaded, load
from cometmq.store.journal import read_journal
from cometmq.store.os_disk import OsDisk
from cometmq.store.upkeep.jobs import FlushJob
from cometmq.testing.broker.logs import RecordingLog
from cometmq.testing.runtime.clock import FakeClock
from cometmq.testing.runtime.pages import get
from cometmq.testing.store.builders import StoreRig, make_message
from cometmq.testing.store.memory_disk import MemoryDisk


def settings(**given: str) -> Loaded[BrokerSettings]:
    return load(BrokerSettings, prefix="COMETMQ_TEST", env={}, cli=given)


@pytest.mark.parametrize(
    ("name", "value"), [("enableDLegerCommitLog", "true"), ("brokerRole", "SLAVE")]
)
def test_unsupported_settings_are_refused(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=f"{name}={value}"):
        check_settings(settings(**{name: value}))


def test_all_contradictions_are_refused_at_once() -> None:
    given = {
        "brokerIP1": "0.0.0.0",
        "namesrvAddr": "ns:port",
        "groupRecord": "nowhere",
        "groupMembers": "0=127.0.0.1:10911;1=127.0.0.1:10921",
        "brokerId": "2",
        "brokerRole": "SYNC_MASTER",
        "minInSync": "3",
        "heardWithinMills": "60000",
        "renewDeadlineMills": "5000",
    }
    with pytest.raises(SettingsError) as caught:
        check_settings(settings(**given))
    lines = str(caught.value).splitlines()
    named = {line.split("=")[0].split(" ")[0].strip(":") for line in lines}
    expected = given.keys() - {"groupMembers", "renewDeadlineMills", "brokerIP1"}
    assert named - {"--broker-ip1"} == expected
    assert len(lines) == len(expected) + 1


def test_rocketmqs_file_with_sql_filters_is_accepted() -> None:
    check_settings(settings(enablePropertyFilter="true"))


def test_the_replication_port_follows_the_main_port_unless_it_is_set() -> None:
    assert explicit_ha_port(settings()) is None
    assert explicit_ha_port(settings(haListenPort="7")) == 7
    used = with_ha_port(settings(), Ports(20911, 20909, 20912))
    assert used.value.ha_listen_port == 20912
    assert explicit_ha_port(used) is None
    assert str(used.origins["haListenPort"]) == "derived from listenPort"
    assert with_ha_port(settings(haListenPort="7"), Ports(1, 2, 7)).origins == (
        settings(haListenPort="7").origins
    )
    assert choose_ports(10911, "", ha_port=None) == (10911, 10909, 10912)
    assert choose_ports(10911, "", ha_port=7) == (10911, 10909, 7)
    assert choose_ports(2, "", ha_port=None).vip is None


def test_the_port_0_leads_to_a_free_port_below_those_of_outgoing_connections() -> None:
    for _ in range(100):
        ports = choose_ports(0, "127.0.0.1", ha_port=None)
        assert (ports.vip, ports.ha) == (ports.main - 2, ports.main + 1)
        assert ports.ha <= 32_000


def test_addresses_in_records() -> None:
    assert packed_host("127.0.0.1", 10911) == bytes([127, 0, 0, 1, 0, 0, 42, 159])
    assert len(packed_host("::1", 10911)) == 20
    assert packed_host("::ffff:127.0.0.1", 10911) == packed_host("127.0.0.1", 10911)
    assert packed_host("fe80::7%1", 1) == packed_host("fe80::7", 1)
    with pytest.raises(SettingsError, match="brokerIP1: no such host"):
        packed_host("no such host", 1)


@pytest.mark.parametrize("host", ["0.0.0.0", "0", "::", "[::]", "0:0::0", "::ffff:0.0.0.0"])
def test_wildcard_addresses_are_not_advertised(host: str) -> None:
    assert is_unspecified(host)
    with pytest.raises(SettingsError, match=r"brokerIP2: others cannot connect to .*example"):
        check_advertised(host, setting="brokerIP2")
    assert advertised_host("", host) == outward_ip()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "10.1.2.3", "no such host", ""])
def test_other_addresses_are_advertised(host: str) -> None:
    check_advertised(host, setting="brokerIP1")
    assert advertised_host(host, "192.0.2.9") == (host or "192.0.2.9")


ADVERTISED = "0=mq-0.example.com:30911; 1=:30921;2=[fd00::1]:10911;"


@pytest.mark.parametrize(
    ("broker_id", "host", "port"),
    [("0", "mq-0.example.com", 30911), ("1", "10.0.0.1", 30921), ("2", "fd00::1", 10911)],
)
def test_a_broker_advertises_its_own_mapped_address(broker_id: str, host: str, port: int) -> None:
    given = {"brokerId": broker_id, "brokerIP1": "10.0.0.1", "advertisedAddresses": ADVERTISED}
    assert advertised(settings(**given), 10911)[:2] == (host, port)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("mq-0.example.com:30911", "'mq-0.example.com:30911' is not brokerId=HOST:PORT"),
        ("0=mq-0.example.com", "is not brokerId=HOST:PORT"),
        ("0=:0", "is not brokerId=HOST:PORT"),
        ("0=:65536", "is not brokerId=HOST:PORT"),
        ("0=a b:1", "is not brokerId=HOST:PORT"),
        ("0=:1;0=:2", "names broker 0 twice"),
        ("1=:30911", "no entry for this broker: add 0=HOST:PORT"),
        ("0=0.0.0.0:30911", "others cannot connect to 0.0.0.0"),
    ],
)
def test_malformed_advertised_addresses_are_refused(text: str, fault: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(fault)) as caught:
        check_settings(settings(advertisedAddresses=text))
    assert str(caught.value).startswith("--advertised-addresses")


async def test_a_broker_registers_its_advertised_address(tmp_path: Path) -> None:
    loaded = settings(
        listenPort="0",
        bindAddress="127.0.0.1",
        brokerIP1="127.0.0.1",
        storePathRootDir=str(tmp_path),
        advertisedAddresses="0=127.0.0.9:30911",
    )
    app = BrokerApp(loaded, log=NO_LOG, clock=SystemClock())
    await app.start()
    try:
        identity = app.broker.registration.registrant.identity
        assert identity.broker_addr == app.broker.process.address == "127.0.0.9:30911"
        assert app.broker.process.store_host == packed_host("127.0.0.9", 30911)
        main = int(app.addresses[0].rpartition(":")[2])
        assert identity.ha_server_addr == f"127.0.0.1:{main + 1}"
    finally:
        await app.stop()


def test_the_bounds_of_the_server_come_from_the_settings() -> None:
    bounds = server_settings(
        settings(
            **{
                "connectionsMax": "7",
                "writeBufferHighBytes": "4096",
                "serverChannelMaxIdleTimeSeconds": "3",
                "tls.server.mode": "enforcing",
                "tls.server.certPath": "/c.pem",
            }
        ).value
    )
    assert (bounds.connections_max, bounds.write_high_water_bytes) == (7, 4096)
    assert (bounds.write_low_water_bytes, bounds.idle_timeout_ms) == (1024, 3_000)
    assert bounds.tls.mode is TlsMode.ENFORCING
    assert bounds.tls.cert_path == Path("/c.pem")
    assert not bounds.tls.test_mode


@pytest.mark.parametrize(
    ("broker_id", "role", "warned"), [("7", "SYNC_MASTER", [7]), ("0", "ASYNC_MASTER", [])]
)
async def test_the_id_of_a_master_is_ignored_with_a_warning(
    tmp_path: Path, broker_id: str, role: str, warned: list[int]
) -> None:
    given = {
        "brokerId": broker_id, "brokerRole": role, "listenPort": "0",
        "bindAddress": "127.0.0.1", "storePathRootDir": str(tmp_path),
    }  # fmt: skip
    log = RecordingLog()
    app = BrokerApp(settings(**given), log=log, clock=SystemClock())
    await app.start()
    assert app.broker.registration.registrant.identity.broker_id == 0
    await app.stop()
    assert [facts["broker_id"] for facts in log.named("broker.id_ignored")] == warned


@pytest.mark.parametrize("is_filtering", [True, False])
async def test_the_sql_parser_is_imported_on_a_thread_by_brokers_that_filter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_filtering: bool
) -> None:
    threads: list[str] = []
    log = RecordingLog()

    def load_parser() -> None:
        assert not log.named("broker.ready")
        threads.append(threading.current_thread().name)

    monkeypatch.setattr(app, "load_parser", load_parser)
    given = {
        "listenPort": "0",
        "bindAddress": "127.0.0.1",
        "storePathRootDir": str(tmp_path / "store"),
        "mappedFileSizeCommitLog": "1048576",
        "enablePropertyFilter": str(is_filtering).lower(),
    }
    subject = BrokerApp(settings(**given), log=log, clock=SystemClock())
    await subject.start()
    await subject.stop()  # waits for the threads
    assert [name.startswith("cometmq-config") for name in threads] == [True] * is_filtering


def test_the_parser_can_be_loaded_ahead() -> None:
    code = (
        "import sys, cometmq.broker.app as app; name = 'cometmq.broker.filters.sql.parser';"
        " assert name not in sys.modules; app.load_parser(); assert name in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=180)


async def test_a_broker_can_be_embedded(tmp_path: Path) -> None:
    loaded = settings(
        listenPort="0",
        bindAddress="127.0.0.1",
        brokerIP1="127.0.0.1",
        storePathRootDir=str(tmp_path),
    )
    admin = AdminHttp()
    app = BrokerApp(loaded, log=NO_LOG, clock=SystemClock(), admin=admin)
    await app.start()
    try:
        main, vip = (int(address.rpartition(":")[2]) for address in app.addresses)
        assert vip == main - 2
        ready = await get(admin, "/readyz")
        assert ready.status_code == 200
        assert b"cometmq_store_writable" in (await get(admin, "/metrics")).content
        second = BrokerApp(loaded, log=NO_LOG, clock=SystemClock())
        with pytest.raises(LockHeld):
            await second.start()
    finally:
        await app.stop()
        await admin.stop()
    assert (tmp_path / "config" / "topics.json").exists()
    assert not (tmp_path / "abort").exists()


async def test_a_broker_that_no_name_server_lists_is_not_ready_and_says_why(tmp_path: Path) -> None:
    admin, address = AdminHttp(), f"127.0.0.1:{free_port()}"
    loaded = settings(
        listenPort="0",
        bindAddress="127.0.0.1",
        brokerIP1="127.0.0.1",
        storePathRootDir=str(tmp_path),
        namesrvAddr=address,
    )
    app = BrokerApp(loaded, log=NO_LOG, clock=SystemClock(), admin=admin)
    await app.start()
    try:
        ready = await get(admin, "/readyz")
        assert ready.status_code == 503
        checks = msgspec.json.decode(ready.content)["checks"]
        assert address in checks.pop("routes")
        assert set(checks.values()) == {"ok"}
    finally:
        await app.stop()
        await admin.stop()


@pytest.mark.parametrize("is_oneway", [False, True])
async def test_a_commit_is_journaled_before_its_answer_or_with_the_turn(
    tmp_path: Path, is_oneway: bool
) -> None:
    loaded = settings(
        listenPort="0",
        bindAddress="127.0.0.1",
        brokerIP1="127.0.0.1",
        storePathRootDir=str(tmp_path),
    )
    app = BrokerApp(loaded, log=NO_LOG, clock=SystemClock())
    await app.start()
    journal = app.broker.tables.journal
    assert journal is not None
    if not is_oneway:
        app.broker.driver.turn.noted.calls.pop(0)  # only the write of the answer is left
    client = RemotingClient(ClientSettings(), clock_ms=SystemClock().monotonic_ms)
    address = app.addresses[0]
    header = UpdateConsumerOffset("G", "T", 0, 7)
    if is_oneway:
        number = journal.number
        await client.invoke_oneway(
            address, RequestCode.UPDATE_CONSUMER_OFFSET, header, timeout_ms=60_000
        )
        async with asyncio.timeout(60):
            while journal.number == number:  # noqa: ASYNC110  # no answer tells
                await asyncio.sleep(0.001)
    else:
        await client.invoke(address, RequestCode.UPDATE_CONSUMER_OFFSET, header, timeout_ms=60_000)
    found = read_journal(OsDisk(read_only=True), str(tmp_path / "config" / "journal"))
    (entry,) = found.entries_of("consumerOffset.json")
    assert bytes(entry.changes["consumerOffset.json"]) == b'{"T@G":{"0":7}}'
    await client.close()
    await app.stop()
    found = read_journal(OsDisk(read_only=True), str(tmp_path / "config" / "journal"))
    assert (found.entries, found.log_end) == ([], 0)  # only the marks are left


async def test_a_stop_answers_pending_sends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_disk_ready = threading.Event()
    run = FlushJob.run

    def run_late(job: FlushJob) -> None:
        is_disk_ready.wait(60)
        run(job)

    monkeypatch.setattr(FlushJob, "run", run_late)
    loaded = settings(
        listenPort="0",
        bindAddress="127.0.0.1",
        brokerIP1="127.0.0.1",
        storePathRootDir=str(tmp_path),
        flushDiskType="SYNC_FLUSH",
        nativeLaneEnable="false",  # a native thread does not call `run`
    )
    app = BrokerApp(loaded, log=NO_LOG, clock=SystemClock())
    await app.start()
    client = RemotingClient(ClientSettings(), clock_ms=SystemClock().monotonic_ms)
    header = SendMessageV2("p", "T", "TBW102", 4, 0, 0, 0, 0)
    async with asyncio.TaskGroup() as group:
        sends = [
            group.create_task(
                client.invoke(
                    app.addresses[0],
                    RequestCode.SEND_MESSAGE_V2,
                    header,
                    b"%d" % number,
                    timeout_ms=60_000,
                )
            )
            for number in range(20)
        ]
        async with asyncio.timeout(60):
            while app.broker.driver.sends.waiting_count < len(sends):  # noqa: ASYNC110  # no event
                await asyncio.sleep(0)
        asyncio.get_running_loop().call_later(0.1, is_disk_ready.set)
        await app.stop()
    await client.close()
    offsets = sorted(send.result().header.queue_offset for send in sends)
    assert offsets == list(range(20))


class StalledWorker:
    """Completes jobs only when the test releases them, like a thread that is not scheduled."""

    def __init__(self) -> None:
        self.started: list[asyncio.Future[None]] = []

    def submit(self, job: Callable[[], None]) -> asyncio.Future[None]:
        job()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.started.append(future)
        return future


async def test_a_drain_waits_for_a_running_checkpoint() -> None:
    """The store is closed on a thread, so the loop must not touch it during that time."""
    clock = FakeClock()
    rig = StoreRig(MemoryDisk())
    stalled = StalledWorker()
    workers = Workers(*[stalled] * len(Workers._fields))  # type: ignore[arg-type]
    driver = StoreDriver(rig.store, workers=workers, clock=clock, log=NO_LOG)
    driver.put(make_message(), lambda _: None)
    driver.commit()
    driver.tick()
    assert stalled.started
    async with asyncio.TaskGroup() as group:
        draining = group.create_task(driver.drain())
        for future in stalled.started:
            for _ in range(10):
                await asyncio.sleep(0)
            assert not draining.done()
            future.set_result(None)
    assert rig.store.commit_log.end == rig.store.stats().checkpoint_offset
