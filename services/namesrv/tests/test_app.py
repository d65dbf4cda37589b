# SPDX-License-Identifier: Apache-2.0
"""The name server on loopback: sockets, files, the HTTP port, startup and shutdown."""

import asyncio
import json
import socket
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from typing import Any, cast

import pytest
import structlog
from structlog.testing import capture_logs

from cometmq.namesrv.accounts import CHANGES, Accounts
from cometmq.namesrv.app import NamesrvApp, expire, server_settings
from cometmq.namesrv.broker_groups import BrokerId
from cometmq.namesrv.handlers import HANDLERS
from cometmq.namesrv.namesrv import Namesrv
from cometmq.namesrv.route_table import Registration
from cometmq.namesrv.settings import NamesrvSettings, load_namesrv
from cometmq.remoting.bodies.topic_config import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigTable,
    encode_register_body,
)
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.commands.namesrv import (
    GetKvConfig,
    GetRouteinfoByTopic,
    PutKvConfig,
    RegisterBroker,
)
from cometmq.remoting.errors import CommandError, SettingsError
from cometmq.remoting.raw import RawCommand
from cometmq.remoting.signature import SessionCredentials, signing
from cometmq.remoting.transport import ClientSettings, RemotingClient, TlsMode, TlsSettings
from cometmq.runtime import service
from cometmq.runtime.admin_http import AdminHttp
from cometmq.runtime.clock import SystemClock
from cometmq.runtime.incremental import finish
from cometmq.runtime.program import program
from cometmq.runtime.service import Stop
from cometmq.runtime.settings import load
from cometmq.testing.remoting.frames import encode_frame
from cometmq.testing.runtime.clock import FakeClock
from cometmq.testing.runtime.pages import get

TIMEOUT_MS = 60_000
BODY = encode_register_body(
    RegisterBrokerBody([], TopicConfigTable(topic_config_table={"T": TopicConfig(topic_name="T")})),
    compressed=False,
)
BROKER = RegisterBroker("broker-a", "127.0.0.1:1", "C", "127.0.0.1:2", 0)


@pytest.fixture
def host():
    return "127.0.0.1"


@pytest.fixture
def settings(tmp_path, host):
    options = {
        "listenPort": "0",
        "bindAddress": host,
        "kvConfigPath": str(tmp_path / "kvConfig.json"),
        "configStorePath": str(tmp_path / "namesrv.properties"),
    }
    return load(NamesrvSettings, prefix="COMETMQ_NAMESRV", env={}, cli=options)


@pytest.fixture
async def client():
    client = RemotingClient(ClientSettings(), clock_ms=SystemClock().monotonic_ms)
    yield client
    await client.close()


@pytest.fixture
async def app(settings):
    admin = AdminHttp()
    app: Any = NamesrvApp(settings, log=structlog.get_logger(), clock=SystemClock(), admin=admin)
    await app.start()
    app.admin = admin
    yield app
    await app.stop()
    await admin.stop()


async def route(client, address):
    try:
        request = GetRouteinfoByTopic("T")
        return (await client.invoke(address, 105, request, timeout_ms=TIMEOUT_MS)).body
    except CommandError as error:
        return error.code


async def test_a_route_lives_as_long_as_the_brokers_connection(app, client):
    (address,) = app.addresses
    broker = RemotingClient(ClientSettings(), clock_ms=SystemClock().monotonic_ms)
    await broker.invoke(address, 103, BROKER, BODY, timeout_ms=TIMEOUT_MS)
    assert json.loads(await route(client, address))["queueDatas"][0]["brokerName"] == "broker-a"
    await broker.close()
    async with asyncio.timeout(60):
        while (answer := await route(client, address)) != 17:
            assert isinstance(answer, bytes)


@pytest.mark.parametrize(("host", "shown"), [("127.0.0.1", "127.0.0.1"), ("::1", "[::1]")])
async def test_its_log_names_addresses_that_clients_take(settings, client, shown):
    with capture_logs() as events:
        app: Any = NamesrvApp(settings, log=structlog.get_logger(), clock=SystemClock())
        await app.start()
        try:
            (address,) = events[-1]["addresses"]
            assert address.startswith(f"{shown}:")
            assert await route(client, address) == 17
        finally:
            await app.stop()


ADMIN, USER = SessionCredentials("admin-1", "secret-1"), SessionCredentials("user-12", "secret-2")
ACL = """
accounts:
- {accessKey: admin-1, secretKey: secret-1, admin: true}
- {accessKey: user-12, secretKey: secret-2, admin: false}
"""


