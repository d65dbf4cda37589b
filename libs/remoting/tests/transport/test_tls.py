# SPDX-License-Identifier: Apache-2.0
"""TLS and plain connections on one port."""

import os
import ssl
from pathlib import Path
from typing import Any

import pytest

from cometmq.remoting import Call, RequestCode
from cometmq.remoting.commands.offsets import QueryConsumerOffset, QueryConsumerOffsetReply
from cometmq.remoting.errors import ConnectFailed, ConnectionLost, SettingsError
from cometmq.remoting.transport import ClientSettings, ServerSettings, TlsMode, TlsSettings
from cometmq.remoting.transport.certificate import self_signed_pem
from cometmq.remoting.transport.tls import TlsGate

QUERY = RequestCode.QUERY_CONSUMER_OFFSET
HEADER = QueryConsumerOffset(consumer_group="g", topic="t", queue_id=3)
HANDLERS = {QUERY: lambda _, call: QueryConsumerOffsetReply(offset=len(call.body))}
TLS_CLIENT = ClientSettings(tls=TlsSettings(enable=True))
BODY = bytes(range(256)) * 4096


def server_settings(mode: TlsMode, **more: object) -> ServerSettings:
    return ServerSettings(tls=TlsSettings(mode=mode, **more))  # type: ignore[arg-type]


async def test_permissive_serves_both(start_server: Any, new_client: Any) -> None:
    _, port = await start_server(HANDLERS, server_settings(TlsMode.PERMISSIVE))
    for client in (new_client(TLS_CLIENT), new_client()):
        response = await client.invoke(f"127.0.0.1:{port}", QUERY, HEADER, BODY, timeout_ms=5000)
        assert response.header.offset == len(BODY)


async def test_enforcing_refuses_plain_connections(start_server: Any, new_client: Any) -> None:
    _, port = await start_server(HANDLERS, server_settings(TlsMode.ENFORCING))
    secure, plain = new_client(TLS_CLIENT), new_client()

    assert (await secure.invoke(f"127.0.0.1:{port}", QUERY, HEADER, timeout_ms=5000)).code == 0
    with pytest.raises(ConnectionLost):
        await plain.invoke(f"127.0.0.1:{port}", QUERY, HEADER, timeout_ms=5000)


async def test_disabled_refuses_tls_connections(start_server: Any, new_client: Any) -> None:
    _, port = await start_server(HANDLERS, server_settings(TlsMode.DISABLED))
    secure, plain = new_client(TLS_CLIENT), new_client()

    assert (await plain.invoke(f"127.0.0.1:{port}", QUERY, HEADER, timeout_ms=5000)).code == 0
    with pytest.raises(ConnectFailed):
        await secure.invoke(f"127.0.0.1:{port}", QUERY, HEADER, timeout_ms=5000)


async def test_without_certificate_and_test_mode_tls_is_refused(
    start_server: Any, new_client: Any
) -> None:
    _, port = await start_server(HANDLERS, server_settings(TlsMode.PERMISSIVE, test_mode=False))

    with pytest.raises(ConnectFailed):
        await new_client(TLS_CLIENT).invoke(f"127.0.0.1:{port}", QUERY, HEADER, timeout_ms=5000)
    response = await new_client().invoke(f"127.0.0.1:{port}", QUERY, HEADER, timeout_ms=5000)
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
        f"127.0.0.1:{port}", QUERY, HEADER, timeout_ms=5000
    )
    assert response.code == 0
    with pytest.raises(ConnectFailed, match=r"self.signed"):
        await new_client(verifying[1]).invoke(f"127.0.0.1:{port}", QUERY, HEADER, timeout_ms=5000)


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
        await new_client(known).invoke(f"127.0.0.1:{port}", QUERY, HEADER, timeout_ms=5000)
    ).code == 0
    with pytest.raises((ConnectFailed, ConnectionLost)):
        await new_client(TLS_CLIENT).invoke(f"127.0.0.1:{port}", QUERY, HEADER, timeout_ms=5000)


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
        f"127.0.0.1:{port}", QUERY, HEADER, timeout_ms=5000
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
        await client.invoke(f"127.0.0.1:{port}", QUERY, HEADER, timeout_ms=5000)

    assert told[0] == "g"


def test_changed_files_are_read_again(tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    for path in (cert, key):
        path.touch()
    pem = self_signed_pem("x")
    cert.write_text(pem)
    key.write_text(pem)
    gate = TlsGate(TlsSettings(cert_path=cert, key_path=key))

    assert not gate.reload()
    pem = self_signed_pem("y")
    cert.write_text(pem)
    touch(cert, 1)
    assert not gate.reload()  # the key does not fit yet
    key.write_text(pem)
    touch(key, 1)
    assert gate.reload()
    assert not gate.reload()


def touch(path: Path, seconds: int) -> None:
    stat = path.stat()
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + seconds * 10**9))


def test_the_test_certificate_is_one(tmp_path: Path) -> None:
    path = tmp_path / "test.pem"
    path.write_text(self_signed_pem("cometmq-test"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_cert_chain(path)
    context.load_verify_locations(path)

    assert context.cert_store_stats()["x509"] == 1
