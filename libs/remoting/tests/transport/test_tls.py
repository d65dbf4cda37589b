# SPDX-License-Identifier: Apache-2.0
"""TLS and plain connections on one port."""

import asyncio
import contextlib
import gc
import re
import ssl
import subprocess
import weakref
from pathlib import Path
from typing import Any, cast

import pytest

from cometmq.remoting import Call, RequestCode
from cometmq.remoting.command import Request
from cometmq.remoting.commands import COMMANDS
from cometmq.remoting.commands.offsets import QueryConsumerOffset, QueryConsumerOffsetReply
from cometmq.remoting.connection import Codec, Connection
from cometmq.remoting.errors import ConnectFailed, ConnectionLost, ServerError, SettingsError
from cometmq.remoting.transport import ClientSettings, ServerSettings, TlsMode, TlsSettings
from cometmq.remoting.transport.certificate import expiry_of, self_signed_pem
from cometmq.remoting.transport.tls import TLS_REQUIRED, TlsGate
from cometmq.remoting.transport.tls_contexts import (
    WatchedContext,
    client_context,
    server_context,
)
from cometmq.remoting.types import Serialization

from .conftest import TLS_KINDS, StartServer, starter

QUERY = RequestCode.QUERY_CONSUMER_OFFSET
HEADER = QueryConsumerOffset(consumer_group="g", topic="t", queue_id=3)
HANDLERS = {QUERY: lambda _, call: QueryConsumerOffsetReply(offset=len(call.body))}
TLS_CLIENT = ClientSettings(tls=TlsSettings(enable=True))
NO_PEM = "no certificate and key in PEM form"
NO_PASSWORD = "is missing, and the key is encrypted"
BODY = bytes(range(256)) * 4096


@pytest.fixture(params=TLS_KINDS)
def start_server(start_plain_server: StartServer, request: pytest.FixtureRequest) -> StartServer:
    """Start a server whose connections are also served by native code."""
    return starter(start_plain_server, request.param)


def server_settings(mode: TlsMode, **more: object) -> ServerSettings:
    return ServerSettings(tls=TlsSettings(mode=mode, **more))  # type: ignore[arg-type]


async def test_permissive_serves_both(start_server: Any, new_client: Any) -> None:
    _, port = await start_server(HANDLERS, server_settings(TlsMode.PERMISSIVE))
    for client in (new_client(TLS_CLIENT), new_client()):
        response = await client.invoke(f"127.0.0.1:{port}", QUERY, HEADER, BODY, timeout_ms=60_000)
        assert response.header.offset == len(BODY)


async def test_the_memory_of_a_closed_connection_is_free_at_once(
    start_server: Any, new_client: Any
) -> None:
    is_free, states = asyncio.Event(), []

    def handle(_: object, call: Call[Any]) -> QueryConsumerOffsetReply:
        states.append(weakref.ref(call.peer.tls, lambda _: is_free.set()))
        return QueryConsumerOffsetReply(offset=0)

    _, port = await start_server({QUERY: handle}, server_settings(TlsMode.ENFORCING))
    client = new_client(TLS_CLIENT)
    await client.invoke(f"127.0.0.1:{port}", QUERY, HEADER, BODY, timeout_ms=60_000)
    gc.disable()
    try:
        await client.close(0)
        await asyncio.wait_for(is_free.wait(), 60)
    finally:
        gc.enable()


async def test_enforcing_refuses_plain_connections(start_server: Any, new_client: Any) -> None:
    _, port = await start_server(HANDLERS, server_settings(TlsMode.ENFORCING))
    secure, plain = new_client(TLS_CLIENT), new_client()

    assert (await secure.invoke(f"127.0.0.1:{port}", QUERY, HEADER, timeout_ms=60_000)).code == 0
    with pytest.raises(ServerError, match=r"TLS is required on this port.*tls\.enable=true"):
        await plain.invoke(f"127.0.0.1:{port}", QUERY, HEADER, timeout_ms=60_000)


async def test_a_later_request_on_a_refused_connection_gets_the_reason(
    start_server: Any, new_client: Any
) -> None:
    """A client sends more requests before it has received the first refusal."""
    _, port = await start_server(HANDLERS, server_settings(TlsMode.ENFORCING))
    plain, address = new_client(), f"127.0.0.1:{port}"
    for _ in range(3):
        with pytest.raises(ServerError, match="TLS is required on this port"):
            await plain.invoke(address, QUERY, HEADER, BODY, timeout_ms=60_000)
    assert plain.stats().connections_opened == 1


