# SPDX-License-Identifier: Apache-2.0
"""A native TLS session and OpenSSL's behave the same towards a peer."""

import os
import random
import select
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

accel = pytest.importorskip("cometmq.accel", reason="cometmq-accel is built only with cargo")

from cometmq.remoting.errors import LocalProtocolError, RemoteProtocolError  # noqa: E402
from cometmq.remoting.transport.settings import TlsSettings  # noqa: E402
from cometmq.remoting.transport.tls import NativePipe, TlsGate, TlsPipe  # noqa: E402
from cometmq.remoting.transport.tls_contexts import server_context, server_tls  # noqa: E402

VERSIONS = (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)
EC = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256")
RSA = ("-newkey", "rsa:2048")
EXTENSIONS = "[v3]\nbasicConstraints=CA:false\nextendedKeyUsage={}\n"


def openssl(folder: Path, *words: str) -> None:
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)


def own(folder: Path, name: str, *, key: tuple[str, ...] = EC, days: int = 30) -> None:
    """Make a self-signed certificate."""
    openssl(
        folder, "req", "-x509", *key, "-nodes", "-subj", f"/CN={name}", "-days", str(days),
        "-keyout", f"{name}.key", "-out", f"{name}.pem",
    )  # fmt: skip


def issued(
    folder: Path,
    name: str,
    *,
    by: str = "ca",
    key: tuple[str, ...] = EC,
    purpose: str = "clientAuth",
    is_v1: bool = False,
    days: int = 30,
) -> None:
    """Make a certificate that an authority has issued."""
    openssl(
        folder, "req", "-new", *key, "-nodes", "-subj", f"/CN={name}",
        "-keyout", f"{name}.key", "-out", f"{name}.csr",
    )  # fmt: skip
    words = ["x509", "-req", "-in", f"{name}.csr", "-CA", f"{by}.pem", "-CAkey", f"{by}.key"]
    words += ["-CAcreateserial", "-days", str(days), "-out", f"{name}.pem"]
    if not is_v1:
        (folder / f"{name}.ext").write_text(EXTENSIONS.format(purpose))
        words += ["-extfile", f"{name}.ext", "-extensions", "v3"]
    openssl(folder, *words)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tls")
    own(made, "ca")
    own(made, "stranger")
    own(made, "pinned")
    issued(made, "server", purpose="serverAuth")
    issued(made, "rsa", key=RSA, purpose="serverAuth")
    issued(made, "old-server", is_v1=True)
    issued(made, "client")
    issued(made, "rsa-client", key=RSA)
    issued(made, "old", is_v1=True)
    issued(made, "old-rsa", key=RSA, is_v1=True)
    issued(made, "old-strange", by="stranger", is_v1=True)
    issued(made, "old-expired", is_v1=True, days=-1)
    issued(made, "expired", days=-1)
    issued(made, "strange", by="stranger")
    issued(made, "wrong-purpose", purpose="serverAuth")
    trusted = (made / "ca.pem").read_bytes() + (made / "pinned.pem").read_bytes()
    (made / "trusted.pem").write_bytes(trusted)
    return made


def settings_of(folder: Path, name: str = "server", **more: Any) -> TlsSettings:
    return TlsSettings(
        test_mode=False, cert_path=folder / f"{name}.pem", key_path=folder / f"{name}.key", **more
    )


MakePipe = Callable[[TlsSettings], Callable[[], Any]]


def native(settings: TlsSettings) -> Callable[[], Any]:
    tls = server_tls(settings, accel.TlsContext)
    assert tls.native is not None, tls.fault
    context = tls.native
    return lambda: NativePipe(context.session(), tls.context)


def plain(settings: TlsSettings) -> Callable[[], Any]:
    context = server_context(settings)
    return lambda: TlsPipe(context)


PIPES: tuple[MakePipe, ...] = (native, plain)


class Client:
    """OpenSSL's end of a connection, over memory."""

    def __init__(
        self,
        version: ssl.TLSVersion,
        identity: Path | None = None,
        *,
        ciphers: str = "",
        session: ssl.SSLSession | None = None,
        context: ssl.SSLContext | None = None,
    ) -> None:
        if context is None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            context.minimum_version = context.maximum_version = version
            if identity is not None:
                context.load_cert_chain(identity, identity.with_suffix(".key"))
            if ciphers:
                context.set_ciphers(ciphers)
        self.context = context
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._in, self._out, session=session)
        self.is_ready = False
        self.received = b""

    def receive(self, data: bytes) -> None:
        self._in.write(data)
        try:
            if not self.is_ready:
                self.tls.do_handshake()
                self.is_ready = True
            while chunk := self.tls.read(1 << 20):
                self.received += chunk
        except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            return

    def output(self) -> bytes:
        return self._out.read()