@asynccontextmanager
async def connected(credentials=None):
    hooks = () if credentials is None else (signing(credentials),)
    client = RemotingClient(ClientSettings(), clock_ms=SystemClock().monotonic_ms, before=hooks)
    yield client
    await client.close()


async def test_with_accounts_only_administrators_change_something(tmp_path, client):
    file = tmp_path / "plain_acl.yml"
    file.write_text(ACL)
    app: Any = NamesrvApp(
        load(NamesrvSettings, prefix="COMETMQ_NAMESRV", env={}, cli={
            "listenPort": "0", "bindAddress": "127.0.0.1", "aclEnable": "true",
            "aclFile": str(file), "kvConfigPath": str(tmp_path / "kv.json"),
            "configStorePath": str(tmp_path / "namesrv.properties"),
        }),
        log=structlog.get_logger(), clock=SystemClock(),
    )  # fmt: skip
    await app.start()
    try:
        (address,) = app.addresses
        wrong = SessionCredentials("admin-1", "secret-2")
        strangers = {
            None: "No accessKey is configured",
            SessionCredentials("nobody1", "secret-1"): "No acl config for nobody1",
            wrong: "Check signature failed for accessKey=admin-1",
            USER: "Need admin permission for request code=103",
        }
        for credentials, text in strangers.items():
            async with connected(credentials) as one:
                with pytest.raises(CommandError, match=text):
                    await one.invoke(address, 103, BROKER, BODY, timeout_ms=TIMEOUT_MS)
        assert await route(client, address) == 17
        async with connected(ADMIN) as broker:
            await broker.invoke(address, 103, BROKER, BODY, timeout_ms=TIMEOUT_MS)
            assert b"broker-a" in await route(client, address)  # clients need no account
            for code in (318, 319):
                with pytest.raises(CommandError, match="No accessKey is configured"):
                    await client.invoke(address, code, timeout_ms=TIMEOUT_MS)
    finally:
        await app.stop()


def test_every_request_of_the_name_server_reads_or_needs_an_account():
    reading = {101, 105, 106, 206, 219, 224, 304, 311, 312, 313}
    known = {code for code in HANDLERS if not RequestCode(code).is_own}
    assert known - set(CHANGES) == reading


def test_changed_accounts_are_read_once_they_are_whole(tmp_path):
    file = tmp_path / "plain_acl.yml"
    file.write_text(ACL)
    accounts = Accounts(file)
    file.write_text(ACL[: ACL.index("- {accessKey: user")].replace("secret-1", "secret-9"))
    assert [accounts.refresh(), accounts.refresh(), accounts.refresh()] == [False, True, False]
    for broken in ("accounts: [", "accounts: []"):
        file.write_text(broken)
        assert not accounts.refresh()
        with pytest.raises(SettingsError, match="aclFile="):
            accounts.refresh()
        assert not accounts.refresh()
        assert list(accounts._accounts) == ["admin-1"]
    file.unlink()
    assert not accounts.refresh()
    with pytest.raises(SettingsError, match="No such file"):
        accounts.refresh()
    with pytest.raises(SettingsError, match="No such file"):
        Accounts(file)


async def test_values_survive_a_restart(settings, client):
    async def started():
        app: Any = NamesrvApp(settings, log=structlog.get_logger(), clock=SystemClock())
        await app.start()
        return app

    first = await started()
    value = PutKvConfig("N", "k", "v")
    await client.invoke(first.addresses[0], 100, value, timeout_ms=TIMEOUT_MS)
    await first.stop()
    second = await started()
    key = GetKvConfig("N", "k")
    found = await client.invoke(second.addresses[0], 101, key, timeout_ms=TIMEOUT_MS)
    await second.stop()
    assert found.header.value == "v"


async def test_an_expired_broker_loses_its_connection(app, settings, files):
    class Connection:
        is_closed = False

        def close(self):
            self.is_closed = True

    clock = FakeClock()
    connection: Any = Connection()
    namesrv = Namesrv(settings, cast("Any", None), clock=clock, save_file=files)
    broker = BrokerId("C", "broker-a", 0, "127.0.0.1:1")
    registration = Registration(broker, "", DataVersion(), (), ())
    finish(namesrv.routes.registering(registration, connection=connection, now_ms=0))
    clock.advance(120_000)
    expire(namesrv)
    assert not connection.is_closed
    clock.advance(1)
    expire(namesrv)
    assert connection.is_closed
    assert not namesrv.routes.live_brokers()