async def test_all_requests_of_a_plain_chunk_get_the_reason_before_the_end(
    start_server: Any,
) -> None:
    """A Java client sees a failed request, then a closed channel, also with ROCKETMQ headers."""
    server, port = await start_server(HANDLERS, server_settings(TlsMode.ENFORCING))
    for serialization in Serialization:
        sender = Connection(Codec(COMMANDS, serialization=serialization), cast("Any", None))
        answers: list[Any] = []
        for _ in range(2):
            sender.invoke(Request(QUERY, HEADER), deadline_ms=1 << 40, done=answers.append)
        sender.send(Request(QUERY, HEADER, is_oneway=True))
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"".join(bytes(part) for part in sender.out))
        async with asyncio.timeout(60):
            sender.receive(await reader.read(), 0)

        assert [(one.code, one.remark) for one in answers] == [(1, TLS_REQUIRED)] * 2
        writer.close()
    assert server.stats().in_flight == 0


async def test_a_flood_on_a_refused_connection_is_answered_in_part(start_server: Any) -> None:
    """Decoding a chunk of 256 KiB would hold the loop for 40 ms."""
    _, port = await start_server(HANDLERS, server_settings(TlsMode.ENFORCING))
    sender = Connection(Codec(COMMANDS), cast("Any", None))
    answers: list[Any] = []
    for _ in range(5_000):
        sender.invoke(Request(QUERY, HEADER), deadline_ms=1 << 40, done=answers.append)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"".join(bytes(part) for part in sender.out))
    async with asyncio.timeout(60):
        with contextlib.suppress(ConnectionResetError):  # the rest has not been read
            while data := await reader.read(1 << 16):
                sender.receive(data, 0)
    assert len(answers) < 1_000
    assert {(one.code, one.remark) for one in answers} == {(1, TLS_REQUIRED)}
    writer.close()


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b"\0\0\1\0", b"\xff" * 100])
async def test_other_plain_bytes_get_no_answer(start_server: Any, data: bytes) -> None:
    _, port = await start_server(HANDLERS, server_settings(TlsMode.ENFORCING))
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    async with asyncio.timeout(60):
        assert await reader.read() == b""
    writer.close()


async def test_disabled_refuses_tls_connections(start_server: Any, new_client: Any) -> None:
    _, port = await start_server(HANDLERS, server_settings(TlsMode.DISABLED))
    secure, plain = new_client(TLS_CLIENT), new_client()

    assert (await plain.invoke(f"127.0.0.1:{port}", QUERY, HEADER, timeout_ms=60_000)).code == 0
    with pytest.raises(ConnectFailed, match=r"(?i)access.denied.*check that the server offers TLS"):
        await secure.invoke(f"127.0.0.1:{port}", QUERY, HEADER, timeout_ms=60_000)


async def test_without_certificate_and_test_mode_tls_is_refused(
    start_server: Any, new_client: Any
) -> None:
    _, port = await start_server(HANDLERS, server_settings(TlsMode.PERMISSIVE, test_mode=False))

    with pytest.raises(ConnectFailed):
        await new_client(TLS_CLIENT).invoke(f"127.0.0.1:{port}", QUERY, HEADER, timeout_ms=60_000)
    response = await new_client().invoke(f"127.0.0.1:{port}", QUERY, HEADER, timeout_ms=60_000)
    assert response.code == 0


async def test_a_certificate_of_ones_own_is_verified(
    start_server: Any, new_client: Any, tmp_path: Path
) -> None:
    paths = [tmp_path / "one.pem", tmp_path / "other.pem"]
    for path in paths:
        path.write_text(self_signed_pem(path.stem))
    settings = server_settings(
        TlsMode.ENFORCING, test_mode=False, cert_path=paths[0], key_path=paths[0]
    )
    _, port = await start_server(HANDLERS, settings)
    verifying = [
        ClientSettings(
            tls=TlsSettings(enable=True, test_mode=False, auth_server=True, trust_cert_path=path)
        )
        for path in paths
    ]

    response = await new_client(verifying[0]).invoke(
        f"127.0.0.1:{port}", QUERY, HEADER, timeout_ms=60_000
    )
    assert response.code == 0
    untrusted = f"not signed by a CA in tls.client.trustCertPath={paths[1]}"
    with pytest.raises(ConnectFailed, match=re.escape(untrusted)):
        await new_client(verifying[1]).invoke(f"127.0.0.1:{port}", QUERY, HEADER, timeout_ms=60_000)


