# SPDX-License-Identifier: Apache-2.0
"""What a broker refuses at its start, which ports it takes, and that it runs in a test's loop."""

import socket
from pathlib import Path

import pytest

from cometmq.broker.addresses import choose_ports, host_port, packed_host
from cometmq.broker.app import BrokerApp, check_settings, explicit_ha_port, server_settings
from cometmq.broker.settings import BrokerSettings
from cometmq.remoting.errors import LockHeld, SettingsError
from cometmq.remoting.log import NO_LOG
from cometmq.remoting.transport.settings import TlsMode
from cometmq.runtime.admin_http import AdminHttp
from cometmq.runtime.clock import SystemClock
from cometmq.runtime.settings import Loaded, load


def settings(**given: str) -> Loaded[BrokerSettings]:
    return load(BrokerSettings, prefix="COMETMQ_TEST", env={}, cli=given)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("enablePropertyFilter", "true"),
        ("aclEnable", "true"),
        ("enableDLegerCommitLog", "true"),
        ("brokerRole", "SLAVE"),
    ],
)
def test_what_is_not_built_is_refused_and_not_ignored(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=f"{name}={value}"):
        check_settings(settings(**{name: value}).value)


def test_the_replication_port_follows_the_main_port_unless_it_is_set() -> None:
    assert explicit_ha_port(settings()) is None
    assert explicit_ha_port(settings(haListenPort="7")) == 7
    assert choose_ports(10911, "", ha_port=None) == (10911, 10909, 10912)
    assert choose_ports(10911, "", ha_port=7) == (10911, 10909, 7)
    assert choose_ports(2, "", ha_port=None).vip is None


def test_a_free_port_has_free_neighbours() -> None:
    ports = choose_ports(0, "127.0.0.1", ha_port=None)
    assert (ports.vip, ports.ha) == (ports.main - 2, ports.main + 1)
    for port in ports:
        assert port is not None
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))


def test_addresses_in_texts_and_records() -> None:
    assert host_port("10.0.0.1", 1) == "10.0.0.1:1"
    assert host_port("::1", 1) == "[::1]:1"
    assert packed_host("127.0.0.1", 10911) == bytes([127, 0, 0, 1, 0, 0, 42, 159])
    assert len(packed_host("::1", 10911)) == 20
    with pytest.raises(SettingsError, match="brokerIP1=no such host"):
        packed_host("no such host", 1)


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
        ready = await admin.answer("GET", "/readyz")
        assert ready.status == 200
        assert b"cometmq_store_writable" in (await admin.answer("GET", "/metrics")).body
        second = BrokerApp(loaded, log=NO_LOG, clock=SystemClock())
        with pytest.raises(LockHeld):
            await second.start()
    finally:
        await app.stop()
        await admin.stop()
    assert (tmp_path / "config" / "topics.json").exists()
    assert not (tmp_path / "abort").exists()