def cut(rng: random.Random, data: bytes) -> Iterator[bytes]:
    while data:
        size = rng.choice([1, 5, 100, 5_000, len(data)])
        yield data[:size]
        data = data[size:]


def exchange(rng: random.Random, client: Client, pipe: Any) -> bytes:
    """Pass bytes in both directions until there are none; return what the server has received."""
    received = b""
    client.receive(b"")
    while data := client.output():
        for piece in cut(rng, data):
            text, answer = pipe.decrypt(piece)
            received += text
            for part in cut(rng, answer):
                client.receive(part)
    return received


@pytest.mark.parametrize("name", ["server", "rsa", "old-server"])
@pytest.mark.parametrize("version", VERSIONS)
def test_both_receive_and_send_the_same(folder: Path, name: str, version: ssl.TLSVersion) -> None:
    for make in PIPES:
        new_pipe = make(settings_of(folder, name))
        for seed in range(20):
            rng = random.Random(seed)
            pipe, client = new_pipe(), Client(version)
            with pytest.raises(LocalProtocolError):
                pipe.encrypt(b"too early")
            assert exchange(rng, client, pipe) == b""
            assert pipe.is_ready
            assert client.tls.version() == version.name.replace("_", ".")
            for _ in range(3):
                request = rng.randbytes(rng.choice([1, 100, 16_384, 100_000]))
                answer = rng.randbytes(rng.choice([1, 100, 16_384, 100_000]))
                client.tls.write(request)
                assert exchange(rng, client, pipe) == request
                client.received = b""
                for data in (answer[:7], memoryview(answer)[7:]):
                    for part in cut(rng, pipe.encrypt(data)):
                        client.receive(part)
                assert client.received == answer
            assert not pipe.is_finished
            with pytest.raises(ssl.SSLWantReadError):
                client.tls.unwrap()
            assert exchange(rng, client, pipe) == b""
            assert pipe.is_finished
            client.receive(pipe.close())


IDENTITIES = {
    None: (True, False),  # whether it is accepted if optional, and if required
    "client": (True, True),
    "rsa-client": (True, True),
    "old": (True, True),
    "old-rsa": (True, True),
    "pinned": (True, True),
    "stranger": (False, False),
    "strange": (False, False),
    "old-strange": (False, False),
    "old-expired": (False, False),
    "expired": (False, False),
    "wrong-purpose": (False, False),
}


@pytest.mark.parametrize("name", IDENTITIES)
def test_both_accept_the_same_clients(folder: Path, name: str | None) -> None:
    identity = None if name is None else folder / f"{name}.pem"
    for make in PIPES:
        for need, is_accepted in zip(("optional", "require"), IDENTITIES[name], strict=True):
            new_pipe = make(
                settings_of(folder, trust_cert_path=folder / "trusted.pem", need_client_auth=need)
            )
            for version in VERSIONS:
                pipe, client = new_pipe(), Client(version, identity)
                try:
                    exchange(random.Random(1), client, pipe)
                except RemoteProtocolError:
                    assert not is_accepted, (make, need, version)
                    with pytest.raises(ssl.SSLError):
                        client.receive(pipe.alert())
                else:
                    assert is_accepted, (make, need, version)
                    assert pipe.is_ready


def test_a_forged_certificate_of_version_1_is_refused(folder: Path) -> None:
    """Its issuer's name is right, but somebody else has signed it."""
    forged = folder / "forged"
    forged.mkdir()
    own(forged, "ca")
    issued(forged, "old", is_v1=True)
    new_pipe = native(
        settings_of(folder, trust_cert_path=folder / "ca.pem", need_client_auth="require")
    )
    for version in VERSIONS:
        with pytest.raises(RemoteProtocolError, match=r"(?i)signature"):
            exchange(random.Random(1), Client(version, forged / "old.pem"), new_pipe())