async def test_clients_without_certificate_are_refused_if_one_is_required(
    start_server: Any, new_client: Any, tmp_path: Path
) -> None:
    path = tmp_path / "both.pem"
    path.write_text(self_signed_pem("both"))
    identity: dict[str, Any] = {"cert_path": path, "key_path": path, "trust_cert_path": path}
    settings = server_settings(
        TlsMode.ENFORCING, test_mode=False, need_client_auth="require", **identity
    )
    _, port = await start_server(HANDLERS, settings)
    known = ClientSettings(tls=TlsSettings(enable=True, **identity))

    assert (
        await new_client(known).invoke(f"127.0.0.1:{port}", QUERY, HEADER, timeout_ms=60_000)
    ).code == 0
    with pytest.raises(ConnectionLost, match="asks for a client certificate"):
        await new_client(TLS_CLIENT).invoke(f"127.0.0.1:{port}", QUERY, HEADER, timeout_ms=60_000)


async def test_a_wrong_certificate_is_seen_at_start(start_server: Any, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"missing\.pem"):
        await start_server(
            HANDLERS, server_settings(TlsMode.PERMISSIVE, cert_path=tmp_path / "missing.pem")
        )


@pytest.mark.parametrize("first", [b"", b"\x16", b"\x16\x03\x01", b"\x16" * 100])
async def test_half_a_handshake_blocks_nobody(
    start_server: Any, new_client: Any, first: bytes, connect_raw: Any
) -> None:
    _, port = await start_server(HANDLERS)
    writers = []
    for _ in range(20):
        _, writer = await connect_raw(port)
        writer.write(first)
        writers.append(writer)

    response = await new_client(TLS_CLIENT).invoke(
        f"127.0.0.1:{port}", QUERY, HEADER, timeout_ms=60_000
    )

    assert response.code == 0


async def test_a_server_speaks_first_over_tls(start_server: Any, new_client: Any) -> None:
    told: list[str] = []

    def query(_: None, call: Call[Any]) -> QueryConsumerOffsetReply:
        call.peer.send(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, ext={"consumerGroup": "g"})
        return QueryConsumerOffsetReply(offset=1)

    _, port = await start_server({QUERY: query})
    client = new_client(
        TLS_CLIENT,
        handlers={
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: lambda _, call: told.append(
                call.header.consumer_group
            )
        },
    )
    for _ in range(2):
        await client.invoke(f"127.0.0.1:{port}", QUERY, HEADER, timeout_ms=60_000)

    assert told[0] == "g"