async def test_the_http_port_shows_metrics_and_settings(app):
    metrics = (await get(app.admin, "/metrics")).text
    assert "cometmq_namesrv_brokers 0.0" in metrics
    assert 'cometmq_connections{server="namesrv"} 0.0' in metrics
    assert (await get(app.admin, "/readyz")).status_code == 200
    assert b"bindAddress=127.0.0.1" in (await get(app.admin, "/settings")).content


async def test_a_port_in_use_gives_one_clear_line(settings):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        options = {"listenPort": str(port), "bindAddress": "127.0.0.1"}
        loaded = load(NamesrvSettings, prefix="X", env={}, cli=options)
        app = NamesrvApp(loaded, log=structlog.get_logger(), clock=SystemClock())
        with pytest.raises(SettingsError) as caught:
            await app.start()
    assert str(caught.value) == (
        f"cannot listen on 127.0.0.1:{port}: Address already in use; "
        "stop the program that uses the port, or choose another with --listen-port"
    )


async def test_a_damaged_kv_file_gives_one_clear_line(settings, tmp_path):
    (tmp_path / "kvConfig.json").write_bytes(b"{")
    app: Any = NamesrvApp(settings, log=structlog.get_logger(), clock=SystemClock())
    with pytest.raises(SettingsError, match="is damaged"):
        await app.start()


async def test_tls_is_served_on_the_same_port(app):
    tls = TlsSettings(enable=True)
    secure = RemotingClient(ClientSettings(tls=tls), clock_ms=SystemClock().monotonic_ms)
    answer = await secure.invoke(app.addresses[0], 106, timeout_ms=TIMEOUT_MS)
    assert answer.code == 0
    await secure.close()


def test_tls_settings_reach_the_transport():
    options = {
        "tls.server.mode": "enforcing",
        "tls.server.certPath": "/c.pem",
        "tls.server.keyPath": "/k.pem",
    }
    settings = load(NamesrvSettings, prefix="X", env={}, cli=options).value
    tls = server_settings(settings).tls
    assert (tls.mode, tls.test_mode) == (TlsMode.ENFORCING, False)
    assert (str(tls.cert_path), str(tls.key_path)) == ("/c.pem", "/k.pem")


async def test_the_program_serves_until_asked_to_stop(settings, monkeypatch):
    stop = Stop()
    log = structlog.testing.CapturingLogger()

    class Log:
        def info(self, event, /, **facts):
            log.info(event, **facts)
            if event == "namesrv.ready":
                stop.request("test")

        warning = error = debug = info

    monkeypatch.setattr(service, "sweep", lambda: 0)  # would visit all tests
    build = partial(NamesrvApp, settings)
    await program(build, log=Log(), http_port=settings.value.admin_http_port)(stop)
    events = [call.args[0] for call in log.calls]
    assert events == ["namesrv.ready", "namesrv.stopped"]
    assert log.calls[0].kwargs["addresses"][0].startswith("127.0.0.1:")


def test_changes_go_to_the_file_of_the_command_line_as_the_origin_says(tmp_path):
    file, other = tmp_path / "ns.conf", str(tmp_path / "saved.conf")
    file.write_text("configStorePath=elsewhere\n")
    loaded = load_namesrv(file)
    assert loaded.value.config_store_path == str(file)
    assert str(loaded.origins["configStorePath"]) == f"command line -c {file}"
    given = load_namesrv(file, {"configStorePath": other})
    assert given.value.config_store_path == other
    assert str(given.origins["configStorePath"]) == "command line --config-store-path"


async def test_unread_answers_do_not_delay_a_stop(settings, client):
    admin = AdminHttp()
    app = NamesrvApp(settings, log=structlog.get_logger(), clock=SystemClock(), admin=admin)
    await app.start()
    (address,) = app.addresses
    host, _, port = address.rpartition(":")
    topics = {name: TopicConfig(topic_name=name) for name in (f"{n:0100}" for n in range(5_000))}
    table = RegisterBrokerBody([], TopicConfigTable(topic_config_table=topics))
    body = encode_register_body(table, compressed=False)
    await client.invoke(address, 103, BROKER, body, timeout_ms=TIMEOUT_MS)
    list_all = encode_frame(RawCommand(code=RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER))
    with ExitStack() as stack:
        for _ in range(8):
            deaf = stack.enter_context(socket.create_connection((host, int(port)), 60))
            deaf.sendall(20 * list_all)
        async with asyncio.timeout(60):
            unsent = b'cometmq_connection_unsent_bytes{server="namesrv"} 0.0'
            while unsent in (await get(admin, "/metrics")).content:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        start_s = asyncio.get_running_loop().time()
        await app.stop()
    assert asyncio.get_running_loop().time() - start_s < 1
    await admin.stop()