def test_the_key_of_a_version_1_certificate_must_be_the_client_s(folder: Path) -> None:
    """A client that knows only the certificate cannot sign the handshake."""
    thief = folder / "thief"
    thief.mkdir()
    own(thief, "thief")
    new_pipe = native(
        settings_of(folder, trust_cert_path=folder / "ca.pem", need_client_auth="require")
    )
    for version in VERSIONS:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.minimum_version = context.maximum_version = version
        context.load_cert_chain(thief / "thief.pem", thief / "thief.key")
        client, pipe = Client(version, context=context), new_pipe()
        with pytest.raises(RemoteProtocolError):
            exchange(random.Random(1), client, pipe)
        assert not pipe.is_ready


@pytest.mark.parametrize("version", VERSIONS)
def test_sessions_are_resumed_until_the_certificate_changes(
    folder: Path, version: ssl.TLSVersion
) -> None:
    for make in PIPES:
        new_pipe = make(settings_of(folder))
        first = Client(version)
        pipe = new_pipe()
        exchange(random.Random(1), first, pipe)
        first.receive(pipe.encrypt(b"the tickets of TLS 1.3 come before this"))
        for pipes, is_resumed in ((new_pipe, True), (make(settings_of(folder)), False)):
            again = Client(version, session=first.tls.session, context=first.context)
            exchange(random.Random(1), again, pipes())
            assert again.tls.session_reused is is_resumed


def test_a_peer_that_offers_only_old_ciphers_is_left_to_openssl(folder: Path) -> None:
    gate = TlsGate(settings_of(folder, "rsa"))
    assert gate.use(accel.TlsContext) == ""
    pipe: Any = gate.open(is_tls=True)
    assert isinstance(pipe, NativePipe)
    client = Client(ssl.TLSVersion.TLSv1_2, ciphers="ECDHE-RSA-AES128-SHA256")
    client.receive(b"")
    hello = client.output()
    pipe.decrypt(hello[:50])
    with pytest.raises(Exception) as caught:  # noqa: PT011  # it has no message
        pipe.decrypt(hello[50:])
    other = caught.value.pipe  # type: ignore[attr-defined]
    _, answer = other.decrypt(caught.value.received)  # type: ignore[attr-defined]
    client.receive(answer)
    exchange(random.Random(1), client, other)
    assert other.is_ready


def test_unusable_files_are_left_to_openssl(folder: Path) -> None:
    openssl(
        folder, "pkcs8", "-topk8", "-in", "server.key", "-passout", "pass:p", "-out", "locked.key"
    )
    (folder / "locked.pem").write_bytes((folder / "server.pem").read_bytes())
    own(folder, "p521", key=("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-521"))
    for name, reason in (("locked", "is encrypted: native code reads"), ("p521", "neither RSA")):
        gate = TlsGate(settings_of(folder, name, key_password="p"))
        assert reason in gate.use(accel.TlsContext)
        assert isinstance(gate.open(is_tls=True), TlsPipe)
    for chain, key in ((b"", b""), (b"nothing", b"nothing")):
        with pytest.raises(ValueError, match="certificate"):
            accel.TlsContext(chain, key, trusted=None, is_required=False)


@pytest.mark.parametrize("version", VERSIONS)
def test_changed_bytes_end_the_connection(folder: Path, version: ssl.TLSVersion) -> None:
    for make in PIPES:
        new_pipe = make(settings_of(folder))
        for seed in range(40):
            rng = random.Random(seed)
            pipe, client = new_pipe(), Client(version)
            exchange(rng, client, pipe)
            client.tls.write(b"first")
            good = client.output()
            client.tls.write(b"second")
            bad = bytearray(client.output())
            bad[rng.randrange(5, len(bad))] ^= 1 << rng.randrange(8)
            assert pipe.decrypt(good)[0] == b"first"
            with pytest.raises(RemoteProtocolError):
                pipe.decrypt(bytes(bad))
            assert pipe.alert()
            if make is native:
                with pytest.raises(RemoteProtocolError):
                    pipe.decrypt(b"")


