# SPDX-License-Identifier: Apache-2.0
"""TLS with real certificates at both ends: Java clients on our servers, ours on Java's.

Both brokers accept only TLS and require client certificates. The name server also accepts plain
connections, which the tests use to see that the broker is registered.
"""

import asyncio
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from cometmq.client import Message, Producer, ProducerOptions
from cometmq.peers.clients.javaclient import VERSIONS, JavaClient
from cometmq.peers.comet import CometCluster
from cometmq.peers.content import received, sent
from cometmq.peers.errors import PeerError
from cometmq.peers.java import PatientJavaCluster
from cometmq.peers.processes import wait_until
from cometmq.remoting.errors import CometError
from cometmq.remoting.transport.settings import TlsSettings

pytestmark = pytest.mark.compat

COUNT: Final = 20
PASSWORD: Final = "server-password"
RELOAD_TIMEOUT_S: Final = 120.0
TOPIC: Final = "OwnTlsTopic"


class Authority(NamedTuple):
    """A private certificate authority and the certificates it has issued."""

    folder: Path

    @property
    def trusted(self) -> Path:
        return self.folder / "ca.pem"

    def cert(self, name: str) -> Path:
        return self.folder / f"{name}.pem"

    def key(self, name: str) -> Path:
        return self.folder / f"{name}.key"

    def client(self, end: str = "tls.client") -> dict[str, str]:
        return {
            "tls.enable": "true",
            "tls.test.mode.enable": "false",
            f"{end}.authServer": "true",
            f"{end}.trustCertPath": str(self.trusted),
            f"{end}.certPath": str(self.cert("client")),
            f"{end}.keyPath": str(self.key("client")),
        }

    def server(self) -> dict[str, str]:
        return {
            "tls.test.mode.enable": "false",
            "tls.server.need.client.auth": "require",
            "tls.server.authClient": "true",
            "tls.server.trustCertPath": str(self.trusted),
            "tls.server.certPath": str(self.cert("server")),
            "tls.server.keyPath": str(self.key("server")),
            "tls.server.keyPassword": PASSWORD,
        }

    def own_client(self, **changes: object) -> TlsSettings:
        values: dict[str, Any] = {
            "enable": True,
            "auth_server": True,
            "trust_cert_path": self.trusted,
            "cert_path": self.cert("client"),
            "key_path": self.key("client"),
            **changes,
        }
        return TlsSettings(**values)


def authority(folder: Path) -> Authority:
    folder.mkdir()
    made = Authority(folder)
    subject = ("-days", "2", "-subj")
    openssl(
        "req", "-x509", "-newkey", "rsa:2048", "-nodes", *subject, f"/CN={folder.name}",
        "-keyout", folder / "ca.key", "-out", made.trusted,
    )  # fmt: skip
    for name in ("server", "client"):
        request = folder / f"{name}.csr"
        openssl(
            "req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}",
            "-keyout", made.key(name), "-out", request,
        )  # fmt: skip
        openssl(
            "x509", "-req", "-in", request, "-days", "2", "-CA", made.trusted,
            "-CAkey", folder / "ca.key", "-CAcreateserial", "-out", made.cert(name),
        )  # fmt: skip
    encrypted = folder / "encrypted.key"  # the older format, the only one that Java's netty reads
    openssl(
        "pkcs8", "-topk8", "-v1", "PBE-SHA1-3DES", "-passout", f"pass:{PASSWORD}",
        "-in", made.key("server"), "-out", encrypted,
    )  # fmt: skip
    encrypted.replace(made.key("server"))
    return made


def decrypt_key(served: Authority) -> None:
    """Replace the server's key by one without a password."""
    plain = served.folder / "plain.key"
    openssl("pkey", "-passin", f"pass:{PASSWORD}", "-in", served.key("server"), "-out", plain)
    plain.replace(served.key("server"))


def openssl(*arguments: object) -> None:
    command = ["openssl", *map(str, arguments)]
    subprocess.run(command, check=True, capture_output=True)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return authority(tmp_path_factory.mktemp("tls") / "ours")


