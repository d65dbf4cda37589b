# SPDX-License-Identifier: Apache-2.0
"""TLS of the control API: both ends present certificates, and the files may be replaced."""

from pathlib import Path

import pytest

from cometmq.control.client import MemberClient
from cometmq.control.controlled import MemberUnproven, MemberUnreachable
from cometmq.control.credentials import channel_credentials, server_credentials
from cometmq.control.server import ControlServer
from cometmq.remoting.errors import SettingsError
from cometmq.remoting.transport.certificate import self_signed_pem
from cometmq.remoting.transport.settings import TlsMode, TlsSettings
from cometmq.testing.control.scripted import TARGET

NAME = "member-1"


@pytest.fixture
def files(tmp_path):
    """Return the identities of a member and of an elector; each trusts the other."""
    for name in (NAME, "elector", "stranger"):
        (tmp_path / f"{name}.pem").write_text(self_signed_pem(name))
    return tmp_path


def server_tls(files: Path, **more):
    return TlsSettings(
        test_mode=False,
        cert_path=files / f"{NAME}.pem",
        trust_cert_path=files / "elector.pem",
        need_client_auth="require",
        **more,
    )


def client_tls(files: Path, name="elector", trusted=NAME):
    cert = files / f"{name}.pem" if name else None
    return TlsSettings(enable=True, cert_path=cert, trust_cert_path=files / f"{trusted}.pem")


async def status(port, tls, name=NAME):
    client = MemberClient(f"127.0.0.1:{port}", TARGET, tls=tls, tls_name=name)
    try:
        return await client.status(timeout_ms=60_000)
    finally:
        await client.close()


@pytest.fixture
async def secure(member, files):
    server = ControlServer(member, tls=server_tls(files))
    await server.start("127.0.0.1", 0)
    yield server
    await server.stop()


async def test_both_ends_verify_each_other(member, secure, files):
    assert await status(secure.port, client_tls(files)) == member.now


@pytest.mark.parametrize(
    "tls",
    [
        lambda files: None,
        lambda files: client_tls(files, name=None),
        lambda files: client_tls(files, name="stranger"),
        lambda files: client_tls(files, trusted="stranger"),
    ],
    ids=["plain", "without certificate", "unknown certificate", "untrusted server"],
)
async def test_others_are_refused(secure, files, tls):
    with pytest.raises(MemberUnreachable):
        await status(secure.port, tls(files))


@pytest.mark.parametrize("keys", [(), (b"k" * 32,), (b"w" * 32,)], ids=["none", "right", "wrong"])
async def test_a_certificate_that_the_member_demands_is_a_proof_too(member, files, keys):
    server = ControlServer(member, tls=server_tls(files), keys=lambda: (b"k" * 32,))
    await server.start("127.0.0.1", 0)
    client = MemberClient(
        f"127.0.0.1:{server.port}", TARGET, tls=client_tls(files), tls_name=NAME, keys=lambda: keys
    )
    try:
        if keys == (b"w" * 32,):  # a caller with a key wants a proof of it, and gets none
            with pytest.raises(MemberUnproven):
                await client.status(timeout_ms=60_000)
        else:
            assert (await client.status(timeout_ms=60_000)).group == "orders"
    finally:
        await client.close()
        await server.stop()


async def test_the_name_in_the_certificate_is_compared(secure, files):
    with pytest.raises(MemberUnreachable):
        await status(secure.port, client_tls(files), name="member-2")


async def test_replaced_files_are_used_and_broken_ones_are_not(member, secure, files):
    (files / "elector.pem").write_text("nonsense")
    tls = client_tls(files, name="stranger")
    with pytest.raises(MemberUnreachable):
        await status(secure.port, tls)
    (files / "elector.pem").write_text((files / "stranger.pem").read_text())
    assert await status(secure.port, tls) == member.now


def test_unusable_settings_are_named(files):
    with pytest.raises(SettingsError, match=r"tls\.server\.certPath=.*missing\.pem: No such file"):
        server_credentials(TlsSettings(test_mode=False, cert_path=files / "missing.pem"))
    with pytest.raises(SettingsError, match=r"tls\.client\.trustCertPath=.*missing"):
        channel_credentials(TlsSettings(enable=True, trust_cert_path=files / "missing"))
    with pytest.raises(SettingsError, match=r"tls\.server\.trustCertPath, set it"):
        server_credentials(
            TlsSettings(
                test_mode=False, cert_path=files / f"{NAME}.pem", need_client_auth="require"
            )
        )
    with pytest.raises(SettingsError, match=r"tls\.server\.keyPassword: .* unencrypted"):
        server_credentials(server_tls(files, key_password="secret"))
    for settings in (
        TlsSettings(mode=TlsMode.ENFORCING),
        TlsSettings(need_client_auth="require"),
    ):
        with pytest.raises(SettingsError, match=r"set tls\.server\.certPath"):
            server_credentials(settings)


def test_tls_is_off_without_a_certificate_or_by_settings(files):
    assert server_credentials(TlsSettings()) is None
    assert server_credentials(TlsSettings(mode=TlsMode.DISABLED)) is None
    assert channel_credentials(TlsSettings()) is None
