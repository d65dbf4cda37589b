# SPDX-License-Identifier: Apache-2.0
"""Records without data, as changes of the key, cost more time than bytes: a peer may send few."""

import contextlib
import hashlib
import hmac
import ssl
import struct
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from cometmq.remoting.errors import RemoteProtocolError
from cometmq.remoting.transport import TlsSettings
from cometmq.remoting.transport import tls as module
from cometmq.remoting.transport.tls import IDLE_RECORDS_MAX, TlsPipe
from cometmq.remoting.transport.tls_contexts import server_context

APPLICATION, HANDSHAKE = 23, 22
KEY_UPDATE = bytes((24, 0, 0, 1, 1))
TOO_MANY = "too many records without data"


def expand(secret: bytes, label: str, size: int) -> bytes:
    """HKDF-Expand-Label of RFC 8446, 7.1, for at most one block."""
    text = f"tls13 {label}".encode()
    info = struct.pack(">HB", size, len(text)) + text + b"\0\1"
    return hmac.digest(secret, info, hashlib.sha384)[:size]


class Client:
    """A TLS 1.3 client that encrypts records of any kind itself, after a regular handshake."""

    def __init__(self, folder: Path) -> None:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.keylog_filename = str(folder / "keys")
        received, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = context.wrap_bio(received, sent)
        self.pipe = TlsPipe(server_context(TlsSettings()))
        while not self.pipe.is_ready:
            with contextlib.suppress(ssl.SSLWantReadError):
                client.do_handshake()
            received.write(self.pipe.decrypt(sent.read())[1])
        cipher = client.cipher()
        assert cipher is not None
        assert cipher[0] == "TLS_AES_256_GCM_SHA384"
        words = dict(line.split()[::2] for line in (folder / "keys").read_text().splitlines()[1:])
        self._use(bytes.fromhex(words["CLIENT_TRAFFIC_SECRET_0"]))

    def _use(self, secret: bytes) -> None:
        self._secret, self._count = secret, 0
        self._key, self._iv = AESGCM(expand(secret, "key", 32)), expand(secret, "iv", 12)

    def record(self, kind: int, content: bytes) -> bytes:
        sealed_bytes = len(content) + 17
        header = struct.pack(">BHH", APPLICATION, 0x0303, sealed_bytes)
        nonce = (int.from_bytes(self._iv) ^ self._count).to_bytes(12)
        self._count += 1
        return header + self._key.encrypt(nonce, content + bytes((kind,)), header)

    def key_update(self) -> bytes:
        data = self.record(HANDSHAKE, KEY_UPDATE)
        self._use(expand(self._secret, "traffic upd", 48))
        return data


@pytest.fixture
def client(tmp_path: Path) -> Client:
    return Client(tmp_path)


def test_a_peer_may_change_its_keys_now_and_then(client: Client) -> None:
    for _ in range(IDLE_RECORDS_MAX):
        data = client.key_update() + client.record(APPLICATION, b"x")
        assert client.pipe.decrypt(data)[0] == b"x"
    with pytest.raises(RemoteProtocolError, match=TOO_MANY):
        client.pipe.decrypt(client.key_update())


def test_a_flood_of_key_updates_ends_early(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    flood = b"".join(client.key_update() for _ in range(10_000))
    fed: list[int] = []
    read = TlsPipe._read

    def count(pipe: TlsPipe, plain: list[bytes]) -> None:
        fed.append(1)
        read(pipe, plain)

    monkeypatch.setattr(TlsPipe, "_read", count)
    with pytest.raises(RemoteProtocolError, match=TOO_MANY):
        client.pipe.decrypt(flood)
    assert len(fed) == 2  # 64 of them


def test_data_earns_further_records(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDLE_RECORD_BYTES", 100)
    for _ in range(3 * IDLE_RECORDS_MAX):
        client.pipe.decrypt(client.key_update() + client.record(APPLICATION, bytes(100)))


@pytest.mark.parametrize("piece_bytes", [1, 3, 7, 1_000, 100_000])
def test_any_number_of_small_records_may_carry_data(client: Client, piece_bytes: int) -> None:
    texts = [b"%d" % number for number in range(500)]
    data = b"".join(client.record(APPLICATION, text) for text in texts)
    pieces = [data[at : at + piece_bytes] for at in range(0, len(data), piece_bytes)]
    assert b"".join(client.pipe.decrypt(piece)[0] for piece in pieces) == b"".join(texts)
    client.pipe.decrypt(b"".join(client.key_update() for _ in range(IDLE_RECORDS_MAX)))


def test_large_records_pass(client: Client) -> None:
    data = b"".join(client.record(APPLICATION, bytes(16_000)) for _ in range(100))
    assert client.pipe.decrypt(data) == (bytes(1_600_000), b"")