def test_renegotiation_is_refused(folder: Path) -> None:
    """`openssl s_client` renegotiates when it reads a line R."""
    for make in PIPES:
        new_pipe = make(settings_of(folder))
        with socket.create_server(("127.0.0.1", 0)) as listener:
            command = ["openssl", "s_client", "-tls1_2", "-connect"]
            command += [f"127.0.0.1:{listener.getsockname()[1]}"]
            with subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            ) as peer:
                near, _ = listener.accept()
                near.settimeout(60)
                pipe, is_asked = new_pipe(), False
                try:
                    while data := near.recv(1 << 16):
                        text, answer = pipe.decrypt(data)
                        assert text == b""
                        near.sendall(answer)
                        if pipe.is_ready and not is_asked:
                            is_asked = True
                            assert peer.stdin is not None
                            os.write(peer.stdin.fileno(), b"R\n")
                except (OSError, RemoteProtocolError):
                    pass
                near.close()
                text, _ = peer.communicate(timeout=60)
                assert b"RENEGOTIATING" in text
                assert b"no renegotiation" in text or b"handshake failure" in text


class Secured:
    """A socket that `Sockets` decrypts and encrypts, and the client at its other end."""

    def __init__(self, folder: Path, version: ssl.TLSVersion) -> None:
        self.near, self.far = socket.socketpair()
        self.near.setblocking(False)
        self.pipe, self.client = native(settings_of(folder))(), Client(version)
        exchange(random.Random(1), self.client, self.pipe)
        self.direct_fd = self.near.fileno()
        self.sockets = accel.Sockets()
        self.sockets.secure(self.direct_fd, self.pipe.session)
        self.epoll = select.epoll()
        self.epoll.register(self.direct_fd, select.EPOLLIN | select.EPOLLRDHUP)

    def receive(self) -> tuple[list[Any], list[Any]]:
        chunks, ended, *_ = self.sockets.receive(self.epoll.fileno(), {self.direct_fd: self}, 128)
        return chunks, ended

    def send(self, *texts: bytes) -> None:
        for text in texts:
            self.client.tls.write(text)
        self.far.sendall(self.client.output())


@pytest.fixture(params=VERSIONS)
def secured(folder: Path, request: pytest.FixtureRequest) -> Iterator[Secured]:
    made = Secured(folder, request.param)
    with made.near, made.far, made.epoll:
        yield made


def test_sockets_decrypt_what_they_receive(secured: Secured) -> None:
    assert secured.receive() == ([], [])
    secured.send(b"one", b"two")
    assert secured.receive() == ([(secured, b"onetwo")], [])
    assert secured.sockets.take_overhead() > 10
    assert secured.sockets.take_overhead() == 0
    secured.client.tls.write(b"in pieces")
    sealed = secured.client.output()
    secured.far.sendall(sealed[:9])
    assert secured.receive() == ([], [])
    secured.far.sendall(sealed[9:])
    assert secured.receive() == ([(secured, b"in pieces")], [])
    assert secured.sockets.take_overhead() == len(sealed) - len(b"in pieces")


def test_the_end_of_a_session_ends_its_socket(secured: Secured) -> None:
    secured.client.tls.write(b"last words")
    with pytest.raises(ssl.SSLWantReadError):
        secured.client.tls.unwrap()
    secured.far.sendall(secured.client.output())
    assert secured.receive() == ([], [secured])
    assert secured.pipe.decrypt(b"") == (b"last words", b"")
    assert secured.pipe.is_finished
    assert secured.pipe.decrypt(b"") == (b"", b"")


def test_a_fault_ends_the_socket_and_its_reason_is_kept(secured: Secured) -> None:
    secured.far.sendall(b"GET / HTTP/1.1\r\n\r\n")
    assert secured.receive() == ([], [secured])
    with pytest.raises(RemoteProtocolError, match="TLS failed"):
        secured.pipe.decrypt(b"")
    assert secured.pipe.alert()


def test_sockets_encrypt_what_they_send_and_return_the_rest_encrypted(secured: Secured) -> None:
    bodies = [random.Random(1).randbytes(300_000), b"second", b"third"]
    rows = [(secured, body, 1) for body in bodies[:2]]
    total, unsent = secured.sockets.send_rows(rows)
    assert [index for index, _ in unsent] == [0, 1]
    secured.far.setblocking(False)
    sealed = b""
    while len(sealed) < total:
        sealed += secured.far.recv(1 << 20)
    assert len(sealed) == total
    secured.client.receive(sealed + b"".join(rest for _, rest in unsent))
    assert secured.client.received == bodies[0] + bodies[1]

    secured.direct_fd = -1
    assert secured.sockets.send_rows([(secured, bodies[2], 1)]) == (0, [(0, None)])
    secured.client.receive(secured.pipe.encrypt(bodies[2]))
    assert secured.client.received.endswith(bodies[2])