def test_the_test_certificate_is_one(tmp_path: Path) -> None:
    path = tmp_path / "test.pem"
    path.write_text(self_signed_pem("cometmq-test"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_cert_chain(path)
    context.load_verify_locations(path)

    assert context.cert_store_stats()["x509"] == 1


class Events:
    """A log that keeps the names of events."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.errors: list[object] = []
        self._is_told = asyncio.Event()

    def info(self, event: str, /, **facts: object) -> None:
        self.names.append(event)
        self.errors.append(facts.get("error"))
        self._is_told.set()

    debug = warning = error = info

    async def next(self, event: str) -> object:
        """Wait for the next event, which must have this name; return its error."""
        async with asyncio.timeout(60):
            await self._is_told.wait()
        self._is_told.clear()
        assert self.names[-1] == event
        return self.errors[-1]


async def test_new_connections_have_the_new_certificate_and_a_broken_one_is_not_used(
    start_server: Any, new_client: Any, tmp_path: Path
) -> None:
    path, old, new = (tmp_path / f"{name}.pem" for name in ("served", "old", "new"))
    for made in (old, new):
        made.write_text(self_signed_pem(made.stem))
    path.write_bytes(old.read_bytes())
    tls = TlsSettings(mode=TlsMode.ENFORCING, test_mode=False, cert_path=path, key_path=path)
    log = Events()
    _, port = await start_server(HANDLERS, ServerSettings(tls=tls, check_interval_ms=20), log=log)

    async def ask(trusted: Path) -> int:
        verifying = TlsSettings(enable=True, auth_server=True, trust_cert_path=trusted)
        client = new_client(ClientSettings(tls=verifying))
        answer = await client.invoke(f"127.0.0.1:{port}", QUERY, HEADER, timeout_ms=60_000)
        return int(answer.code)

    standing = new_client(ClientSettings(tls=TlsSettings(enable=True)))
    assert (await standing.invoke(f"127.0.0.1:{port}", QUERY, HEADER, timeout_ms=60_000)).code == 0
    assert await ask(old) == 0
    path.write_text("nothing")
    assert f"tls.server.certPath={path}" in str(await log.next("certificate.unreadable"))
    assert await ask(old) == 0
    path.write_bytes(new.read_bytes())
    await log.next("certificate.reloaded")

    assert await ask(new) == 0
    with pytest.raises(ConnectFailed, match=r"self.signed"):
        await ask(old)
    assert (await standing.invoke(f"127.0.0.1:{port}", QUERY, HEADER, timeout_ms=60_000)).code == 0
    assert log.names == ["certificate.unreadable", "certificate.reloaded"]


async def test_a_client_follows_its_files_too(
    start_server: Any, new_client: Any, tmp_path: Path
) -> None:
    served, trusted = tmp_path / "served.pem", tmp_path / "trusted.pem"
    served.write_text(self_signed_pem("served"))
    trusted.write_text(self_signed_pem("other"))
    identity = {"test_mode": False, "cert_path": served, "key_path": served}
    _, port = await start_server(HANDLERS, server_settings(TlsMode.PERMISSIVE, **identity))
    log = Events()
    verifying = TlsSettings(enable=True, auth_server=True, trust_cert_path=trusted)
    settings = ClientSettings(tls=verifying, check_interval_ms=20)
    client = new_client(settings, log=log)
    with pytest.raises(ConnectFailed):
        await client.invoke(f"127.0.0.1:{port}", QUERY, HEADER, timeout_ms=60_000)

    trusted.write_bytes(served.read_bytes())
    await log.next("certificate.reloaded")

    response = await client.invoke(f"127.0.0.1:{port}", QUERY, HEADER, timeout_ms=60_000)
    assert response.code == 0


def context_of(**files: Any) -> WatchedContext[ssl.SSLContext]:
    return WatchedContext(TlsSettings(test_mode=False, **files), server_context)


def test_files_count_when_they_are_at_rest(tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    for path in (cert, key):
        path.write_text(self_signed_pem("one"))
    key.write_bytes(cert.read_bytes())
    watched = context_of(cert_path=cert, key_path=key)
    first = watched.context

    assert not watched.refresh()
    cert.write_text(self_signed_pem("two"))
    assert not watched.refresh()  # the key may not be replaced yet
    key.write_bytes(cert.read_bytes())
    assert not watched.refresh()
    assert watched.context is first
    assert watched.refresh()
    assert watched.context is not first
    assert not watched.refresh()


def test_files_that_stay_broken_are_told_once(tmp_path: Path) -> None:
    cert = tmp_path / "cert.pem"
    cert.write_text(self_signed_pem("one"))
    watched = context_of(cert_path=cert, key_path=cert)
    first = watched.context

    cert.unlink()
    assert not watched.refresh()
    with pytest.raises(SettingsError, match="No such file"):
        watched.refresh()
    assert not watched.refresh()
    assert watched.context is first


def encrypted_key(folder: Path) -> tuple[Path, Path]:
    """Return a certificate and its key, encrypted with `secret`."""
    both, key = folder / "both.pem", folder / "key.pem"
    both.write_text(self_signed_pem("encrypted"))
    command = ["openssl", "ec", "-in", str(both), "-aes256", "-passout", "pass:secret"]
    command += ["-out", str(key)]
    subprocess.run(command, check=True, capture_output=True)
    return both, key


def test_every_wrong_file_is_named_in_one_line(tmp_path: Path) -> None:
    cert, other, garbage = (tmp_path / f"{name}.pem" for name in ("cert", "other", "garbage"))
    for path in (cert, other):
        path.write_text(self_signed_pem(path.stem))
    garbage.write_text("nothing")
    missing = tmp_path / "missing.pem"
    encrypted_cert, encrypted = encrypted_key(tmp_path)
    require = {"cert_path": cert, "key_path": cert, "need_client_auth": "require"}
    cases: list[tuple[dict[str, Any], str]] = [
        ({"cert_path": missing}, f"tls.server.certPath={missing}: No such file or directory"),
        (
            {"cert_path": cert, "key_path": missing},
            f"tls.server.keyPath={missing}: No such file or directory",
        ),
        (
            {"cert_path": cert, "key_path": other},
            f"tls.server.certPath={cert} and tls.server.keyPath={other} do not match",
        ),
        (
            {"cert_path": garbage, "key_path": cert},
            f"tls.server.certPath={garbage}, tls.server.keyPath={cert}: {NO_PEM}",
        ),
        (
            {"cert_path": encrypted_cert, "key_path": encrypted, "key_password": "wrong"},
            f"tls.server.keyPath={encrypted}: tls.server.keyPassword is wrong",
        ),
        (
            {"cert_path": encrypted_cert, "key_path": encrypted},
            f"tls.server.keyPath={encrypted}: tls.server.keyPassword {NO_PASSWORD}",
        ),
        (
            {**require, "trust_cert_path": missing},
            f"tls.server.trustCertPath={missing}: No such file or directory",
        ),
        (
            {**require, "trust_cert_path": garbage},
            f"tls.server.trustCertPath={garbage}: no certificates in PEM form",
        ),
        (
            {"need_client_auth": "require"},
            "TLS needs tls.server.certPath and tls.server.keyPath",
        ),
        (
            {"need_client_auth": "maybe"},
            "tls.server.need.client.auth=maybe: must be none, optional or require",
        ),
    ]
    for files, line in cases:
        with pytest.raises(SettingsError) as caught:
            context_of(**files)
        assert str(caught.value) == line
    context_of(cert_path=encrypted_cert, key_path=encrypted, key_password="secret")
    with pytest.raises(SettingsError, match=r"tls\.client\.certPath"):
        client_context(TlsSettings(cert_path=missing))


def test_test_mode_asks_no_certificate_of_a_client() -> None:
    with pytest.raises(SettingsError, match="TLS needs"):
        TlsGate(TlsSettings(need_client_auth="require"))
    assert TlsGate(TlsSettings()).watched is None


def dated_pem(folder: Path, name: str, days: int) -> Path:
    """Return a file with a certificate that expires after `days`, and its key."""
    key, cert = folder / f"{name}.key", folder / f"{name}.pem"
    request = ["openssl", "req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    request += ["-nodes", "-subj", f"/CN={name}", "-keyout", str(key)]
    made = subprocess.run(request, check=True, capture_output=True)
    sign = ["openssl", "x509", "-req", "-signkey", str(key), "-days", str(days), "-out", str(cert)]
    subprocess.run(sign, input=made.stdout, check=True, capture_output=True)
    cert.write_bytes(cert.read_bytes() + key.read_bytes())
    return cert


async def test_an_expired_certificate_is_told_once_and_stays_in_use(
    start_server: Any, new_client: Any, tmp_path: Path
) -> None:
    path = dated_pem(tmp_path, "expired", -1)
    valid = dated_pem(tmp_path, "valid", 3).read_bytes()
    tls = TlsSettings(test_mode=False, cert_path=path, key_path=path)
    log = Events()
    _, port = await start_server(HANDLERS, ServerSettings(tls=tls, check_interval_ms=20), log=log)
    await log.next("certificate.expired")

    answer = await new_client(TLS_CLIENT).invoke(
        f"127.0.0.1:{port}", QUERY, HEADER, timeout_ms=60_000
    )

    assert answer.code == 0
    path.write_bytes(valid)
    await log.next("certificate.reloaded")
    assert log.names == ["certificate.expired", "certificate.reloaded"]


def test_expiry_is_read_from_any_certificate(tmp_path: Path) -> None:
    assert expiry_of(self_signed_pem("far")) == 4_102_444_799
    found = expiry_of(dated_pem(tmp_path, "near", 3).read_text())
    assert found is not None
    path_text = (tmp_path / "near.pem").read_text()
    shown = subprocess.run(
        ["openssl", "x509", "-noout", "-enddate"],
        input=path_text,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert ssl.cert_time_to_seconds(shown.strip().removeprefix("notAfter=")) == found
    for end in range(0, len(path_text), 20):
        cut = path_text[:end] + "\n-----END CERTIFICATE-----"
        assert expiry_of(cut) in {None, found}