@pytest.fixture(scope="module")
def strange(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return authority(tmp_path_factory.mktemp("tls") / "strange")


@pytest.fixture(scope="module", params=["encrypted", "plain"])
def comet(
    ours: Authority, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[CometCluster]:
    """Our servers; some of their settings are in a file `tls.properties`.

    Native code serves the broker's connections if the key is not encrypted.
    """
    folder = tmp_path_factory.mktemp("comet-tls")
    served = Authority(folder / "served")
    shutil.copytree(ours.folder, served.folder)
    if request.param == "plain":
        decrypt_key(served)
    config = folder / "tls.properties"
    lines = {**served.server(), **served.client()}
    config.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    with CometCluster(
        folder,
        {"tls.config.file": config, "tls.server.mode": "enforcing", "tls.enable": "true"},
        namesrv_conf={"tls.config.file": config},
    ) as cluster:
        yield cluster


@pytest.mark.parametrize("version", VERSIONS)
def test_java_clients_verify_and_are_verified(
    comet: CometCluster, ours: Authority, version: str, tmp_path: Path
) -> None:
    client = JavaClient(tmp_path, version, properties=ours.client())
    topic = f"TlsTopic{version.replace('.', '_')}"
    server = {"namesrv": comet.namesrv_addr, "topic": topic, "count": COUNT}

    wanted = sent(client.run("send", **server))

    assert received(client.run("consume", group=topic, **server)) == wanted


def test_java_clients_without_a_certificate_are_refused(
    comet: CometCluster, tmp_path: Path
) -> None:
    client = JavaClient(tmp_path, properties={"tls.enable": "true"})
    with pytest.raises(PeerError):
        client.run("send", namesrv=comet.namesrv_addr, topic="TlsRefused", count=1)


def test_java_clients_without_tls_get_the_reason(comet: CometCluster, tmp_path: Path) -> None:
    """The tool shows its last attempt, which may use a connection that is just being closed."""
    client = JavaClient(tmp_path)
    shown: list[str] = []
    while not any("TLS is required on this port" in text for text in shown):
        assert len(shown) < 10, shown[-1]
        with pytest.raises(PeerError) as caught:
            client.run("send", namesrv=comet.namesrv_addr, topic="TlsRefused", count=1)
        shown.append(str(caught.value))


def test_our_client_on_our_servers(
    comet: CometCluster, ours: Authority, strange: Authority
) -> None:
    assert outcome(comet.namesrv_addr, ours.own_client()) == "SEND_OK"
    for tls in wrong_settings(ours, strange):
        assert outcome(comet.namesrv_addr, tls) != "SEND_OK"


@pytest.mark.slow
def test_our_client_on_java_s_servers(ours: Authority, strange: Authority, tmp_path: Path) -> None:
    properties = {**ours.server(), "tls.server.mode": "permissive"}
    with PatientJavaCluster(tmp_path, properties=properties) as java:
        assert outcome(java.namesrv_addr, ours.own_client()) == "SEND_OK"
        for tls in wrong_settings(ours, strange)[:-1]:
            assert outcome(java.namesrv_addr, tls) != "SEND_OK"


@pytest.mark.slow
def test_our_broker_registers_with_java_s_name_server_over_tls(
    ours: Authority, tmp_path: Path
) -> None:
    properties = {**ours.server(), "tls.server.mode": "permissive"}
    namesrv = PatientJavaCluster(tmp_path / "java", properties=properties)
    try:
        namesrv.start_namesrv()
        conf = {**ours.client(), "tls.test.mode.enable": ""}
        broker = CometCluster(tmp_path, conf, layout=namesrv.layout)
        try:
            broker.start_broker()
        finally:
            broker.kill()
    finally:
        namesrv.kill()


def test_certificates_are_renewed_while_servers_run(
    comet: CometCluster, ours: Authority, strange: Authority
) -> None:
    """This test is the last in the file, because the servers keep the new certificates."""
    served = Authority(comet.directory / "served")
    before = ours.own_client(cert_path=None, key_path=None)
    is_plain = b"ENCRYPTED" not in served.key("server").read_bytes()
    for path in strange.folder.iterdir():
        shutil.copyfile(path, served.folder / path.name)
    if is_plain:
        decrypt_key(served)

    wait_until(
        lambda: outcome(comet.namesrv_addr, strange.own_client()) == "SEND_OK",
        RELOAD_TIMEOUT_S,
        "the new certificate",
    )

    assert outcome(comet.namesrv_addr, before) != "SEND_OK"
    broker = comet.brokers[comet.broker_names[0]]
    broker.wait_for_log("certificate.reloaded", RELOAD_TIMEOUT_S)
    if is_plain:
        assert "certificate.unaccelerated" not in broker.log()


def wrong_settings(ours: Authority, strange: Authority) -> list[TlsSettings]:
    """Return wrong settings: a foreign certificate, no certificate, an untrusted server, no TLS."""
    return [
        ours.own_client(cert_path=strange.cert("client"), key_path=strange.key("client")),
        ours.own_client(cert_path=None, key_path=None),
        ours.own_client(trust_cert_path=strange.trusted),
        TlsSettings(),
    ]


def outcome(namesrv: str, tls: TlsSettings) -> str:
    async def send() -> str:
        options = ProducerOptions(tls=tls, retry_times=0)
        async with Producer("OwnTls", namesrv, options=options) as producer:
            return (await producer.send(Message(TOPIC, b"own"))).status.name

    try:
        return asyncio.run(send())
    except CometError as error:
        return str(error)
